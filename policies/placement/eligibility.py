"""Which jobs and devices may be decided about at all, and the reason for each job that may not.

Devices that training jobs hold may be given to others; devices that profile runs hold, or jobs that
the snapshot does not know, are taken. A job is eligible when it is not being profiled and all its
dependencies are done (those no longer in the snapshot are).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from policies.contract.plan import WaitCode, Waiting
from policies.contract.snapshot import (
    DeviceView,
    Floats,
    Ints,
    JobPhase,
    NodeView,
    Purpose,
    Snapshot,
)
from policies.contract.validation import profile_runs, rank_demand


def free_devices(node: NodeView, jobs: Mapping[str, int]) -> tuple[str, ...]:
    """Ids of the healthy devices of a node that training may have; `jobs` knows the snapshot's
    jobs.
    """
    return free_and_busy(node, jobs)[0]


def busy_devices(node: NodeView, jobs: Mapping[str, int]) -> int:
    """How many devices of a node are in use by what training cannot move; they count for its
    power.
    """
    return free_and_busy(node, jobs)[1]


def free_and_busy(node: NodeView, jobs: Mapping[str, int]) -> tuple[tuple[str, ...], int]:
    """Both at once, in plain loops: every round asks it of every node."""
    free, busy = [], 0
    for device in node.devices:
        if device.held and _taken(device, jobs):
            busy += 1
        elif device.healthy:
            free.append(device.id)
    return tuple(free), busy


def _taken(device: DeviceView, jobs: Mapping[str, int]) -> bool:
    for hold in device.held:  # noqa: SIM110  # any() costs twice as much
        if hold.job not in jobs or hold.purpose is Purpose.PROFILING:
            return True
    return False


def not_eligible(snapshot: Snapshot) -> dict[int, Waiting]:
    """By row, the jobs that must wait whatever the capacity: being profiled, or with dependencies
    not done.
    """
    columns = snapshot.jobs.columns
    phases, dependent = columns.others["phase"], columns.others["dependencies"]
    waiting = {}
    if JobPhase.PROFILING in phases:
        profiled = (i for i, phase in enumerate(phases) if phase is JobPhase.PROFILING)
        waiting = {i: Waiting(columns.ids[i], WaitCode.AWAITING_PROFILE) for i in profiled}
    if not any(dependent):
        return waiting
    known = snapshot.jobs.position
    for i, dependencies in enumerate(dependent):
        undone = tuple(d for d in dependencies if d in known)
        if undone and i not in waiting:
            waiting[i] = Waiting(columns.ids[i], WaitCode.DEPENDENCY, jobs=undone)
    return waiting


def launch_s(snapshot: Snapshot) -> Floats:
    """float64[J]: seconds from a launch to the first step: the kind's set-up; for a job with
    progress at least its restart cost.
    """
    numbers = snapshot.jobs.columns.numbers
    setup = np.array([k.setup_s for k in snapshot.kinds] or [0.0])[snapshot.job_kinds]
    runs = snapshot.jobs.columns.others["running"]
    running = np.array(
        [any(r.purpose is Purpose.TRAINING for r in of) for of in runs], dtype=np.bool_
    )
    started = running | (numbers["remaining_steps"] < numbers["total_steps"])
    seconds: Floats = np.maximum(setup, np.where(started, numbers["restart_cost_s"], 0.0))
    return seconds


def wants_resources(snapshot: Snapshot) -> bool:
    """Whether any job uses anything of its node but GPUs."""
    return not snapshot.jobs.columns.gpus_only


def demands(snapshot: Snapshot, rows: Ints) -> tuple[tuple[str, ...], Floats]:
    """Names of resources and float64[len(rows), R]: what each job, as one process, uses of its
    node.
    """
    columns = snapshot.jobs.columns
    named = sorted({name for i in rows for name, _ in columns.others["resources"][i]})
    units = np.maximum(columns.counts["units"][rows], 1)
    plain = np.stack(
        [columns.numbers["cores"][rows] * units, columns.numbers["memory_gb"][rows] * units], axis=1
    )
    others = np.zeros((len(rows), len(named)))
    for at, i in enumerate(rows) if named else ():
        for name, amount in columns.others["resources"][i]:
            others[at, named.index(name)] = amount * units[at]
    return ("cores", "memory_gb", *named), np.concatenate([plain, others], axis=1)


def node_resources(nodes: tuple[NodeView, ...], names: tuple[str, ...]) -> Floats:
    """float64[N, R]: what each node has of these resources in all."""
    limits = [{"cores": n.cores, "memory_gb": n.memory_gb, **dict(n.resources)} for n in nodes]
    return np.array([[limit.get(name, 0.0) for name in names] for limit in limits]).reshape(
        len(nodes), len(names)
    )


def capacities(snapshot: Snapshot, nodes: tuple[NodeView, ...], names: tuple[str, ...]) -> Floats:
    """float64[N, R]: what each node has of these resources, less what profile runs use there."""
    table = node_resources(nodes, names)
    at = {n.id: i for i, n in enumerate(nodes)}
    for job, run in profile_runs(snapshot):
        demand = rank_demand(snapshot.jobs.columns, snapshot.jobs.position[job], len(run.ranks))
        for seat in run.ranks:
            if seat.node in at:
                table[at[seat.node]] -= [demand.get(name, 0.0) for name in names]
    return table


def signatures(
    snapshot: Snapshot, rows: Ints
) -> tuple[Ints, tuple[tuple[frozenset[str], frozenset[str]], ...]]:
    """Row by row the number of the job's (allowed types, labels), and the distinct ones: few,
    however many the jobs.
    """
    allowed, labels = (
        snapshot.jobs.columns.others["allowed_types"],
        snapshot.jobs.columns.others["labels"],
    )
    numbers: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    of = np.array(
        [numbers.setdefault((allowed[i], labels[i]), len(numbers)) for i in rows], dtype=np.int64
    )
    return of, tuple((frozenset(types), frozenset(wanted)) for types, wanted in numbers)


@cache
def admits(
    signature: tuple[frozenset[str], frozenset[str]], gpu_type: str, labels: frozenset[str]
) -> bool:
    """Whether jobs of this signature may run on nodes of that type with these labels (no types
    named: any).
    """
    types, wanted = signature
    return (not types or gpu_type in types) and wanted <= labels
