"""Gandiva's units of time slices: equal time on every GPU type, and the GPUs of one round.

Every unit, a job or a pair that shares a GPU, has the same share of each GPU type, X = N_t / m of
its time for one GPU and m units, whatever its speed there. Its lag is its share less the time it
has received.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from policies.contract.plan import Placement, training_run
from policies.contract.snapshot import Bools, Floats, RankPlacement
from policies.gavel.runnable_jobs import RunnableJobs, Seat
from policies.placement.free_capacity import Group
from policies.placement.from_snapshot import launches_that_stay, leaves_s, may_stay
from policies.placement.layout import DEVICES, Allocation, Part, Request, members
from policies.placement.plan_builder import Placed, PlanBuilder, seats_of

WHOLE, HALF = 1.0, 0.5

Lags = Mapping[str, Mapping[str, float]]
"""By job and GPU type: seconds."""


class Unit(NamedTuple):
    """One or two jobs (rows) that have `gpus` devices together on one of these nodes (a set).

    `seat`: where they run and may go on without a restart; one of two that share may still be
    missing.
    """

    jobs: tuple[int, ...]
    gpus: int
    nodes: int
    request: Request
    seat: Seat | None = None


class Units:
    """Units of a plan's jobs; `holders`: by shared device, the jobs that hold a part of it."""

    def __init__(self, plan: PlanBuilder) -> None:
        self.plan, self.jobs, self.layout = plan, RunnableJobs(plan), plan.state.layout
        self.columns, self.speeds = plan.snapshot.jobs.columns, plan.options.speeds
        levels = zip(plan.state.idle, self.layout.wide, strict=True) if self.layout.levels else ()
        self.for_two = [idle & of[0] for idle, of in levels] or [0] * len(plan.state.idle)
        self.wide = sum(1 << n for n, devices in enumerate(self.for_two) if devices)
        self.holders: dict[Seat, list[int]] = defaultdict(list)
        for row, run in self.jobs.runs.items():
            if run.ranks[0].share < WHOLE:
                self.holders[self.jobs.seats[row]].append(row)

    @property
    def sharers(self) -> list[int]:
        """Return the jobs of one GPU that may share it."""
        may_share, least = self.columns.others["may_share"], self.jobs.least
        return [row for row in least if self.wide and least[row] == 1 and may_share[row]]

    def pair_speeds(self, one: int, other: int, node: int) -> tuple[float, float]:
        """Return the speeds of two jobs on a GPU of a node; 0 of both if unknown."""
        kinds = self.columns.kinds
        return self.speeds.pair(kinds[one], kinds[other], self.jobs.gpu_type(node))

    def gain(self, one: int, other: int, node: int) -> float:
        """Return the sum of the fractions of their speeds alone that two jobs keep together."""
        alone = [self.jobs.rate(job, 1, node) for job in (one, other)]
        both = self.pair_speeds(one, other, node)
        return sum(b / a for b, a in zip(both, alone, strict=True)) if min(alone) > 0.0 else 0.0

    def single(self, job: int) -> Unit:
        """Return a job on its own; on a part of a device it goes on, without a restart."""
        seat = self.jobs.seats.get(job)
        gpus = self.jobs.least[job] if seat is None else seat.gpus
        run, request = self.jobs.runs.get(job), self.jobs.request(job, gpus)
        if run is not None and run.ranks[0].cpu_quota is not None:
            request = self.plan.options.requests.on_one_node(job, gpus, run.ranks)
        return Unit((job,), gpus, self.jobs.nodes(job, gpus), request, seat)

    def pair(self, one: int, other: int) -> Unit:
        """Return two jobs on one device: of both, or of one who shares it with nobody else."""
        nodes = self.jobs.nodes(one, 1) & self.jobs.nodes(other, 1) & self.wide
        known = (n for n in members(nodes) if min(self.pair_speeds(one, other, n)) > 0.0)
        request = self.plan.options.requests.together((one, other))
        unit = Unit((one, other), 1, sum(1 << n for n in known), request)
        for job in unit.jobs:
            seat = self.jobs.seats.get(job)
            if seat is None or job not in (holders := self.holders.get(seat, ())):
                continue
            fits = unit.nodes >> seat.node & 1 and not seat.devices & ~self.for_two[seat.node]
            if fits and set(holders) <= set(unit.jobs):
                return unit._replace(seat=seat)
        return unit

    def shared_seat(self, one: int, other: int) -> Seat | None:
        """Return the device that both hold a part of now."""
        seat = self.jobs.seats.get(one)
        return seat if seat and {one, other} == set(self.holders.get(seat, ())) else None


def keep_outside(plan: PlanBuilder) -> list[Placement]:
    """Keep jobs that share a device and must not move, while the power lasts.

    That is on nodes that take nothing new, or within their least run time.
    """
    columns, state, requests = plan.snapshot.jobs.columns, plan.state, plan.options.requests
    has_least = columns.numbers["min_run_s"].any()
    young = launches_that_stay(plan.snapshot, plan.not_eligible, state) if has_least else ()
    others, held, found = columns.others, dict[Seat, list[int]](), list[Placement]()
    decided = plan.decided
    for row, runs in enumerate(others["running"]):
        run = training_run(runs)
        if row in decided or run is None or len(run.ranks) > 1 or run.ranks[0].share == WHOLE:
            continue
        rank, node = run.ranks[0], plan.snapshot.node_by_id.get(run.ranks[0].node)
        if node is None or not may_stay(plan.snapshot, row, run):
            continue
        if node.takes_training and row not in young:
            continue
        n = state.layout.index[rank.node]
        seat = Seat(n, state.layout.bits(n, rank.devices))
        before = held.get(seat, [])
        jobs = [*before, row]
        part = Part(n, 1, seat.devices)
        both = [Allocation(requests.together(of, seat.gpus), (part,)) for of in (before, jobs)]
        if before:
            state.release(both[0])
        fits = seat.gpus == len(rank.devices) and state.layout.has_slots(both[1].request, part)
        if before and not all(others["may_share"][job] for job in jobs):
            fits = False
        if fits and state.try_take(both[1]):
            held[seat] = jobs
            until_s = leaves_s(plan.snapshot, run)
            found.append(Placement(columns.ids[row], run.ranks, run.copy, until_s=until_s))
        elif before:
            state.take(both[0])
    return found


class EqualShares:
    """Fraction of time `share` float64[U, T] of each unit on each GPU type.

    `gpus` float64[T]: to give; `may` bool[U, T]: types on which a unit can run.
    """

    def __init__(self, jobs: RunnableJobs, units: Sequence[Unit]) -> None:
        self.jobs, self.units, state = jobs, units, jobs.plan.state
        self.ids = jobs.columns.ids
        self.nodes_of: dict[str, int] = defaultdict(int)
        for n, node in enumerate(jobs.layout.nodes):
            if state.open >> n & 1 and node.devices:
                self.nodes_of[node.gpu_type] |= 1 << n
        self.types = tuple(sorted(self.nodes_of))
        free = state.free_gpus()
        self.gpus: Floats = np.array([free[name] for name in self.types], dtype=np.float64)
        shape = len(units), len(self.types)
        may = [bool(unit.nodes & self.nodes_of[name]) for unit in units for name in self.types]
        self.may: Bools = np.array(may, dtype=np.bool_).reshape(shape)
        width = np.array([unit.gpus for unit in units], dtype=np.float64)
        share = self.gpus[None, :] / max(len(units), 1) / width[:, None]
        self.share: Floats = share / np.maximum(share.sum(axis=1, keepdims=True, initial=0.0), 1.0)

    def lag_s(self, before: Lags, seen_s: float) -> dict[str, dict[str, float]]:
        """Return the lag of each job now: lag at `seen_s` + share since then - time received."""
        now_s, found = self.jobs.plan.snapshot.now_s, {}
        for u, unit in enumerate(self.units):
            due_s = self.share[u] * max(0.0, now_s - seen_s)
            for job in unit.jobs:
                stood = before.get(self.ids[job], {})
                lag_s = due_s + [stood.get(t, 0.0) for t in self.types]
                if (run := self.jobs.runs.get(job)) is not None:
                    on = self.types.index(self.jobs.gpu_type(self.jobs.seats[job].node))
                    lag_s[on] -= max(0.0, now_s - max(seen_s, run.since_s))
                found[self.ids[job]] = dict(zip(self.types, lag_s.tolist(), strict=True))
        return found

    def claims(self, lag_s: Lags, *, by_type: bool) -> Floats:
        """float64[U, T]: lag relative to the share, by type or in all; -inf if it cannot run."""
        lag, share = self._of_units(lag_s), np.where(self.may, self.share, 0.0)
        if not by_type:
            lag, share = (of.sum(axis=1, keepdims=True) for of in (lag, share))
        return np.where(self.may, lag / np.where(share > 0.0, share, 1.0), -np.inf)

    def order(self, lag_s: Lags) -> list[int]:
        """Return the units by their lag on all types on which they can run, the greatest first."""
        found: list[int] = np.argsort(-self._of_units(lag_s).sum(axis=1), kind="stable").tolist()
        return found

    def by_job(self) -> dict[str, dict[str, float]]:
        """Return each job's share of the time of every GPU type."""
        rows = [dict(zip(self.types, row, strict=True)) for row in self.share.tolist()]
        of_units = zip(self.units, rows, strict=True)
        return {self.ids[job]: row for unit, row in of_units for job in unit.jobs}

    def _of_units(self, lag_s: Lags) -> Floats:
        """float64[U, T]: the mean of a unit's jobs; 0 where it cannot run."""
        of = [[list(lag_s[self.ids[job]].values()) for job in unit.jobs] for unit in self.units]
        mean = np.array([np.mean(rows, axis=0) for rows in of]).reshape(self.share.shape)
        return np.where(self.may, mean, 0.0)


class Slices:
    """One round's GPUs of units; `taken`: units that have some, with them."""

    def __init__(self, units: Units, shares: EqualShares) -> None:
        self.of, self.shares, self.units = units, shares, shares.units
        self.state, self.jobs = units.plan.state, units.jobs
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
        chosen = self._chosen(self.shares.claims(lag_s, by_type=by_type), rng)
        stays = {
            u: seat.node
            for u, nodes in chosen.items()
            if (seat := self.units[u].seat) is not None and nodes >> seat.node & 1
        }
        wanted = [0] * len(self.state.idle)
        for u, node in stays.items():
            wanted[node] += self.units[u].gpus
        for u in sorted(chosen, key=lambda u: (-self.units[u].gpus, u not in stays)):
            unit = self.units[u]
            if u in stays:
                wanted[stays[u]] -= unit.gpus
            if u not in stays or not self._keep(unit):
                self._place(unit, unit.nodes & chosen[u], wanted)

    def build(self) -> None:
        """Add the placements of all units to the plan."""
        for unit, seat in self.taken.items():
            allocation = Allocation(unit.request, (Part(seat.node, 1, seat.devices),))
            for job in unit.jobs:
                goes_on = self._goes_on(unit, job, seat)
                run_s = self._run_s(unit, job, seat.node)
                run_s += 0.0 if goes_on else self.jobs.launch_s(job)
                ranks = self.jobs.runs[job].ranks if goes_on else self._ranks(unit, job, seat)
                self.of.plan.placed.append(Placed(job, allocation, run_s, ranks))

    def _chosen(self, claims: Floats, rng: np.random.Generator) -> dict[int, int]:
        """Return the nodes of a type for each unit whose claim there is among the greatest.

        As in Gavel's mechanism (section 5). Ties: earlier units, the current type, else by lot.
        """
        rows, columns = (index.ravel() for index in np.indices(claims.shape))
        lot, arrival_s = rng.permutation(len(self.shares.types)), self.jobs.arrival_s
        came_s = np.array([arrival_s[unit.jobs[0]] for unit in self.units], dtype=np.float64)
        nodes = [self.shares.nodes_of[name] for name in self.shares.types]
        seats = [0 if unit.seat is None else 1 << unit.seat.node for unit in self.units]
        moves = np.array([not seat & of for seat in seats for of in nodes], dtype=np.bool_)
        order = np.lexsort((lot[columns], moves, rows, came_s[rows], -claims.ravel()))
        left, chosen = self.shares.gpus.copy(), dict[int, int]()
        for u, t in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
            if u not in chosen and self.shares.may[u, t] and self.units[u].gpus <= left[t]:
                chosen[u] = nodes[t]
                left[t] -= self.units[u].gpus
        return chosen

    def _keep(self, unit: Unit) -> bool:
        return unit.seat is not None and self._take(unit, *unit.seat)

    def _place(self, unit: Unit, nodes: int, wanted: Sequence[int]) -> bool:
        """Place a unit on one of these nodes, taking the fewest devices that others want."""
        free, taken_from = self.state.free, dict[int, int]()
        for n in members(nodes) if any(wanted) else ():
            taken_from[n] = max(0, unit.gpus - (free[n][DEVICES] - wanted[n]))
        for most in sorted(set(taken_from.values())) or [0]:
            among = [1 << n for n in taken_from if taken_from[n] == most]
            found = self.state.find(unit.request, sum(among) if among else nodes, _fullest_first)
            if found is not None:
                node = found.parts[0].node
                seats = [self.jobs.seats.get(job) for job in unit.jobs]
                own = [seat.devices for seat in seats if seat is not None and seat.node == node]
                wish = own[0] | own[-1] if own else 0
                return self._take(unit, node, self.state.devices(unit.request, node, 1, wish))
        return False

    def _take(self, unit: Unit, node: int, devices: int) -> bool:
        allocation = Allocation(unit.request, (Part(node, 1, devices),))
        if not unit.nodes >> node & 1 or not self.state.try_take(allocation):
            return False
        self.taken[unit] = Seat(node, devices)
        return True

    def _run_s(self, unit: Unit, job: int, node: int) -> float:
        """Return a job's time without a launch, as if a pair stayed together to its end."""
        rate = self.jobs.rate(job, unit.gpus, node)
        if len(unit.jobs) == 2:
            rate = self.of.pair_speeds(*unit.jobs, node)[unit.jobs.index(job)]
        return self.jobs.steps[job] / rate

    def _goes_on(self, unit: Unit, job: int, seat: Seat) -> bool:
        """Return True if a job keeps its devices: in part, if it is to share them."""
        shares = job in self.of.holders.get(seat, ())
        return self.jobs.seats.get(job) == seat and (len(unit.jobs) == 1 or shares)

    def _ranks(self, unit: Unit, job: int, seat: Seat) -> tuple[RankPlacement, ...]:
        """Return the ranks of a launch; beside a job that goes on they have what it leaves."""
        share = WHOLE
        if len(unit.jobs) == 2:
            other = unit.jobs[1 - unit.jobs.index(job)]
            goes_on = self._goes_on(unit, other, seat)
            share = WHOLE - self.jobs.runs[other].ranks[0].share if goes_on else HALF
        allocation = Allocation(unit.request, (Part(seat.node, 1, seat.devices),))
        return seats_of(self.jobs.layout, allocation, share=share)


def _fullest_first(group: Group) -> tuple[float, ...]:
    return group.free == group.of_class.capacity, group.free[DEVICES]
