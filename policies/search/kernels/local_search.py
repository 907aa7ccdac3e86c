"""Multi-start and local search over rollouts (`kernels.rollout`), compiled.

A point of the search is an order of jobs, the running jobs that stay, set configurations and a
rent; a rollout makes a schedule of it. The search starts from every order, with and without running
jobs staying, at every rent; moves then change the best point, which never gets worse.
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

# Cumulative probability of the moves: another position in the order, a set configuration; else
# whether a running job stays.
REORDER = 0.45
CONFIGURE = 0.8

LEAST_GAIN = 1e-9
"""Cost by which a start must be better than an earlier one."""


class Point(NamedTuple):
    """A point of the search, changed in place."""

    order: Ints
    """int64[E]: the jobs in their order."""
    pinned: Ints
    """int64[E]: 1 for a running job that stays."""
    only: Ints
    """int64[E]: the configuration that a job must have, -1 for any."""
    rent: Floats
    """float64[1]: price per second of a GPU of the best class."""


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


def search(
    data: RolloutData, orders: Ints, rents: Floats, moves: int, work: int, seed: int
) -> Found:
    """Return the best schedule after multi-start and local search.

    `orders` int64[S, E], `rents` float64[R], S, R >= 1; `moves`, `work`: see `improve`. `seed` in
    1 .. 2**32 - 1.
    """
    jobs = data.current_node.size
    rng = np.array([seed], np.int64)
    empty = empty_schedule(data)
    base = deepcopy(empty)
    trial = deepcopy(empty)
    point = Point(
        order=orders[0].copy(),
        pinned=np.zeros(jobs, np.int64),
        only=np.full(jobs, NONE, np.int64),
        rent=rents[:1].copy(),
    )
    first_cost, start_cost = multi_start(data, empty, base, trial, orders, rents, point)
    improve(data, empty, base, trial, moves, work, rng, point, start_cost)

    # `trial` may be of a worse point: the schedule of the best one is made once more.
    cost = keep_running(data, empty, trial, point.pinned)
    cost += list_schedule(data, trial, point.order, point.only, float(point.rent[0]))
    return Found(
        node=trial.node,
        config=trial.config,
        start_s=trial.start_s,
        cost=float(cost),
        first_cost=float(first_cost),
        start_cost=float(start_cost),
    )


@compiled
def multi_start(
    data: RolloutData,
    empty: Schedule,
    base: Schedule,
    trial: Schedule,
    orders: Ints,
    rents: Floats,
    point: Point,
) -> tuple[float, float]:
    """Return (cost of the first start, of the best) and leave the best in `point`.

    `base`, `trial`: schedules to work in.
    """
    best = NEVER
    first = NEVER
    pinned = np.zeros_like(point.pinned)
    any_running = 0
    for j in range(pinned.size):
        if data.current_node[j] != NONE:
            any_running = 1
    # If there are running jobs, first all of them stay, then none.
    for stay in range(any_running, -1, -1):
        for j in range(pinned.size):
            pinned[j] = 1 if stay == 1 and data.current_node[j] != NONE else 0
        kept_cost = keep_running(data, empty, base, pinned)
        for r in range(rents.size):
            for s in range(orders.shape[0]):
                copy_schedule(base, trial)
                cost = kept_cost + list_schedule(data, trial, orders[s], point.only, rents[r])
                if first == NEVER:
                    first = cost
                if cost < best - LEAST_GAIN:
                    best = cost
                    point.rent[0] = rents[r]
                    copy(orders[s], point.order)
                    copy(pinned, point.pinned)
    return first, best


@compiled
def improve(
    data: RolloutData,
    empty: Schedule,
    base: Schedule,
    trial: Schedule,
    moves: int,
    work: int,
    rng: Ints,
    point: Point,
    best: float,
) -> float:
    """Improve `point`, whose schedule costs `best`, in place; return the new cost.

    It ends after `moves` moves, or when rollouts have compared `work` pairs of a job and a node.
    Running jobs that stay are in `base` before any rollout: they cost no work, and are last in the
    order. `rng` int64[1]: state of the random numbers.
    """
    order = point.order
    pinned = point.pinned
    only = point.only
    jobs = order.size
    running = 0
    for j in range(jobs):
        if data.current_node[j] != NONE:
            running += 1
    free = move_pinned_back(order, pinned)  # number of jobs that do not stay
    kept_cost = keep_running(data, empty, base, pinned)
    for _ in range(moves):
        # 1. Draw the kind of the move, among those that are possible, and a job.
        kind = draw(rng)
        if free == 0 and kind < CONFIGURE:
            kind = 1.0
        if kind >= CONFIGURE and running == 0:
            kind *= CONFIGURE
        position = int(draw(rng) * jobs) if kind >= CONFIGURE else draw_near_front(rng, free)
        j = order[position]

        # 2. Change the job's position, its configuration, or whether it stays.
        target = position
        only_before = only[j]
        pinned_before = pinned[j]
        if kind < REORDER:
            target = draw_near_front(rng, free)
        elif kind < CONFIGURE:
            only[j] = int(draw(rng) * (data.config_class.size + 1)) - 1
            if only[j] != NONE and data.time_s[j, only[j]] == NEVER:
                only[j] = only_before
        elif data.current_node[j] != NONE:
            target = draw_near_front(rng, free + 1) if pinned_before == 1 else jobs - 1
            pinned[j] = 1 - pinned_before
            free += 2 * pinned_before - 1
        if target == position and only[j] == only_before and pinned[j] == pinned_before:
            continue

        # 3. Accept the move if the schedule costs no more.
        work -= max(free, 1) * data.opened_s.size
        if work >= 0:
            move_job(order, position, target)
            if pinned[j] != pinned_before:
                kept_cost = keep_running(data, empty, base, pinned)
            copy_schedule(base, trial)
            cost = kept_cost + list_schedule(data, trial, order, only, point.rent[0])
            if cost <= best:
                best = cost
                continue
            move_job(order, target, position)

        # 4. Else undo it.
        only[j] = only_before
        if pinned[j] != pinned_before:
            pinned[j] = pinned_before
            free -= 2 * pinned_before - 1
            kept_cost = keep_running(data, empty, base, pinned)
        if work < 0:
            break
    return best


@compiled
def move_pinned_back(order: Ints, pinned: Ints) -> int:
    """Bring the jobs that do not stay to the front, in their order; return their number."""
    free = 0
    for i in range(order.size):
        if pinned[order[i]] == 0:
            move_job(order, i, free)
            free += 1
    return free


@compiled
def move_job(order: Ints, position: int, target: int) -> None:
    """Move the job at `position` to the position `target`."""
    j = order[position]
    step = 1 if target > position else -1
    while position != target:
        order[position] = order[position + step]
        position += step
    order[target] = j


@compiled
def draw_near_front(rng: Ints, jobs: int) -> int:
    """Draw a position in the order, likelier near its front: early starts matter most."""
    u = draw(rng)
    return int(u * u * jobs)
