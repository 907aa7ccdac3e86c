"""Errors of predicted run times, in all, by source and by user. Pure.

An error is the predicted run time less the actual one: positive where the job ended sooner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

MOST_USERS = 50
"""Users with the most jobs that a table of errors names."""


class Ended(NamedTuple):
    """Job that has ended: its user, the source of its prediction, and both run times."""

    user: str
    source: str
    predicted_s: float
    run_s: float


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Errors of some jobs in seconds: mean with sign, mean and median of absolute ones.

    `too_short`: fraction of the jobs that outlived their predictions.
    """

    name: str
    jobs: int
    mean_s: float
    absolute_s: float
    median_s: float
    too_short: float

    @classmethod
    def of(cls, name: str, jobs: Sequence[Ended]) -> Self:
        """Return the errors of at least one job."""
        error_s = np.array([job.predicted_s - job.run_s for job in jobs])
        absolute_s = np.abs(error_s)
        return cls(
            name,
            len(jobs),
            float(error_s.mean()),
            float(absolute_s.mean()),
            float(np.median(absolute_s)),
            float(np.mean(error_s < 0.0)),
        )


@dataclass(frozen=True, slots=True)
class RunTimeErrors:
    """Errors of all jobs (None without any), by source, and by user; the most jobs first."""

    total: ErrorRow | None = None
    by_source: tuple[ErrorRow, ...] = ()
    by_user: tuple[ErrorRow, ...] = ()

    @classmethod
    def of(cls, jobs: Iterable[Ended]) -> Self:
        """Return the errors of these jobs."""
        known = list(jobs)
        if not known:
            return cls()
        by_user = _by(known, lambda job: job.user)[:MOST_USERS]
        return cls(ErrorRow.of("all", known), _by(known, lambda job: job.source), by_user)


def _by(jobs: Iterable[Ended], name_of: Callable[[Ended], str]) -> tuple[ErrorRow, ...]:
    found = defaultdict[str, list[Ended]](list)
    for job in jobs:
        found[name_of(job)].append(job)
    named = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(ErrorRow.of(name, of) for name, of in named if name)
