"""Which running jobs stay where they are without being decided about.

A job on a node that takes nothing new (cordoned, or turned to profiling) stays; on a draining node
it stays if it ends in time, and else only where there is no room elsewhere. A job launched at this
very moment stays: where stops take no time, every stop asks for another round of the same moment,
and rounds that undid each other's launches would never come to an end. The baselines never touch a
started job that can stay at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from policies.contract.plan import Waiting
from policies.contract.snapshot import NodeState, Purpose, Running, Snapshot
from policies.placement.cluster_state import ClusterState
from policies.placement.eligibility import admits
from policies.placement.from_snapshot import JobRequests, cluster_of
from policies.placement.requests import Allocation
from policies.placement.speed import Speeds

TRAINING = Purpose.TRAINING
"""See `policies.contract.validation.PROFILING`."""


@dataclass(frozen=True, slots=True)
class CurrentPlacement:
    """A running job that stays: its row, its placement now, and when it must leave (a drain)."""

    row: int
    run: Running
    allocation: Allocation
    until_s: float | None = None


def current_placements(
    snapshot: Snapshot,
    waiting: Mapping[int, Waiting],
    *,
    never_touch: bool,
    state: ClusterState | None = None,
) -> tuple[tuple[CurrentPlacement, ...], dict[int, CurrentPlacement]]:
    """Return the jobs that stay, and by row those that may if there is no capacity elsewhere.

    By arrival, while capacity and power last; `state` has what the former hold taken from it.
    """
    pinned: list[CurrentPlacement] = []
    later: list[CurrentPlacement] = []
    arrival = snapshot.jobs.columns.numbers["arrival_s"]
    running = snapshot.jobs.columns.others["running"]
    runs = [
        (row, run)
        for row, of in enumerate(running)
        if of and (run := training_run(of)) is not None and row not in waiting
    ]
    if not never_touch:
        runs = [(row, run) for row, run in runs if not _is_open(snapshot, run)]
    if not runs:
        return (), {}
    state = cluster_of(snapshot) if state is None else state
    requests, speeds = JobRequests(snapshot, state.layout), Speeds(snapshot.kinds)
    for row, run in sorted(runs, key=lambda r: (arrival[r[0]], r[0])):
        allocation = requests.allocation_of(row, run) if _may_stay(snapshot, row, run) else None
        if allocation is None:
            continue
        stay = CurrentPlacement(row, run, allocation, _leaves_s(snapshot, run))
        if never_touch or _is_pinned(snapshot, speeds, stay):
            if state.is_free(allocation) and state.has_power_for(allocation):
                state.take(allocation)
                pinned.append(stay)
        elif _is_outside(snapshot, run):
            later.append(stay)
    return tuple(pinned), {stay.row: stay for stay in _together_free(state.copy(), later)}


def _together_free(
    trial: ClusterState, found: list[CurrentPlacement]
) -> Iterator[CurrentPlacement]:
    """Yield those whose devices and resources are free beside those before; whatever the power."""
    for stay in found:
        if trial.is_free(stay.allocation):
            trial.take(stay.allocation)
            yield stay


def training_run(runs: tuple[Running, ...]) -> Running | None:
    """The one placement a job trains on; None if there is none, or several copies."""
    if len(runs) == 1:
        return runs[0] if runs[0].purpose is TRAINING else None
    training = [r for r in runs if r.purpose is TRAINING]
    return training[0] if len(training) == 1 else None


def _may_stay(snapshot: Snapshot, row: int, run: Running) -> bool:
    """Whether its nodes and devices still suit the job."""
    columns, nodes = snapshot.jobs.columns, [snapshot.node_by_id.get(s.node) for s in run.ranks]
    signature = (
        frozenset(columns.others["allowed_types"][row]),
        frozenset(columns.others["labels"][row]),
    )
    gpus = sum(len(s.devices) for s in run.ranks)
    if not columns.counts["gpus_min"][row] <= gpus <= columns.counts["gpus_max"][row] or any(
        s.share != 1.0 for s in run.ranks
    ):
        return False
    for node in nodes:
        if (
            node is None
            or node.state is NodeState.LOST
            or not admits(signature, node.gpu_type, frozenset(node.labels))
        ):
            return False
        if (
            node.state is NodeState.DRAINING
            and node.drain_until_s is not None
            and node.drain_until_s <= snapshot.now_s
        ):
            return False
    return len({n.gpu_type for n in nodes if n is not None}) == 1 or bool(
        columns.others["may_mix"][row]
    )


def _leaves_s(snapshot: Snapshot, run: Running) -> float | None:
    ends = [_drain_s(snapshot, s.node) for s in run.ranks]
    return min((e for e in ends if e is not None), default=None)


def _drain_s(snapshot: Snapshot, node: str) -> float | None:
    view = snapshot.node_by_id[node]
    return view.drain_until_s if view.state is NodeState.DRAINING else None


def _is_open(snapshot: Snapshot, run: Running) -> bool:
    """True if the policy decides freely about the running job; a cheap first check."""
    return run.since_s < snapshot.now_s and all(
        (node := snapshot.node_by_id.get(s.node)) is not None and node.takes_training
        for s in run.ranks
    )


def _is_outside(snapshot: Snapshot, run: Running) -> bool:
    return all(not snapshot.node_by_id[s.node].takes_training for s in run.ranks)


def _is_pinned(snapshot: Snapshot, speeds: Speeds, stay: CurrentPlacement) -> bool:
    """True if the job stays: launched just now, or on a closed node until it ends."""
    if stay.run.since_s >= snapshot.now_s:
        return True
    nodes = [snapshot.node_by_id[s.node] for s in stay.run.ranks]
    if all(n.takes_training for n in nodes):
        return False
    if all(n.state is not NodeState.DRAINING for n in nodes):
        return True
    end_s = snapshot.now_s + remaining_s(snapshot, speeds, stay)
    return stay.until_s is not None and end_s <= stay.until_s


def remaining_s(snapshot: Snapshot, speeds: Speeds, stay: CurrentPlacement) -> float:
    """Return the time that the rest of a job takes where it runs now; inf if unknown."""
    columns = snapshot.jobs.columns
    rate = speeds.on_ranks(columns.kinds[stay.row], stay.run.ranks, snapshot.node_by_id)
    steps = columns.numbers["remaining_steps"][stay.row]
    return float(steps / rate) if rate > 0.0 else float("inf")
