"""Facts of an SWF log beside its jobs: status, preceding jobs and think times, its own waits.

A job with a preceding job is ready its think time after that job's end (the fields of the format),
however its submission in the log lies; until then it is not shown, and its wait counts from then.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.workloads.lines import Findings
from controlplane.simulation.workloads.rules import After, Condition, Rules
from policies.contract.snapshot import Bools, Floats, JobColumns, Jobs

WAIT, RUN, STATUS, PRECEDING, THINK = 2, 3, 10, 16, 17
"""Columns of the format."""

CANCELLED = 5
PARTIAL = (2, 3, 4)
"""Statuses of parts of a job that was checkpointed; the whole job has a line of its own."""

NO_TIME = {"mean": None, "deviation": None, "jobs": 0}


def ran(table: Floats) -> Bools:
    """bool[M]: lines of whole jobs that ran: neither parts, nor cancelled before the start."""
    status = table[:, STATUS]
    never = (status == CANCELLED) & (table[:, RUN] <= 0)
    return np.asarray(~(np.isin(status, PARTIAL) | never))


def mark_preceding(table: Floats, findings: Findings) -> Mapping[str, tuple[str, float]]:
    """Preceding job and think time by job; a preceding job on no line above is a bad line."""
    last_of = table[:, PRECEDING]
    first: dict[float, int] = {}
    for row, number in enumerate(table[:, 0].tolist()):
        first.setdefault(number, row)
    rows = np.flatnonzero(last_of > 0).tolist()
    wrong = np.zeros(len(table), dtype=np.bool_)
    for row in rows:
        at = first.get(last_of[row])
        wrong[row] = at is None or at >= row
    findings.mark(
        wrong,
        lambda row: (
            f"its preceding job {last_of[row]:g} is on no line above; write -1 if there is none"
        ),
    )
    return {
        f"{table[row, 0]:.0f}": (f"{last_of[row]:.0f}", max(0.0, float(table[row, THINK])))
        for row in rows
        if not wrong[row]
    }


def with_think_times(
    workload: Workload, think: Mapping[str, tuple[str, float]], factor: float
) -> Workload:
    """Return the workload with jobs that wait for their preceding ones, where both are in it."""
    columns, position = workload.jobs.columns, workload.jobs.position
    after = {
        job: (After((other,), Condition.AFTERANY, seconds * factor),)
        for job, (other, seconds) in think.items()
        if job in position and other in position
    }
    if not after:
        return workload
    named = tuple([after[job][0].jobs if job in after else () for job in columns.ids])
    others = {**columns.others, "dependencies": named}
    jobs = JobColumns(columns.ids, columns.kinds, columns.numbers, columns.counts, others)
    facts = {**workload.facts, "jobs_after_a_preceding_one": len(after)}
    return replace(workload, jobs=Jobs(jobs, position), rules=Rules(after=after), facts=facts)


def facts_of(table: Floats, good: Bools) -> dict[str, Any]:
    """Waits and slowdowns in the log itself, and what is left out of it."""
    status, whole = table[:, STATUS], good & ran(table)
    partial = good & np.isin(status, PARTIAL)
    waits = whole & (table[:, WAIT] >= 0) & (table[:, RUN] >= 0)
    wait_s, run_s = table[waits, WAIT], np.maximum(table[waits, RUN], 1.0)
    return {
        "parts_of_jobs_left_out": int(np.count_nonzero(partial)),
        "jobs_cancelled_before_their_start": int(np.count_nonzero(good & ~whole & ~partial)),
        "wait_in_the_log_s": _spread(wait_s),
        "slowdown_in_the_log": _spread((wait_s + run_s) / run_s),
    }


def _spread(values: Floats) -> dict[str, Any]:
    if not len(values):
        return dict(NO_TIME)
    return {
        "mean": float(values.mean()),
        "deviation": float(values.std()),
        "jobs": len(values),
    }
