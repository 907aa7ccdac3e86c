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

from collections.abc import Iterator, Mapping, Sequence
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
    admits,
    with_quota,
)
from policies.placement.speed import Speeds, is_spread

READY = NodeState.READY
"""Looked up once, for every node of every running job."""


def cluster_of(snapshot: Snapshot, *, shares: bool = True) -> ClusterState:
    """Return the capacity for training; `shares`: as in `Layout`. Other nodes are closed."""
    present, idle = _devices(snapshot.nodes, snapshot.jobs.position)
    of = Layout(snapshot.nodes, resources_of(snapshot), present, shares=shares)
    cap_mw = inf if snapshot.cap_w is None else allowed_mw(snapshot.cap_w)
    state = ClusterState(of, cap_mw, idle, _free(snapshot, of, idle))
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
    before = cluster_of(snapshot)
    layout, columns = before.layout, snapshot.jobs.columns
    resources = slice(RESOURCES, RESOURCES + len(layout.resources))
    idle = before.idle.copy()
    left = [list(free[resources]) for free in before.free]
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

    free = [layout.free(n, idle[n], tuple(left[n])) for n in range(len(idle))]
    # A node whose jobs take nothing that counts draws power all the same.
    base_w = 0.0
    for n in members(switched_on):
        if free[n] == layout.classes[layout.class_of[n]].capacity:
            base_w += layout.nodes[n].draw_w(0, works=True)
    state = ClusterState(layout, before.cap_mw - needed_mw(base_w), idle, free)
    state.open = before.open & ~alone
    return state


def resources_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the names of the resources that jobs use and some node may lack.

    Where jobs use any: beside them the named ones of nodes, which are to be left for others.
    """
    columns = snapshot.jobs.columns
    if columns.gpus_only:
        return ()
    named = {name for of in columns.others["resources"] for name, _ in of}
    named.update(name for node in snapshot.nodes for name, _ in node.resources)
    plain = [name for name in PLAIN if columns.numbers[name].any()]
    finite = [n for n in plain if any(getattr(node, n) < inf for node in snapshot.nodes)]
    return (*finite, *sorted(named))


def _close(state: ClusterState, snapshot: Snapshot) -> None:
    """Close the nodes that take no training."""
    for n, node in enumerate(snapshot.nodes):
        if not node.takes_training:
            state.close(n)


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
    resources = slice(RESOURCES, RESOURCES + len(layout.resources))
    whole = [of_class.capacity[resources] for of_class in layout.classes]
    left = [list(whole[c]) for c in layout.class_of]
    for job, run in profile_runs(snapshot):
        row = snapshot.jobs.position[job]
        for seat in run.ranks:
            demand = seat_demand(snapshot.jobs.columns, row, seat.units)
            used = layout.amounts(with_quota(demand, [seat]))
            if used and (n := layout.index.get(seat.node)) is not None:
                left[n] = [a - b for a, b in zip(left[n], used, strict=True)]
    return [layout.free(n, devices, tuple(left[n])) for n, devices in enumerate(idle)]


class CurrentPlacement(NamedTuple):
    """Running job that stays: its row, its placement, and when it must leave (a drain).

    A named tuple because each running job has one, and it is made in half of the time.
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

    By arrival, while capacity and power last; the former are taken from `state`. With `keep_wide`
    gangs that no node can hold stay where they run.
    """
    pinned: list[CurrentPlacement] = []
    later: list[CurrentPlacement] = []
    arrival = snapshot.jobs.columns.listed["arrival_s"]
    runs = _training_runs(snapshot, waiting)
    fixed = frozenset[int]() if never_touch else _not_preemptible(snapshot)
    state = cluster_of(snapshot) if state is None else state
    requests = JobRequests(snapshot.jobs.columns, state.layout) if requests is None else requests
    if keep_wide and not never_touch:
        fixed |= {row for row, run in runs if is_spread(run.ranks) and requests.is_wide(row)}
    young = {} if never_touch else _young_launches(snapshot, runs)
    if not never_touch:
        runs = [
            (row, run)
            for row, run in runs
            if row in young or row in fixed or not _is_open(snapshot, run)
        ]
    if not runs:
        return (), {}
    staying = _staying(snapshot, young, waiting, state) | fixed
    speeds = Speeds.of(snapshot)
    for row, run in sorted(runs, key=lambda r: (arrival[r[0]], r[0])):
        if not run.is_whole or not may_stay(snapshot, row, run):
            continue
        if (allocation := requests.allocation_of(row, run)) is None:
            continue
        stay = CurrentPlacement(row, run, allocation, leaves_s(snapshot, run))
        if never_touch or row in staying or _is_pinned(snapshot, speeds, stay):
            pinned.append(stay)
        elif _is_outside(snapshot, run):
            later.append(stay)
    if not state.take_together([stay.allocation for stay in pinned]):
        pinned = [stay for stay in pinned if state.try_take(stay.allocation)]
    return tuple(pinned), {stay.row: stay for stay in _together_free(state.copy(), later)}


def _training_runs(snapshot: Snapshot, waiting: Mapping[int, Waiting]) -> list[tuple[int, Running]]:
    """Return (row, run) of the training jobs that run, without those that must wait."""
    return [
        (row, run)
        for row, of in enumerate(snapshot.jobs.columns.others["running"])
        if of and (run := training_run(of)) is not None and row not in waiting
    ]


def _together_free(
    trial: ClusterState, found: list[CurrentPlacement]
) -> Iterator[CurrentPlacement]:
    """Yield those whose devices and resources are free beside earlier ones, whatever the power."""
    for stay in found:
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
    flags = snapshot.jobs.columns.others["preemptible"]
    return frozenset(row for row, may in enumerate(flags) if not may)


def _staying(
    snapshot: Snapshot,
    young: Mapping[int, Running],
    waiting: Mapping[int, Waiting],
    state: ClusterState,
) -> frozenset[int]:
    """Return the young launches that no waiting job ends."""
    if all(run.since_s >= snapshot.now_s for run in young.values()):
        return frozenset(young)
    return frozenset(young.keys() - _Claims(snapshot, young, state).displaced(waiting))


def _young_launches(snapshot: Snapshot, runs: Sequence[tuple[int, Running]]) -> dict[int, Running]:
    """By row, the launches on open nodes of this very moment, or within their least run time."""
    now_s, least_s = snapshot.now_s, snapshot.jobs.columns.numbers["min_run_s"]
    return {
        row: run
        for row, run in runs
        if (run.since_s >= now_s or run.since_s + least_s[row] > now_s) and _is_open(snapshot, run)
    }


class _Claims:
    """Claims of waiting jobs to the GPUs of young launches, tried on a copy of the state."""

    def __init__(
        self, snapshot: Snapshot, young: Mapping[int, Running], state: ClusterState
    ) -> None:
        self.snapshot, self.young, self.state = snapshot, young, state
        columns = snapshot.jobs.columns
        self.now_s, self.priority = snapshot.now_s, columns.counts["priority"]
        self.least_s = columns.numbers["min_run_s"]
        self.slack_s = np.minimum(columns.numbers["due_s"], columns.numbers["deadline_s"])
        self.slack_s = self.slack_s - snapshot.now_s
        self.held: dict[int, Allocation] = {}

    def displaced(self, waiting: Mapping[int, Waiting]) -> set[int]:
        """Return the launches that claims end: as few as will do for each, the youngest first.

        `waiting`: jobs that wait for anything but capacity.
        """
        claimants = self._claimants(waiting)
        if not claimants:
            return set()
        self.state, self.options = self.state.copy(), JobOptions(self.snapshot, self.state)
        for row, run in self.young.items():
            allocation = self.options.requests.allocation_of(row, run)
            if allocation is not None and self.state.try_take(allocation):
                self.held[row] = allocation
        return {row for claimant in claimants for row in self._displaced_by(claimant)}

    def _claimants(self, waiting: Mapping[int, Waiting]) -> list[int]:
        """Return the jobs that may have a claim, by priority, then due date."""
        running = self.snapshot.jobs.columns.others["running"]
        lowest = min(self.priority[row] for row in self.young)
        due = np.isfinite(self.slack_s) & (self.slack_s > 0.0) & (self.priority == lowest)
        rows = np.flatnonzero((self.priority > lowest) | due).tolist()
        found = [row for row in rows if not running[row] and row not in waiting]
        return sorted(found, key=lambda row: (-self.priority[row], self.slack_s[row], row))

    def _displaced_by(self, claimant: int) -> set[int]:
        """Give a claimant GPUs; return the launches that it ends for them."""
        steps = float(self.snapshot.jobs.columns.numbers["remaining_steps"][claimant])
        launch_s, slack_s = self.options.launch_times.of(claimant), self.slack_s[claimant]
        times_s = [(launch_s + steps / o.steps_per_s, o) for o in self.options.of(claimant)]
        fastest_s = min([time_s for time_s, _ in times_s], default=inf)
        ends = {row for row in self.held if self._may_end(claimant, row, fastest_s)}
        if not ends:
            return set()
        options = [o for time_s, o in times_s if time_s <= slack_s or fastest_s > slack_s]
        for option in options:
            if (found := self.state.find(option.request, option.nodes)) is not None:
                self.state.take(found)
                return set()
        nodes = {part.node for row in ends for part in self.held[row].parts}
        tries = ((self._end_on(n, ends, o), o) for o in options for n in nodes if o.nodes >> n & 1)
        return next((ended for ended, _ in tries if ended), set())

    def _end_on(self, node: int, among: set[int], option: Option) -> set[int]:
        """End the fewest of these launches for this option on a node; none if it never fits."""
        on = [row for row in among if any(part.node == node for part in self.held[row].parts)]
        ended: list[int] = []
        for row in sorted(on, key=lambda row: (self.priority[row], -self.young[row].since_s, row)):
            self.state.release(self.held[row])
            ended.append(row)
            if (found := self.state.find(option.request, 1 << node)) is not None:
                self.state.take(found)
                for gone in ended:
                    del self.held[gone]
                return set(ended)
        for row in ended:
            self.state.take(self.held[row])
        return set()

    def _may_end(self, claimant: int, row: int, fastest_s: float) -> bool:
        """Return True if the claimant's priority or due date requires that a launch ends."""
        run, priority = self.young[row], self.priority[claimant]
        if run.since_s >= self.now_s or not run.is_whole:
            return False
        if priority != self.priority[row]:
            return bool(priority > self.priority[row])
        left_s = run.since_s + self.least_s[row] - self.now_s
        later_s = max(left_s, self.snapshot.round_s)
        return bool(fastest_s <= self.slack_s[claimant] < fastest_s + later_s)


def may_stay(snapshot: Snapshot, row: int, run: Running) -> bool:
    """Return True if the nodes and GPUs of a run still suit its job."""
    listed, others = snapshot.jobs.columns.listed, snapshot.jobs.columns.others
    if not listed["gpus_min"][row] <= run.gpus <= listed["gpus_max"][row]:
        return False
    if others["batch"][row] and run.units != listed["units"][row]:
        return False
    allowed, labels = others["allowed_types"][row], others["labels"][row]
    by_id, asks = snapshot.node_by_id, bool(allowed or labels)
    for rank in run.ranks:
        node = by_id.get(rank.node)
        if node is None:
            return False
        if (asks or node.state is not READY) and not _may_keep(
            snapshot, node, (frozenset(allowed), frozenset(labels))
        ):
            return False
    if run.gpus <= 1 or others["may_mix"][row]:
        return True
    return len({by_id[rank.node].gpu_type for rank in run.ranks if rank.devices}) <= 1


def _may_keep(
    snapshot: Snapshot, node: NodeView, wanted: tuple[frozenset[str], frozenset[str]]
) -> bool:
    """Return True if a job of these types and labels may stay on a node."""
    if (wanted[0] or wanted[1]) and not admits(wanted, node.gpu_type, frozenset(node.labels)):
        return False
    if node.state is READY:
        return True
    ends_s = snapshot.drains.get(node.id)
    return node.state is not NodeState.LOST and (ends_s is None or ends_s > snapshot.now_s)


def leaves_s(snapshot: Snapshot, run: Running) -> float | None:
    """Return when a run must end because a node of it drains; None if never."""
    drains = snapshot.drains
    if not drains:
        return None
    return min((drains[seat.node] for seat in run.ranks if seat.node in drains), default=None)


def _is_open(snapshot: Snapshot, run: Running) -> bool:
    """True if all nodes of a run take training; a cheap first check."""
    return all(
        (node := snapshot.node_by_id.get(s.node)) is not None and node.takes_training
        for s in run.ranks
    )


def _is_outside(snapshot: Snapshot, run: Running) -> bool:
    return all(not snapshot.node_by_id[s.node].takes_training for s in run.ranks)


def _is_pinned(snapshot: Snapshot, speeds: Speeds, stay: CurrentPlacement) -> bool:
    """True if the job stays on a closed node until it ends."""
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
    if columns.others["batch"][stay.row]:
        return max(0.0, columns.predicted_run_s[stay.row] - (snapshot.now_s - stay.run.since_s))
    rate = speeds.on_ranks(columns.kinds[stay.row], stay.run.ranks, snapshot.node_by_id)
    steps = columns.numbers["remaining_steps"][stay.row]
    return float(steps / rate) if rate > 0.0 else float("inf")
