"""Multi-start and local search over roll-outs (`kernels.outlook`), compiled: what the policy
`cost_search` searches with.

A point of the search is what a roll-out follows: an order of jobs, which running jobs stay,
configurations that are set, a rent. The search starts from every order given, with and without the
running jobs staying, at every rent; then moves change the best point a little, and a change stays
if the schedule costs no more. The best point never gets worse, so that it may be stopped after any
move.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.andreas.kernels.arrays import NONE
from policies.andreas.kernels.greedy import draw
from policies.contract.snapshot import Floats, Ints
from policies.placement.kernels import compiled
from policies.search.kernels.outlook import (
    NEVER,
    Board,
    Outlook,
    copy_board,
    new_board,
    place_all,
    settle,
)

INSERT, SET = 0.45, 0.8
"""Cumulative probability of moves: order, configuration, whether a running job stays."""

LEAST_GAIN = 1e-9


class Start(NamedTuple):
    """What to start from: `orders` int64[S, E], S >= 1, and `rents` float64[R], R >= 1."""

    orders: Ints
    rents: Floats


class Point(NamedTuple):
    """A point of the search: `order` int64[E], `pinned` int64[E] (1: stays where it runs), `only`
    int64[E] (-1: any configuration), `rent` float64[1].
    """

    order: Ints
    pinned: Ints
    only: Ints
    rent: Floats


class Found(NamedTuple):
    """The best schedule: node, configuration and start of every job (-1, -1, inf: none), what it
    costs, and what the first start and the best start cost.
    """

    node: Ints
    config: Ints
    start_s: Floats
    cost: float
    first_cost: float
    start_cost: float


@compiled
def copy(of: Ints, to: Ints) -> None:
    """Element by element: whole-array assignment takes seconds to compile."""
    for i in range(of.size):
        to[i] = of[i]


@compiled
def multi_start(
    data: Outlook, base: Board, board: Board, orders: Ints, rents: Floats, point: Point, trial: Ints
) -> tuple[float, float]:
    """(cost of the first start, of the best); the best is left in `point`."""
    best, first, running = NEVER, NEVER, 0
    for j in range(trial.size):
        running = 1 if data.home[j] != NONE else running
    for stays in range(running, -1, -1):
        for j in range(trial.size):
            trial[j] = 1 if stays == 1 and data.home[j] != NONE else 0
        settled = settle(data, base, trial)
        for r in range(rents.size):
            for s in range(orders.shape[0]):
                copy_board(base, board)
                cost = settled + place_all(data, board, orders[s], point.only, rents[r])
                if first == NEVER:
                    first = cost
                if cost < best - LEAST_GAIN:
                    best, point.rent[0] = cost, rents[r]
                    copy(orders[s], point.order)
                    copy(trial, point.pinned)
    return first, best


@compiled
def insert(order: Ints, at: int, to: int) -> None:
    """Take the job at place `at` to place `to`, the others closing up."""
    j = order[at]
    step = 1 if to > at else -1
    while at != to:
        order[at] = order[at + step]
        at += step
    order[to] = j


@compiled
def front(rng: Ints, jobs: int) -> int:
    """A place in the order, the likelier the nearer to its front: what starts soon matters most."""
    u = draw(rng)
    return int(u * u * jobs)


@compiled
def part(order: Ints, pinned: Ints) -> int:
    """Bring the jobs that take turns to the front, in their order; how many they are."""
    free = 0
    for i in range(order.size):
        if pinned[order[i]] == 0:
            insert(order, i, free)
            free += 1
    return free


@compiled
def improve(
    data: Outlook,
    base: Board,
    board: Board,
    moves: int,
    work: int,
    rng: Ints,
    point: Point,
    best: float,
) -> float:
    """Local search from `point`, changed in place, whose schedule costs `best`; the cost of the
    result, never more.

    It ends after so many moves, or when its roll-outs have held `work` jobs against nodes: (job
    that takes a turn, node) each. Running jobs that stay are on `base` before any roll-out: they
    cost no work, and take turns only when let go.
    """
    order, pinned, only, jobs = point.order, point.pinned, point.only, point.order.size
    running, free = 0, part(order, pinned)
    for j in range(jobs):
        running += 1 if data.home[j] != NONE else 0
    settled = settle(data, base, pinned)
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
        elif data.home[j] != NONE:
            to = front(rng, free + 1) if stays == 1 else jobs - 1
            pinned[j] = 1 - stays
            free += 2 * stays - 1
        if to == at and only[j] == was and pinned[j] == stays:
            continue
        work -= max(free, 1) * data.opened_s.size
        if work >= 0:
            insert(order, at, to)
            if pinned[j] != stays:
                settled = settle(data, base, pinned)
            copy_board(base, board)
            cost = settled + place_all(data, board, order, only, point.rent[0])
            if cost <= best:
                best = cost
                continue
            insert(order, to, at)
        only[j] = was
        if pinned[j] != stays:
            pinned[j] = stays
            free -= 2 * stays - 1
            settled = settle(data, base, pinned)
        if work < 0:
            break
    return best


def search(data: Outlook, start: Start, moves: int, work: int, seed: int) -> Found:
    """The best schedule after multi-start and local search. `seed` in 1 .. 2**32 - 1."""
    jobs = data.home.size
    base, board, rng = new_board(data), new_board(data), np.array([seed], np.int64)
    point = Point(
        start.orders[0].copy(),
        np.zeros(jobs, np.int64),
        np.full(jobs, NONE, np.int64),
        start.rents[:1].copy(),
    )
    first, best = multi_start(
        data, base, board, start.orders, start.rents, point, np.zeros(jobs, np.int64)
    )
    improve(data, base, board, moves, work, rng, point, best)
    settled = settle(data, board, point.pinned)
    cost = settled + place_all(data, board, point.order, point.only, float(point.rent[0]))

    return Found(board.node, board.config, board.start_s, float(cost), float(first), float(best))
