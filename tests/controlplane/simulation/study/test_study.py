import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.simulation.study.results import CSV_COLUMNS
from controlplane.simulation.study.study import (
    Study,
    StudyBusyError,
    StudyError,
    StudyProgress,
    run_study,
)
from tests.builders_outcomes import a_study_document

SAME = ("results.json", "jobs.csv", "report.html")

BROKEN = '''
from __future__ import annotations
import os, pathlib, signal
from dataclasses import dataclass
from loadmaster.policy_api import Plan, Snapshot, parameter
from policies.baselines.fifo import Fifo

@dataclass(frozen=True, slots=True)
class Broken:
    """Does what `how` says."""
    how: str = parameter(
        "raise", meaning="how it breaks", choices=("raise", "killed", "exit", "print")
    )
    def __call__(self, snapshot: Snapshot) -> Plan:
        if self.how == "raise":
            raise ZeroDivisionError("oh no")
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exit":
            os._exit(3)
        print('{"error": "printed"}', flush=True)
        return Fifo()(snapshot)
'''


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that was run without any interruption, in this process."""
    folder = tmp_path_factory.mktemp("whole")
    run_study(Study.of(a_study_document()), folder, processes=0)
    return folder


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.py"
    path.write_text(BROKEN)
    return path


def results(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "results.json").read_text())
    assert isinstance(found, dict)
    return found


def assert_same(one: Path, other: Path) -> None:
    for name in SAME:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_the_same_study_gives_the_same_bytes_in_processes_of_its_own_as_in_this_one(
    whole: Path, tmp_path: Path
) -> None:
    report = run_study(Study.of(a_study_document()), tmp_path, processes=2)
    assert report == tmp_path / "report.html"
    assert_same(whole, tmp_path)
    assert not list(tmp_path.glob("runs/*.log"))


def test_results_hold_every_figure_of_every_run_and_their_means(whole: Path) -> None:
    found = results(whole)
    fifo = found["policies"][0]
    costs = [run["total_cost"] for run in fifo["runs"]]
    assert [run["seed"] for run in fifo["runs"]] == [1, 2]
    assert all(run["completed"] == 10 and run["unfinished"] == 0 for run in fifo["runs"])
    assert fifo["mean"]["total_cost"]["mean"] == pytest.approx(sum(costs) / 2)
    assert fifo["mean"]["total_cost"]["half_width"] == pytest.approx(
        12.7062 * abs(costs[0] - costs[1]) / 2, rel=1e-4
    )
    assert fifo["total_cost_against_first"] == {"mean": 0.0, "half_width": 0.0, "n": 2}
    assert found["study"] == Study.of(a_study_document()).document
    assert found["switches_on"] == {}
    assert found["workloads"][0]["facts"]["tuning"] == 1.0
    assert "decision_mean_s" not in (whole / "results.json").read_text()


def test_jobs_csv_has_a_line_for_every_job_of_every_run(whole: Path) -> None:
    with (whole / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert len(rows) == 2 * 2 * 10
    first = rows[0]
    assert (first["policy"], first["seed"], first["job"]) == ("fifo", "1", "J1")
    assert float(first["jct_s"]) == float(first["completion_s"]) - float(first["arrival_s"])


def test_timings_are_apart_with_the_seconds_of_every_decision(whole: Path) -> None:
    runs = json.loads((whole / "timings.json").read_text())["runs"]
    assert [(run["policy"], run["seed"]) for run in runs] == [
        ("fifo", 1),
        ("edf", 1),
        ("fifo", 2),
        ("edf", 2),
    ]
    assert all(
        0.0 < run["decision_p50_s"] <= run["decision_p99_s"] <= run["decision_max_s"]
        for run in runs
    )


def test_an_interrupted_study_goes_on_where_it_was(whole: Path, tmp_path: Path) -> None:
    study = Study.of(a_study_document())
    told: list[StudyProgress] = []

    def interrupt(progress: StudyProgress) -> None:
        if progress.finished >= 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run_study(study, tmp_path, processes=0, on_progress=interrupt)
    there = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*.npz")}
    assert 1 <= len(there) < 4
    assert not (tmp_path / "report.html").exists()
    (tmp_path / "runs" / ".half.npz.1.part").write_bytes(b"half")
    run_study(study, tmp_path, processes=0, on_progress=told.append)
    assert told[0].finished == len(there)
    assert {path: path.stat().st_mtime_ns for path in there} == there
    assert not list(tmp_path.glob("runs/.*"))
    assert_same(whole, tmp_path)


def test_a_file_of_a_run_that_is_torn_is_made_again(whole: Path, tmp_path: Path) -> None:
    study = Study.of(a_study_document())
    run_study(study, tmp_path, processes=0)
    (tmp_path / "runs" / f"{study.runs()[0].key}.npz").write_bytes(b"PK torn")
    run_study(study, tmp_path, processes=0)
    assert_same(whole, tmp_path)


def test_an_interruption_ends_the_processes(tmp_path: Path) -> None:
    document = a_study_document(workload={"type": "andreas", "nodes": 2, "jobs": 100_000})
    began_s = time.monotonic()

    def interrupt(_: StudyProgress) -> None:
        if time.monotonic() - began_s > 1.0:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run_study(Study.of(document), tmp_path, processes=2, on_progress=interrupt)
    assert not [pid for pid in children_of(os.getpid()) if b"run_one" in command_of(pid)]


def children_of(process: int) -> Iterator[int]:
    for task in Path(f"/proc/{process}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_runs_that_fail_are_errors_of_their_own_and_are_tried_again(
    broken: Path, tmp_path: Path
) -> None:
    policies = [
        "fifo",
        *(
            {"file": str(broken), "label": how, "parameters": {"how": how}}
            for how in ("raise", "killed", "exit")
        ),
    ]
    document = a_study_document(policies=policies, seeds=[1])
    run_study(Study.of(document, trusted=True), tmp_path / "out", processes=2)
    found = results(tmp_path / "out")
    messages = {f["policy"]: f["message"] for f in found["failures"]}
    assert list(messages) == ["raise", "killed", "exit"]
    assert "ZeroDivisionError: oh no" in messages["raise"]
    assert messages["killed"] == "its process was killed by SIGKILL"
    assert "its process ended with 3" in messages["exit"]
    assert len(found["policies"][0]["runs"]) == 1
    assert found["policies"][1]["runs"] == []
    assert "3 of 4 runs failed" in (tmp_path / "out" / "report.html").read_text()
    broken.write_text(BROKEN.replace("if self.how", "if False and self.how"))
    run_study(Study.of(document, trusted=True), tmp_path / "out", processes=0)
    assert results(tmp_path / "out")["failures"] == []


def test_what_a_policy_prints_disturbs_nobody(broken: Path, tmp_path: Path) -> None:
    policies = [{"file": str(broken), "parameters": {"how": "print"}}]
    run_study(
        Study.of(a_study_document(policies=policies, seeds=[1]), trusted=True),
        tmp_path / "out",
        processes=1,
    )
    assert results(tmp_path / "out")["failures"] == []


@pytest.mark.parametrize("processes", [0, 1])
def test_bad_lines_of_a_trace_stop_the_study_with_their_numbers(
    tmp_path: Path, processes: int
) -> None:
    workload = {"type": "csv", "text": "id,arrival_s,run_s\na,0,60\nb,1,minus\n"}
    with pytest.raises(StudyError, match=r"(?s)workload: .*line 3"):
        run_study(Study.of(a_study_document(workload=workload)), tmp_path, processes=processes)


def test_skipped_lines_are_counted_and_listed(tmp_path: Path) -> None:
    workload = {"type": "csv", "text": "id,arrival_s,run_s\na,0,60\nb,1,<b>minus</b>\n"}
    run_study(
        Study.of(a_study_document(workload=workload, skip_bad=True, seeds=[1])),
        tmp_path,
        processes=0,
    )
    (found,) = results(tmp_path)["workloads"]
    assert (found["jobs"], found["skipped"], found["skipped_lines"][0]["line"]) == (1, 1, 3)
    page = (tmp_path / "report.html").read_text()
    assert "1 line of the workload skipped" in page
    assert "&lt;b&gt;minus" in page
    assert "<b>minus" not in page


def test_a_job_that_no_node_can_run_is_reported_with_its_reason_and_not_waited_for(
    tmp_path: Path,
) -> None:
    workload = {"type": "csv", "text": "id,arrival_s,run_s,gpus\na,0,60,1\nhuge,1,60,64\n"}
    run_study(Study.of(a_study_document(workload=workload, seeds=[1])), tmp_path, processes=0)
    found = results(tmp_path)
    (one,) = found["workloads"][0]["unplaceable_jobs"]
    assert one["job"] == "huge"
    assert [(p["runs"][0]["completed"], p["runs"][0]["unfinished"]) for p in found["policies"]] == [
        (1.0, 1.0),
        (1.0, 1.0),
    ]
    assert "huge: " in (tmp_path / "report.html").read_text()


def test_two_studies_do_not_share_a_folder(tmp_path: Path) -> None:
    study = Study.of(a_study_document(seeds=[1]))
    seen: list[str] = []

    def meanwhile(_: StudyProgress) -> None:
        with pytest.raises(StudyBusyError, match="another process") as error:
            run_study(study, tmp_path, processes=0)
        seen.append(str(error.value))

    run_study(study, tmp_path, processes=0, on_progress=meanwhile)
    assert seen


def test_progress_ends_with_everything_done(tmp_path: Path) -> None:
    told: list[StudyProgress] = []
    run_study(Study.of(a_study_document()), tmp_path, processes=0, on_progress=told.append)
    assert (told[0].total, told[0].finished, told[0].left_s) == (4, 0, None)
    assert (told[-1].finished, told[-1].fraction, told[-1].left_s, told[-1].running) == (
        4,
        1.0,
        0.0,
        (),
    )


PARENT = """
import json, sys
from pathlib import Path
from controlplane.simulation.study.study import Study, run_study
folder = Path(sys.argv[1])
study = Study.of(json.loads(sys.argv[2]))
run_study(study, folder, processes=1, on_progress=lambda _: print("x", flush=True))
"""


@pytest.mark.slow
def test_a_childs_process_dies_with_its_parent(tmp_path: Path) -> None:
    document = a_study_document(
        workload={"type": "andreas", "nodes": 2, "jobs": 100_000}, seeds=[1], policies=["fifo"]
    )
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), json.dumps(document)], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.read(1) == b"x"
        (child,) = children_of(parent.pid)
        until(lambda: b"run_one" in command_of(child), "the child has begun")
        parent.kill()
    until(lambda: b"run_one" not in command_of(child), "the child has ended")


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for it. A process that is being started or has ended has no command line."""
    deadline_s = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)
