"""State of a cluster from a snapshot, and the jobs about which a policy does not decide.

Training may have every healthy device that no profile run and no unknown job holds. Running jobs
hold nothing in the state that `cluster_of` returns: a policy takes what it keeps.

A job is eligible when it is not being profiled and all its dependencies are done. A job on a closed
node (cordoned, or turned to profiling) stays; on a draining node it stays if it ends in time, and
else only without room elsewhere. A job launched at this very moment stays: otherwise rounds that
undo each other's launches might never end. The baselines never touch a started job that can stay.

On other nodes a launch stays for its least run time, `min_run_s`, unless a waiting job that fits on
no other GPUs needs its GPUs, and has a higher priority; or has an equal one and a due date
(or earlier deadline) that it meets if it starts there now, but nowhere if it starts when the least
run time is over, or the next round comes if that is later.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from policies.contract.placement_rules import stays
from policies.contract.plan import Placement, Waiting, seat_demand, seat_demanded, training_run
from policies.contract.snapshot import (
    PROFILING,
    NodeState,
    NodeView,
    Running,
    Snapshot,
    profile_runs,
)
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import (
    PLAIN,
    RESOURCES,
    Allocation,
    DeviceSet,
    Free,
    Layout,
    NodeSet,
    allowed_mw,
    members,
    needed_mw,
)
from policies.placement.priced_options import (
    JobOptions,
    JobRequests,
    Option,
    Signature,
    admits,
    with_quota,
)
from policies.placement.speed import Speeds, is_spread

READY = NodeState.READY
"""Looked up once, for every node of every running job."""


def cluster_of(snapshot: Snapshot, *, shares: bool = True) -> ClusterState:
    """Return the capacity for training; nodes that take none are closed. `shares`: as `Layout`."""
    present, idle = _devices(snapshot.nodes, snapshot.jobs.position)
    layout = Layout(snapshot.nodes, resources_of(snapshot), present, shares=shares)
    cap_mw = inf if snapshot.cap_w is None else allowed_mw(snapshot.cap_w)
    state = ClusterState(layout, cap_mw, idle, _free(snapshot, layout, idle))
    _close(state, snapshot)
    return state


def empty_cluster_of(snapshot: Snapshot) -> ClusterState:
    """Return the capacity for training if nothing ran, without a power cap."""
    state = ClusterState(Layout(snapshot.nodes, resources_of(snapshot)))
    _close(state, snapshot)
    return state


def left_beside(snapshot: Snapshot, placements: Sequence[Placement]) -> ClusterState:
    """Return the capacity for training that these placements leave.

    A device of a placement is taken whole, also where others could share it. Profile runs hold what
    they have, whether the placements go on with them or not.
    """
    # 1. What the snapshot's nodes have: idle devices, and amounts that are left.
    before = cluster_of(snapshot)
    layout = before.layout
    columns = snapshot.jobs.columns
    idle = before.idle.copy()
    resources = slice(RESOURCES, RESOURCES + len(layout.resources))
    left = [list(free[resources]) for free in before.free]

    # 2. What the placements take of them.
    switched_on: NodeSet = 0
    alone: NodeSet = 0
    for placed in placements:
        row = snapshot.jobs.position[placed.job]
        running = columns.others["running"][row]
        # `cluster_of` has taken the amounts of profile runs already.
        is_counted = placed.purpose is PROFILING and stays(placed, running)
        of_unit = seat_demand(columns, row)
        for seat in placed.ranks:
            n = layout.index[seat.node]
            idle[n] &= ~layout.bits(n, seat.devices)
            switched_on |= 1 << n
            if columns.others["exclusive"][row]:
                alone |= 1 << n
            if is_counted:
                continue
            demand = seat_demanded(of_unit, seat.units, seat.cpu_quota)
            for i, name in enumerate(layout.resources):
                left[n][i] = max(0, left[n][i] - demand.get(name, 0))

    # 3. A node whose jobs take nothing that counts draws power all the same.
    free = [layout.free(n, idle[n], tuple(left[n])) for n in range(len(idle))]
    base_w = 0.0
    for n in members(switched_on):
        if free[n] == layout.classes[layout.class_of[n]].capacity:
            base_w += layout.nodes[n].draw_w(0, works=True)
    state = ClusterState(layout, before.cap_mw - needed_mw(base_w), idle, free)
    state.open = before.open & ~alone
    return state


def resources_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the names of the resources that count; none if jobs use nothing but GPUs.

    Cores and memory count if a job uses them and some node could lack them. Named resources of jobs
    and of nodes all count, those that no job uses, too: `batch.fit` leaves scarce nodes free.
    """
    columns = snapshot.jobs.columns
    if columns.gpus_only:
        return ()
    plain = []
    for name in PLAIN:
        if not columns.numbers[name].any():
            continue
        if any(getattr(node, name) < inf for node in snapshot.nodes):
            plain.append(name)
    named: set[str] = set()
    for resources in columns.others["resources"]:
        named.update([name for name, _ in resources])
    for node in snapshot.nodes:
        named.update([name for name, _ in node.resources])
    return (*plain, *sorted(named))


def _close(state: ClusterState, snapshot: Snapshot) -> None:
    """Close the nodes that take no training."""
    for n, node in enumerate(snapshot.nodes):
        if not node.takes_training:
            state.close(n)


def _devices(
    nodes: Sequence[NodeView], known: Mapping[str, int]
) -> tuple[list[DeviceSet], list[DeviceSet]]:
    """Return by node the devices that count as capacity, and those that training may have.

    It may not have those that profile runs or jobs which are not `known` hold, and unhealthy ones.
    """
    present: list[DeviceSet] = []
    idle: list[DeviceSet] = []
    for node in nodes:
        healthy: DeviceSet = 0
        busy: DeviceSet = 0
        bit = 1
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


def _free(snapshot: Snapshot, layout: Layout, idle: Sequence[DeviceSet]) -> list[Free]:
    """Return each node's free capacity: idle devices, and what profile runs leave of resources."""
    if not layout.resources and not layout.levels:
        return [(devices.bit_count(),) for devices in idle]
    if not layout.resources:
        return [layout.free(n, devices, ()) for n, devices in enumerate(idle)]

    # Amounts of resources by node, without those of profile runs.
    resources = slice(RESOURCES, RESOURCES + len(layout.resources))
    whole = [of_class.capacity[resources] for of_class in layout.classes]
    left = [whole[c] for c in layout.class_of]
    for job, run in profile_runs(snapshot):
        row = snapshot.jobs.position[job]
        for seat in run.ranks:
            demand = seat_demand(snapshot.jobs.columns, row, seat.units)
            used = layout.amounts(with_quota(demand, [seat]))
            if used and seat.node in layout.index:
                n = layout.index[seat.node]
                pairs = zip(left[n], used, strict=True)
                left[n] = tuple([amount - taken for amount, taken in pairs])
    return [layout.free(n, devices, left[n]) for n, devices in enumerate(idle)]


class CurrentPlacement(NamedTuple):
    """Running job that stays: its row, its placement, and when it must leave (s; a drain).

    A named tuple, made in half of the time of a dataclass: each running job has one.
    """

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
    requests: JobRequests | None = None,
    keep_wide: bool = False,
) -> tuple[tuple[CurrentPlacement, ...], dict[int, CurrentPlacement]]:
    """Return the jobs that stay, and by row those that may if there is no capacity elsewhere.

    By arrival, while capacity and power last; the former are taken from `state`. `waiting`: rows of
    jobs that must wait. `never_touch`: every job stays that can. With `keep_wide` gangs that no
    node can hold stay where they run. `state`, `requests`: those of the snapshot, if there already.
    """
    if state is None:
        state = cluster_of(snapshot)
    if requests is None:
        requests = JobRequests(snapshot.jobs.columns, state.layout)
    runs = _training_runs(snapshot, waiting)

    # 1. Jobs that stay whatever the policy would do, and all others on closed nodes.
    staying: frozenset[int] = frozenset()
    if not never_touch:
        fixed = _not_preemptible(snapshot)
        if keep_wide:
            fixed |= {row for row, run in runs if is_spread(run.ranks) and requests.is_wide(row)}
        young = _young_launches(snapshot, runs)
        runs = [
            (row, run)
            for row, run in runs
            if row in young or row in fixed or not _is_open(snapshot, run)
        ]
        if runs:
            staying = _staying(snapshot, young, waiting, state) | fixed
    if not runs:
        return (), {}

    # 2. By arrival: those that stay, and those that may if they find no other place.
    pinned: list[CurrentPlacement] = []
    fallback: list[CurrentPlacement] = []
    arrival_s = snapshot.jobs.columns.listed["arrival_s"]
    speeds = Speeds.of(snapshot)
    runs = sorted(runs, key=lambda row_and_run: (arrival_s[row_and_run[0]], row_and_run[0]))
    for row, run in runs:
        if not run.is_whole or not may_stay(snapshot, row, run):
            continue
        allocation = requests.allocation_of(row, run)
        if allocation is None:
            continue
        stay = CurrentPlacement(row, run, allocation, leaves_s(snapshot, run))
        if never_touch or row in staying or _is_pinned(snapshot, speeds, stay):
            pinned.append(stay)
        elif _is_outside(snapshot, run):
            fallback.append(stay)

    # 3. Nearly always all of them fit; else the first ones.
    if not state.take_together([stay.allocation for stay in pinned]):
        pinned = [stay for stay in pinned if state.try_take(stay.allocation)]
    free_together = _free_together(state.copy(), fallback)
    return tuple(pinned), {stay.row: stay for stay in free_together}


def _training_runs(snapshot: Snapshot, waiting: Mapping[int, Waiting]) -> list[tuple[int, Running]]:
    """Return (row, run) of the training jobs that run, without those that must wait."""
    training_runs = []
    for row, runs in enumerate(snapshot.jobs.columns.others["running"]):
        if not runs or row in waiting:
            continue
        run = training_run(runs)
        if run is not None:
            training_runs.append((row, run))
    return training_runs


def _free_together(
    trial: ClusterState, stays: Iterable[CurrentPlacement]
) -> Iterator[CurrentPlacement]:
    """Yield those whose devices and resources are free beside earlier ones, whatever the power.

    They are taken from `trial`.
    """
    for stay in stays:
        if trial.is_free(stay.allocation):
            trial.take(stay.allocation)
            yield stay


def launches_that_stay(
    snapshot: Snapshot, waiting: Mapping[int, Waiting], state: ClusterState
) -> frozenset[int]:
    """Return the rows of launches on open nodes that go on whatever the policy would do."""
    runs = _training_runs(snapshot, waiting)
    young = _young_launches(snapshot, runs)
    fixed = _not_preemptible(snapshot) & {row for row, _ in runs}
    return _staying(snapshot, young, waiting, state) | fixed


def _not_preemptible(snapshot: Snapshot) -> frozenset[int]:
    """Return the rows of jobs that are not stopped before their end."""
    preemptible = snapshot.jobs.columns.others["preemptible"]
    return frozenset([row for row, may_stop in enumerate(preemptible) if not may_stop])


def _staying(
    snapshot: Snapshot,
    young: Mapping[int, Running],
    waiting: Mapping[int, Waiting],
    state: ClusterState,
) -> frozenset[int]:
    """Return the young launches that no waiting job ends."""
    if all(run.since_s >= snapshot.now_s for run in young.values()):
        return frozenset(young)
    claims = _Claims(snapshot, young, state)
    return frozenset(young.keys() - claims.displaced(waiting))


def _young_launches(snapshot: Snapshot, runs: Sequence[tuple[int, Running]]) -> dict[int, Running]:
    """Return by row the launches on open nodes that are new, or within their least run time."""
    now_s = snapshot.now_s
    least_s = snapshot.jobs.columns.numbers["min_run_s"]
    young: dict[int, Running] = {}
    for row, run in runs:
        is_new = run.since_s >= now_s
        if (is_new or run.since_s + least_s[row] > now_s) and _is_open(snapshot, run):
            young[row] = run
    return young


class _Claims:
    """Claims of waiting jobs to the GPUs of young launches, tried on a copy of the state.

    `slack_s` float64[J]: time until each job's due date or earlier deadline. `held`: allocations of
    the launches that no claim has ended so far, by row.
    """

    def __init__(
        self, snapshot: Snapshot, young: Mapping[int, Running], state: ClusterState
    ) -> None:
        self.snapshot = snapshot
        self.young = young
        self.state = state
        columns = snapshot.jobs.columns
        self.now_s = snapshot.now_s
        self.priority = columns.counts["priority"]
        self.least_s = columns.numbers["min_run_s"]
        due_s = np.minimum(columns.numbers["due_s"], columns.numbers["deadline_s"])
        self.slack_s = due_s - snapshot.now_s
        self.held: dict[int, Allocation] = {}

    def displaced(self, waiting: Mapping[int, Waiting]) -> set[int]:
        """Return the launches that claims end: as few as will do for each, the youngest first.

        `waiting`: jobs that wait for anything but capacity.
        """
        claimants = self._claimants(waiting)
        if not claimants:
            return set()

        # 1. The launches hold what they have.
        self.state = self.state.copy()
        self.options = JobOptions(self.snapshot, self.state)
        for row, run in self.young.items():
            allocation = self.options.requests.allocation_of(row, run)
            if allocation is not None and self.state.try_take(allocation):
                self.held[row] = allocation

        # 2. Claimants take what is free, or what launches had.
        displaced: set[int] = set()
        for claimant in claimants:
            displaced |= self._displaced_by(claimant)
        return displaced

    def _claimants(self, waiting: Mapping[int, Waiting]) -> list[int]:
        """Return the jobs that may have a claim, by priority, then due date.

        That is a higher priority than some launch has, or an equal one and a due date ahead.
        """
        running = self.snapshot.jobs.columns.others["running"]
        lowest = min(self.priority[row] for row in self.young)
        is_due = np.isfinite(self.slack_s) & (self.slack_s > 0.0)
        may_claim = (self.priority > lowest) | (is_due & (self.priority == lowest))
        rows = np.flatnonzero(may_claim).tolist()
        claimants = [row for row in rows if not running[row] and row not in waiting]
        return sorted(claimants, key=lambda row: (-self.priority[row], self.slack_s[row], row))

    def _displaced_by(self, claimant: int) -> set[int]:
        """Give a claimant GPUs; return the launches that it ends for them."""
        # 1. Launches that it may end.
        steps = float(self.snapshot.jobs.columns.numbers["remaining_steps"][claimant])
        launch_s = self.options.launch_times.of(claimant)
        options = self.options.of(claimant)
        times_s = [launch_s + steps / option.steps_per_s for option in options]
        fastest_s = min(times_s, default=inf)
        endable = {row for row in self.held if self._may_end(claimant, row, fastest_s)}
        if not endable:
            return set()

        # 2. Options that meet its due date; all of them, if none does.
        slack_s = self.slack_s[claimant]
        if fastest_s <= slack_s:
            pairs = zip(options, times_s, strict=True)
            options = tuple([option for option, time_s in pairs if time_s <= slack_s])

        # 3. GPUs that are free already.
        for option in options:
            allocation = self.state.find(option.request, option.nodes)
            if allocation is not None:
                self.state.take(allocation)
                return set()

        # 4. Else GPUs of launches on one node.
        nodes = {part.node for row in endable for part in self.held[row].parts}
        for option in options:
            for node in nodes:
                if option.nodes >> node & 1:
                    ended = self._end_on(node, endable, option)
                    if ended:
                        return ended
        return set()

    def _end_on(self, node: int, endable: set[int], option: Option) -> set[int]:
        """End as few launches as this option needs on a node; none if it never fits there.

        Those of least priority first, of equal ones the youngest.
        """
        on_node = []
        for row in endable:
            if any(part.node == node for part in self.held[row].parts):
                on_node.append(row)
        on_node.sort(key=lambda row: (self.priority[row], -self.young[row].since_s, row))
        ended: list[int] = []
        for row in on_node:
            self.state.release(self.held[row])
            ended.append(row)
            allocation = self.state.find(option.request, 1 << node)
            if allocation is not None:
                self.state.take(allocation)
                for ended_row in ended:
                    del self.held[ended_row]
                return set(ended)
        for row in ended:
            self.state.take(self.held[row])
        return set()

    def _may_end(self, claimant: int, row: int, fastest_s: float) -> bool:
        """Return True if the claimant's priority or due date requires that a launch ends.

        `fastest_s`: the claimant's shortest run time, a launch included.
        """
        run = self.young[row]
        priority = self.priority[claimant]
        if run.since_s >= self.now_s or not run.is_whole:
            return False
        if priority != self.priority[row]:
            return bool(priority > self.priority[row])
        # The due date is met by a start now, and missed by one after the launch.
        left_s = run.since_s + self.least_s[row] - self.now_s
        later_s = max(left_s, self.snapshot.round_s)
        return bool(fastest_s <= self.slack_s[claimant] < fastest_s + later_s)


def may_stay(snapshot: Snapshot, row: int, run: Running) -> bool:
    """Return True if the nodes and GPUs of a run still suit its job."""
    # 1. It has as many GPUs or units as the job needs now.
    listed = snapshot.jobs.columns.listed
    others = snapshot.jobs.columns.others
    if not listed["gpus_min"][row] <= run.gpus <= listed["gpus_max"][row]:
        return False
    if others["batch"][row] and run.units != listed["units"][row]:
        return False

    # 2. Its nodes may keep it. A ready node may keep a job that takes every node.
    allowed_types = others["allowed_types"][row]
    labels = others["labels"][row]
    is_choosy = bool(allowed_types or labels)
    nodes = snapshot.node_by_id
    for rank in run.ranks:
        node = nodes.get(rank.node)
        if node is None:
            return False
        if is_choosy or node.state is not READY:
            signature = frozenset(allowed_types), frozenset(labels)
            if not _may_keep(snapshot, node, signature):
                return False

    # 3. Its GPUs are of one type, unless it may mix them.
    if run.gpus <= 1 or others["may_mix"][row]:
        return True
    return len({nodes[rank.node].gpu_type for rank in run.ranks if rank.devices}) <= 1


def _may_keep(snapshot: Snapshot, node: NodeView, signature: Signature) -> bool:
    """Return True if a node suits a job of this signature, and is neither lost nor to be empty."""
    types, labels = signature
    if (types or labels) and not admits(signature, node.gpu_type, frozenset(node.labels)):
        return False
    if node.state is READY:
        return True
    if node.state is NodeState.LOST:
        return False
    ends_s = snapshot.drains.get(node.id)
    return ends_s is None or ends_s > snapshot.now_s


def leaves_s(snapshot: Snapshot, run: Running) -> float | None:
    """Return the time (s) at which a run must end because a node of it drains; None if never."""
    drains = snapshot.drains
    if not drains:
        return None
    return min([drains[seat.node] for seat in run.ranks if seat.node in drains], default=None)


def _is_open(snapshot: Snapshot, run: Running) -> bool:
    """Return True if all nodes of a run take training."""
    nodes = snapshot.node_by_id
    for seat in run.ranks:
        node = nodes.get(seat.node)
        if node is None or not node.takes_training:
            return False
    return True


def _is_outside(snapshot: Snapshot, run: Running) -> bool:
    """Return True if no node of a run takes training."""
    return not any(snapshot.node_by_id[seat.node].takes_training for seat in run.ranks)


def _is_pinned(snapshot: Snapshot, speeds: Speeds, stay: CurrentPlacement) -> bool:
    """Return True if the job stays on a closed node until it ends."""
    nodes = [snapshot.node_by_id[seat.node] for seat in stay.run.ranks]
    if all(node.takes_training for node in nodes):
        return False
    if all(node.state is not NodeState.DRAINING for node in nodes):
        return True
    end_s = snapshot.now_s + remaining_s(snapshot, speeds, stay)
    return stay.until_s is not None and end_s <= stay.until_s


def remaining_s(snapshot: Snapshot, speeds: Speeds, stay: CurrentPlacement) -> float:
    """Return the remaining time of a job where it runs now, in seconds; inf if unknown."""
    columns = snapshot.jobs.columns
    if columns.others["batch"][stay.row]:
        has_run_s = snapshot.now_s - stay.run.since_s
        return max(0.0, columns.predicted_run_s[stay.row] - has_run_s)
    steps_per_s = speeds.on_ranks(columns.kinds[stay.row], stay.run.ranks, snapshot.node_by_id)
    if steps_per_s <= 0.0:
        return inf
    return float(columns.numbers["remaining_steps"][stay.row] / steps_per_s)
