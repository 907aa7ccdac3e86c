"""`loadmaster simulate` and its like against a real server on a real socket."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

from controlplane.loop.live.solver import solve_here
from controlplane.studies.models import Simulation
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_cli import run
from tests.builders_jobs import a_token
from tests.builders_studies import REPORT, a_done_simulation, a_study


@pytest.fixture(autouse=True)
def ada(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> User:
    user = a_user("ada", team=a_team("vision"))
    monkeypatch.setenv("LOADMASTER_URL", live_server.url)
    monkeypatch.setenv("LOADMASTER_TOKEN", a_token(user))
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr("controlplane.studies.services.hint_simulations", lambda: None)
    return user


def a_file(folder: Path, **fields: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(a_study(**fields)))
    return path


def over(monkeypatch: pytest.MonkeyPatch, user: User, **values: Any) -> Simulation:
    """What is asked for is over at once."""
    made = a_done_simulation(user, **values)
    monkeypatch.setattr("controlplane.studies.rest.api.services.simulation_create", lambda *_: made)
    return made


def test_a_study_is_sent_with_its_trace_and_its_cluster(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("arrival_s,run_s\n0,60\n")
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(a_study()["cluster"]))
    path = a_file(tmp_path, cluster="lab.yaml", workload={"type": "csv", "path": "trace.csv"})
    done = run("simulate", path)
    assert done.exit_code == 0, done.output
    made = Simulation.objects.get()
    assert made.document["workload"] == {
        "type": "csv",
        "name": "trace.csv",
        "text": "arrival_s,run_s\n0,60\n",
    }
    assert f"/simulations/{made.pk}/" in done.output


def test_gavels_tables_are_sent_with_its_trace(tmp_path: Path) -> None:
    line = "\t".join(
        [
            "ResNet-18",
            "python3 main.py",
            "images",
            "--steps",
            "0",
            "100",
            "1",
            "static",
            "1",
            "-1",
            "0.0",
        ]
    )
    tables = json.dumps({"v100": {"('ResNet-18', 1)": {"null": 2.0}}})
    (tmp_path / "a.trace").write_text(f"{line}\n")
    (tmp_path / "tables.json").write_text(tables)
    path = a_file(
        tmp_path,
        workload={"type": "gavel", "path": "a.trace", "throughputs": "tables.json", "name": "mine"},
    )
    assert run("simulate", path).exit_code == 0
    assert Simulation.objects.get().document["workload"] == {
        "type": "gavel", "name": "mine", "text": f"{line}\n", "tables": tables,
    }  # fmt: skip


def test_waiting_ends_with_the_report_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ada: User
) -> None:
    over(monkeypatch, ada)
    report = tmp_path / "report.html"
    done = run("simulate", a_file(tmp_path), "--wait", "--report", report)
    assert done.exit_code == 0, done.output
    assert report.read_text() == REPORT


def test_one_that_fails_exits_1_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ada: User
) -> None:
    over(monkeypatch, ada, state="failed", message="workload: line 3 [bold]is[/bold] wrong")
    done = run("simulate", a_file(tmp_path), "--wait")
    assert done.exit_code == 1
    assert "line 3 [bold]is[/bold] wrong" in done.output


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"policies": [{"name": "best"}]}, "known are"),
        ({"workload": {"type": "csv", "path": "no.csv"}}, "cannot be read"),
        ({"cluster": "twice.yaml"}, "line 2: 'name' is given twice"),
    ],
)
def test_a_wrong_study_exits_2_naming_what_is_wrong(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    (tmp_path / "twice.yaml").write_text("name: a\nname: b\n")
    done = run("simulate", a_file(tmp_path, **fields))
    assert done.exit_code == 2
    assert words in done.output


def test_simulations_are_listed_cancelled_removed_and_reported(tmp_path: Path, ada: User) -> None:
    done = a_done_simulation(ada)
    run("simulate", a_file(tmp_path))
    listed = json.loads(run("simulation", "list", "--json").stdout)
    assert [s["state"] for s in listed] == ["queued", "done"]
    assert "is cancelled" in run("simulation", "cancel", listed[0]["id"][:8]).output
    report = tmp_path / "own.html"
    assert run("simulation", "report", str(done.pk)[:8], report).exit_code == 0
    assert report.read_text() == REPORT
    assert run("simulation", "delete", done.pk).exit_code == 0
    assert (
        "no simulations begin with" in run("simulation", "report", str(done.pk)[:8], report).output
    )


def test_what_if_tells_what_would_change(monkeypatch: pytest.MonkeyPatch, ada: User) -> None:
    monkeypatch.setattr("controlplane.studies.what_if.decide.solve_apart", solve_here)
    cluster = a_cluster(name="lab")
    a_node(cluster, name="volta")
    a_job(cluster, name="digits", team=ada.teams.get())
    done = run("what-if", "lab", "randomized_greedy", "--set", "iterations=5")
    assert done.exit_code == 0, done.output
    assert "start" in done.output
    assert "volta (GPU 0)" in done.output
    assert run("what-if", "lab", "best").exit_code == 2
