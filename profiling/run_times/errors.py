"""Errors of predicted run times, in all, by source and by user. Pure.

An error is the predicted run time less the actual one: above 0 if the job ended sooner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

MOST_USERS = 50
"""Most users that a table of errors names: those with the most jobs."""


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
            name=name,
            jobs=len(jobs),
            mean_s=float(error_s.mean()),
            absolute_s=float(absolute_s.mean()),
            median_s=float(np.median(absolute_s)),
            too_short=float(np.mean(error_s < 0.0)),
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
        all_jobs = list(jobs)
        if not all_jobs:
            return cls()
        total = ErrorRow.of("all", all_jobs)
        by_source = _rows_by(all_jobs, lambda job: job.source)
        by_user = _rows_by(all_jobs, lambda job: job.user)
        return cls(total, by_source, by_user[:MOST_USERS])


def _rows_by(jobs: Iterable[Ended], name_of: Callable[[Ended], str]) -> tuple[ErrorRow, ...]:
    """Return a row for each name but "", the names of the most jobs first."""
    jobs_by_name = defaultdict[str, list[Ended]](list)
    for job in jobs:
        jobs_by_name[name_of(job)].append(job)
    rows = [ErrorRow.of(name, named_jobs) for name, named_jobs in jobs_by_name.items() if name]
    return tuple(sorted(rows, key=lambda row: (-row.jobs, row.name)))
