"""Runs a study: every policy with every seed, some at a time, then writes the results.

A folder belongs to one study at a time. Every finished run is a file of its own, so that an
interrupted study goes on where it was when it is run again in the same folder.
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

from controlplane.simulation.study.document import Failure, Run, Study, StudyError
from controlplane.simulation.study.progress import Board, RunProgress, StudyProgress
from controlplane.simulation.study.results import write_results
from controlplane.simulation.study.run_files import read_timings, write_text
from controlplane.simulation.study.run_one import Child, attempt
from controlplane.simulation.world.outcome import Progress

__all__ = ["RunProgress", "Study", "StudyBusyError", "StudyError", "StudyProgress", "run_study"]

LOOKED_EVERY_S = 0.05
TOLD_EVERY_S = 0.5

Tell = Callable[[StudyProgress], None]


class StudyBusyError(Exception):
    """Another process runs a study in this folder."""


def run_study(
    study: Study, folder: Path, *, processes: int | None = None, on_progress: Tell | None = None
) -> Path:
    """Run what is not there yet, write results.json, jobs.csv, report.html and timings.json, and
    return the report's path.

    `processes` at a time (None: as many as this process may use processors; 0: in this process, one
    after another). A run that fails is an error of its own, in results and report; the others go
    on. `on_progress` is called now and then from the caller's thread; what it raises ends the study
    and its children, and finished runs are kept.

    Raises StudyError for a workload that cannot be made, and StudyBusyError.
    """
    if processes is None:
        processes = len(os.sched_getaffinity(0))
    with _only_here(folder):
        runs = _prepared(study, folder)
        board = Board(len(runs), processes)
        waiting = []
        for run in runs:
            if is_zipfile(folder / "runs" / f"{run.key}.npz"):
                board.finish(run, _took_s(folder, run))
            else:
                waiting.append(run)
        work = _Work(study, folder, board, waiting, on_progress)
        if processes:
            work.in_children()
        else:
            work.here()
        return write_results(study, folder, runs, work.failures)


class _Work:
    """The runs that wait, how far the others are, and the callback that is told."""

    def __init__(
        self, study: Study, folder: Path, board: Board, waiting: list[Run], tell: Tell | None
    ) -> None:
        self.study, self.folder, self.board = study, folder, board
        self.waiting, self.tell = waiting, tell
        self.failures: list[Failure] = []
        self._told_s = -TOLD_EVERY_S

    def in_children(self) -> None:
        children: list[Child] = []
        over: list[Child] = []
        try:
            while self.waiting or children:
                while self.waiting and len(children) < self.board.processes:
                    children.append(Child(self.study, self.folder, self.waiting.pop(0)))
                running = {c.run: (c.fraction, monotonic() - c.started_s) for c in children}
                self._report(running, at_once=bool(over))
                sleep(LOOKED_EVERY_S)
                over = [child for child in children if child.is_over()]
                for child in over:
                    children.remove(child)
                    self._take(child.run, child.failure())
        finally:
            for child in children:
                child.kill()
        self._report({}, at_once=True)

    def here(self) -> None:
        while self.waiting:
            run, started_s = self.waiting.pop(0), monotonic()

            def watch(progress: Progress, run: Run = run, started_s: float = started_s) -> None:
                part = progress.completed / max(1, progress.total)
                self._report({run: (part, monotonic() - started_s)})

            self._report({run: (0.0, 0.0)}, at_once=True)
            self._take(run, attempt(self.study, run, self.folder, watch))
        self._report({}, at_once=True)

    def _take(self, run: Run, failure: Failure | None) -> None:
        if failure is None:
            self.board.finish(run, _took_s(self.folder, run))
        elif failure.everywhere:
            raise StudyError(f"workload: {failure.message}")
        else:
            self.board.failed += 1
            self.failures.append(failure)

    def _report(self, running: dict[Run, tuple[float, float]], at_once: bool = False) -> None:
        if self.tell is not None and (at_once or monotonic() - self._told_s >= TOLD_EVERY_S):
            self._told_s = monotonic()
            self.tell(self.board.progress(self.waiting, running))


@contextmanager
def _only_here(folder: Path) -> Iterator[None]:
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
    text = json.dumps(study.document, indent=1, ensure_ascii=False)
    write_text(folder / "study.json", text + "\n")
    return study.runs()


def _took_s(folder: Path, run: Run) -> float | None:
    """Wall seconds a finished run took, as its timings say; None where they are gone."""
    timings = read_timings(folder, run)
    return timings["load_s"] + timings["simulate_s"] if timings else None
