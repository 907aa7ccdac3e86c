"""Multi-start and local search over rollouts (`kernels.rollout`), compiled.

A point is an order of jobs, the running jobs that stay, set configurations and a rent. The search
starts from every order, with and without running jobs staying, at every rent; moves then change the
best point, which never gets worse.
"""

from copy import deepcopy
from typing import NamedTuple

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import NONE, copy, draw
from policies.placement.kernels import compiled
from policies.search.kernels.rollout import (
    NEVER,
    RolloutData,
    Schedule,
    copy_schedule,
    empty_schedule,
    keep_running,
    list_schedule,
)

INSERT, SET = 0.45, 0.8
"""Cumulative probability of moves: order, configuration, whether a running job stays."""

LEAST_GAIN = 1e-9


class Point(NamedTuple):
    """`order`, `pinned` (1: stays), `only` (-1: any) int64[E]; `rent` float64[1]."""

    order: Ints
    pinned: Ints
    only: Ints
    rent: Floats


class Found(NamedTuple):
    """Best schedule: node, configuration and start of every job (-1, -1, inf: none), its cost.

    `first_cost`, `start_cost`: cost of the first start and of the best one.
    """

    node: Ints
    config: Ints
    start_s: Floats
    cost: float
    first_cost: float
    start_cost: float


@compiled
def multi_start(
    data: RolloutData, empty: Schedule, base: Schedule, trial: Schedule, orders: Ints,
    rents: Floats, point: Point,
) -> tuple[float, float]:  # fmt: skip
    """Return (cost of the first start, of the best) and leave the best in `point`."""
    best, first, running, pinned = NEVER, NEVER, 0, np.zeros_like(point.pinned)
    for j in range(pinned.size):
        running = 1 if data.current_node[j] != NONE else running
    for stays in range(running, -1, -1):
        for j in range(pinned.size):
            pinned[j] = 1 if stays == 1 and data.current_node[j] != NONE else 0
        kept = keep_running(data, empty, base, pinned)
        for r in range(rents.size):
            for s in range(orders.shape[0]):
                copy_schedule(base, trial)
                cost = kept + list_schedule(data, trial, orders[s], point.only, rents[r])
                if first == NEVER:
                    first = cost
                if cost < best - LEAST_GAIN:
                    best, point.rent[0] = cost, rents[r]
                    copy(orders[s], point.order)
                    copy(pinned, point.pinned)
    return first, best


@compiled
def insert(order: Ints, at: int, to: int) -> None:
    """Move the job at place `at` to place `to`."""
    j = order[at]
    step = 1 if to > at else -1
    while at != to:
        order[at] = order[at + step]
        at += step
    order[to] = j


@compiled
def front(rng: Ints, jobs: int) -> int:
    """Draw a place in the order, likelier near its front: early starts matter most."""
    u = draw(rng)
    return int(u * u * jobs)


@compiled
def part(order: Ints, pinned: Ints) -> int:
    """Bring the jobs that do not stay to the front, in their order; return their number."""
    free = 0
    for i in range(order.size):
        if pinned[order[i]] == 0:
            insert(order, i, free)
            free += 1
    return free


@compiled
def improve(
    data: RolloutData, empty: Schedule, base: Schedule, trial: Schedule, moves: int, work: int,
    rng: Ints, point: Point, best: float,
) -> float:  # fmt: skip
    """Improve `point`, whose schedule costs `best`, in place; return the new cost.

    It ends after `moves` moves, or when rollouts have compared `work` pairs of a job and a node.
    Running jobs that stay are in `base` before any rollout: they cost no work.
    """
    order, pinned, only, jobs = point.order, point.pinned, point.only, point.order.size
    running, free = 0, part(order, pinned)
    for j in range(jobs):
        running += 1 if data.current_node[j] != NONE else 0
    kept = keep_running(data, empty, base, pinned)
    for _ in range(moves):
        kind = draw(rng)
        if free == 0 and kind < SET:
            kind = 1.0
        if kind >= SET and running == 0:
            kind *= SET
        at = int(draw(rng) * jobs) if kind >= SET else front(rng, free)
        j, to = order[at], at
        was, stays = only[j], pinned[j]
        if kind < INSERT:
            to = front(rng, free)
        elif kind < SET:
            only[j] = int(draw(rng) * (data.config_class.size + 1)) - 1
            if only[j] != NONE and data.time_s[j, only[j]] == NEVER:
                only[j] = was
        elif data.current_node[j] != NONE:
            to = front(rng, free + 1) if stays == 1 else jobs - 1
            pinned[j] = 1 - stays
            free += 2 * stays - 1
        if to == at and only[j] == was and pinned[j] == stays:
            continue
        work -= max(free, 1) * data.opened_s.size
        if work >= 0:
            insert(order, at, to)
            if pinned[j] != stays:
                kept = keep_running(data, empty, base, pinned)
            copy_schedule(base, trial)
            cost = kept + list_schedule(data, trial, order, only, point.rent[0])
            if cost <= best:
                best = cost
                continue
            insert(order, to, at)
        only[j] = was
        if pinned[j] != stays:
            pinned[j] = stays
            free -= 2 * stays - 1
            kept = keep_running(data, empty, base, pinned)
        if work < 0:
            break
    return best


def search(
    data: RolloutData, orders: Ints, rents: Floats, moves: int, work: int, seed: int
) -> Found:
    """Return the best schedule after multi-start and local search.

    `orders` int64[S, E], `rents` float64[R], S, R >= 1. `seed` in 1 .. 2**32 - 1.
    """
    jobs = data.current_node.size
    empty, rng = empty_schedule(data), np.array([seed], np.int64)
    base, trial = (deepcopy(empty) for _ in range(2))
    free, anywhere = np.zeros(jobs, np.int64), np.full(jobs, NONE, np.int64)
    point = Point(orders[0].copy(), free, anywhere, rents[:1].copy())
    first, best = multi_start(data, empty, base, trial, orders, rents, point)
    improve(data, empty, base, trial, moves, work, rng, point, best)
    cost = keep_running(data, empty, trial, point.pinned)
    cost += list_schedule(data, trial, point.order, point.only, float(point.rent[0]))
    return Found(trial.node, trial.config, trial.start_s, float(cost), float(first), float(best))
