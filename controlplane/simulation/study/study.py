"""Runs a study: every policy with every seed, some at a time, then the files in which people read
what came of it.

A folder belongs to one study at a time. Every finished run is a file of its own, so that a study
that was interrupted, by whatever, goes on where it was when it is run again in the same folder.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from zipfile import is_zipfile

from controlplane.simulation.study.children import Child, Failure
from controlplane.simulation.study.document import Run, Study, StudyError
from controlplane.simulation.study.progress import Board, RunProgress, StudyProgress
from controlplane.simulation.study.results import write_results
from controlplane.simulation.study.run_files import write_text
from controlplane.simulation.study.run_one import run_here
from controlplane.simulation.workloads.base import WorkloadError
from controlplane.simulation.world.outcome import Progress
from controlplane.simulation.world.run import SimulationError
from policies.contract.policy import PolicyError

__all__ = [
    "RunProgress",
    "Study",
    "StudyBusyError",
    "StudyCancelledError",
    "StudyError",
    "StudyProgress",
    "run_study",
]

LOOKED_EVERY_S = 0.05
TOLD_EVERY_S = 0.5

Tell = Callable[[StudyProgress], None]
Asked = Callable[[], bool]


class StudyCancelledError(Exception):
    """Somebody cancelled the study. Its finished runs stay, and count if it is run again."""


class StudyBusyError(Exception):
    """Somebody else runs a study in this folder."""


def run_study(
    study: Study,
    folder: Path,
    *,
    processes: int | None = None,
    on_progress: Tell | None = None,
    is_cancelled: Asked | None = None,
) -> Path:
    """Run what is not there yet, write results.json, jobs.csv, report.html and timings.json, and
    return the report's path.

    `processes` at a time (None: as many as this process may use processors; 0: in this process, one
    after another). A run that fails is an error of its own, in results and report; the others go
    on. `on_progress` and `is_cancelled` are called now and then from the caller's thread.

    Raises StudyError for a workload that cannot be made, StudyCancelledError, StudyBusyError.
    Children end with whatever is raised.
    """
    with _ours_alone(folder):
        runs = _prepared(study, folder)
        wanted = [run for run in runs if not is_zipfile(folder / "runs" / f"{run.key}.npz")]
        board = Board(len(runs), _processes(processes))
        for run in runs:
            if run not in wanted:
                board.finish(run, _took_s(folder, run))
        work = _Work(study, folder, board, on_progress or _ignore, is_cancelled or _never)
        failures = work.in_children(wanted) if board.processes else work.here(wanted)
        return write_results(study, folder, runs, failures)


class _Work:
    """The runs that are wanted, how far they are, and who wants to know."""

    def __init__(
        self, study: Study, folder: Path, board: Board, tell: Tell, is_cancelled: Asked
    ) -> None:
        self.study, self.folder, self.board, self.tell, self.is_cancelled = (
            study,
            folder,
            board,
            tell,
            is_cancelled,
        )
        self.children: list[Child] = []
        self.waiting: list[Run] = []
        self.failures: list[Failure] = []
        self._told_s = -TOLD_EVERY_S

    def in_children(self, wanted: list[Run]) -> list[Failure]:
        self.waiting = list(wanted)
        over: list[Child] = []
        try:
            while self.waiting or self.children:
                while self.waiting and len(self.children) < self.board.processes:
                    self.children.append(Child(self.study, self.folder, self.waiting.pop(0)))
                self._look(
                    {c.run: (c.fraction, monotonic() - c.started_s) for c in self.children},
                    at_once=bool(over),
                )
                sleep(LOOKED_EVERY_S)
                over = [child for child in self.children if child.is_over()]
                for child in over:
                    self.children.remove(child)
                    self._take(child.run, child.failure())
        finally:
            for child in self.children:
                child.kill()
        self._look({}, at_once=True)
        return self.failures

    def here(self, wanted: list[Run]) -> list[Failure]:
        self.waiting = list(wanted)
        while self.waiting:
            run, started_s = self.waiting.pop(0), monotonic()

            def watch(progress: Progress, run: Run = run, started_s: float = started_s) -> None:
                self._look(
                    {run: (progress.completed / max(1, progress.total), monotonic() - started_s)}
                )

            self._look({run: (0.0, 0.0)}, at_once=True)
            self._take(run, _failure_here(self.study, run, self.folder, watch))
        self._look({}, at_once=True)
        return self.failures

    def _take(self, run: Run, failure: Failure | None) -> None:
        if failure is None:
            self.board.finish(run, _took_s(self.folder, run))
        elif failure.everywhere:
            raise StudyError(f"workload: {failure.message}")
        else:
            self.board.failed += 1
            self.failures.append(failure)

    def _look(self, running: dict[Run, tuple[float, float]], at_once: bool = False) -> None:
        if not at_once and monotonic() - self._told_s < TOLD_EVERY_S:
            return
        self._told_s = monotonic()
        if self.is_cancelled():
            raise StudyCancelledError(
                "the study was cancelled; the runs that are finished are kept"
            )
        self.tell(self.board.progress(self.waiting, running))


def _failure_here(
    study: Study, run: Run, folder: Path, watch: Callable[[Progress], None]
) -> Failure | None:
    try:
        run_here(study, run, folder / "runs", watch)
    except WorkloadError as error:
        return Failure(run, str(error), everywhere=True)
    except (PolicyError, SimulationError) as error:
        return Failure(run, str(error))
    return None


@contextmanager
def _ours_alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StudyBusyError(
                f"{folder}: another process runs a study in this folder; wait for it, or choose"
                " another"
            ) from None
        yield


def _prepared(study: Study, folder: Path) -> tuple[Run, ...]:
    (folder / "runs").mkdir(exist_ok=True)
    for left_over in (folder / "runs").glob(".*.part"):
        left_over.unlink(missing_ok=True)
    write_text(
        folder / "study.json", json.dumps(study.document, indent=1, ensure_ascii=False) + "\n"
    )
    return study.runs()


def _processes(wanted: int | None) -> int:
    if wanted is not None and wanted < 0:
        raise ValueError(f"processes: must be at least 0, not {wanted}")
    if wanted is not None:
        return wanted
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _took_s(folder: Path, run: Run) -> float | None:
    """Wall seconds a finished run took, as its timings say; None where they are gone."""
    try:
        timings = json.loads(
            (folder / "runs" / f"{run.key}.timings.json").read_text(encoding="utf-8")
        )
        return float(timings["load_s"] + timings["simulate_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ignore(progress: StudyProgress) -> None:
    """Nobody wants to know."""


def _never() -> bool:
    return False
