"""Configurations (node class, GPUs) of jobs, and the kernels' data from them.

Shapes: E jobs, N nodes in C classes of at most G GPUs, K configurations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from policies.andreas.kernels.arrays import TOP, Instance
from policies.andreas.objective import Objective
from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import NONE
from policies.cost_model.problem import Problem

TINY = 1e-30
"""Least cost to divide by."""


def kernel_instance(problem: Problem, preferences: Preferences, objective: Objective) -> Instance:
    """Return the data of the kernels `greedy.search` and `polish.polish`."""
    lists = _lists_of_nodes(problem)
    return Instance(
        choice=preferences.order,
        due_count=preferences.due_count,
        fit_count=problem.feasible.sum(axis=1).astype(np.int64),
        chance=preferences.chance,
        time_s=problem.times_s,
        current_node=problem.current_node,
        current_config=problem.current_config,
        move_s=problem.move_s,
        weight=problem.column("tardiness_weight"),
        slack_s=problem.slack_s,
        penalty=objective.postponing(problem),
        moving=objective.moving(problem),
        priced_s=problem.priced_s,
        priced_move_s=problem.priced_move_s,
        gpus_min=problem.snapshot.jobs.columns.counts["gpus_min"][problem.rows],
        alike=_alike(problem),
        config_class=problem.config_class,
        config_gpus=problem.config_gpus,
        cost=problem.cost,
        power=problem.power,
        node_class=problem.node_class,
        free=problem.gpus,
        used=problem.busy,
        first=lists.first,
        after=lists.after,
        before=lists.before,
        demand=problem.demand,
        capacity=problem.capacity,
        watts=problem.watts,
        whole=int(objective.whole),
    )


def _alike(problem: Problem) -> Ints:
    """int64[K]: equal numbers for configurations of equal (GPU type, GPUs, cost per second)."""
    type_of_class: dict[int, str] = {}
    for node_class, node in zip(problem.node_class.tolist(), problem.nodes, strict=True):
        type_of_class[node_class] = node.gpu_type
    number_of_key: dict[object, int] = {}
    numbers = []
    for node_class, gpus in problem.config_number:
        key = type_of_class[node_class], gpus, float(problem.cost[node_class, gpus])
        numbers.append(number_of_key.setdefault(key, len(number_of_key)))
    return np.array(numbers, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Preferences:
    """Configurations of every job in ANDREAS' order of preference.

    `order` int64[E, K]: first the configurations that meet the due date (the paper's D*), by rising
    energy cost t * c; then the others by rising time, impossible ones last. `due_count` int64[E]:
    the size of D*. `chance` float64[E, TOP - 1]: mode paper draws among the first TOP of D* in
    inverse proportion to their cost; these are cumulative probabilities.
    """

    order: Ints
    due_count: Ints
    chance: Floats


def preferences_of(problem: Problem, hysteresis: float = 0.0) -> Preferences:
    """Order every job's configurations: the cheapest in time, else the fastest (ANDREAS, IV-B).

    The current configuration counts as cheaper by the fraction `hysteresis`.
    """
    # 1. Energy cost and being in time, float64[E, K] and bool[E, K].
    times_s = problem.times_s
    costs = problem.energy_cost(problem.priced_s)
    running = np.flatnonzero(problem.running)
    costs[running, problem.current_config[running]] *= 1.0 - hysteresis
    in_time = problem.feasible & (times_s < problem.slack_s[:, None])

    # 2. Sort by cost or time, then move those in time to the front.
    time_if_possible = np.where(problem.feasible, times_s, np.inf)
    by_key = np.argsort(np.where(in_time, costs, time_if_possible), axis=1, kind="stable")
    is_late = np.take_along_axis(~in_time, by_key, axis=1)
    in_time_first = np.argsort(is_late, axis=1, kind="stable")
    order = np.ascontiguousarray(np.take_along_axis(by_key, in_time_first, axis=1))

    due_count = in_time.sum(axis=1).astype(np.int64)
    return Preferences(order, due_count, _chances(costs, order, due_count))


def _chances(costs: Floats, order: Ints, due_count: Ints) -> Floats:
    """float64[E, TOP - 1]: `Preferences.chance`."""
    cheapest = np.take_along_axis(costs, order[:, :TOP], axis=1)
    in_time = np.arange(cheapest.shape[1])[None, :] < due_count[:, None]
    inverse = 1.0 / np.maximum(np.where(in_time, cheapest, 1.0), TINY)
    likelihood = np.where(in_time, inverse, 0.0)
    total = np.maximum(likelihood.sum(axis=1, keepdims=True), TINY)
    cumulative = np.cumsum(likelihood, axis=1) / total
    chance = np.ones((len(costs), TOP - 1))
    chance[:, : cumulative.shape[1]] = cumulative[:, : TOP - 1]
    return chance


class _NodeLists(NamedTuple):
    """Doubly linked lists of nodes, one for each class and number of free GPUs.

    `first` int64[C, G + 1]: head of each list; `after`, `before` int64[N]: neighbours of each node.
    NONE where there is none.
    """

    first: Ints
    after: Ints
    before: Ints


def _lists_of_nodes(problem: Problem) -> _NodeLists:
    """Return the lists of nodes, those first on which running jobs have the fewest GPUs.

    So new jobs go to empty nodes, and running ones can stay.
    """
    # 1. GPUs that running jobs, among those to decide on, use on each node.
    used_gpus = np.zeros(len(problem.nodes), dtype=np.int64)
    running = problem.running
    gpus = problem.config_gpus[problem.current_config[running]]
    np.add.at(used_gpus, problem.current_node[running], gpus)

    # 2. Each node is put before the head of its list, so the fullest node is put first.
    first = np.full(problem.cost.shape, NONE, dtype=np.int64)
    after = np.full(len(problem.nodes), NONE, dtype=np.int64)
    before = np.full(len(problem.nodes), NONE, dtype=np.int64)
    for node in np.argsort(-used_gpus, kind="stable").tolist():
        key = problem.node_class[node], problem.gpus[node]
        head = first[key]
        after[node] = head
        first[key] = node
        if head != NONE:
            before[head] = node
    return _NodeLists(first, after, before)


def least_gpus_of_rest(problem: Problem, orders: Ints) -> Ints:
    """int64[S, C, E + 1]: fewest GPUs that any of the remaining jobs can use on a class.

    Remaining are the jobs of an order from a position on; without any it is one GPU more than any
    node has. `orders` int64[S, E].
    """
    classes, too_many = problem.cost.shape
    jobs = len(problem.rows)

    # 1. The fewest GPUs by class and job.
    by_job = np.full((classes, jobs), too_many, dtype=np.int64)
    for (node_class, gpus), feasible in zip(problem.config_number, problem.feasible.T, strict=True):
        fewer = np.minimum(by_job[node_class], gpus)
        by_job[node_class] = np.where(feasible, fewer, by_job[node_class])

    # 2. The least of each position and all later ones: a running minimum from the end.
    least = np.full((len(orders), classes, jobs + 1), too_many, dtype=np.int64)
    for number, order in enumerate(orders):
        from_the_end = np.minimum.accumulate(by_job[:, order[::-1]], axis=1)
        least[number, :, :-1] = from_the_end[:, ::-1]
    return least
