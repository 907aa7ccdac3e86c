"""Processes of a study: the study's own, and one for each of its runs."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from controlplane.studies.running.child import NICE
from controlplane.studies.running.process import StudyProcess
from tests.builders_outcomes import a_study_document
from tests.builders_processes import is_running

PATIENCE_S = 60.0


@pytest.fixture
def study(tmp_path: Path) -> Iterator[StudyProcess]:
    """A study that takes long, with one run at a time."""
    workload = {"type": "andreas", "nodes": 2, "jobs": 100_000}
    document = a_study_document(workload=workload, seeds=[1], policies=["fifo"])
    (tmp_path / "study.json").write_text(json.dumps(document))
    with StudyProcess(tmp_path, processes=1, memory_gb=64.0) as process:
        yield process


def run_of(study: StudyProcess) -> psutil.Process:
    """The process of the run, once it has set its limits and says how far it is."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not re.search(r" [1-9]\d*%$", study.listen(0.1).message):
        assert time.monotonic() < deadline_s, study.status
    (run,) = psutil.Process(study.pid).children()
    return run


def test_sessions_of_study_and_run_are_nice(study: StudyProcess) -> None:
    run = run_of(study)
    nice = min(19, os.nice(0) + NICE)
    for pid in (study.pid, run.pid):
        assert psutil.Process(pid).nice() == nice
        group = Path(f"/proc/{pid}/autogroup")
        assert not group.exists() or group.read_text().split()[-2:] == ["nice", str(nice)]


def test_memory_limit_of_a_study_holds_for_its_run(study: StudyProcess) -> None:
    limit = 64 * 10**9
    assert run_of(study).rlimit(psutil.RLIMIT_DATA) == (limit, limit)


def test_run_ends_with_its_study(study: StudyProcess) -> None:
    run = run_of(study)
    study.close()
    deadline_s = time.monotonic() + PATIENCE_S
    while is_running(run):
        assert time.monotonic() < deadline_s, "the run outlived its study"
        time.sleep(0.05)
