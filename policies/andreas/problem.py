"""The capacity allocation problem of one round as dense arrays: jobs x configurations (node class,
GPUs).

Nodes of one class (type, devices to give, power curve, the labels and scarce resources that matter)
are interchangeable for every configuration; t[j, k] = launch + remaining steps / throughput, c[k] =
P(g) / 1000 * price * PUE / 3600 per second (ANDREAS, IV-A). A run whose price changes while it
lasts costs c[k] times its priced seconds (`policies.placement.pricing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from policies.andreas.kernels.arrays import NONE
from policies.contract.snapshot import Bools, Floats, Ints, NodeView, Snapshot
from policies.placement.eligibility import admits, launch_s, signatures
from policies.placement.from_snapshot import JobRequests, with_quota
from policies.placement.plan_builder import PlanBuilder
from policies.placement.pricing import Prices, prices_of
from policies.placement.requests import RESOURCES, THOUSANDTHS, UNLIMITED
from policies.placement.staying import CurrentPlacement


@dataclass(frozen=True)
class Problem:
    """E jobs to decide on, N nodes that take training, C classes, K configurations.

    `plan`: a plan with what stays, from whose state all capacity is read. `rows` int64[E]: the
    jobs' rows in the snapshot. `numbers` int64[N]: the nodes' numbers in the state. `devices[n]`:
    ids to give. `run_s` float64[E, K]: run time without launch, inf where the configuration is
    impossible for the job. `cost` float64[C, G + 1] per priced second at the reference of `prices`,
    with g GPUs in use; `power` watts likewise. `demand`, `capacity`: of resources that could run
    out; `watts`: left below the cap.
    """

    snapshot: Snapshot
    plan: PlanBuilder
    rows: Ints
    nodes: tuple[NodeView, ...]
    numbers: Ints
    devices: tuple[tuple[str, ...], ...]
    node_class: Ints
    busy: Ints
    config_class: Ints
    config_gpus: Ints
    cost: Floats
    power: Floats
    run_s: Floats
    launch_s: Floats
    home: Ints
    home_config: Ints
    demand: Floats
    capacity: Floats
    watts: float
    charged: bool
    prices: Prices

    @property
    def pinned(self) -> tuple[CurrentPlacement, ...]:
        """Running jobs that stay where they are, outside of the decision."""
        return self.plan.pinned

    def column(self, name: str) -> Floats:
        """A numeric column of the jobs to decide on."""
        return self.snapshot.jobs.columns.numbers[name][self.rows]

    def count(self, name: str) -> Ints:
        """A column of counts of the jobs to decide on."""
        return self.snapshot.jobs.columns.counts[name][self.rows]

    @cached_property
    def slack_s(self) -> Floats:
        """float64[E]: due date minus now; inf without due date."""
        slack: Floats = self.column("due_s") - self.snapshot.now_s
        return slack

    @cached_property
    def feasible(self) -> Bools:
        """bool[E, K]: configurations a job can run in when the cluster is empty."""
        return np.isfinite(self.run_s)

    @cached_property
    def move_s(self) -> Floats:
        """float64[E]: what a launch adds to a run time; 0 where the policy does not charge it."""
        return self.launch_s.copy() if self.charged else np.zeros_like(self.launch_s)

    @cached_property
    def times_s(self) -> Floats:
        """float64[E, K]: t[j, k]; all but the current configuration pay for a launch."""
        times = self.run_s + self.move_s[:, None]
        at_home = np.flatnonzero(self.home_config != NONE)
        times[at_home, self.home_config[at_home]] = self.run_s[at_home, self.home_config[at_home]]
        return times

    @cached_property
    def priced_s(self) -> Floats:
        """float64[E, K]: priced seconds of `times_s`."""
        return self.prices.priced_s(self.times_s)

    @cached_property
    def priced_move_s(self) -> Floats:
        """float64[E]: priced seconds that the same configuration costs on another node; or 0."""
        if self.prices.is_flat:
            return self.move_s
        at_home, grown = np.flatnonzero(self.home_config != NONE), np.zeros_like(self.move_s)
        config = self.home_config[at_home]
        moved_s = self.prices.priced_s(self.times_s[at_home, config] + self.move_s[at_home])
        grown[at_home] = moved_s - self.priced_s[at_home, config]
        return grown

    @cached_property
    def slowest_s(self) -> Floats:
        """float64[E]: M_j, the slowest run time after a launch; 0 if it fits nowhere."""
        slowest = np.max(np.where(self.feasible, self.run_s, 0.0), axis=1, initial=0.0)
        total: Floats = slowest + self.move_s
        return total

    def penalty(self, rho: float) -> Floats:
        """float64[E]: rho * w_j * max(0, T_c + H + M_j - d_j), the cost of postponing."""
        late = self.snapshot.round_s + self.slowest_s - self.slack_s
        cost: Floats = rho * self.column("tardiness_weight") * np.maximum(late, 0.0)
        return cost


def build(snapshot: Snapshot, *, never_touch: bool = False, charged: bool = True) -> Problem:
    """Return the problem of this snapshot.

    `never_touch`: started jobs stay where and as they are. `charged`: a run time includes the
    launch it needs, so that a job moves only where that pays (hysteresis); else decisions are made
    as if launches took no time.
    """
    plan = PlanBuilder(snapshot, never_touch=never_touch)
    decided = plan.decided
    rows = np.array([i for i in range(len(snapshot.jobs)) if i not in decided], dtype=np.int64)
    return _Builder(snapshot, plan, rows).problem(charged=charged)


class _Builder:
    def __init__(self, snapshot: Snapshot, plan: PlanBuilder, rows: Ints) -> None:
        self.snapshot, self.plan, self.rows = snapshot, plan, rows
        state, layout = plan.state, plan.state.layout
        self.numbers = [
            n for n, node in enumerate(layout.nodes) if state.open >> n & 1 and node.devices
        ]
        self.nodes = tuple([layout.nodes[n] for n in self.numbers])
        self.devices = tuple([layout.ids(n, state.idle[n]) for n in self.numbers])
        present = np.array([layout.present[n].bit_count() for n in self.numbers], dtype=np.int64)
        self.gpus = np.array([len(of) for of in self.devices], dtype=np.int64)
        self.busy: Ints = present - self.gpus
        self.signature, self.signatures = signatures(snapshot, rows)
        self.demand, self.left, self.whole = self._resources()
        most = self.demand.max(axis=0, initial=0.0)
        self.scarce: Bools = np.any(self.gpus[:, None] * most > self.left, axis=0)
        self.node_class, self.classes = self._classes()

    def problem(self, *, charged: bool) -> Problem:
        config_class, config_gpus = self._configurations()
        run_s = self._run_s(config_class, config_gpus)
        home, home_config = self._homes(config_class, config_gpus, run_s)
        prices, power = prices_of(self.snapshot), self._power()
        return Problem(
            snapshot=self.snapshot, plan=self.plan, rows=self.rows, nodes=self.nodes,
            numbers=np.array(self.numbers, dtype=np.int64), devices=self.devices,
            node_class=self.node_class, busy=self.busy,
            config_class=config_class, config_gpus=config_gpus,
            cost=power * prices.reference, power=power, run_s=run_s,
            launch_s=launch_s(self.snapshot)[self.rows], home=home, home_config=home_config,
            demand=np.ascontiguousarray(self.demand[:, self.scarce]),
            capacity=np.ascontiguousarray(self.left[:, self.scarce]),
            watts=self._watts_left(), charged=charged, prices=prices,
        )  # fmt: skip

    def _resources(self) -> tuple[Floats, Floats, Floats]:
        """float64[E, R], float64[N, R] twice: demand, what is left of nodes, and what they have."""
        state, layout = self.plan.state, self.plan.state.layout
        size, requests = len(layout.resources), JobRequests(self.snapshot, layout)
        rows = self.rows.tolist() if size else []
        wanted = [layout.amounts(self._demand(requests, row)) for row in rows]
        of_jobs = [amounts or (0,) * size for amounts in wanted]
        left = [state.free[n][RESOURCES : RESOURCES + size] for n in self.numbers]
        has = [
            layout.classes[layout.class_of[n]].capacity[RESOURCES : RESOURCES + size]
            for n in self.numbers
        ]
        jobs, nodes = len(self.rows), len(self.numbers)
        return (
            _amounts(of_jobs, jobs, size),
            _amounts(left, nodes, size),
            _amounts(has, nodes, size),
        )

    def _demand(self, requests: JobRequests, row: int) -> Mapping[str, float]:
        """Return a job's demand as one process, with the cores that a quota gives it beyond it."""
        demand, runs = requests.demand(row, 1), self.snapshot.jobs.columns.others["running"][row]
        given = with_quota(demand, [seat for run in runs for seat in run.ranks])
        return max(demand, given, key=lambda of: of.get("cores", 0.0))

    def _classes(self) -> tuple[Ints, tuple[int, ...]]:
        """Class of each node, and one node of each class."""
        wanted = (
            frozenset().union(*(labels for _, labels in self.signatures))
            if self.signatures
            else frozenset()
        )
        numbers: dict[object, int] = {}
        members: list[int] = []
        of = [0] * len(self.nodes)
        whole = [tuple(row) for row in self.whole[:, self.scarce].tolist()]
        for i, node in enumerate(self.nodes):
            labels = wanted.intersection(node.labels) if wanted else wanted
            key = (node.gpu_type, len(node.devices), node.power_w, labels, whole[i])
            of[i] = numbers.setdefault(key, len(numbers))
            if of[i] == len(members):
                members.append(i)
        return np.array(of, dtype=np.int64), tuple(members)

    def _configurations(self) -> tuple[Ints, Ints]:
        pairs = [
            (c, g)
            for c, i in enumerate(self.classes)
            for g in range(1, len(self.nodes[i].devices) + 1)
        ]
        table = np.array(pairs, dtype=np.int64).reshape(len(pairs), 2)
        return np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])

    def _run_s(self, config_class: Ints, config_gpus: Ints) -> Floats:
        snapshot, counts = self.snapshot, self.snapshot.jobs.columns.counts
        types = np.array(
            [snapshot.type_index[self.nodes[i].gpu_type] for i in self.classes], dtype=np.int64
        )
        kinds = snapshot.job_kinds[self.rows]
        rates = snapshot.throughputs[
            kinds[:, None], types[config_class][None, :], config_gpus[None, :]
        ]
        possible = (rates > 0.0) & self._admitted()[:, config_class]
        possible &= (counts["gpus_min"][self.rows][:, None] <= config_gpus) & (
            config_gpus <= counts["gpus_max"][self.rows][:, None]
        )
        steps = snapshot.jobs.columns.numbers["remaining_steps"][self.rows][:, None]
        return np.where(possible, steps / np.where(possible, rates, 1.0), np.inf)

    def _admitted(self) -> Bools:
        """bool[E, C]: types, labels and scarce resources of the empty class."""
        members = [self.nodes[i] for i in self.classes]
        by_signature = [
            [admits(s, n.gpu_type, frozenset(n.labels)) for n in members] for s in self.signatures
        ]
        mask = np.array(by_signature, dtype=np.bool_).reshape(len(self.signatures), len(members))[
            self.signature
        ]
        roomy: Bools = np.all(
            self.demand[:, None, :] <= self.whole[list(self.classes)][None, :, :], axis=2
        )
        return mask & roomy

    def _homes(self, config_class: Ints, config_gpus: Ints, run_s: Floats) -> tuple[Ints, Ints]:
        """Node and configuration where each job runs now on one node of its own, -1 elsewhere."""
        at = {n.id: i for i, n in enumerate(self.nodes)}
        number = {
            (int(c), int(g)): k
            for k, (c, g) in enumerate(zip(config_class, config_gpus, strict=True))
        }
        home = np.full(len(self.rows), NONE, dtype=np.int64)
        config = np.full(len(self.rows), NONE, dtype=np.int64)
        running = self.snapshot.jobs.columns.others["running"]
        for e, row in enumerate(self.rows):
            seat = next(
                (
                    r.ranks[0]
                    for r in running[row]
                    if r.purpose == "training" and r.copy == 0 and len(r.ranks) == 1
                ),
                None,
            )
            if (
                seat is None
                or (n := at.get(seat.node)) is None
                or seat.share != 1.0
                or not set(seat.devices) <= set(self.devices[n])
            ):
                continue
            k = number.get((int(self.node_class[n]), len(seat.devices)), NONE)
            if k != NONE and np.isfinite(run_s[e, k]):
                home[e], config[e] = n, k
        return home, config

    def _power(self) -> Floats:
        most = max((len(n.devices) for n in self.nodes), default=0)
        return np.array([_curve(self.nodes[i].power_w, most) for i in self.classes]).reshape(
            len(self.classes), most + 1
        )

    def _watts_left(self) -> float:
        state = self.plan.state
        return max(0.0, (state.cap_mw - state.used_mw) / THOUSANDTHS)


def _amounts(rows: Sequence[Sequence[int]], count: int, size: int) -> Floats:
    """float64[count, size]: thousandths as amounts, inf where unlimited."""
    table = np.array(rows, dtype=np.float64).reshape(count, size)
    return np.where(table >= UNLIMITED / 2, np.inf, table / THOUSANDTHS)


def energy_costs(priced_s: Floats, rates: Floats) -> Floats:
    """float64[E, K]: priced seconds times cost per second; inf if a job never ends."""
    return np.multiply(
        priced_s, rates[None, :], out=np.full_like(priced_s, np.inf), where=np.isfinite(priced_s)
    )


def _curve(power_w: tuple[float, ...], most: int) -> list[float]:
    known = list(power_w) or [0.0]
    return [known[min(g, len(known) - 1)] for g in range(most + 1)]
