"""Capacity allocation problem of one round as dense arrays: jobs x configurations.

A configuration is a class of interchangeable nodes and a number of GPUs; t[j, k] = launch +
remaining steps / throughput, c[k] = P(g) / 1000 * price * PUE / 3600 per second (ANDREAS, IV-A).
Changing prices count by priced seconds (`policies.placement.priced_options`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from policies.contract.plan import BILLIONTHS, UNLIMITED
from policies.contract.snapshot import Bools, Floats, Ints, NodeView, Snapshot
from policies.contract.validation import TOLERANCE
from policies.cost_model.kernels import NONE
from policies.placement.gangs_over_nodes import place_gangs_over_nodes
from policies.placement.layout import MILLIWATTS, RESOURCES
from policies.placement.plan_builder import PlanBuilder
from policies.placement.priced_options import Prices, admits, prices_of, signatures, with_quota


@dataclass(frozen=True)
class Problem:
    """E jobs to decide on, N nodes that take training, C classes, K configurations.

    `plan`: running placements, and the state of all capacity. `rows` int64[E]: rows of the
    snapshot; `numbers` int64[N]: nodes in the state; `devices[n]`: free ids. `run_s` float64[E, K]:
    run time without launch, inf where impossible. `launch_s`, `move_s` float64[E]: time of a
    launch, and as the policy counts it. `cost` float64[C, G + 1] per priced second with g GPUs in
    use; `power` watts. `demand`, `capacity`: of scarce resources; `watts`: left below the cap.
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
    move_s: Floats
    demand: Floats
    capacity: Floats
    watts: float
    prices: Prices

    def column(self, name: str) -> Floats:
        """Numeric column of the jobs to decide on."""
        return self.snapshot.jobs.columns.numbers[name][self.rows]

    @cached_property
    def gpus(self) -> Ints:
        """int64[N]: number of free devices."""
        return np.array([len(of) for of in self.devices], dtype=np.int64)

    @cached_property
    def current_node(self) -> Ints:
        """int64[E]: node where a job runs now, if it is one and the devices are its own; or -1."""
        return self._current[0]

    @cached_property
    def current_config(self) -> Ints:
        """int64[E]: configuration in which a job runs now on its node; or -1."""
        return self._current[1]

    @cached_property
    def running(self) -> Bools:
        """bool[E]: True for jobs that have a current node."""
        running: Bools = self.current_config != NONE
        return running

    @cached_property
    def _current(self) -> tuple[Ints, Ints]:
        node_at = {node.id: n for n, node in enumerate(self.nodes)}
        node, config = (np.full(len(self.rows), NONE, dtype=np.int64) for _ in range(2))
        runs = self.snapshot.jobs.columns.others["running"]
        for e, row in enumerate(self.rows):
            training = [r.ranks for r in runs[row] if r.purpose == "training" and r.copy == 0]
            rank = next((ranks[0] for ranks in training if len(ranks) == 1), None)
            n = None if rank is None else node_at.get(rank.node)
            if rank is None or n is None or rank.share != 1.0:
                continue
            k = self.config_number.get((int(self.node_class[n]), len(rank.devices)), NONE)
            free = set(rank.devices) <= set(self.devices[n])
            if free and k != NONE and np.isfinite(self.run_s[e, k]):
                node[e], config[e] = n, k
        return node, config

    @cached_property
    def config_number(self) -> dict[tuple[int, int], int]:
        """Index of each configuration (class, GPUs)."""
        pairs = zip(self.config_class.tolist(), self.config_gpus.tolist(), strict=True)
        return {pair: k for k, pair in enumerate(pairs)}

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
    def times_s(self) -> Floats:
        """float64[E, K]: t[j, k]; all but the current configuration pay for a launch."""
        times = self.run_s + self.move_s[:, None]
        jobs = np.flatnonzero(self.running)
        times[jobs, self.current_config[jobs]] = self.run_s[jobs, self.current_config[jobs]]
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
        jobs, grown = np.flatnonzero(self.running), np.zeros_like(self.move_s)
        config = self.current_config[jobs]
        moved_s = self.prices.priced_s(self.times_s[jobs, config] + self.move_s[jobs])
        grown[jobs] = moved_s - self.priced_s[jobs, config]
        return grown

    @cached_property
    def allowed_s(self) -> Floats:
        """float64[E, K]: run times; inf where one node would take more than the power cap."""
        cap_w = np.inf if self.snapshot.cap_w is None else self.snapshot.cap_w
        fits = self.power[self.config_class, self.config_gpus] <= cap_w + TOLERANCE
        return np.where(fits, self.run_s, np.inf)

    @cached_property
    def fastest_s(self) -> Floats:
        """float64[E]: the least run time after a launch; inf if it fits nowhere."""
        fastest: Floats = np.min(self.allowed_s + self.move_s[:, None], axis=1, initial=np.inf)
        return fastest

    @cached_property
    def slowest_s(self) -> Floats:
        """float64[E]: M_j, the slowest run time after a launch; 0 if it fits nowhere."""
        slowest = np.max(np.where(self.feasible, self.run_s, 0.0), axis=1, initial=0.0)
        total: Floats = slowest + self.move_s
        return total

    def energy_cost(self, priced_s: Floats) -> Floats:
        """float64[E, K]: cost of runs of these priced seconds; inf if one never ends."""
        rates = self.cost[self.config_class, self.config_gpus][None, :]
        never = np.full_like(priced_s, np.inf)
        return np.multiply(priced_s, rates, out=never, where=np.isfinite(priced_s))

    @cached_property
    def cheapest(self) -> Floats:
        """float64[E]: energy cost of each job's cheapest run; 0 if it fits nowhere."""
        costs = self.energy_cost(self.prices.priced_s(self.allowed_s + self.move_s[:, None]))
        least = np.min(costs, axis=1, initial=np.inf)
        return np.where(np.isfinite(least), least, 0.0)


def build(snapshot: Snapshot, *, charged: bool = True, spreads: bool = True) -> Problem:
    """Build the problem of this snapshot.

    `charged`: run times include launches, so that a job moves only where that pays (hysteresis).
    `spreads`: gangs that no node can hold are placed first, over several.
    """
    plan = PlanBuilder(snapshot, never_touch=False, spreads=spreads)
    if spreads:
        place_gangs_over_nodes(plan)
    decided, state, layout = plan.decided, plan.state, plan.state.layout
    rows = np.array([i for i in range(len(snapshot.jobs)) if i not in decided], dtype=np.int64)
    numbers = [n for n, node in enumerate(layout.nodes) if state.open >> n & 1 and node.devices]
    nodes = tuple([layout.nodes[n] for n in numbers])
    devices = tuple([layout.ids(n, state.idle[n]) for n in numbers])
    gpus = np.array([len(of) for of in devices], dtype=np.int64)
    present = np.array([layout.present[n].bit_count() for n in numbers], dtype=np.int64)
    demand, left, whole = _resources(plan, rows, numbers)
    scarce: Bools = np.any(gpus[:, None] * demand.max(axis=0, initial=0.0) > left, axis=0)
    signature, distinct = signatures(snapshot, rows)
    labels = frozenset[str]().union(*(wanted for _, wanted in distinct))
    node_class, members = _classes(nodes, labels, whole[:, scarce])
    examples = [nodes[i] for i in members]
    pairs = [(c, g) for c, node in enumerate(examples) for g in range(1, len(node.devices) + 1)]
    config_class, config_gpus = np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
    admitted = [[admits(s, n.gpu_type, frozenset(n.labels)) for n in examples] for s in distinct]
    mask = np.array(admitted, dtype=np.bool_).reshape(len(distinct), len(examples))[signature]
    mask &= np.all(demand[:, None, :] <= whole[members][None, :, :], axis=2)
    types = np.array([snapshot.type_index[node.gpu_type] for node in examples], dtype=np.int64)
    prices, power, launch_times = prices_of(snapshot), _power(examples), plan.options.launch_times
    run_s = _run_s(snapshot, rows, mask[:, config_class], types[config_class], config_gpus)
    launches_s = np.array([launch_times.of(row) for row in rows.tolist()], dtype=np.float64)
    return Problem(
        snapshot=snapshot, plan=plan, rows=rows, nodes=nodes,
        numbers=np.array(numbers, dtype=np.int64), devices=devices, node_class=node_class,
        busy=present - gpus, config_class=config_class, config_gpus=config_gpus,
        cost=power * prices.reference, power=power, run_s=run_s, launch_s=launches_s,
        move_s=launches_s if charged else np.zeros_like(launches_s),
        demand=np.ascontiguousarray(demand[:, scarce]),
        capacity=np.ascontiguousarray(left[:, scarce]),
        watts=max(0.0, (state.cap_mw - state.used_mw) / MILLIWATTS), prices=prices,
    )  # fmt: skip


def _resources(
    plan: PlanBuilder, rows: Ints, numbers: Sequence[int]
) -> tuple[Floats, Floats, Floats]:
    """float64[E, R], float64[N, R] twice: demand, free capacity and total capacity."""
    state, layout, requests = plan.state, plan.state.layout, plan.options.requests
    runs, size = plan.snapshot.jobs.columns.others["running"], len(layout.resources)
    demands = []
    for row in rows.tolist() if size else []:
        demand = requests.demand(row)
        given = with_quota(demand, [rank for run in runs[row] for rank in run.ranks])
        most = max(demand, given, key=lambda of: of.get("cores", 0.0))
        demands.append(layout.amounts(most) or (0,) * size)
    of_resources = slice(RESOURCES, RESOURCES + size)
    left = [state.free[n][of_resources] for n in numbers]
    whole = [layout.classes[layout.class_of[n]].capacity[of_resources] for n in numbers]
    nodes = len(numbers)
    return (
        _amounts(demands, len(rows), size),
        _amounts(left, nodes, size),
        _amounts(whole, nodes, size),
    )


def _amounts(rows: Sequence[Sequence[int]], count: int, size: int) -> Floats:
    """float64[count, size]: billionths as amounts, inf where unlimited."""
    table = np.array(rows, dtype=np.float64).reshape(count, size)
    return np.where(table >= UNLIMITED / 2, np.inf, table / BILLIONTHS)


def _classes(
    nodes: Sequence[NodeView], labels: frozenset[str], scarce: Floats
) -> tuple[Ints, Ints]:
    """int64[N]: class of each node; int64[C]: one node of each class."""
    numbers: dict[object, int] = {}
    of = [
        numbers.setdefault(
            (node.gpu_type, len(node.devices), node.power_w, labels.intersection(node.labels), has),
            len(numbers),
        )
        for node, has in zip(nodes, map(tuple, scarce.tolist()), strict=True)
    ]
    node_class = np.array(of, dtype=np.int64)
    return node_class, np.unique(node_class, return_index=True)[1]


def _run_s(
    snapshot: Snapshot, rows: Ints, admitted: Bools, types: Ints, config_gpus: Ints
) -> Floats:
    """float64[E, K]: run times where an empty node suffices, else inf. `admitted` bool[E, K]."""
    columns, kinds = snapshot.jobs.columns, snapshot.job_kinds[rows][:, None]
    least, most = (columns.counts[name][rows][:, None] for name in ("gpus_min", "gpus_max"))
    rates = snapshot.throughputs[kinds, types, config_gpus]
    possible = (rates > 0.0) & admitted & (least <= config_gpus) & (config_gpus <= most)
    steps = columns.numbers["remaining_steps"][rows][:, None]
    return np.divide(steps, rates, out=np.full_like(rates, np.inf), where=possible)


def _power(examples: Sequence[NodeView]) -> Floats:
    """float64[C, G + 1]: watts of a node of each class by GPUs in use; the last known for more."""
    most = max((len(node.devices) for node in examples), default=0)
    curves = [node.power_w or (0.0,) for node in examples]
    table = [[of[min(g, len(of) - 1)] for g in range(most + 1)] for of in curves]
    return np.array(table, dtype=np.float64).reshape(len(examples), most + 1)
