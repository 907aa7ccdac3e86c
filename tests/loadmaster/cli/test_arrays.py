"""Arrays on the command line: one row for each, and elements by ARRAY_3 or NAME[3]."""

from pathlib import Path

import pytest
import yaml
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

from clusters.models import Node
from jobs.models import Job, JobArray
from tests.builders import a_cluster, a_node, a_team, a_user
from tests.builders_cli import answer, run
from tests.builders_jobs import a_placement, a_token, job_fields, output


@pytest.fixture
def node(transactional_db: None) -> Node:
    return a_node(a_cluster(name="lab"), name="volta", gpus=2)


@pytest.fixture(autouse=True)
def user(
    node: Node, live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> User:
    user = a_user("ada", team=a_team("research"))
    given = {"URL": live_server.url, "TOKEN": a_token(user)}
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "250")
    for name, value in given.items():
        monkeypatch.setenv(f"LOADMASTER_{name}", value)
    return user


def submitted(folder: Path, array: str = "0-4%2") -> JobArray:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job_fields(name="sweep", steps=None)))
    done = run("submit", path, "--array", array)
    assert done.exit_code == 0, done.output
    return JobArray.objects.get(pk=done.stdout.strip())


def states() -> list[str]:
    return list(Job.objects.order_by("array_index").values_list("state", flat=True))


def test_submit_makes_an_array_and_prints_its_id(tmp_path: Path) -> None:
    array = submitted(tmp_path)
    assert (str(array), array.jobs.count()) == ("0-4%2", 5)


def test_a_bad_array_names_its_field(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job_fields(array="3-1")))
    done = run("submit", path)
    assert (done.exit_code, "array: 3-1 runs backwards" in done.stderr) == (2, True)


def test_an_array_is_one_row_that_unfolds(tmp_path: Path) -> None:
    array = submitted(tmp_path)
    array.jobs.filter(array_index=0).update(state="running")
    lines = run("jobs").stdout.strip().splitlines()
    assert len(lines) == 2
    assert str(array.pk)[:8] in lines[1]
    assert "sweep[0-4%2]" in lines[1]
    assert "4 queued, 1 running" in lines[1]
    assert "sweep[3]" in run("jobs", "--array", "sweep").stdout
    assert len(answer("jobs", "--array", array.pk)) == 5


@pytest.mark.parametrize("form", ["{array}_3", "{array}[3]", "{short}_3", "sweep_3", "sweep[3]"])
def test_an_element_is_named_by_its_index(tmp_path: Path, form: str) -> None:
    array = submitted(tmp_path)
    name = form.format(array=array.pk, short=str(array.pk)[:8])
    assert answer("show", name)["array"]["index"] == 3
    assert "sweep[3] is cancelled" in run("cancel", name).stdout
    assert states() == ["queued"] * 3 + ["cancelled", "queued"]


def test_actions_on_an_array_reach_all_its_elements(tmp_path: Path) -> None:
    array = submitted(tmp_path)
    assert "5 of 5 elements" in run("hold", array.pk).stdout
    assert states() == ["held"] * 5
    assert answer("release", "sweep")["changed"] == 5
    assert answer("cancel", str(array.pk)[:8])["states"] == {"cancelled": 5}
    assert answer("requeue", array.pk)["changed"] == 5
    assert "5 queued" in run("show", array.pk).stdout


def test_the_log_of_an_element_is_printed(tmp_path: Path, node: Node) -> None:
    array = submitted(tmp_path)
    output(a_placement(array.jobs.get(array_index=3), node, gpus=0), b"third\n")
    array.jobs.filter(array_index=3).update(state="completed")
    assert run("logs", f"{array.pk}_3").stdout == "third\n"
    whole = run("logs", array.pk)
    assert whole.exit_code == 1
    assert "is an array; name one of its elements" in whole.stderr


def test_an_index_that_the_array_lacks_is_said(tmp_path: Path) -> None:
    submitted(tmp_path, "0-8:2")
    done = run("cancel", "sweep_3")
    assert (done.exit_code, "indices are 0-8:2" in done.stderr) == (1, True)
    assert run("cancel", "nothing_3").exit_code == 1


def test_watching_an_array_tells_how_it_ended(tmp_path: Path) -> None:
    array = submitted(tmp_path)
    array.jobs.update(state="completed")
    path = tmp_path / "job.yaml"
    done = run("submit", path, "--array", "0-4%2", "--key", "k")
    assert done.exit_code == 0
    JobArray.objects.exclude(pk=array.pk).get().jobs.update(state="failed")
    assert run("submit", path, "--array", "0-4%2", "--key", "k", "--watch").exit_code == 1
