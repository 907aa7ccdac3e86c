"""Selection of the jobs that get GPUs: the subset, and the types of each, of greatest payoff.

Two forms. `exact`: dynamic programming over how many GPUs of each type are given, for small
clusters, O(jobs * product of (GPUs of a type + 1)). `greedy`: by payoff per GPU on a lazy heap,
some passes, each with a floor under the price of types that others wanted in the pass before; then
a local search. What it loses is in docs/benchmarks.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from policies.contract.snapshot import Bools, Floats, Ints
from policies.hadar.kernels import (
    NOTHING,
    best_values,
    cost_of,
    floors_after,
    force_in,
    greedy,
    improve,
)
from policies.hadar.prices import TypePrices

PASSES = 4
"""Passes of the greedy; the best one goes on."""

LOCAL_WORK = 4_000_000
"""Moves that the local search may try."""

FORCED_WORK = 1_500_000
"""Trials of forcing an offer in, times jobs."""

MOST_WORK = 400_000_000
"""Steps that dynamic programming may take, states times offers."""


@dataclass(frozen=True)
class Market:
    """Offers of J jobs for GPUs of T types, and the prices of these.

    `first` int64[J + 1]: offers of job j are `first[j]` .. `first[j + 1]` - 1; `counts` int64[O, T]
    and `worth` float64[O] of each offer; `prices`: of each type.
    """

    first: Ints
    counts: Ints
    worth: Floats
    prices: Sequence[TypePrices]

    @cached_property
    def capacity(self) -> Ints:
        """int64[T]: free GPUs of each type."""
        return np.array([of_type.free for of_type in self.prices], dtype=np.int64)

    @cached_property
    def cumulative(self) -> Floats:
        """float64[T, C]: cost of the cheapest n GPUs of each type."""
        costs = np.zeros((len(self.prices), int(self.capacity.max(initial=0)) + 1))
        for t, of_type in enumerate(self.prices):
            costs[t, : len(of_type.cumulative)] = of_type.cumulative
        return costs

    @property
    def states(self) -> int:
        """Return the number of vectors of GPUs that may be given."""
        return prod(of_type.free + 1 for of_type in self.prices)

    def payoff(self, choice: Ints) -> float:
        """Return the payoff of a choice int64[J] of offers."""
        chosen = choice[choice != NOTHING]
        given = self.counts[chosen].sum(axis=0)
        return float(self.worth[chosen].sum() - cost_of(self.cumulative, given))


@dataclass(frozen=True, slots=True)
class Selection:
    """Offer of each job, int64[J], NOTHING for none; `form`: the sentence of the plan's message."""

    choice: Ints
    payoff: float
    form: str


def select(market: Market, most_states: int) -> Selection:
    """Return the exact selection up to so many states, else the greedy one."""
    if not len(market.worth):
        nobody = np.full(len(market.first) - 1, NOTHING, dtype=np.int64)
        return Selection(nobody, 0.0, "no job could start")
    if market.states <= most_states and market.states * len(market.worth) <= MOST_WORK:
        return exact_selection(market)
    return greedy_selection(market)


def without_beaten(market: Market) -> tuple[Market, Ints]:
    """Return the market without offers that need not be taken, and the offers kept.

    With C free GPUs at most C jobs get any. If one of them has an offer that C others for the same
    GPUs beat, one of those jobs gets nothing, and could be there instead.
    """
    most = int(market.capacity.sum())
    _, shape = _distinct(market.counts)
    order = np.lexsort((-market.worth, shape))
    begin = np.searchsorted(shape[order], shape[order], side="left")
    kept = np.sort(order[np.arange(len(order)) - begin < most])
    owner = np.repeat(np.arange(len(market.first) - 1), np.diff(market.first))
    offers_of_job = np.bincount(owner[kept], minlength=len(market.first) - 1)
    first = np.concatenate([[0], np.cumsum(offers_of_job)]).astype(np.int64)
    return Market(first, market.counts[kept], market.worth[kept], market.prices), kept


def exact_selection(market: Market) -> Selection:
    """Return the selection of greatest payoff, by dynamic programming over GPUs given."""
    # 1. States, and the distinct vectors of counts that offers have.
    sizes = market.capacity + 1
    steps = np.concatenate([np.cumprod(sizes[::-1])[::-1][1:], [1]]).astype(np.int64)
    given = np.arange(market.states)[:, None] // steps[None, :] % sizes[None, :]
    shapes, shape = _distinct(market.counts)
    offset = shapes @ steps
    has_room: Bools = np.ones((len(shapes), market.states), dtype=np.bool_)
    for t in range(len(sizes)):  # type by type: reducing over so short an axis takes ten times
        has_room &= given[:, t] >= shapes[:, t, None]

    # 2. The most worth by what is given, and the payoff of each state.
    bidders = np.flatnonzero(np.diff(market.first) > 0)
    first = np.append(market.first[bidders], len(market.worth))
    chosen = np.full((len(bidders), market.states), NOTHING, dtype=np.int16)
    best = best_values(first, shape, market.worth, offset, has_room, chosen)
    cost = market.cumulative[np.arange(len(sizes))[None, :], given].sum(axis=1)

    # 3. Back from the best state.
    choice = np.full(len(market.first) - 1, NOTHING, dtype=np.int64)
    state = int(np.argmax(best - cost))
    for b in range(len(bidders) - 1, -1, -1):
        place = int(chosen[b, state])
        if place != NOTHING:
            offer = int(first[b]) + place
            choice[bidders[b]] = offer
            state -= int(offset[shape[offer]])
    form = f"exact choice among {market.states:,} combinations of free GPUs"
    return Selection(choice, market.payoff(choice), form)


def greedy_selection(market: Market) -> Selection:
    """Return a selection by payoff per GPU, improved by a local search."""
    jobs = len(market.first) - 1
    data = market.first, market.counts, market.worth, market.capacity
    floors = np.zeros(len(market.prices))
    best = np.full(jobs, NOTHING, dtype=np.int64)
    for _ in range(PASSES):
        choice = np.full(jobs, NOTHING, dtype=np.int64)
        given = np.zeros(len(market.prices), dtype=np.int64)
        greedy(*data, market.cumulative, floors, choice, given)
        if market.payoff(choice) > market.payoff(best):
            best = choice
        floors_after(*data, choice, given, floors)
    given = market.counts[best[best != NOTHING]].sum(axis=0)
    improve(*data, market.cumulative, best, given, LOCAL_WORK)
    force_in(*data, market.cumulative, best, given, FORCED_WORK)
    return Selection(
        best, market.payoff(best), "greedy choice by payoff per GPU, with a local search"
    )


def _distinct(counts: Ints) -> tuple[Ints, Ints]:
    """Return the distinct rows of counts, and the number of each row's."""
    if not len(counts):
        return counts, np.zeros(0, dtype=np.int64)
    shapes, shape = np.unique(counts, axis=0, return_inverse=True)
    return shapes, shape.reshape(-1)
