"""Workloads: jobs by arrival as columns, their kinds, and what could not be read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import numpy as np

from controlplane.simulation.workloads.rules import NO_RULES, Rules
from policies.contract.plan import Placement
from policies.contract.snapshot import (
    JOB_COUNTS,
    JOB_NUMBERS,
    Ints,
    JobColumns,
    Jobs,
    JobView,
    KindView,
    Source,
    Throughput,
    frozen,
)

STEPS_PER_S = 1000.0
"""steps/s of jobs with a known run time only: a step is a millisecond."""

_OTHERS = tuple(
    f for f in fields(JobView) if f.name not in (*JOB_NUMBERS, *JOB_COUNTS, "id", "kind")
)


LONGEST_RUN_S = 1e9
"""Longest run time of a job: 31 years."""

ENDLESS_S = 1e20
"""Run time that stands for an unknown one: the job never ends."""

FURTHEST_S = 1e12
"""Farthest arrival or due date from 0."""

MOST_WEIGHT = 1e12

SHOWN = 20
"""Bad lines in an error's message; `WorkloadError.bad_lines` has all."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """Line of a file, counted from 1, or item of a list, and its problem."""

    line: int
    problem: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs to simulate by `arrival_s` (seconds from 0), and their kinds.

    `skipped`: lines left out with skip_bad. `facts`: plain JSON about the workload for the report.
    `rules`: what no policy is told. `seats`: placements of jobs that arrive at 0 and run already,
    if the cluster has the devices.
    """

    name: str
    jobs: Jobs
    kinds: tuple[KindView, ...]
    skipped: tuple[BadLine, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    seats: tuple[Placement, ...] = ()
    rules: Rules = NO_RULES


class WorkloadError(ValueError):
    """Workload that cannot be made; `bad_lines` names the bad lines."""

    def __init__(self, message: str, bad_lines: Sequence[BadLine] = ()) -> None:
        shown = "".join(f"\n  {bad}" for bad in bad_lines[:SHOWN])
        more = len(bad_lines) - SHOWN
        super().__init__(message + shown + (f"\n  and {more:,} more" if more > 0 else ""))
        self.bad_lines = tuple(bad_lines)


def jobs_of(ids: Sequence[str], kinds: Sequence[str], **columns: Any) -> Jobs:
    """Build jobs by column: an array, a list of len(ids) values, or one value for all.

    Defaults as in JobView; `total_steps` is `remaining_steps`, and `gpus_max` is `gpus_min`.
    """
    count = len(ids)
    usual = {"total_steps": columns.get("remaining_steps", 0.0), "gpus_max": columns["gpus_min"]}
    given = {**usual, **columns}
    numbers = {name: _array(given, name, count, np.float64) for name in JOB_NUMBERS}
    counts = {name: _array(given, name, count, np.int64) for name in JOB_COUNTS}
    others = {f.name: _tuple(given.get(f.name, f.default), count) for f in _OTHERS}
    return Jobs(JobColumns(tuple(ids), tuple(kinds), numbers, counts, others))


def by_arrival(jobs: Jobs) -> tuple[Jobs, float]:
    """Return the jobs by arrival, with times from the first one's on, and its time."""
    arrival = jobs.columns.numbers["arrival_s"]
    start_s = float(arrival.min()) if len(jobs) else 0.0
    if not len(jobs) or (start_s == 0.0 and bool(np.all(arrival[:-1] <= arrival[1:]))):
        return jobs, start_s
    old = rows(jobs, np.argsort(arrival, kind="stable")).columns
    moved = {n: frozen(old.numbers[n] - start_s) for n in ("arrival_s", "due_s", "deadline_s")}
    numbers = {**old.numbers, **moved}
    return Jobs(JobColumns(old.ids, old.kinds, numbers, old.counts, old.others)), start_s


def rows(jobs: Jobs, at: Ints) -> Jobs:
    """These rows of the jobs, in this order."""
    old, picked = jobs.columns, at.tolist()
    ids, kinds = (tuple([column[i] for i in picked]) for column in (old.ids, old.kinds))
    numbers = {name: frozen(column[at]) for name, column in old.numbers.items()}
    counts = {name: frozen(column[at]) for name, column in old.counts.items()}
    others = {name: tuple([column[i] for i in picked]) for name, column in old.others.items()}
    return Jobs(JobColumns(ids, kinds, numbers, counts, others))


def even_kind(name: str, speeds: Mapping[str, float], gpus: Iterable[int]) -> KindView:
    """Kind with the trace's run time, `speeds[type]` times as fast on each GPU type."""
    return KindView(
        name,
        name,
        tuple(
            Throughput(gpu_type, count, STEPS_PER_S * speed, Source.DECLARED)
            for gpu_type, speed in speeds.items()
            for count in sorted(set(gpus))
        ),
    )


def _array(given: Mapping[str, Any], name: str, count: int, dtype: Any) -> Any:
    default = JobView.__dataclass_fields__[name].default
    value = given.get(name, 0.0 if default is MISSING else default)
    column = np.asarray(value, dtype=dtype)
    return frozen(np.full(count, column, dtype) if column.ndim == 0 else column)


def _tuple(value: Any, count: int) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,) * count
