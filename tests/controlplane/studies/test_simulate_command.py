import csv
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command

from tests.builders import a_cluster, a_job, a_kind, a_node
from tests.builders_outcomes import A_CLUSTER, a_study_document
from tests.builders_pages import a_busy_cluster

Simulate = Callable[..., tuple[str, str]]


@pytest.fixture
def simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """Runs the command in a folder with a cluster's file, in this process; returns its output and
    its errors.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(dict(A_CLUSTER)))

    def run(*words: str) -> tuple[str, str]:
        out, err = StringIO(), StringIO()
        call_command("simulate", *words, "--processes", "0", stdout=out, stderr=err)
        return out.getvalue(), err.getvalue()

    return run


BROKEN = """
from __future__ import annotations
from dataclasses import dataclass
from loadmaster.policy_api import Plan, Snapshot

@dataclass(frozen=True)
class Broken:
    def __call__(self, snapshot: Snapshot) -> Plan:
        raise ValueError("no idea")
"""
SMALL = ("--cluster", "cluster.yaml", "--workload", "andreas:nodes=2,jobs=4", "--policy", "fifo")


def results(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "results.json").read_text())
    assert isinstance(found, dict)
    return found


def test_a_study_by_options(simulate: Simulate, tmp_path: Path) -> None:
    words = (
        "--cluster cluster.yaml --workload andreas:nodes=2,jobs=6 --policy fifo --policy"
        " randomized_greedy:iterations=5"
    )
    out, err = simulate(
        *words.split(), "--seeds", "1-2", "--switch", "stop_s=3", "--name", "By options"
    )
    found = results(tmp_path / "simulation")
    assert found["study"]["workload"] == {"type": "andreas", "nodes": 2, "jobs": 6}
    assert [p["parameters"] for p in found["study"]["policies"]] == [{}, {"iterations": 5}]
    assert (found["study"]["seeds"], found["switches_on"]) == ([1, 2], {"stop_s": 3.0})
    assert "By options (EUR)" in out
    assert "Report: simulation/report.html" in out
    assert "100.0%  4 of 4 runs are finished" in err


def test_names_are_shown_as_they_are_whatever_signs_they_have(
    simulate: Simulate, tmp_path: Path
) -> None:
    policies = [{"name": "fifo", "label": "[/bold] [red]"}]
    document = a_study_document(cluster="cluster.yaml", name="[/i]", policies=policies, seeds=[1])
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(document))
    out, _ = simulate("study.yaml")
    assert "[/i] (EUR)" in out
    assert "[/bold] [red]" in out


STARVING = """
from dataclasses import dataclass
from loadmaster.policy_api import Plan, PlanStatus, Snapshot, WaitCode, Waiting

@dataclass(frozen=True)
class Starving:
    def __call__(self, snapshot: Snapshot) -> Plan:
        waiting = tuple(Waiting(job.id, WaitCode.POSTPONED) for job in snapshot.jobs)
        return Plan("starving", PlanStatus.HEURISTIC, (), waiting)
"""


def test_the_table_shows_unfinished_jobs_and_skipped_lines(
    simulate: Simulate, tmp_path: Path
) -> None:
    (tmp_path / "starving.py").write_text(STARVING)
    (tmp_path / "trace.csv").write_text("id,arrival_s,run_s\na,0,60\nb,1,minus\n")
    words = "--cluster cluster.yaml --workload trace.csv --skip-bad --policy fifo"
    out, _ = simulate(*words.split(), "--policy", "starving.py")
    assert "unfinished" in out
    assert "starving left jobs unfinished (such as a)" in out
    assert "1 bad line of the trace left out" in out
    done, starved = results(tmp_path / "simulation")["policies"]
    assert [p["mean"]["unfinished"]["mean"] for p in (done, starved)] == [0.0, 1.0]
    charged = pytest.approx(done["mean"]["total_cost"]["mean"])
    assert starved["mean"]["total_cost"]["mean"] == charged


def test_options_stand_over_what_the_file_says(simulate: Simulate, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(a_study_document(cluster="cluster.yaml")))
    simulate("study.yaml", "--seeds", "7", "--policy", "priority", "--output", "elsewhere")
    study = results(tmp_path / "elsewhere")["study"]
    assert (study["seeds"], [p["name"] for p in study["policies"]]) == ([7], ["priority"])
    assert study["workload"]["jobs"] == 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "cluster: is missing"),
        ("none.yaml", "none.yaml cannot be read"),
        ("--cluster none.yaml", "none.yaml cannot be read"),
        (
            "--cluster cluster.yaml --workload andreas --policy fiffo",
            "policies[0]: 'fiffo': no such policy; known are: ",
        ),
        (
            "--cluster cluster.yaml --workload andreas --policy randomized_greedy:alpa=1",
            "policies[0]: alpa: no such parameter; known are: ",
        ),
        (
            "--cluster cluster.yaml --workload andreass --policy fifo",
            "workload.type: must be one of andreas, ",
        ),
        ("--cluster cluster.yaml --workload andreas:tunning=1 --policy fifo", "tunning"),
        (
            "--cluster cluster.yaml --workload andreas --policy fifo --switch stop=1",
            "switches.stop: no such field; known are: launch_s, ",
        ),
        (
            "--cluster cluster.yaml --workload andreas --policy fifo --seeds x",
            "seeds: write 1,2,3 or 1-5",
        ),
        (
            "--cluster cluster.yaml --workload history --policy fifo",
            "workload: a history is a live cluster's",
        ),
        (
            "--cluster cluster.yaml --workload queue --policy fifo",
            "workload: a queue is a live cluster's",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_its_field(
    simulate: Simulate, words: str, message: str
) -> None:
    with pytest.raises(CommandError) as error:
        simulate(*words.split())
    assert message in str(error.value)
    assert error.value.returncode == 2


def test_runs_that_fail_are_named_and_the_others_are_there(
    simulate: Simulate, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    with pytest.raises(
        CommandError, match=r"(?s)1 runs failed.*broken, seed 1: .*no idea"
    ) as error:
        simulate(*SMALL, "--policy", "broken.py")
    assert error.value.returncode == 1
    assert len(results(tmp_path / "simulation")["policies"][0]["runs"]) == 1


@pytest.mark.django_db
def test_a_live_cluster_and_what_was_submitted_to_it(simulate: Simulate, tmp_path: Path) -> None:
    cluster = a_cluster(name="live one")
    a_node(cluster, gpus=2)
    kind = a_kind(steps_per_s={("V100", 1): 1.0})
    for _ in range(3):
        a_job(cluster, kind=kind)
    simulate("--cluster", "live", "--workload", "history:days=2", "--policy", "fifo")
    found = results(tmp_path / "simulation")
    assert (found["study"]["cluster"]["name"], found["workloads"][0]["jobs"]) == ("live one", 3)
    assert found["policies"][0]["runs"][0]["completed"] == 3
    simulate("simulation/study.json", "--output", "again")
    assert (tmp_path / "again" / "results.json").read_bytes() == (
        tmp_path / "simulation" / "results.json"
    ).read_bytes()


@pytest.mark.django_db
def test_a_live_clusters_queue_goes_on_from_where_it_is(simulate: Simulate, tmp_path: Path) -> None:
    demo = a_busy_cluster()
    with pytest.raises(CommandError, match=r"workload.days: no such option of a queue"):
        simulate("--cluster", "live", "--workload", "queue:days=2", "--policy", "fifo")
    simulate("--cluster", "live", "--workload", "queue", "--policy", "fifo", "--policy", "edf")
    found = results(tmp_path / "simulation")
    assert (
        found["workloads"][0]["facts"]["note"]
        == "3 running and 1 waiting; 1 left out, as their speed is not known yet"
    )
    assert [policy["runs"][0]["completed"] for policy in found["policies"]] == [4, 4]
    listed = list(csv.DictReader((tmp_path / "simulation" / "jobs.csv").read_text().splitlines()))
    live = {str(pk) for pk in (demo.running.pk, demo.waiting.pk)}
    assert live <= {line["job"] for line in listed}


@pytest.mark.django_db
def test_a_queue_of_nothing_is_refused(simulate: Simulate) -> None:
    a_node(a_cluster(name="idle"))
    with pytest.raises(CommandError, match="no job of idle that waits or runs now"):
        simulate("--cluster", "live", "--workload", "queue", "--policy", "fifo")


@pytest.mark.django_db
def test_which_live_cluster_must_be_said_where_there_are_several(simulate: Simulate) -> None:
    with pytest.raises(CommandError, match="there is no live cluster yet"):
        simulate("--cluster", "live", "--workload", "andreas", "--policy", "fifo")
    for name in ("one", "two"):
        a_cluster(name=name)
    with pytest.raises(CommandError, match="--cluster: say which, live:NAME"):
        simulate("--cluster", "live", "--workload", "andreas", "--policy", "fifo")
    with pytest.raises(CommandError, match=r"no cluster 'three'.*one, two"):
        simulate("--cluster", "live:three", "--workload", "andreas", "--policy", "fifo")


def test_a_folder_that_cannot_be_written_is_named(simulate: Simulate, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(CommandError, match="--output: taken cannot be written"):
        simulate(*SMALL, "--output", "taken")
