"""Multi-start and local search over roll-outs (`kernels.outlook`), compiled: what the policy `cost_search` searches with.

A point of the search is what a roll-out follows: an order of jobs, which running jobs stay, configurations that are set, a
rent. The search starts from every order given, with and without the running jobs staying, at every rent; then moves change the
best point a little, and a change stays if the schedule costs no more. The best point never gets worse, so that it may be
stopped after any move.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.kernels import compiled
from policies.kernels.arrays import NONE
from policies.kernels.greedy import draw
from policies.kernels.outlook import NEVER, Board, Outlook, new_board, roll_out
from policies.snapshot import Floats, Ints

INSERT, SET = 0.45, 0.8
"""Moves by cumulative probability: to another place in the order, another configuration, else whether a running job stays."""

LEAST_GAIN = 1e-9


class Start(NamedTuple):
    """What to start from: `orders` int64[S, E], S >= 1, and `rents` float64[R], R >= 1."""

    orders: Ints
    rents: Floats


class Point(NamedTuple):
    """A point of the search: `order` int64[E], `pinned` int64[E] (1: stays where it runs), `only` int64[E] (-1: any configuration),
    `rent` float64[1]."""

    order: Ints
    pinned: Ints
    only: Ints
    rent: Floats


class Found(NamedTuple):
    """The best schedule: node, configuration and start of every job (-1, -1, inf: none), what it costs, and what the first
    start and the best start cost.
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
def multi_start(data: Outlook, board: Board, orders: Ints, rents: Floats, point: Point, trial: Ints) -> tuple[float, float]:
    """(cost of the first start, of the best), which is left in `point`; `trial` int64[E] is room to work in."""
    best, first, running = NEVER, NEVER, 0
    for j in range(trial.size):
        running = 1 if data.home[j] != NONE else running
    for stays in range(running, -1, -1):
        for j in range(trial.size):
            trial[j] = 1 if stays == 1 and data.home[j] != NONE else 0
        for r in range(rents.size):
            for s in range(orders.shape[0]):
                cost = roll_out(data, board, orders[s], trial, point.only, rents[r])
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
def improve(data: Outlook, board: Board, moves: int, rng: Ints, point: Point, best: float) -> float:
    """Local search from `point`, changed in place, whose schedule costs `best`; the cost of the result, never more."""
    order, pinned, only, jobs = point.order, point.pinned, point.only, point.order.size
    for _ in range(moves if jobs > 0 else 0):
        kind, at = draw(rng), front(rng, jobs)
        j, to, k = order[at], at, only[order[at]]
        if kind < INSERT:
            to = front(rng, jobs)
            insert(order, at, to)
        elif kind < SET:
            only[j] = int(draw(rng) * (data.config_class.size + 1)) - 1
            if only[j] != NONE and data.time_s[j, only[j]] == NEVER:
                only[j] = k
        elif data.home[j] != NONE:
            pinned[j] = 1 - pinned[j]
        if (kind < INSERT and to == at) or (INSERT <= kind < SET and only[j] == k) or (kind >= SET and data.home[j] == NONE):
            continue
        cost = roll_out(data, board, order, pinned, only, point.rent[0])
        if cost <= best:
            best = cost
        elif kind < INSERT:
            insert(order, to, at)
        elif kind < SET:
            only[j] = k
        else:
            pinned[j] = 1 - pinned[j]
    return best


def search(data: Outlook, start: Start, moves: int, seed: int) -> Found:
    """The best schedule of the multi-start and of so many moves from its best. `seed` in 1 .. 2**32 - 1."""
    jobs = data.home.size
    board, rng = new_board(data), np.array([seed], np.int64)
    point = Point(start.orders[0].copy(), np.zeros(jobs, np.int64), np.full(jobs, NONE, np.int64), start.rents[:1].copy())
    first, best = multi_start(data, board, start.orders, start.rents, point, np.zeros(jobs, np.int64))
    improve(data, board, moves, rng, point, best)
    cost = roll_out(data, board, point.order, point.pinned, point.only, float(point.rent[0]))

    return Found(board.node, board.config, board.start_s, float(cost), float(first), float(best))
