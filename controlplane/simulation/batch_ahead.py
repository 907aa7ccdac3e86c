"""Jobs of a live snapshot, ready to be simulated to their ends."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from controlplane.simulation.workloads.base import ENDLESS_S, STEPS_PER_S
from policies.batch.plan import in_batch_queue
from policies.contract.snapshot import (
    Floats,
    JobColumns,
    Jobs,
    KindView,
    NodeView,
    Purpose,
    Running,
    Snapshot,
    Source,
    Throughput,
    frozen,
)
from policies.contract.views import SLOWEST, WITHOUT_GPUS

LEAST_LEFT_S = 1.0
LEAST_LEFT = 0.1
"""Part of its expected run time that a job which outlived that is taken to need still."""

ENDLESS_STEPS = 2.0 * ENDLESS_S * SLOWEST


def _kind(name: str, steps_per_s: float) -> KindView:
    known = (Throughput(*WITHOUT_GPUS[:2], steps_per_s, Source.DECLARED),)
    return KindView(name, name, known)


KNOWN = _kind("batch job", STEPS_PER_S)
ENDLESS = _kind("batch job of unknown run time", SLOWEST)
"""Kind so slow that its jobs never end."""

BATCH_KINDS = (KNOWN, ENDLESS)


def jobs_ahead(snapshot: Snapshot) -> Jobs:
    """Return jobs with their training runs only, and the device time of the launches before these.

    Batch jobs and jobs without GPUs get the work that takes them as long as is expected.
    """
    columns, nodes = snapshot.jobs.columns, snapshot.node_by_id
    running = tuple(
        tuple(run for run in runs if run.purpose is Purpose.TRAINING and run.copy == 0)
        for runs in columns.others["running"]
    )
    received = tuple(
        _less_runs(dict(seconds), runs, snapshot.now_s, nodes)
        for seconds, runs in zip(columns.others["received_s"], running, strict=True)
    )
    others = {**columns.others, "running": running, "received_s": received}
    kinds, numbers = _with_run_times(snapshot, others)
    # All have arrived: a later arrival was written by a clock that was ahead.
    arrived = np.minimum(numbers["arrival_s"], snapshot.now_s)
    numbers = {**numbers, "arrival_s": frozen(arrived)}
    return Jobs(
        JobColumns(columns.ids, kinds, numbers, columns.counts, others), snapshot.jobs.position
    )


def _with_run_times(
    snapshot: Snapshot, others: dict[str, tuple[Any, ...]]
) -> tuple[tuple[str, ...], Mapping[str, Floats]]:
    """Return kinds and numbers in which batch jobs run their time; mark these as such."""
    columns, rows = snapshot.jobs.columns, sorted(in_batch_queue(snapshot))
    if not rows:
        return columns.kinds, columns.numbers
    kinds, batch = list(columns.kinds), list(others["batch"])
    total, left = (columns.numbers[n].copy() for n in ("total_steps", "remaining_steps"))
    limits = columns.numbers["expected_run_s"], columns.numbers["walltime_s"]
    for row in rows:
        run_s, batch[row] = min(float(of[row]) for of in limits), True
        ran_s = max((snapshot.now_s - run.since_s for run in others["running"][row]), default=0.0)
        kinds[row] = KNOWN.id if isfinite(run_s) else ENDLESS.id
        if isfinite(run_s):
            total[row] = STEPS_PER_S * max(run_s, LEAST_LEFT_S)
            left[row] = min(total[row], STEPS_PER_S * _left_s(run_s, ran_s))
        else:
            total[row] = left[row] = ENDLESS_STEPS
    others["batch"] = tuple(batch)
    numbers = {"total_steps": frozen(total), "remaining_steps": frozen(left)}
    return tuple(kinds), {**columns.numbers, **numbers}


def _left_s(run_s: float, ran_s: float) -> float:
    """Return the time that a job still needs; one that outlived what was expected a part of it."""
    return run_s - ran_s if run_s > ran_s else max(LEAST_LEFT_S, LEAST_LEFT * run_s)


def _less_runs(
    seconds: dict[str, float],
    runs: tuple[Running, ...],
    now_s: float,
    nodes: Mapping[str, NodeView],
) -> tuple[tuple[str, float], ...]:
    for run in runs:
        for rank in run.ranks:
            gpu_type, of_rank_s = nodes[rank.node].gpu_type, len(rank.devices) * rank.share
            less_s = seconds.get(gpu_type, 0.0) - (now_s - run.since_s) * of_rank_s
            seconds[gpu_type] = max(0.0, less_s)
    return tuple(seconds.items())
