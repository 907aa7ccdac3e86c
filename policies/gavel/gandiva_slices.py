"""Gandiva's units of time slices: equal time on every GPU type, and the GPUs of one round.

A unit is a job, or a pair that shares a GPU. Of m units each has the same share of every GPU type,
whatever its speed there: of N_t GPUs a unit of one GPU has X = N_t / m of its time. Its lag is its
share less the time it has received.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from policies.contract.plan import Placement, training_run
from policies.contract.snapshot import Bools, Floats, RankPlacement
from policies.gavel.runnable_jobs import RunnableJobs, Seat
from policies.placement.free_capacity import Group
from policies.placement.from_snapshot import launches_that_stay, leaves_s, may_stay
from policies.placement.layout import (
    DEVICES,
    Allocation,
    DeviceSet,
    NodeSet,
    Part,
    Request,
    members,
)
from policies.placement.plan_builder import Placed, PlanBuilder, seats_of

WHOLE = 1.0
"""Share of a device of a unit of one job."""

HALF = 0.5
"""Share of a device of each of two jobs."""

Lags = Mapping[str, Mapping[str, float]]
"""By job and GPU type: seconds."""


class Unit(NamedTuple):
    """One or two jobs (rows) that have `gpus` devices together on one of these nodes.

    `seat`: where they run and may go on without a restart; one of two that share may still be
    missing.
    """

    jobs: tuple[int, ...]
    gpus: int
    nodes: NodeSet
    request: Request
    seat: Seat | None = None


class Units:
    """Units of a plan's jobs.

    `shareable`: by node, the free devices that two jobs may share; `nodes_to_share`: nodes with
    such devices. `holders`: by shared device, the rows of the jobs that hold a part of it.
    """

    def __init__(self, plan: PlanBuilder) -> None:
        self.plan = plan
        self.jobs = RunnableJobs(plan)
        self.layout = plan.state.layout
        self.columns = plan.snapshot.jobs.columns
        self.speeds = plan.options.speeds

        self.shareable: list[DeviceSet] = [0] * len(plan.state.idle)
        self.nodes_to_share: NodeSet = 0
        if self.layout.levels:
            for node, idle in enumerate(plan.state.idle):
                with_two_slots = self.layout.wide[node][0]
                self.shareable[node] = idle & with_two_slots
                if self.shareable[node]:
                    self.nodes_to_share |= 1 << node

        self.holders: dict[Seat, list[int]] = defaultdict(list)
        for row, run in self.jobs.runs.items():
            if run.ranks[0].share < WHOLE:
                self.holders[self.jobs.seats[row]].append(row)

    @property
    def sharers(self) -> list[int]:
        """Jobs of one GPU that may share it; [] if no device can be shared."""
        if not self.nodes_to_share:
            return []
        may_share = self.columns.others["may_share"]
        return [row for row, gpus in self.jobs.least.items() if gpus == 1 and may_share[row]]

    def pair_speeds(self, one: int, other: int, node: int) -> tuple[float, float]:
        """Return the speeds of two jobs on a GPU of a node; 0 of both if unknown."""
        kinds = self.columns.kinds
        return self.speeds.pair(kinds[one], kinds[other], self.jobs.gpu_type(node))

    def gain(self, one: int, other: int, node: int) -> float:
        """Return the sum of the fractions of their speeds alone that two jobs keep together."""
        one_alone = self.jobs.rate(one, 1, node)
        other_alone = self.jobs.rate(other, 1, node)
        if min(one_alone, other_alone) <= 0.0:
            return 0.0
        one_beside, other_beside = self.pair_speeds(one, other, node)
        return one_beside / one_alone + other_beside / other_alone

    def single(self, job: int) -> Unit:
        """Return a job on its own; on a part of a device it goes on, without a restart."""
        seat = self.jobs.seats.get(job)
        gpus = self.jobs.least[job] if seat is None else seat.gpus
        request = self.jobs.request(job, gpus)
        run = self.jobs.runs.get(job)
        if run is not None and run.ranks[0].cpu_quota is not None:
            request = self.plan.options.requests.on_one_node(job, gpus, run.ranks)
        return Unit((job,), gpus, self.jobs.nodes(job, gpus), request, seat)

    def pair(self, one: int, other: int) -> Unit:
        """Return two jobs on one device.

        Its seat is the device that both share now, or that one of them has after sharing it.
        """
        # 1. Nodes with a device for two, on whose GPU type both speeds together are known.
        both_fit = self.jobs.nodes(one, 1) & self.jobs.nodes(other, 1) & self.nodes_to_share
        nodes: NodeSet = 0
        for node in members(both_fit):
            if min(self.pair_speeds(one, other, node)) > 0.0:
                nodes |= 1 << node
        request = self.plan.options.requests.together((one, other))
        unit = Unit((one, other), 1, nodes, request)

        # 2. If possible, the device that one of them shares already.
        for job in unit.jobs:
            seat = self.jobs.seats.get(job)
            if seat is None:
                continue
            holders = self.holders.get(seat, ())
            is_on_nodes = nodes >> seat.node & 1
            is_shareable = not seat.devices & ~self.shareable[seat.node]
            if job in holders and is_on_nodes and is_shareable and set(holders) <= set(unit.jobs):
                return unit._replace(seat=seat)
        return unit

    def shared_seat(self, one: int, other: int) -> Seat | None:
        """Return the device that both hold a part of now; None if there is none."""
        seat = self.jobs.seats.get(one)
        if seat and {one, other} == set(self.holders.get(seat, ())):
            return seat
        return None


def keep_outside(plan: PlanBuilder) -> list[Placement]:
    """Keep jobs that share a device and must not move, while the power lasts.

    That is on nodes that take nothing new, or within their least run time.
    """
    columns = plan.snapshot.jobs.columns
    state = plan.state
    decided = plan.decided
    young: Collection[int] = ()
    if columns.numbers["min_run_s"].any():
        young = launches_that_stay(plan.snapshot, plan.not_eligible, state)
    jobs_on: dict[Seat, list[int]] = {}
    placements: list[Placement] = []
    for row, runs in enumerate(columns.others["running"]):
        # 1. Running jobs that share a device and must not move.
        run = training_run(runs)
        if row in decided or run is None or len(run.ranks) > 1 or run.ranks[0].share == WHOLE:
            continue
        rank = run.ranks[0]
        node = plan.snapshot.node_by_id.get(rank.node)
        if node is None or not may_stay(plan.snapshot, row, run):
            continue
        if node.takes_training and row not in young:
            continue

        # 2. What is needed of the device by those on it already, and together with this one.
        number = state.layout.index[rank.node]
        seat = Seat(number, state.layout.bits(number, rank.devices))
        part = Part(number, 1, seat.devices)
        others = jobs_on.get(seat, [])
        jobs = [*others, row]
        request = plan.options.requests.together(jobs, seat.gpus)
        of_others = Allocation(plan.options.requests.together(others, seat.gpus), (part,))

        # 3. Take the device for all of them, or leave it as it is.
        if others:
            state.release(of_others)
        fits = seat.gpus == len(rank.devices) and state.layout.has_slots(request, part)
        if others and not all(columns.others["may_share"][job] for job in jobs):
            fits = False
        if fits and state.try_take(Allocation(request, (part,))):
            jobs_on[seat] = jobs
            until_s = leaves_s(plan.snapshot, run)
            placements.append(Placement(columns.ids[row], run.ranks, run.copy, until_s=until_s))
        elif others:
            state.take(of_others)
    return placements


class EqualShares:
    """Fraction of time `share` float64[U, T] of each of U units on each of T GPU types.

    `gpus` float64[T]: to give; `can_run` bool[U, T]: types on which a unit can run.
    """

    def __init__(self, jobs: RunnableJobs, units: Sequence[Unit]) -> None:
        self.jobs = jobs
        self.units = units
        self.ids = jobs.columns.ids

        # 1. Types, with their open nodes and free GPUs.
        state = jobs.plan.state
        self.nodes_of: dict[str, NodeSet] = defaultdict(int)
        for number, node in enumerate(jobs.layout.nodes):
            if state.open >> number & 1 and node.devices:
                self.nodes_of[node.gpu_type] |= 1 << number
        self.types = tuple(sorted(self.nodes_of))
        free = state.free_gpus()
        self.gpus: Floats = np.array([free[name] for name in self.types], dtype=np.float64)

        # 2. Types on which each unit can run.
        self.can_run: Bools = np.zeros((len(units), len(self.types)), dtype=np.bool_)
        for u, unit in enumerate(units):
            self.can_run[u] = [bool(unit.nodes & self.nodes_of[name]) for name in self.types]

        # 3. Equal shares, X = N_t / m / GPUs of the unit, at most all of its time.
        width = np.array([unit.gpus for unit in units], dtype=np.float64)
        share = self.gpus[None, :] / max(len(units), 1) / width[:, None]
        self.share: Floats = share / np.maximum(share.sum(axis=1, keepdims=True, initial=0.0), 1.0)

    def lag_s(self, before: Lags, seen_s: float) -> dict[str, dict[str, float]]:
        """Return the lag of each job now: lag at `seen_s` + share since then - time received."""
        now_s = self.jobs.plan.snapshot.now_s
        lag_by_job: dict[str, dict[str, float]] = {}
        for u, unit in enumerate(self.units):
            due_s = self.share[u] * max(0.0, now_s - seen_s)
            for job in unit.jobs:
                lag_before_s = before.get(self.ids[job], {})
                lag_s = due_s + [lag_before_s.get(name, 0.0) for name in self.types]
                run = self.jobs.runs.get(job)
                if run is not None:
                    current = self.types.index(self.jobs.gpu_type(self.jobs.seats[job].node))
                    lag_s[current] -= max(0.0, now_s - max(seen_s, run.since_s))
                lag_by_job[self.ids[job]] = dict(zip(self.types, lag_s.tolist(), strict=True))
        return lag_by_job

    def claims(self, lag_s: Lags, *, by_type: bool) -> Floats:
        """float64[U, T]: lag relative to the share, by type or in all; -inf if it cannot run."""
        lag = self._lag_of_units(lag_s)
        share = np.where(self.can_run, self.share, 0.0)
        if not by_type:
            lag = lag.sum(axis=1, keepdims=True)
            share = share.sum(axis=1, keepdims=True)
        return np.where(self.can_run, lag / np.where(share > 0.0, share, 1.0), -np.inf)

    def order(self, lag_s: Lags) -> list[int]:
        """Return the units by their lag on all types on which they can run, the greatest first."""
        total_s = self._lag_of_units(lag_s).sum(axis=1)
        order: list[int] = np.argsort(-total_s, kind="stable").tolist()
        return order

    def by_job(self) -> dict[str, dict[str, float]]:
        """Return each job's share of the time of every GPU type."""
        share_of: dict[str, dict[str, float]] = {}
        for unit, shares in zip(self.units, self.share.tolist(), strict=True):
            for job in unit.jobs:
                share_of[self.ids[job]] = dict(zip(self.types, shares, strict=True))
        return share_of

    def _lag_of_units(self, lag_s: Lags) -> Floats:
        """float64[U, T]: the mean lag of a unit's jobs in seconds; 0 where it cannot run."""
        means = []
        for unit in self.units:
            lags = [list(lag_s[self.ids[job]].values()) for job in unit.jobs]
            means.append(np.mean(lags, axis=0))
        return np.where(self.can_run, np.array(means).reshape(self.share.shape), 0.0)


class Slices:
    """One round's GPUs of units; `taken`: units that have some, with them."""

    def __init__(self, units: Units, shares: EqualShares) -> None:
        self.all_units = units
        self.shares = shares
        self.units = shares.units
        self.state = units.plan.state
        self.jobs = units.jobs
        self.taken: dict[Unit, Seat] = {}

    def keep(self, order: Sequence[int]) -> None:
        """Keep units where they are, while resources and power last."""
        for u in order:
            self._keep(self.units[u])

    def fill(self, order: Sequence[int]) -> None:
        """Give idle GPUs to units without any, where they are if possible."""
        for u in order:
            unit = self.units[u]
            if unit not in self.taken and not self._keep(unit):
                self._place(unit, unit.nodes, ())

    def give_out(self, lag_s: Lags, rng: np.random.Generator, *, by_type: bool) -> None:
        """Assign all GPUs by the units' claims, by type or in all: the large units first.

        A unit stays if it is on its chosen type, else it gets a node as full as can be, with the
        fewest devices that others hope to keep.
        """
        # 1. Units that are on their chosen type hope to keep their devices.
        nodes_of = self._chosen_nodes(self.shares.claims(lag_s, by_type=by_type), rng)
        hopes = [0] * len(self.state.idle)  # devices by node
        node_of_staying: dict[int, int] = {}
        for u, nodes in nodes_of.items():
            seat = self.units[u].seat
            if seat is not None and nodes >> seat.node & 1:
                node_of_staying[u] = seat.node
                hopes[seat.node] += self.units[u].gpus

        # 2. The large ones first, of equal ones those that stay.
        for u in sorted(nodes_of, key=lambda u: (-self.units[u].gpus, u not in node_of_staying)):
            unit = self.units[u]
            if u in node_of_staying:
                hopes[node_of_staying[u]] -= unit.gpus
                if self._keep(unit):
                    continue
            self._place(unit, unit.nodes & nodes_of[u], hopes)

    def build(self) -> None:
        """Add the placements of all units to the plan."""
        for unit, seat in self.taken.items():
            allocation = Allocation(unit.request, (Part(seat.node, 1, seat.devices),))
            for job in unit.jobs:
                run_s = self._run_s(unit, job, seat.node)
                if self._goes_on(unit, job, seat):
                    ranks = self.jobs.runs[job].ranks
                else:
                    ranks = self._ranks(unit, job, seat)
                    run_s += self.jobs.launch_s(job)
                self.all_units.plan.placed.append(Placed(job, allocation, run_s, ranks))

    def _chosen_nodes(self, claims: Floats, rng: np.random.Generator) -> dict[int, NodeSet]:
        """Return the nodes of a type for each unit whose claim there is among the greatest.

        As in Gavel's mechanism (section 5). Ties: earlier units, the current type, else by lot.
        """
        # 1. All (unit, type), sorted by claim and then by the tie-breaks.
        rows, columns = (index.ravel() for index in np.indices(claims.shape))
        lot = rng.permutation(len(self.shares.types))
        arrivals_s = [self.jobs.arrival_s[unit.jobs[0]] for unit in self.units]
        arrival_s = np.array(arrivals_s, dtype=np.float64)
        nodes_of_type = [self.shares.nodes_of[name] for name in self.shares.types]
        moves = []
        for unit in self.units:
            current: NodeSet = 0 if unit.seat is None else 1 << unit.seat.node
            moves += [not current & nodes for nodes in nodes_of_type]
        is_move = np.array(moves, dtype=np.bool_)
        order = np.lexsort((lot[columns], is_move, rows, arrival_s[rows], -claims.ravel()))

        # 2. In this order each unit gets the first type with enough GPUs left.
        left = self.shares.gpus.copy()
        chosen: dict[int, NodeSet] = {}
        for u, t in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
            if u not in chosen and self.shares.can_run[u, t] and self.units[u].gpus <= left[t]:
                chosen[u] = nodes_of_type[t]
                left[t] -= self.units[u].gpus
        return chosen

    def _keep(self, unit: Unit) -> bool:
        """Keep a unit where it is; return if that was possible."""
        return unit.seat is not None and self._take(unit, unit.seat.node, unit.seat.devices)

    def _place(self, unit: Unit, nodes: NodeSet, hopes: Sequence[int]) -> bool:
        """Place a unit on one of these nodes, with the fewest devices that others hope to keep.

        `hopes`: such devices by node, () if there are none. Return if there was room.
        """
        # 1. Nodes by how many of these devices the unit would take there.
        nodes_by_loss: dict[int, NodeSet] = defaultdict(int)
        if any(hopes):
            for node in members(nodes):
                left = self.state.free[node][DEVICES] - hopes[node]
                nodes_by_loss[max(0, unit.gpus - left)] |= 1 << node
        if not nodes_by_loss:
            nodes_by_loss[0] = nodes

        # 2. The first that has room; there, devices that its own jobs have now.
        for loss in sorted(nodes_by_loss):
            allocation = self.state.find(unit.request, nodes_by_loss[loss], _fullest_first)
            if allocation is not None:
                node = allocation.parts[0].node
                own: DeviceSet = 0
                for job in unit.jobs:
                    seat = self.jobs.seats.get(job)
                    if seat is not None and seat.node == node:
                        own |= seat.devices
                devices = self.state.devices(unit.request, node, 1, own)
                return self._take(unit, node, devices)
        return False

    def _take(self, unit: Unit, node: int, devices: DeviceSet) -> bool:
        """Give a unit these devices of a node; return if they were free for it."""
        allocation = Allocation(unit.request, (Part(node, 1, devices),))
        if not unit.nodes >> node & 1 or not self.state.try_take(allocation):
            return False
        self.taken[unit] = Seat(node, devices)
        return True

    def _run_s(self, unit: Unit, job: int, node: int) -> float:
        """Return a job's time without a launch, as if a pair stayed together to its end."""
        rate = self.jobs.rate(job, unit.gpus, node)
        if len(unit.jobs) == 2:
            rate = self.all_units.pair_speeds(*unit.jobs, node)[unit.jobs.index(job)]
        return self.jobs.steps[job] / rate

    def _goes_on(self, unit: Unit, job: int, seat: Seat) -> bool:
        """Return True if a job keeps its devices: in part, if it is to share them."""
        shares = job in self.all_units.holders.get(seat, ())
        return self.jobs.seats.get(job) == seat and (len(unit.jobs) == 1 or shares)

    def _ranks(self, unit: Unit, job: int, seat: Seat) -> tuple[RankPlacement, ...]:
        """Return the ranks of a launch; beside a job that goes on they have what it leaves."""
        share = WHOLE
        if len(unit.jobs) == 2:
            other = unit.jobs[1 - unit.jobs.index(job)]
            share = HALF
            if self._goes_on(unit, other, seat):
                share = WHOLE - self.jobs.runs[other].ranks[0].share
        allocation = Allocation(unit.request, (Part(seat.node, 1, seat.devices),))
        return seats_of(self.jobs.layout, allocation, share=share)


def _fullest_first(group: Group) -> tuple[float, ...]:
    """Return the order of nodes: those in use first, then by the number of free GPUs."""
    return group.free == group.of_class.capacity, group.free[DEVICES]
