"""Columns of `policies.contract.snapshot.Jobs` made of arrays, without row objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

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
)

STEPS_PER_S = 1000.0
"""Steps/s of jobs of which only a run time is known: a step is a millisecond."""

_OTHERS = tuple(
    f for f in fields(JobView) if f.name not in (*JOB_NUMBERS, *JOB_COUNTS, "id", "kind")
)


def jobs_of(ids: Sequence[str], kinds: Sequence[str], **columns: Any) -> Jobs:
    """Jobs by column: each column an array or a sequence of len(ids) values, or one value for all;
    the rest as JobView has it.

    `total_steps` is `remaining_steps` unless it is given: these jobs have not begun.
    """
    count = len(ids)
    given = {"total_steps": columns.get("remaining_steps", 0.0), **columns}
    numbers = {name: _array(given, name, count, np.float64) for name in JOB_NUMBERS}
    counts = {name: _array(given, name, count, np.int64) for name in JOB_COUNTS}
    others = {f.name: _tuple(given.get(f.name, f.default), count) for f in _OTHERS}
    return Jobs(JobColumns(tuple(ids), tuple(kinds), numbers, counts, others))


def by_arrival(jobs: Jobs) -> tuple[Jobs, float]:
    """The jobs ordered by arrival, with times from the first one's on, and when that was."""
    arrival = jobs.columns.numbers["arrival_s"]
    start_s = float(arrival.min()) if len(jobs) else 0.0
    if not len(jobs) or (start_s == 0.0 and bool(np.all(arrival[:-1] <= arrival[1:]))):
        return jobs, start_s
    return _shifted(rows(jobs, np.argsort(arrival, kind="stable")), start_s), start_s


def rows(jobs: Jobs, at: Ints) -> Jobs:
    """These rows of the jobs, in this order."""
    old = jobs.columns
    numbers = {name: _frozen(column[at]) for name, column in old.numbers.items()}
    counts = {name: _frozen(column[at]) for name, column in old.counts.items()}
    picked = at.tolist()
    others = {name: tuple([column[i] for i in picked]) for name, column in old.others.items()}
    return Jobs(
        JobColumns(
            tuple([old.ids[i] for i in picked]),
            tuple([old.kinds[i] for i in picked]),
            numbers,
            counts,
            others,
        )
    )


def even_kind(name: str, speeds: Mapping[str, float], gpus: Iterable[int]) -> KindView:
    """A kind with the trace's run time, `speeds[type]` times as fast on each GPU type."""
    wanted = sorted(set(gpus))
    known = (
        Throughput(t, g, STEPS_PER_S * speed, Source.DECLARED)
        for t, speed in speeds.items()
        for g in wanted
    )
    return KindView(name, name, tuple(known))


def _array(given: Mapping[str, Any], name: str, count: int, dtype: Any) -> Any:
    value = given.get(name, _default(name))
    column = np.asarray(value, dtype=dtype)
    return _frozen(np.full(count, column, dtype) if column.ndim == 0 else column)


def _default(name: str) -> Any:
    default = JobView.__dataclass_fields__[name].default
    return 0.0 if default is MISSING else default


def _tuple(value: Any, count: int) -> tuple[Any, ...]:
    """One value for all, or a list of one for each (a tuple is one value)."""
    return tuple(value) if isinstance(value, list) else (value,) * count


def _shifted(jobs: Jobs, start_s: float) -> Jobs:
    old = jobs.columns
    moved = {
        name: _frozen(old.numbers[name] - start_s) for name in ("arrival_s", "due_s", "deadline_s")
    }
    return Jobs(JobColumns(old.ids, old.kinds, {**old.numbers, **moved}, old.counts, old.others))


def _frozen(array: Any) -> Any:
    array.setflags(write=False)
    return array
