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

POLL_S = 0.05
"""Seconds between two looks at the child processes."""

REPORT_S = 0.5
"""Least seconds between two reports of progress."""

LEAST_FRACTION = 0.02
"""Fraction from which a run's own speed predicts its length."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Current run: the policy's label, the seed, and the fraction of its jobs that are done."""

    label: str
    seed: int
    fraction: float


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """Numbers of all, finished and failed runs, and the current ones.

    `left_s`: expected seconds until the end; None while unknown.
    """

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


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """Fraction of a current run that is done, and the wall seconds that it has taken so far."""

    fraction: float
    elapsed_s: float


@dataclass(slots=True)
class RunTimes:
    """Numbers and wall seconds of the runs so far, from which the progress follows.

    `run_times_s`: seconds of finished runs, by the policy's position.
    """

    total: int
    processes: int
    started_s: float = field(default_factory=monotonic)
    finished: int = 0
    failed: int = 0
    run_times_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def finish(self, run: Run, run_time_s: float | None) -> None:
        """Record a finished run; `run_time_s` None if unknown."""
        self.finished += 1
        if run_time_s is not None:
            self.run_times_s[run.policy].append(run_time_s)

    def progress(self, waiting: Sequence[Run], current: Mapping[Run, CurrentRun]) -> StudyProgress:
        """Return the progress of the study."""
        running = []
        for run, state in current.items():
            running.append(RunProgress(run.label, run.seed, state.fraction))
        return StudyProgress(
            self.total,
            self.finished,
            self.failed,
            tuple(running),
            elapsed_s=monotonic() - self.started_s,
            left_s=self._left_s(waiting, current),
        )

    def _left_s(self, waiting: Sequence[Run], current: Mapping[Run, CurrentRun]) -> float | None:
        """Return the expected seconds until the end: the remaining work over the processes."""
        if not waiting and not current:
            return 0.0

        # 1. Length of a run by policy: that of its finished runs, else by the speed of a current
        #    one. Policies without either take as long as the others on average.
        length_s: dict[int, float] = {}
        for run, state in current.items():
            if state.fraction > LEAST_FRACTION:
                length_s[run.policy] = state.elapsed_s / state.fraction
        for policy, run_times_s in self.run_times_s.items():
            if run_times_s:
                length_s[policy] = fmean(run_times_s)
        if not length_s:
            return None
        usual_s = fmean(length_s.values())

        # 2. What is left of the current runs, by their own speed if that is known.
        current_left_s = []
        for run, state in current.items():
            if state.fraction > LEAST_FRACTION:
                left_s = state.elapsed_s * (1.0 - state.fraction) / state.fraction
            else:
                left_s = max(0.0, length_s.get(run.policy, usual_s) - state.elapsed_s)
            current_left_s.append(left_s)

        # 3. It takes at least as long as the longest current run.
        work_s = sum(current_left_s) + sum(length_s.get(run.policy, usual_s) for run in waiting)
        return max([work_s / max(1, self.processes), *current_left_s])


OnProgress = Callable[[StudyProgress], None]


class StudyBusyError(Exception):
    """Refusal of a study in a folder in which another process runs one."""


def run_study(
    study: Study,
    folder: Path,
    *,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
    dump_every: int = 0,
) -> Path:
    """Run missing runs, write the result files, and return the report's path.

    `processes`: runs at a time (None: one for each processor that this process may use; 0: one, in
    this process). A failed run is reported in the results; the others go on. `on_progress` is
    called from the caller's thread; its exceptions end the study and its children, and finished
    runs are kept. `dump_every`: write the snapshot of every such round of the missing runs (0:
    none), see `run_one.dumps`.
    Raises StudyError for a workload that cannot be made, and StudyBusyError.
    """
    if processes is None:
        processes = len(os.sched_getaffinity(0))
    with _locked(folder):
        # 1. Runs that an earlier call has finished are not run again.
        runs = _prepare(study, folder)
        run_times = RunTimes(len(runs), processes)
        missing = []
        for run in runs:
            if is_zipfile(folder / "runs" / f"{run.key}.npz"):
                run_times.finish(run, _run_time_s(folder, run))
            else:
                missing.append(run)

        # 2. The others.
        execution = _Execution(study, folder, run_times, missing, on_progress, dump_every)
        if processes:
            execution.run_in_children()
        else:
            execution.run_in_this_process()

        # 3. The results of all.
        return write_results(study, folder, runs, execution.failures)


class _Execution:
    """Execution of the waiting runs of a study, with its progress and failures so far."""

    def __init__(
        self,
        study: Study,
        folder: Path,
        run_times: RunTimes,
        waiting: list[Run],
        on_progress: OnProgress | None,
        dump_every: int = 0,
    ) -> None:
        self.study = study
        self.folder = folder
        self.run_times = run_times
        self.waiting = waiting
        self.on_progress = on_progress
        self.dump_every = dump_every
        self.failures: list[Failure] = []
        self._reported_s = -REPORT_S

    def run_in_children(self) -> None:
        """Run all, each in a child process, several at a time."""
        children: list[RunProcess] = []
        ended: list[RunProcess] = []
        try:
            while self.waiting or children:
                # 1. Start as many as may run.
                while self.waiting and len(children) < self.run_times.processes:
                    run = self.waiting.pop(0)
                    children.append(RunProcess(self.study, self.folder, run, self.dump_every))

                # 2. Report, at once if one has just ended.
                current = {}
                for child in children:
                    elapsed_s = monotonic() - child.started_s
                    current[child.run] = CurrentRun(child.fraction, elapsed_s)
                self._report(current, at_once=bool(ended))

                # 3. A little later, record those that have ended.
                sleep(POLL_S)
                for child in children:
                    child.listen()
                ended = [child for child in children if child.is_over]
                for child in ended:
                    children.remove(child)
                    self._record(child.run, child.failure())
        finally:
            for child in children:
                child.kill()
        self._report({}, at_once=True)

    def run_in_this_process(self) -> None:
        """Run all, one after the other."""
        while self.waiting:
            run = self.waiting.pop(0)
            started_s = monotonic()

            def watch(progress: Progress, run: Run = run, started_s: float = started_s) -> None:
                fraction = progress.completed / max(1, progress.total)
                self._report({run: CurrentRun(fraction, monotonic() - started_s)})

            self._report({run: CurrentRun(0.0, 0.0)}, at_once=True)
            self._record(run, attempt(self.study, run, self.folder, watch, self.dump_every))
        self._report({}, at_once=True)

    def _record(self, run: Run, failure: Failure | None) -> None:
        """Record the end of a run. Raises StudyError if all runs would fail alike."""
        if failure is None:
            self.run_times.finish(run, _run_time_s(self.folder, run))
        elif failure.everywhere:
            raise StudyError(f"workload: {failure.message}")
        else:
            self.run_times.failed += 1
            self.failures.append(failure)

    def _report(self, current: Mapping[Run, CurrentRun], at_once: bool = False) -> None:
        """Report the progress, unless the last report was a moment ago."""
        if self.on_progress is None:
            return
        if at_once or monotonic() - self._reported_s >= REPORT_S:
            self._reported_s = monotonic()
            self.on_progress(self.run_times.progress(self.waiting, current))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a study's folder, made if it is missing. Raises StudyBusyError."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            cause = f"{folder}: another process runs a study in this folder"
            raise StudyBusyError(f"{cause}; wait for it, or choose another") from None
        yield


def _prepare(study: Study, folder: Path) -> tuple[Run, ...]:
    """Write the study's document, remove files of killed runs, and return all runs."""
    (folder / "runs").mkdir(exist_ok=True)
    for left_over in (folder / "runs").glob(".*.part"):
        left_over.unlink(missing_ok=True)
    text = json.dumps(study.document, indent=1, ensure_ascii=False)
    write_text(folder / "study.json", text + "\n")
    return study.runs()


def _run_time_s(folder: Path, run: Run) -> float | None:
    """Return the wall seconds of a finished run; None if its timings are lost."""
    timings = read_timings(folder, run)
    if not timings:
        return None
    seconds: float = timings["load_s"] + timings["simulate_s"]
    return seconds
