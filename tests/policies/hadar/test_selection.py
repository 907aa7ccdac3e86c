"""Choice of jobs: the exact form against brute force, the greedy one against the exact form."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from policies.hadar.kernels import NOTHING
from policies.hadar.prices import PriceRange, TypePrices, dual_bound
from policies.hadar.selection import (
    Market,
    exact_selection,
    greedy_selection,
    select,
)


def a_market(seed: int, jobs: int, capacity: tuple[int, ...], *, gangs: int = 4) -> Market:
    """Jobs whose worth on unlike types and with several numbers of GPUs is drawn."""
    rng = np.random.default_rng(seed)
    first = [0]
    counts: list[list[int]] = []
    worth: list[float] = []
    for _ in range(jobs):
        gpus = int(rng.integers(1, gangs + 1))
        scale = float(rng.lognormal(0.0, 1.5)) * gpus
        for t in range(len(capacity)):
            if rng.random() < 0.8:
                counts.append([gpus if t == of_type else 0 for of_type in range(len(capacity))])
                worth.append(scale * float(rng.uniform(0.1, 1.0)))
        if gpus > 1 and len(capacity) > 1 and rng.random() < 0.3:
            mixed = [0] * len(capacity)
            mixed[0], mixed[1] = gpus - 1, 1
            counts.append(mixed)
            worth.append(scale * 0.3)
        first.append(len(counts))
    table = np.array(counts, dtype=np.int64).reshape(len(counts), len(capacity))
    density = np.array(worth) / np.maximum(table.sum(axis=1), 1) if worth else np.zeros(0)
    price_range = PriceRange.of(density, density, 1.0)
    prices = [TypePrices.of(price_range, _nodes(gpus)) for gpus in capacity]
    return Market(np.array(first, dtype=np.int64), table, np.array(worth), prices)


def _nodes(gpus: int) -> list[tuple[int, int]]:
    """Nodes of four GPUs and one with the rest."""
    nodes = [(4, 4)] * (gpus // 4)
    if gpus % 4:
        nodes.append((gpus % 4, gpus % 4))
    return nodes


def _choices(market: Market) -> list[list[int]]:
    bounds = market.first.tolist()
    return [[NOTHING, *range(begin, end)] for begin, end in pairwise(bounds)]


def _fits(market: Market, choice: np.ndarray) -> bool:
    given_ = market.counts[choice[choice != NOTHING]].sum(axis=0)
    return bool(np.all(given_ <= market.capacity))


small = st.tuples(st.integers(0, 10_000), st.integers(0, 5))


@settings(max_examples=60, deadline=None)
@given(drawn=small, capacity=st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_the_exact_form_finds_the_greatest_payoff(
    drawn: tuple[int, int], capacity: list[int]
) -> None:
    market = a_market(drawn[0], drawn[1], tuple(capacity))
    best = 0.0
    for choice in product(*_choices(market)):
        of_jobs = np.array(choice, dtype=np.int64)
        if _fits(market, of_jobs):
            best = max(best, market.payoff(of_jobs))
    found = exact_selection(market)
    assert _fits(market, found.choice)
    assert found.payoff == pytest.approx(best)


@settings(max_examples=60, deadline=None)
@given(drawn=small, capacity=st.lists(st.integers(0, 8), min_size=1, max_size=3))
def test_the_greedy_form_gives_no_gpu_twice(drawn: tuple[int, int], capacity: list[int]) -> None:
    market = a_market(drawn[0], drawn[1], tuple(capacity))
    found = greedy_selection(market)
    assert _fits(market, found.choice)
    assert found.payoff >= 0.0
    assert found.payoff <= exact_selection(market).payoff + 1e-9


def test_the_greedy_form_is_near_the_exact_one() -> None:
    # docs/benchmarks.md has the figures of larger clusters.
    ratios = []
    for seed in range(40):
        market = a_market(seed, 30, (8, 8, 4))
        ratios.append(greedy_selection(market).payoff / exact_selection(market).payoff)
    assert np.mean(ratios) >= 0.98
    assert min(ratios) >= 0.9


@settings(max_examples=60, deadline=None)
@given(drawn=small, capacity=st.lists(st.integers(0, 6), min_size=1, max_size=3))
def test_weak_duality_at_the_prices_after_the_round(
    drawn: tuple[int, int], capacity: list[int]
) -> None:
    market = a_market(drawn[0], drawn[1], tuple(capacity))
    chosen = exact_selection(market).choice
    given_ = market.counts[chosen[chosen != NOTHING]].sum(axis=0)
    prices = [of.cost(int(n), 1) for of, n in zip(market.prices, given_, strict=True)]
    net = market.worth - market.counts @ np.array(prices)
    bounds = market.first.tolist()
    best = [max(net[begin:end], default=0.0) for begin, end in pairwise(bounds)]
    bound = dual_bound(prices, market.capacity.tolist(), np.array(best))
    assert _most_worth(market) <= bound * (1.0 + 1e-6) + 1e-6


def _most_worth(market: Market) -> float:
    """Return the greatest worth of all that fits, whatever it costs, by CP-SAT."""
    model = cp_model.CpModel()
    takes = [model.new_bool_var(f"offer{o}") for o in range(len(market.worth))]
    bounds = market.first.tolist()
    for begin, end in pairwise(bounds):
        model.add_at_most_one(takes[begin:end])
    for t, gpus in enumerate(market.capacity.tolist()):
        model.add(sum(int(n) * x for n, x in zip(market.counts[:, t], takes, strict=True)) <= gpus)
    model.maximize(sum(float(w) * x for w, x in zip(market.worth, takes, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return float(solver.objective_value)


def test_the_form_depends_on_the_number_of_states() -> None:
    market = a_market(1, 6, (4, 4))
    assert select(market, 25).form.startswith("exact")
    assert select(market, 24).form.startswith("greedy")


def test_a_market_without_jobs_has_an_empty_choice() -> None:
    market = a_market(1, 0, (4, 4))
    assert exact_selection(market).choice.tolist() == []
    assert greedy_selection(market).choice.tolist() == []
