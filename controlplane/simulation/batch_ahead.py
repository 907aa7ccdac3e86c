"""Jobs of a live snapshot, ready to be simulated to their ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

LEAST_LEFT = 0.1
"""A job that has run longer than expected is taken to need this part of its run time still."""

LEAST_LEFT_S = 1.0
"""Shortest such rest, in seconds."""

ENDLESS_STEPS = 2.0 * ENDLESS_S * SLOWEST
"""Steps of a batch job of unknown run time."""


def _kind(name: str, steps_per_s: float) -> KindView:
    """Kind of jobs without GPUs, with this speed."""
    throughput = Throughput(*WITHOUT_GPUS[:2], steps_per_s, Source.DECLARED)
    return KindView(name, name, (throughput,))


KNOWN = _kind("batch job", STEPS_PER_S)
ENDLESS = _kind("batch job of unknown run time", SLOWEST)
"""Kind so slow that its jobs never end."""

BATCH_KINDS = (KNOWN, ENDLESS)


def jobs_ahead(snapshot: Snapshot) -> Jobs:
    """Return the jobs with their training runs only, and device time without that of these runs.

    Batch jobs and jobs without GPUs get the work that takes them their expected run time.
    """
    columns = snapshot.jobs.columns
    nodes = snapshot.node_by_id
    running: list[tuple[Running, ...]] = []
    received_s: list[tuple[tuple[str, float], ...]] = []
    for runs, seconds in zip(columns.others["running"], columns.others["received_s"], strict=True):
        training = [run for run in runs if run.purpose is Purpose.TRAINING and run.copy == 0]
        running.append(tuple(training))
        received_s.append(_less_runs(dict(seconds), training, snapshot.now_s, nodes))
    others = {**columns.others, "running": tuple(running), "received_s": tuple(received_s)}
    kinds, numbers = _with_run_times(snapshot, others)
    # All have arrived: a later arrival was written by a clock that was ahead.
    arrived_s = np.minimum(numbers["arrival_s"], snapshot.now_s)
    numbers = {**numbers, "arrival_s": frozen(arrived_s)}
    ready = JobColumns(columns.ids, kinds, numbers, columns.counts, others)
    return Jobs(ready, snapshot.jobs.position)


def _with_run_times(
    snapshot: Snapshot, others: dict[str, tuple[Any, ...]]
) -> tuple[tuple[str, ...], Mapping[str, Floats]]:
    """Return (kinds, numbers) by which batch jobs run for their expected time.

    `others["batch"]` is changed: jobs without GPUs become batch jobs, too.
    """
    columns = snapshot.jobs.columns
    batch_rows = sorted(in_batch_queue(snapshot))
    if not batch_rows:
        return columns.kinds, columns.numbers
    kinds = list(columns.kinds)
    batch = list(others["batch"])
    total_steps = columns.numbers["total_steps"].copy()
    remaining_steps = columns.numbers["remaining_steps"].copy()
    for row in batch_rows:
        batch[row] = True
        expected_s = float(columns.numbers["expected_run_s"][row])
        walltime_s = float(columns.numbers["walltime_s"][row])
        run_s = min(expected_s, walltime_s)
        if not isfinite(run_s):
            kinds[row] = ENDLESS.id
            total_steps[row] = ENDLESS_STEPS
            remaining_steps[row] = ENDLESS_STEPS
            continue
        ran_s = max((snapshot.now_s - run.since_s for run in others["running"][row]), default=0.0)
        kinds[row] = KNOWN.id
        total_steps[row] = STEPS_PER_S * max(run_s, LEAST_LEFT_S)
        remaining_steps[row] = min(total_steps[row], STEPS_PER_S * _left_s(run_s, ran_s))
    others["batch"] = tuple(batch)
    numbers = {
        **columns.numbers,
        "total_steps": frozen(total_steps),
        "remaining_steps": frozen(remaining_steps),
    }
    return tuple(kinds), numbers


def _left_s(run_s: float, ran_s: float) -> float:
    """Return the time that a job still needs: `run_s` expected, of which it has run `ran_s`."""
    if run_s > ran_s:
        return run_s - ran_s
    return max(LEAST_LEFT_S, LEAST_LEFT * run_s)


def _less_runs(
    seconds: dict[str, float],
    runs: Iterable[Running],
    now_s: float,
    nodes: Mapping[str, NodeView],
) -> tuple[tuple[str, float], ...]:
    """Return received device seconds by GPU type without those of these runs until now."""
    for run in runs:
        for rank in run.ranks:
            gpu_type = nodes[rank.node].gpu_type
            devices = len(rank.devices) * rank.share
            device_s = (now_s - run.since_s) * devices
            seconds[gpu_type] = max(0.0, seconds.get(gpu_type, 0.0) - device_s)
    return tuple(seconds.items())
