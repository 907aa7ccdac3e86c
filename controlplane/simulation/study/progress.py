"""Progress of a study, and its expected remaining time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from time import monotonic

from controlplane.simulation.study.document import Run

LEAST_SEEN = 0.02
"""Fraction from which on a run's own speed tells how long it takes."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A run under way: the policy's label, the seed, and the part of its jobs that are done."""

    label: str
    seed: int
    fraction: float


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """Runs in all, finished, failed, under way; `left_s` is None while unknown."""

    total: int
    finished: int
    failed: int
    running: tuple[RunProgress, ...]
    elapsed_s: float
    left_s: float | None

    @property
    def fraction(self) -> float:
        """The part of the study that is done, 0 .. 1, runs counting alike."""
        done = self.finished + self.failed + sum(run.fraction for run in self.running)
        return done / max(1, self.total)


@dataclass(slots=True)
class Board:
    """Durations of runs so far, and the progress that follows."""

    total: int
    processes: int
    started_s: float = field(default_factory=monotonic)
    finished: int = 0
    failed: int = 0
    took_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def finish(self, run: Run, took_s: float | None) -> None:
        """A run is there; `took_s` None where that is not known."""
        self.finished += 1
        if took_s is not None:
            self.took_s[run.policy].append(took_s)

    def progress(
        self, waiting: Sequence[Run], running: Mapping[Run, tuple[float, float]]
    ) -> StudyProgress:
        """The progress; `running` gives (fraction, seconds so far) of each run under way."""
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
