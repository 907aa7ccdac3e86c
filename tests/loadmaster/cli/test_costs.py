"""`loadmaster costs` against a real server on a real socket."""

import json

import pytest
from pytest_django.live_server_helper import LiveServer
from typer.testing import CliRunner

from controlplane.accounting.ledger import bill
from loadmaster.cli.main import app
from tests.builders import a_job, a_team, a_user
from tests.builders_costs import a_priced_cluster, a_v100_node, some_work
from tests.builders_jobs import a_token

MAY = ("--from", "2026-05-01", "--to", "2026-05-02")


@pytest.fixture(autouse=True)
def _work(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    node = a_v100_node(a_priced_cluster(name="main"))
    bill(
        some_work(
            node, (0, 2), job=a_job(node.cluster, team=a_team("vision")), predicted_power_w=700.0
        )
    )
    monkeypatch.setenv("LOADMASTER_URL", live_server.url)
    monkeypatch.setenv("LOADMASTER_TOKEN", a_token(a_user(operator=True)))


def test_costs_are_shown_with_their_total() -> None:
    done = CliRunner().invoke(app, ["costs", *MAY])
    assert done.exit_code == 0, done.output
    assert "vision" in done.output
    assert "total" in done.output
    assert "1.400" in done.output


def test_costs_come_as_json_too() -> None:
    done = CliRunner().invoke(app, ["costs", "--by", "job", *MAY, "--json"])
    answer = json.loads(done.stdout)
    assert answer["total"]["kwh"] == pytest.approx(1.4)
    assert answer["rows"][0]["team"] == "vision"


def test_a_wrong_question_exits_2_naming_its_field() -> None:
    done = CliRunner().invoke(app, ["costs", "--by", "colour"])
    assert done.exit_code == 2
    assert "by: must be one of hour, day, node, team, job" in done.output
