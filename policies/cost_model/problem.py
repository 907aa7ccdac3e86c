"""Capacity allocation problem of one round as dense arrays: jobs x configurations.

A configuration k is a class of interchangeable nodes and a number of GPUs g. The run time of job j
is t[j, k] = launch + remaining steps / throughput, the cost of a second c[k] = P(g) / 1000 * price
* PUE / 3600 (ANDREAS, IV-A). Prices that change count by priced seconds
(`policies.placement.priced_options`).

Sizes: E jobs to decide on, N nodes that take training, in C classes of at most G GPUs, K
configurations, R scarce resources.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from policies.contract.plan import BILLIONTHS, UNLIMITED
from policies.contract.snapshot import Bools, Floats, Ints, NodeView, Snapshot
from policies.contract.validation import TOLERANCE
from policies.cost_model.kernels import NONE
from policies.placement.gangs_over_nodes import place_gangs_over_nodes
from policies.placement.layout import MILLIWATTS, RESOURCES
from policies.placement.plan_builder import PlanBuilder
from policies.placement.priced_options import Prices, admits, prices_of, signatures, with_quota

Signature: TypeAlias = tuple[frozenset[str], frozenset[str]]
"""GPU types that a job allows (none: all), and labels that it wants."""


@dataclass(frozen=True)
class Problem:
    """Jobs, nodes and configurations of one decision."""

    snapshot: Snapshot
    plan: PlanBuilder
    """Plan with what is decided already, and the state of all capacity."""

    rows: Ints
    """int64[E]: rows of the jobs in the snapshot."""

    # Nodes.
    nodes: tuple[NodeView, ...]
    numbers: Ints
    """int64[N]: their numbers in the plan's state."""
    devices: tuple[tuple[str, ...], ...]
    """Ids of the free devices of each node."""
    node_class: Ints
    """int64[N]: class of each node."""
    busy: Ints
    """int64[N]: devices in use by jobs about which nothing is decided."""

    # Configurations.
    config_class: Ints
    """int64[K]: class of the nodes of each."""
    config_gpus: Ints
    """int64[K]: number of its GPUs."""
    cost: Floats
    """float64[C, G + 1]: cost per priced second of a node with so many GPUs in use."""
    power: Floats
    """float64[C, G + 1]: its watts."""

    # Run times.
    run_s: Floats
    """float64[E, K]: run time without a launch, inf where impossible."""
    launch_s: Floats
    """float64[E]: time of a launch."""
    move_s: Floats
    """float64[E]: the same as the policy counts it: 0 if launches are not charged."""

    # Scarce resources and power.
    demand: Floats
    """float64[E, R]: amounts that each job needs of a node."""
    capacity: Floats
    """float64[N, R]: free amounts."""
    watts: float
    """Left under the power cap; inf without one."""

    prices: Prices

    def column(self, name: str) -> Floats:
        """Return a numeric column of the jobs to decide on, float64[E]."""
        return self.snapshot.jobs.columns.numbers[name][self.rows]

    @cached_property
    def gpus(self) -> Ints:
        """int64[N]: number of free devices."""
        return np.array([len(ids) for ids in self.devices], dtype=np.int64)

    @cached_property
    def current_node(self) -> Ints:
        """int64[E]: node where a job runs now, alone on devices of one node; or -1."""
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
        """Node and configuration of each job, int64[E] each."""
        number_of_node = {node.id: n for n, node in enumerate(self.nodes)}
        node = np.full(len(self.rows), NONE, dtype=np.int64)
        config = np.full(len(self.rows), NONE, dtype=np.int64)
        runs_of_row = self.snapshot.jobs.columns.others["running"]
        for job, row in enumerate(self.rows):
            # 1. Where it trains, if on whole devices of one node.
            rank = None
            for run in runs_of_row[row]:
                if run.purpose == "training" and run.copy == 0 and len(run.ranks) == 1:
                    rank = run.ranks[0]
                    break
            if rank is None or rank.node not in number_of_node or rank.share != 1.0:
                continue

            # 2. That configuration, if it can go on there.
            n = number_of_node[rank.node]
            key = int(self.node_class[n]), len(rank.devices)
            k = self.config_number.get(key, NONE)
            are_to_give = set(rank.devices) <= set(self.devices[n])
            if are_to_give and k != NONE and np.isfinite(self.run_s[job, k]):
                node[job] = n
                config[job] = k
        return node, config

    @cached_property
    def config_number(self) -> dict[tuple[int, int], int]:
        """Number of each configuration by (class, GPUs)."""
        pairs = zip(self.config_class.tolist(), self.config_gpus.tolist(), strict=True)
        return {pair: number for number, pair in enumerate(pairs)}

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
        jobs = np.flatnonzero(self.running)
        config = self.current_config[jobs]
        moved_s = self.prices.priced_s(self.times_s[jobs, config] + self.move_s[jobs])
        extra_s = np.zeros_like(self.move_s)
        extra_s[jobs] = moved_s - self.priced_s[jobs, config]
        return extra_s

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
    # 1. What is decided already: jobs that wait in any case or go on, gangs over several nodes.
    plan = PlanBuilder(snapshot, never_touch=False, spreads=spreads)
    if spreads:
        place_gangs_over_nodes(plan)
    state = plan.state
    layout = state.layout

    # 2. The jobs and nodes that remain.
    decided = plan.decided
    undecided = [row for row in range(len(snapshot.jobs)) if row not in decided]
    rows = np.array(undecided, dtype=np.int64)
    numbers = [n for n, node in enumerate(layout.nodes) if state.open >> n & 1 and node.devices]
    nodes = tuple([layout.nodes[n] for n in numbers])
    devices = tuple([layout.ids(n, state.idle[n]) for n in numbers])
    gpus = np.array([len(ids) for ids in devices], dtype=np.int64)
    present = np.array([layout.present[n].bit_count() for n in numbers], dtype=np.int64)

    # 3. A resource is scarce if some node has too little for jobs of the largest demand on all of
    #    its free GPUs.
    demand, free, total = _resources(plan, rows, numbers)
    is_scarce: Bools = np.any(gpus[:, None] * demand.max(axis=0, initial=0.0) > free, axis=0)

    # 4. Classes of nodes that no job tells apart, and configurations on them.
    signature, distinct = signatures(snapshot, rows)
    labels = frozenset[str]().union(*(wanted for _, wanted in distinct))
    node_class, example_numbers = _node_classes(nodes, labels, total[:, is_scarce])
    examples = [nodes[n] for n in example_numbers]
    configs: list[tuple[int, int]] = []
    for number, node in enumerate(examples):
        configs += [(number, count) for count in range(1, len(node.devices) + 1)]
    config_class, config_gpus = np.array(configs, dtype=np.int64).reshape(-1, 2).T.copy()

    # 5. Run times, where the job's types, labels and resources allow the class.
    is_admitted = _admitted(signature, distinct, examples)
    is_admitted &= np.all(demand[:, None, :] <= total[example_numbers][None, :, :], axis=2)
    types = np.array([snapshot.type_index[node.gpu_type] for node in examples], dtype=np.int64)
    run_s = _run_s(snapshot, rows, is_admitted[:, config_class], types[config_class], config_gpus)
    launch_times = plan.options.launch_times
    launch_s = np.array([launch_times.of(row) for row in rows.tolist()], dtype=np.float64)

    # 6. Power and its price.
    power = _power(examples)
    prices = prices_of(snapshot)
    return Problem(
        snapshot=snapshot,
        plan=plan,
        rows=rows,
        nodes=nodes,
        numbers=np.array(numbers, dtype=np.int64),
        devices=devices,
        node_class=node_class,
        busy=present - gpus,
        config_class=config_class,
        config_gpus=config_gpus,
        cost=power * prices.reference,
        power=power,
        run_s=run_s,
        launch_s=launch_s,
        move_s=launch_s if charged else np.zeros_like(launch_s),
        demand=np.ascontiguousarray(demand[:, is_scarce]),
        capacity=np.ascontiguousarray(free[:, is_scarce]),
        watts=max(0.0, (state.cap_mw - state.used_mw) / MILLIWATTS),
        prices=prices,
    )


def _resources(
    plan: PlanBuilder, rows: Ints, numbers: Sequence[int]
) -> tuple[Floats, Floats, Floats]:
    """Return demand float64[E, R], free and total capacity float64[N, R], of all R resources."""
    state = plan.state
    layout = state.layout
    size = len(layout.resources)

    # 1. A running job may hold more cores than it asks for: then it needs these.
    runs = plan.snapshot.jobs.columns.others["running"]
    demands = []
    if size:
        for row in rows.tolist():
            declared = plan.options.requests.demand(row)
            ranks = [rank for run in runs[row] for rank in run.ranks]
            held = with_quota(declared, ranks)
            more = max(declared, held, key=lambda amounts: amounts.get("cores", 0.0))
            demands.append(layout.amounts(more) or (0,) * size)

    # 2. Capacities.
    resources = slice(RESOURCES, RESOURCES + size)
    free = [state.free[n][resources] for n in numbers]
    total = [layout.classes[layout.class_of[n]].capacity[resources] for n in numbers]
    return (
        _amounts(demands, len(rows), size),
        _amounts(free, len(numbers), size),
        _amounts(total, len(numbers), size),
    )


def _amounts(billionths: Sequence[Sequence[int]], count: int, size: int) -> Floats:
    """float64[count, size]: billionths as amounts, inf where unlimited."""
    table = np.array(billionths, dtype=np.float64).reshape(count, size)
    return np.where(table >= UNLIMITED / 2, np.inf, table / BILLIONTHS)


def _node_classes(
    nodes: Sequence[NodeView], labels: frozenset[str], scarce: Floats
) -> tuple[Ints, Ints]:
    """Return int64[N]: class of each node, and int64[C]: one node of each class.

    `labels`: those that some job asks for. `scarce` float64[N, R]: total scarce resources.
    """
    number_of_key: dict[object, int] = {}
    numbers: list[int] = []
    for node, resources in zip(nodes, scarce.tolist(), strict=True):
        asked_labels = labels.intersection(node.labels)
        key = (
            node.gpu_type,
            len(node.devices),
            node.power_w,
            asked_labels,
            tuple(resources),
        )
        numbers.append(number_of_key.setdefault(key, len(number_of_key)))
    node_class = np.array(numbers, dtype=np.int64)
    _, examples = np.unique(node_class, return_index=True)
    return node_class, examples


def _admitted(
    signature: Ints, distinct: Sequence[Signature], examples: Sequence[NodeView]
) -> Bools:
    """bool[E, C]: classes whose GPU type and labels suit each job.

    `distinct`: wanted types and labels; `signature` int64[E]: those of each job. `examples`: a node
    of each class.
    """
    table = []
    for wanted in distinct:
        table.append([admits(wanted, node.gpu_type, frozenset(node.labels)) for node in examples])
    admitted: Bools = np.array(table, dtype=np.bool_).reshape(len(distinct), len(examples))
    return admitted[signature]


def _run_s(
    snapshot: Snapshot, rows: Ints, is_admitted: Bools, types: Ints, config_gpus: Ints
) -> Floats:
    """float64[E, K]: run times where an empty node suffices, else inf.

    `is_admitted` bool[E, K]; `types`, `config_gpus` int64[K]: of each configuration.
    """
    columns = snapshot.jobs.columns
    kinds = snapshot.job_kinds[rows][:, None]
    rates = snapshot.throughputs[kinds, types, config_gpus]
    gpus_min = columns.counts["gpus_min"][rows][:, None]
    gpus_max = columns.counts["gpus_max"][rows][:, None]
    has_right_size = (gpus_min <= config_gpus) & (config_gpus <= gpus_max)
    is_possible = (rates > 0.0) & is_admitted & has_right_size
    steps = columns.numbers["remaining_steps"][rows][:, None]
    return np.divide(steps, rates, out=np.full_like(rates, np.inf), where=is_possible)


def _power(examples: Sequence[NodeView]) -> Floats:
    """float64[C, G + 1]: watts of a node of each class by GPUs in use; the last known for more."""
    most_gpus = max((len(node.devices) for node in examples), default=0)
    table = []
    for node in examples:
        curve = node.power_w or (0.0,)
        table.append([curve[min(gpus, len(curve) - 1)] for gpus in range(most_gpus + 1)])
    return np.array(table, dtype=np.float64).reshape(len(examples), most_gpus + 1)
