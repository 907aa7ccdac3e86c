"""Configurations (node class, GPUs) of jobs, and the kernels' data that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.andreas.kernels.arrays import NONE, TOP, Instance
from policies.andreas.objective import Objective
from policies.andreas.problem import Problem, energy_costs
from policies.contract.snapshot import Floats, Ints

TINY = 1e-30


def instance(problem: Problem, choice: Choice, objective: Objective) -> Instance:
    """The kernel's data; nodes where no job runs come first, so that newcomers go there."""
    residents = np.zeros(len(problem.nodes), dtype=np.int64)
    at_home = problem.home_config != NONE
    np.add.at(residents, problem.home[at_home], problem.config_gpus[problem.home_config[at_home]])
    free = np.array([len(d) for d in problem.devices], dtype=np.int64)
    first, after, before = _lists(problem, free, residents)
    return Instance(
        choice=choice.order, due_count=choice.due_count,
        fit_count=problem.feasible.sum(axis=1).astype(np.int64),
        chance=choice.chance, time_s=problem.times_s, home=problem.home,
        home_config=problem.home_config, move_s=problem.move_s,
        weight=problem.column("tardiness_weight"), slack_s=problem.slack_s,
        penalty=objective.postponing(problem),
        moving=objective.moving(problem), priced_s=problem.priced_s,
        priced_move_s=problem.priced_move_s,
        gpus_min=problem.count("gpus_min"), config_class=problem.config_class,
        config_gpus=problem.config_gpus, cost=problem.cost,
        alike=_alike(problem),
        power=problem.power, node_class=problem.node_class, free=free, used=problem.busy,
        first=first, after=after, before=before,
        demand=problem.demand, capacity=problem.capacity, watts=problem.watts,
        whole=int(objective.whole),
    )  # fmt: skip


def _alike(problem: Problem) -> Ints:
    """int64[K]: equal numbers for configurations of equal (GPU type, GPUs, cost per second)."""
    gpu_type = {
        int(c): node.gpu_type for c, node in zip(problem.node_class, problem.nodes, strict=True)
    }
    numbers: dict[object, int] = {}
    rates = problem.cost[problem.config_class, problem.config_gpus]
    keys = [
        (gpu_type[int(c)], int(g), float(r))
        for c, g, r in zip(problem.config_class, problem.config_gpus, rates, strict=True)
    ]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Choice:
    """ANDREAS' choice of a configuration, for all jobs at once.

    `order` int64[E, K]: the `due_count[j]` configurations that meet the due date, D*, by rising
    cost t * c, then the others by rising time, impossible ones last. `chance` float64[E, 2]:
    cumulative probability of the first two of at most three in D*, each in inverse proportion to
    its cost.
    """

    order: Ints
    due_count: Ints
    chance: Floats


def choose(problem: Problem, hysteresis: float = 0.0) -> Choice:
    """Order every job's configurations: the cheapest that meets the due date, else the fastest
    (ANDREAS, IV-B).

    The configuration in which a job runs now seems cheaper by the fraction `hysteresis`, so that it
    changes only where that pays.
    """
    times = problem.times_s
    costs = energy_costs(problem.priced_s, problem.cost[problem.config_class, problem.config_gpus])
    at_home = np.flatnonzero(problem.home_config != NONE)
    costs[at_home, problem.home_config[at_home]] *= 1.0 - hysteresis
    in_time = problem.feasible & (times < problem.slack_s[:, None])
    first = np.argsort(
        np.where(in_time, costs, np.where(problem.feasible, times, np.inf)), axis=1, kind="stable"
    )
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


def _lists(problem: Problem, free: Ints, residents: Ints) -> tuple[Ints, Ints, Ints]:
    first = [[NONE] * problem.cost.shape[1] for _ in problem.cost]
    after, before = [NONE] * len(free), [NONE] * len(free)
    classes, left = problem.node_class.tolist(), free.tolist()
    for n in np.argsort(-residents, kind="stable").tolist():
        of_class = first[classes[n]]
        head = of_class[left[n]]
        after[n], of_class[left[n]] = head, n
        if head != NONE:
            before[head] = n
    return (
        np.array(first, dtype=np.int64).reshape(problem.cost.shape),
        np.array(after, dtype=np.int64),
        np.array(before, dtype=np.int64),
    )
