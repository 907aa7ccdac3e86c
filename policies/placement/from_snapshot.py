"""State of a cluster from a snapshot, and the jobs about which a policy does not decide.

Training may have every healthy device that no profile run and no unknown job holds. Running jobs
hold nothing in the state that `cluster_of` returns: a policy takes what it keeps.

A job is eligible when it is not being profiled and all its dependencies are done. A job on a closed
node (cordoned, or turned to profiling) stays; on a draining node it stays if it ends in time, and
else only without room elsewhere. A job launched at this very moment stays: otherwise rounds that
undo each other's launches might never end. The baselines never touch a started job that can stay.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from policies.contract.plan import WaitCode, Waiting
from policies.contract.snapshot import (
    PROFILING,
    TRAINING,
    JobPhase,
    NodeState,
    NodeView,
    Running,
    Snapshot,
    profile_runs,
    rank_demand,
)
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import (
    PLAIN,
    Allocation,
    Free,
    Layout,
    capacity_in_thousandths,
    capacity_of,
)
from policies.placement.priced_options import JobRequests, admits, with_quota
from policies.placement.speed import Speeds


def cluster_of(snapshot: Snapshot, *, shares: bool = True) -> ClusterState:
    """Return the capacity for training; `shares`: as in `Layout`. Other nodes are closed."""
    present, idle = _devices(snapshot.nodes, snapshot.jobs.position)
    of = Layout(snapshot.nodes, resources_of(snapshot), present, shares=shares)
    cap_mw = inf if snapshot.cap_w is None else capacity_in_thousandths(snapshot.cap_w)
    state = ClusterState(of, cap_mw, idle, _free(snapshot, of, idle))
    for n, node in enumerate(snapshot.nodes):
        if not node.takes_training:
            state.close(n)
    return state


def resources_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the names of the resources that jobs use and some node may lack."""
    columns = snapshot.jobs.columns
    if columns.gpus_only:
        return ()
    named = {name for of in columns.others["resources"] for name, _ in of}
    plain = [name for name in PLAIN if columns.numbers[name].any()]
    finite = [n for n in plain if any(getattr(node, n) < inf for node in snapshot.nodes)]
    return (*finite, *sorted(named))


def _devices(nodes: Sequence[NodeView], known: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Return by node the devices that count, and those for training.

    Training may not have those that profile runs or unknown jobs hold, and unhealthy ones.
    """
    present, idle = [], []
    for node in nodes:
        healthy, busy, bit = 0, 0, 1
        for device in node.devices:
            if device.healthy:
                healthy |= bit
            if device.held:
                for hold in device.held:
                    if hold.job not in known or hold.purpose is PROFILING:
                        busy |= bit
            bit <<= 1
        present.append(healthy | busy)
        idle.append(healthy & ~busy)
    return present, idle


def _free(snapshot: Snapshot, layout: Layout, idle: Sequence[int]) -> list[Free]:
    """Return each node's free capacity: idle devices, and what profile runs leave of resources."""
    if not layout.resources and not layout.levels:
        return [(devices.bit_count(),) for devices in idle]
    if not layout.resources:
        return [layout.free(n, devices, ()) for n, devices in enumerate(idle)]
    left = [list(capacity_of(node, layout.resources)) for node in layout.nodes]
    for job, run in profile_runs(snapshot):
        row = snapshot.jobs.position[job]
        demand = rank_demand(snapshot.jobs.columns, row, len(run.ranks))
        for seat in run.ranks:
            used = layout.amounts(with_quota(demand, [seat]))
            if used and (n := layout.index.get(seat.node)) is not None:
                left[n] = [a - b for a, b in zip(left[n], used, strict=True)]
    return [layout.free(n, devices, tuple(left[n])) for n, devices in enumerate(idle)]


def not_eligible(snapshot: Snapshot) -> dict[int, Waiting]:
    """By row, jobs that wait for anything but capacity: profiling or dependencies."""
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


@dataclass(frozen=True, slots=True)
class CurrentPlacement:
    """Running job that stays: its row, its placement, and when it must leave (a drain)."""

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

    By arrival, while capacity and power last; the former are taken from `state`.
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
        if any(rank.share != 1.0 for rank in run.ranks) or not may_stay(snapshot, row, run):
            continue
        if (allocation := requests.allocation_of(row, run)) is None:
            continue
        stay = CurrentPlacement(row, run, allocation, leaves_s(snapshot, run))
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
    """Yield those whose devices and resources are free beside earlier ones, whatever the power."""
    for stay in found:
        if trial.is_free(stay.allocation):
            trial.take(stay.allocation)
            yield stay


def training_run(runs: tuple[Running, ...]) -> Running | None:
    """Placement a job trains on; None if there is none, or several copies."""
    if len(runs) == 1:
        return runs[0] if runs[0].purpose is TRAINING else None
    training = [r for r in runs if r.purpose is TRAINING]
    return training[0] if len(training) == 1 else None


def may_stay(snapshot: Snapshot, row: int, run: Running) -> bool:
    """Return True if the nodes and GPUs of a run still suit its job."""
    counts, others = snapshot.jobs.columns.counts, snapshot.jobs.columns.others
    signature = frozenset(others["allowed_types"][row]), frozenset(others["labels"][row])
    gpus = sum(len(rank.devices) for rank in run.ranks)
    if not counts["gpus_min"][row] <= gpus <= counts["gpus_max"][row]:
        return False
    types = set()
    for rank in run.ranks:
        node = snapshot.node_by_id.get(rank.node)
        if node is None or node.state is NodeState.LOST:
            return False
        if not admits(signature, node.gpu_type, frozenset(node.labels)):
            return False
        ends_s = _drain_s(snapshot, node.id)
        if ends_s is not None and ends_s <= snapshot.now_s:
            return False
        types.add(node.gpu_type)
    return len(types) == 1 or bool(others["may_mix"][row])


def leaves_s(snapshot: Snapshot, run: Running) -> float | None:
    """Return when a run must end because a node of it drains; None if never."""
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
    """Return the remaining time of a job where it runs now; inf if unknown."""
    columns = snapshot.jobs.columns
    rate = speeds.on_ranks(columns.kinds[stay.row], stay.run.ranks, snapshot.node_by_id)
    steps = columns.numbers["remaining_steps"][stay.row]
    return float(steps / rate) if rate > 0.0 else float("inf")
