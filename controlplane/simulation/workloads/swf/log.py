"""Facts of an SWF log beside its jobs: status, preceding jobs and think times, its own waits.

A job with a preceding job arrives its think time after that job's end, whenever the log says that
it was submitted. Until then policies do not see it, and its wait counts from then.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.workloads.rules import After, Condition, Rules
from policies.contract.snapshot import Bools, Floats, JobColumns, Jobs

NUMBER = 0
SUBMIT = 1
WAIT = 2
RUN = 3
ALLOCATED = 4
REQUESTED = 7
STATUS = 10
PRECEDING = 16
THINK = 17
"""Columns of the format, of 18; the field numbers of its description begin with 1."""

UNKNOWN = -1
"""Value of a column about which nothing is known."""

CANCELLED = 5
"""Status of a cancelled job."""

PARTIAL = (2, 3, 4)
"""Statuses of parts of a job that was checkpointed; the whole job has a line of its own."""

NO_TIME = {"mean": None, "deviation": None, "jobs": 0}
"""Spread of a time that no line of a log has."""


def ran(table: Floats) -> Bools:
    """Return bool[M]: True for lines of whole jobs that ran for a known time."""
    is_part = np.isin(table[:, STATUS], PARTIAL)
    is_unknown = table[:, RUN] == UNKNOWN
    return np.asarray(~(is_part | _cancelled_before_start(table) | is_unknown))


def _cancelled_before_start(table: Floats) -> Bools:
    """Return bool[M]: True for lines of jobs that were cancelled and never ran."""
    return np.asarray((table[:, STATUS] == CANCELLED) & (table[:, RUN] <= 0))


def has_processors(table: Floats) -> Bools:
    """Return bool[M]: True for lines that say how many processors a job asked for or got."""
    return np.asarray((table[:, ALLOCATED] > 0) | (table[:, REQUESTED] > 0))


def think_times(table: Floats, wanted: Bools) -> Mapping[str, tuple[str, float]]:
    """Return id and think time in seconds of the preceding job, by the id of the job.

    Only preceding jobs on a line above count: a log from which lines were removed names jobs that
    are gone, and a job cannot wait for these.
    """
    first_rows: dict[float, int] = {}
    for row, number in enumerate(table[:, NUMBER].tolist()):
        first_rows.setdefault(number, row)
    think: dict[str, tuple[str, float]] = {}
    for row in np.flatnonzero((table[:, PRECEDING] > 0) & wanted).tolist():
        preceding = table[row, PRECEDING]
        if first_rows.get(preceding, row) < row:
            think_s = max(0.0, float(table[row, THINK]))
            think[f"{table[row, NUMBER]:.0f}"] = (f"{preceding:.0f}", think_s)
    return think


def with_think_times(
    workload: Workload, think: Mapping[str, tuple[str, float]], factor: float
) -> Workload:
    """Return the workload with jobs that wait for their preceding ones, if both are in it.

    `think`: as `think_times` returns it; `factor` multiplies the think times.
    """
    # 1. A rule for each such job, which the simulator obeys.
    columns = workload.jobs.columns
    position = workload.jobs.position
    after: dict[str, tuple[After, ...]] = {}
    for job, (preceding, think_s) in think.items():
        if job in position and preceding in position:
            after[job] = (After((preceding,), Condition.AFTERANY, think_s * factor),)
    if not after:
        return workload

    # 2. The preceding jobs by job, which policies see.
    dependencies: list[tuple[str, ...]] = []
    for job in columns.ids:
        rules = after.get(job, ())
        dependencies.append(rules[0].jobs if rules else ())
    others = {**columns.others, "dependencies": tuple(dependencies)}
    jobs = JobColumns(columns.ids, columns.kinds, columns.numbers, columns.counts, others)
    facts = {**workload.facts, "jobs_after_a_preceding_one": len(after)}
    return replace(workload, jobs=Jobs(jobs, position), rules=Rules(after=after), facts=facts)


def facts_of(table: Floats, good: Bools, wanted: Bools) -> dict[str, Any]:
    """Return waits and slowdowns in the log itself, and numbers of odd lines and lines left out.

    `good`, bool[M]: lines without problems; `wanted`: lines that become jobs.
    """
    # 1. Lines that were left out, by reason.
    whole = good & ran(table)
    partial = good & np.isin(table[:, STATUS], PARTIAL)
    cancelled = good & ~partial & _cancelled_before_start(table)
    left_out = {
        "parts_of_jobs_left_out": partial,
        "jobs_cancelled_before_their_start": cancelled,
        "jobs_without_run_time_left_out": good & ~(whole | partial | cancelled),
        "jobs_without_processors_left_out": whole & ~wanted & ~has_processors(table),
    }
    facts: dict[str, Any] = {}
    for name, lines in left_out.items():
        facts[name] = int(np.count_nonzero(lines))

    # 2. Jobs that the log has in an odd order, or that name a job which it does not have.
    submit_s = table[wanted, SUBMIT]
    latest_s = np.maximum.accumulate(submit_s)
    facts["jobs_out_of_order_of_submission"] = int(np.count_nonzero(submit_s < latest_s))
    with_preceding = int(np.count_nonzero(wanted & (table[:, PRECEDING] > 0)))
    think = think_times(table, wanted)
    facts["preceding_jobs_not_in_the_log"] = with_preceding - len(think)

    # 3. Waits and slowdowns of the log's own scheduler, with run times of at least 1 s.
    with_wait = whole & (table[:, WAIT] >= 0) & (table[:, RUN] >= 0)
    wait_s = table[with_wait, WAIT]
    run_s = np.maximum(table[with_wait, RUN], 1.0)
    facts["wait_in_the_log_s"] = _spread(wait_s)
    facts["slowdown_in_the_log"] = _spread((wait_s + run_s) / run_s)
    return facts


def _spread(values: Floats) -> dict[str, Any]:
    """Return mean, standard deviation and number of the values."""
    if not len(values):
        return dict(NO_TIME)
    return {
        "mean": float(values.mean()),
        "deviation": float(values.std()),
        "jobs": len(values),
    }
