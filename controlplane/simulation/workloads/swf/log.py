"""Facts of an SWF log beside its jobs: status, preceding jobs and think times, its own waits.

A job with a preceding job is ready its think time after that job's end (the fields of the format),
however its submission in the log lies; until then it is not shown, and its wait counts from then.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.workloads.rules import After, Condition, Rules
from policies.contract.snapshot import Bools, Floats, JobColumns, Jobs

SUBMIT, WAIT, RUN, ALLOCATED, REQUESTED, STATUS, PRECEDING, THINK = 1, 2, 3, 4, 7, 10, 16, 17
"""Columns of the format."""

UNKNOWN = -1

CANCELLED = 5
PARTIAL = (2, 3, 4)
"""Statuses of parts of a job that was checkpointed; the whole job has a line of its own."""

NO_TIME = {"mean": None, "deviation": None, "jobs": 0}


def ran(table: Floats) -> Bools:
    """bool[M]: lines of whole jobs that ran: no parts, none cancelled before or without a time."""
    status = table[:, STATUS]
    never = (status == CANCELLED) & (table[:, RUN] <= 0)
    unknown = table[:, RUN] == UNKNOWN
    return np.asarray(~(np.isin(status, PARTIAL) | never | unknown))


def has_processors(table: Floats) -> Bools:
    """bool[M]: lines that say how many processors the job asked for or got."""
    return np.asarray((table[:, ALLOCATED] > 0) | (table[:, REQUESTED] > 0))


def think_times(table: Floats, wanted: Bools) -> Mapping[str, tuple[str, float]]:
    """Preceding job and think time by job, where the preceding job is on a line above.

    Logs from which lines were taken out name jobs that are gone: nothing is waited for then.
    """
    first: dict[float, int] = {}
    for row, number in enumerate(table[:, 0].tolist()):
        first.setdefault(number, row)
    found = {}
    for row in np.flatnonzero((table[:, PRECEDING] > 0) & wanted).tolist():
        preceding = table[row, PRECEDING]
        if first.get(preceding, row) < row:
            think_s = max(0.0, float(table[row, THINK]))
            found[f"{table[row, 0]:.0f}"] = (f"{preceding:.0f}", think_s)
    return found


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


def facts_of(table: Floats, good: Bools, wanted: Bools) -> dict[str, Any]:
    """Waits and slowdowns in the log itself, and numbers of odd lines and of lines left out."""
    whole = good & ran(table)
    partial = good & np.isin(table[:, STATUS], PARTIAL)
    cancelled = good & ~partial & (table[:, STATUS] == CANCELLED) & (table[:, RUN] <= 0)
    waits = whole & (table[:, WAIT] >= 0) & (table[:, RUN] >= 0)
    wait_s = table[waits, WAIT]
    run_s = np.maximum(table[waits, RUN], 1.0)
    submit_s = table[wanted, SUBMIT]
    early = int(np.count_nonzero(submit_s < np.maximum.accumulate(submit_s)))
    preceding = int(np.count_nonzero(wanted & (table[:, PRECEDING] > 0)))
    counts = {
        "parts_of_jobs_left_out": partial,
        "jobs_cancelled_before_their_start": cancelled,
        "jobs_without_run_time_left_out": good & ~(whole | partial | cancelled),
        "jobs_without_processors_left_out": whole & ~wanted & ~has_processors(table),
    }
    return {
        **{name: int(np.count_nonzero(lines)) for name, lines in counts.items()},
        "jobs_out_of_order_of_submission": early,
        "preceding_jobs_not_in_the_log": preceding - len(think_times(table, wanted)),
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
