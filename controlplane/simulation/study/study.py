"""Execution of a study: every policy with every seed, then the results.

A folder belongs to one study at a time. Finished runs are files, so that an interrupted study
continues in the same folder.
"""

import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from time import monotonic, sleep
from zipfile import is_zipfile

from controlplane.simulation.study.document import Failure, Run, Study, StudyError
from controlplane.simulation.study.results import write_results
from controlplane.simulation.study.run_files import read_timings, write_text
from controlplane.simulation.study.run_one import RunProcess, attempt
from controlplane.simulation.world.outcome import Progress

__all__ = ["Study", "StudyError", "StudyProgress", "run_study"]

LOOKED_EVERY_S = 0.05
TOLD_EVERY_S = 0.5

LEAST_SEEN = 0.02
"""Fraction from which a run's own speed predicts its length."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Current run: the policy's label, the seed, and the fraction of its jobs that are done."""

    label: str
    seed: int
    fraction: float


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """Numbers of runs: all, finished, failed, current; `left_s` is None while unknown."""

    total: int
    finished: int
    failed: int
    running: tuple[RunProgress, ...]
    elapsed_s: float
    left_s: float | None

    @property
    def fraction(self) -> float:
        """Fraction of the study that is done, runs counting alike."""
        done = self.finished + self.failed + sum(run.fraction for run in self.running)
        return done / max(1, self.total)


@dataclass(slots=True)
class Board:
    """Durations of runs so far, and the progress from them."""

    total: int
    processes: int
    started_s: float = field(default_factory=monotonic)
    finished: int = 0
    failed: int = 0
    took_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def finish(self, run: Run, took_s: float | None) -> None:
        """Record a finished run; `took_s` None if unknown."""
        self.finished += 1
        if took_s is not None:
            self.took_s[run.policy].append(took_s)

    def progress(
        self, waiting: Sequence[Run], running: Mapping[Run, tuple[float, float]]
    ) -> StudyProgress:
        """Progress; `running` gives (fraction, seconds so far) of each current run."""
        shown = tuple(RunProgress(run.label, run.seed, part) for run, (part, _) in running.items())
        left_s, elapsed_s = self._left_s(waiting, running), monotonic() - self.started_s
        return StudyProgress(self.total, self.finished, self.failed, shown, elapsed_s, left_s)

    def _left_s(
        self, waiting: Sequence[Run], running: Mapping[Run, tuple[float, float]]
    ) -> float | None:
        """Remaining work over processes, by past runs of the policy, of any, or an estimate."""
        known = {
            run.policy: so_far_s / part
            for run, (part, so_far_s) in running.items()
            if part > LEAST_SEEN
        }
        known |= {policy: fmean(took_s) for policy, took_s in self.took_s.items() if took_s}
        if not waiting and not running:
            return 0.0
        if not known:
            return None
        usual_s = fmean(known.values())
        under_way = []
        for run, (part, so_far_s) in running.items():
            if part > LEAST_SEEN:  # by its own speed
                under_way.append(so_far_s * (1.0 - part) / part)
            else:
                under_way.append(max(0.0, known.get(run.policy, usual_s) - so_far_s))
        work_s = sum(under_way) + sum(known.get(run.policy, usual_s) for run in waiting)
        return max([work_s / max(1, self.processes), *under_way])


Tell = Callable[[StudyProgress], None]


class StudyBusyError(Exception):
    """Study in this folder that another process runs."""


def run_study(
    study: Study,
    folder: Path,
    *,
    processes: int | None = None,
    on_progress: Tell | None = None,
    dump_every: int = 0,
) -> Path:
    """Run missing runs, write the result files, and return the report's path.

    `processes` at a time (None: as many as this process may use processors; 0: in this process). A
    failed run is reported in the results; the others go on. `on_progress` is called from the
    caller's thread; its exceptions end the study and its children, and finished runs are kept.
    `dump_every`: write the snapshot of every such round of the missing runs (0: none), see
    `run_one.dumps`.
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
        work = _Work(study, folder, board, waiting, on_progress, dump_every)
        if processes:
            work.in_children()
        else:
            work.here()
        return write_results(study, folder, runs, work.failures)


class _Work:
    """Waiting runs, progress of the others, and the callback."""

    def __init__(
        self,
        study: Study,
        folder: Path,
        board: Board,
        waiting: list[Run],
        tell: Tell | None,
        dump_every: int = 0,
    ) -> None:
        self.study, self.folder, self.board = study, folder, board
        self.waiting, self.tell, self.dump_every = waiting, tell, dump_every
        self.failures: list[Failure] = []
        self._told_s = -TOLD_EVERY_S

    def in_children(self) -> None:
        children: list[RunProcess] = []
        over: list[RunProcess] = []
        try:
            while self.waiting or children:
                while self.waiting and len(children) < self.board.processes:
                    run = self.waiting.pop(0)
                    children.append(RunProcess(self.study, self.folder, run, self.dump_every))
                running = {c.run: (c.fraction, monotonic() - c.started_s) for c in children}
                self._report(running, at_once=bool(over))
                sleep(LOOKED_EVERY_S)
                for child in children:
                    child.listen()
                over = [child for child in children if child.is_over]
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
            self._take(run, attempt(self.study, run, self.folder, watch, self.dump_every))
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
    """Wall seconds of a finished run; None if lost."""
    timings = read_timings(folder, run)
    return timings["load_s"] + timings["simulate_s"] if timings else None
