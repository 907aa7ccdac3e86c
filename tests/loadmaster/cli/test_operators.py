"""What operators ask of the command line: an empty node, a kind measured anew."""

import json

import pytest
from pytest_django.live_server_helper import LiveServer
from typer.testing import CliRunner

from jobs.models import AssignmentSlot, Kind
from loadmaster.cli.main import app
from profiling.models import Profile
from tests.builders import a_cluster, a_job, a_kind, a_node, a_user
from tests.builders_jobs import a_placement, a_token


@pytest.fixture(autouse=True)
def _operator(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_URL", live_server.url)
    monkeypatch.setenv("LOADMASTER_TOKEN", a_token(a_user(operator=True)))
    monkeypatch.setenv("COLUMNS", "200")


def test_a_drain_that_waits_ends_when_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster()
    a_placement(a_job(cluster), a_node(cluster, name="volta"))
    looks = []

    def everything_ends(_: float) -> None:
        looks.append(AssignmentSlot.objects.filter(live=True).update(live=False))

    monkeypatch.setattr("loadmaster.cli.nodes.sleep", everything_ends)
    done = CliRunner().invoke(app, ["drain", "volta", "--reason", "power", "--wait"])
    assert (done.exit_code, looks) == (0, [1]), done.output
    assert "volta is empty" in done.stdout


def test_a_drain_that_does_not_wait_ends_at_once() -> None:
    cluster = a_cluster()
    a_placement(a_job(cluster), a_node(cluster, name="volta"))
    done = CliRunner().invoke(app, ["drain", "volta"])
    assert (done.exit_code, done.stdout) == (0, "volta is draining, for production\n")


def test_kinds_are_listed_with_their_numbers_and_where_these_come_from() -> None:
    a_job(a_cluster(), kind=a_kind("convnet", steps_per_s={("V100", 1): 12.5}))
    a_job(a_cluster(), kind=a_kind("unknown"))
    done = CliRunner().invoke(app, ["kind", "list"])
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "convnet 1 x V100 12.5 measured" in lines
    assert any(line.startswith("unknown") and line.endswith("nothing is known") for line in lines)
    assert {
        k["name"] for k in json.loads(CliRunner().invoke(app, ["kind", "list", "--json"]).stdout)
    } == {"convnet", "unknown"}


def test_a_kind_is_forgotten_by_its_name() -> None:
    kind = a_kind("convnet", steps_per_s={("V100", 1): 12.5})
    a_job(a_cluster(), kind=kind)
    done = CliRunner().invoke(app, ["kind", "forget", "convnet"])
    assert done.exit_code == 0, done.output
    assert "convnet will be measured anew" in done.stdout
    assert list(Profile.objects.values_list("source", flat=True)) == ["estimated"]


def test_a_name_that_no_kind_or_several_have_is_refused() -> None:
    for kind in (a_kind("twice"), a_kind("other")):
        a_job(a_cluster(), kind=kind)
    Kind.objects.update(name="twice")
    assert CliRunner().invoke(app, ["kind", "forget", "twice"]).exit_code == 2
    assert "there is no kind mine" in CliRunner().invoke(app, ["kind", "forget", "mine"]).stderr
