"""Intervals of unknown run times, from the run times of ended jobs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from controlplane.web.pages.formats import duration

LEAST_JOBS = 20
"""Fewest run times that an interval is taken from."""

TAIL = 10
"""One run time in so many is shorter than the interval, and one is longer."""

COVERED = "80%"
"""Part of the run times in the interval, in words."""


class Group(StrEnum):
    """Ended jobs that an interval is from, the most comparable first.

    USER and TEAM: of the same user or team, with as many GPUs, batch or training jobs alike.
    """

    USER = "user"
    TEAM = "team"
    CLUSTER = "cluster"


JOBS_IN_WORDS = {
    Group.USER: "similar jobs of its user",
    Group.TEAM: "similar jobs of its team",
    Group.CLUSTER: "jobs on this cluster",
}


@dataclass(frozen=True, slots=True)
class UnknownRunTime:
    """Run time of a job that no run and no walltime tells: an interval in seconds, else None.

    `jobs`: ended jobs that the interval is from; `ran_s`: they ran for longer than this, as the
    job has. `until`: what would make the run time known, in words.
    """

    until: str
    low_s: float | None = None
    high_s: float | None = None
    jobs: int = 0
    group: Group | None = None
    ran_s: float = 0.0

    @property
    def span(self) -> str:
        """Interval in words: "between 4 min and 2 h", "about 4 min"; "unknown" without one."""
        if self.low_s is None or self.high_s is None:
            return "unknown"
        low, high = duration(self.low_s), duration(self.high_s)
        return f"about {low}" if low == high else f"between {low} and {high}"

    @property
    def basis(self) -> str:
        """Source of the interval in words; without one, what would make the run time known."""
        if self.group is None:
            return self.until
        longer = f" that ran over {duration(self.ran_s)}" if self.ran_s else ""
        return f"as {COVERED} of {self.jobs} {JOBS_IN_WORDS[self.group]}{longer}"

    @property
    def words(self) -> str:
        """Both in one: "between 4 min and 2 h, as 80% of 57 jobs on this cluster"."""
        separator = " " if self.group is None else ", "
        return f"{self.span}{separator}{self.basis}"


def interval_of(run_s: Sequence[float]) -> tuple[float, float] | None:
    """Return the bounds between which the next run time lies in four of five cases, in seconds.

    Of n + 1 run times in any order, the last lies between the k-th smallest and the k-th largest
    of the others with a probability of (n + 1 - 2k) / (n + 1) or more, whatever their distribution
    (Wilks, Ann. Math. Stat. 1941). With k = (n + 1) / TAIL, rounded down, that is at least 80%.
    None of fewer than LEAST_JOBS.
    """
    count = len(run_s)
    if count < LEAST_JOBS:
        return None
    in_order = sorted(run_s)
    rank = (count + 1) // TAIL
    return in_order[rank - 1], in_order[count - rank]


def unknown_run_time(
    histories: Sequence[tuple[Group, Sequence[float]]], *, until: str, ran_s: float = 0.0
) -> UnknownRunTime:
    """Return the interval of the first group with enough run times; else one without bounds.

    `histories`: run times of each group in seconds. A job that has run for `ran_s` is compared with
    those that ran longer.
    """
    for group, run_s in histories:
        longer_s = [each_s for each_s in run_s if each_s > ran_s] if ran_s else run_s
        interval = interval_of(longer_s)
        if interval is not None:
            low_s, high_s = interval
            return UnknownRunTime(until, low_s, high_s, len(longer_s), group, ran_s)
    return UnknownRunTime(until)
