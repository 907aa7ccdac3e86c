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

_OWN_COLUMNS = (*JOB_NUMBERS, *JOB_COUNTS, "id", "kind")
_OTHERS = tuple(field for field in fields(JobView) if field.name not in _OWN_COLUMNS)
"""Fields of a job whose columns are tuples, not arrays."""

LONGEST_RUN_S = 1e9
"""Longest run time of a job: 31 years."""

ENDLESS_S = 1e20
"""Run time that stands for an unknown one: the job never ends."""

FURTHEST_S = 1e12
"""Farthest arrival or due date from 0."""

MOST_WEIGHT = 1e12
"""Largest weight or tardiness weight of a job."""

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
        for bad_line in bad_lines[:SHOWN]:
            message += f"\n  {bad_line}"
        if len(bad_lines) > SHOWN:
            message += f"\n  and {len(bad_lines) - SHOWN:,} more"
        super().__init__(message)
        self.bad_lines = tuple(bad_lines)


def jobs_of(ids: Sequence[str], kinds: Sequence[str], **columns: Any) -> Jobs:
    """Build jobs by column: an array, a list of len(ids) values, or one value for all.

    Defaults as in JobView; `total_steps` is `remaining_steps`, and `gpus_max` is `gpus_min`.
    """
    count = len(ids)
    columns.setdefault("total_steps", columns.get("remaining_steps", 0.0))
    columns.setdefault("gpus_max", columns["gpus_min"])
    numbers = {name: _array(columns, name, count, np.float64) for name in JOB_NUMBERS}
    counts = {name: _array(columns, name, count, np.int64) for name in JOB_COUNTS}
    others = {}
    for other in _OTHERS:
        others[other.name] = _tuple(columns.get(other.name, other.default), count)
    return Jobs(JobColumns(tuple(ids), tuple(kinds), numbers, counts, others))


def by_arrival(jobs: Jobs) -> tuple[Jobs, float]:
    """Sort jobs by arrival, and count their times from the first arrival.

    Return the jobs, and the time of the first arrival as it was.
    """
    if not len(jobs):
        return jobs, 0.0
    arrival_s = jobs.columns.numbers["arrival_s"]
    start_s = float(arrival_s.min())
    is_sorted = bool(np.all(arrival_s[:-1] <= arrival_s[1:]))
    if start_s == 0.0 and is_sorted:
        return jobs, start_s
    ordered = rows(jobs, np.argsort(arrival_s, kind="stable")).columns
    numbers = dict(ordered.numbers)
    for name in ("arrival_s", "due_s", "deadline_s"):
        numbers[name] = frozen(numbers[name] - start_s)
    moved = JobColumns(ordered.ids, ordered.kinds, numbers, ordered.counts, ordered.others)
    return Jobs(moved), start_s


def rows(jobs: Jobs, at: Ints) -> Jobs:
    """Return the jobs of these rows, in this order."""
    columns = jobs.columns
    picked = at.tolist()

    def pick(column: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([column[row] for row in picked])

    ids = pick(columns.ids)
    kinds = pick(columns.kinds)
    numbers = {name: frozen(column[at]) for name, column in columns.numbers.items()}
    counts = {name: frozen(column[at]) for name, column in columns.counts.items()}
    others = {name: pick(column) for name, column in columns.others.items()}
    return Jobs(JobColumns(ids, kinds, numbers, counts, others))


def even_kind(name: str, speeds: Mapping[str, float], gpus: Iterable[int]) -> KindView:
    """Kind with the trace's run time, `speeds[type]` times as fast on each GPU type."""
    counts = sorted(set(gpus))
    throughputs = []
    for gpu_type, speed in speeds.items():
        for count in counts:
            steps_per_s = STEPS_PER_S * speed
            throughputs.append(Throughput(gpu_type, count, steps_per_s, Source.DECLARED))
    return KindView(name, name, tuple(throughputs))


def _array(columns: Mapping[str, Any], name: str, count: int, dtype: Any) -> Any:
    """Column as an array of `count` values; the default of JobView if it is missing."""
    default = JobView.__dataclass_fields__[name].default
    if default is MISSING:
        default = 0.0
    column = np.asarray(columns.get(name, default), dtype=dtype)
    if column.ndim == 0:
        column = np.full(count, column, dtype)
    return frozen(column)


def _tuple(value: Any, count: int) -> tuple[Any, ...]:
    """Column of a list of values, or of one value for all."""
    return tuple(value) if isinstance(value, list) else (value,) * count
