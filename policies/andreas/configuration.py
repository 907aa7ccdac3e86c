"""Configurations (node class, GPUs) of jobs, and the kernels' data from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.andreas.kernels.arrays import TOP, Instance
from policies.andreas.objective import Objective
from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import NONE
from policies.cost_model.problem import Problem

TINY = 1e-30


def instance(problem: Problem, choice: Choice, objective: Objective) -> Instance:
    """Return the kernel's data; empty nodes come first, so that new jobs go there."""
    first, after, before = _lists(problem)
    return Instance(
        choice=choice.order, due_count=choice.due_count,
        fit_count=problem.feasible.sum(axis=1).astype(np.int64), chance=choice.chance,
        time_s=problem.times_s, current_node=problem.current_node,
        current_config=problem.current_config, move_s=problem.move_s,
        weight=problem.column("tardiness_weight"), slack_s=problem.slack_s,
        penalty=objective.postponing(problem), moving=objective.moving(problem),
        priced_s=problem.priced_s, priced_move_s=problem.priced_move_s,
        gpus_min=problem.snapshot.jobs.columns.counts["gpus_min"][problem.rows],
        alike=_alike(problem),
        config_class=problem.config_class, config_gpus=problem.config_gpus, cost=problem.cost,
        power=problem.power, node_class=problem.node_class, free=problem.gpus, used=problem.busy,
        first=first, after=after, before=before, demand=problem.demand, capacity=problem.capacity,
        watts=problem.watts, whole=int(objective.whole),
    )  # fmt: skip


def _alike(problem: Problem) -> Ints:
    """int64[K]: equal numbers for configurations of equal (GPU type, GPUs, cost per second)."""
    types = {c: n.gpu_type for c, n in zip(problem.node_class.tolist(), problem.nodes, strict=True)}
    numbers: dict[object, int] = {}
    keys = [(types[c], g, float(problem.cost[c, g])) for c, g in problem.config_number]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Choice:
    """ANDREAS' choice of configurations of all jobs.

    `order` int64[E, K]: the `due_count[j]` configurations that meet the due date, D*, by rising
    cost t * c, then the others by rising time, impossible ones last. `chance` float64[E, 2]:
    cumulative probability of the first two of at most three in D*, inversely to their cost.
    """

    order: Ints
    due_count: Ints
    chance: Floats


def choose(problem: Problem, hysteresis: float = 0.0) -> Choice:
    """Order every job's configurations: the cheapest in time, else the fastest (ANDREAS, IV-B).

    The current configuration counts as cheaper by the fraction `hysteresis`.
    """
    times = problem.times_s
    costs = problem.energy_cost(problem.priced_s)
    running = np.flatnonzero(problem.running)
    costs[running, problem.current_config[running]] *= 1.0 - hysteresis
    in_time = problem.feasible & (times < problem.slack_s[:, None])
    key = np.where(in_time, costs, np.where(problem.feasible, times, np.inf))
    first = np.argsort(key, axis=1, kind="stable")
    late = np.argsort(np.take_along_axis(~in_time, first, axis=1), axis=1, kind="stable")
    order = np.ascontiguousarray(np.take_along_axis(first, late, axis=1))
    due_count = in_time.sum(axis=1).astype(np.int64)
    return Choice(order, due_count, _chances(costs, order, due_count))


def _chances(costs: Floats, order: Ints, due_count: Ints) -> Floats:
    cheap = np.take_along_axis(costs, order[:, :TOP], axis=1)
    among = np.arange(cheap.shape[1])[None, :] < due_count[:, None]
    likely = np.where(among, 1.0 / np.maximum(np.where(among, cheap, 1.0), TINY), 0.0)
    shares = np.cumsum(likely, axis=1) / np.maximum(likely.sum(axis=1, keepdims=True), TINY)
    chance = np.ones((len(costs), TOP - 1))
    chance[:, : shares.shape[1]] = shares[:, : TOP - 1]
    return chance


def _lists(problem: Problem) -> tuple[Ints, Ints, Ints]:
    """Return `first`, `after` and `before` of the kernel's lists of nodes."""
    residents = np.zeros(len(problem.nodes), dtype=np.int64)
    running = problem.running
    np.add.at(
        residents,
        problem.current_node[running],
        problem.config_gpus[problem.current_config[running]],
    )
    first = np.full(problem.cost.shape, NONE, dtype=np.int64)
    after, before = (np.full(len(problem.nodes), NONE, dtype=np.int64) for _ in range(2))
    for n in np.argsort(-residents, kind="stable").tolist():
        at = (problem.node_class[n], problem.gpus[n])
        after[n], first[at] = first[at], n
        if after[n] != NONE:
            before[after[n]] = n
    return first, after, before


def least_gpus(problem: Problem, orders: Ints) -> Ints:
    """int64[S, C, E + 1]: fewest GPUs on a class with which any job from a place on fits."""
    classes, jobs, too_many = len(problem.cost), len(problem.rows), problem.cost.shape[1]
    by_class = np.full((classes, jobs), too_many, dtype=np.int64)
    for (c, gpus), feasible in zip(problem.config_number, problem.feasible.T, strict=True):
        by_class[c] = np.where(feasible, np.minimum(by_class[c], gpus), by_class[c])
    least = np.full((len(orders), classes, jobs + 1), too_many, dtype=np.int64)
    for s, order in enumerate(orders):
        least[s, :, :-1] = np.minimum.accumulate(by_class[:, order[::-1]], axis=1)[:, ::-1]
    return least
