"""Prices of GPUs: equations 5-7, and weak duality on drawn instances."""

from itertools import product
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.hadar.prices import PriceRange, TypePrices, dual_bound

worths = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8)


def test_a_price_rises_from_the_least_to_the_most() -> None:
    price = PriceRange(1.0, 16.0)
    assert [price.at(given_, 4) for given_ in range(5)] == pytest.approx([1, 2, 4, 8, 16])


@given(best=worths, eta=st.floats(0.01, 100.0))
def test_the_bounds_are_those_of_the_paper(best: list[float], eta: float) -> None:
    worst = [worth / 3.0 for worth in best]
    price = PriceRange.of(np.array(best), np.array(worst), eta)
    assert price.most == max(best)
    assert price.least == pytest.approx(
        min(max(min(worst) / (4.0 * eta), max(best) / 1e12), max(best))
    )
    assert price.alpha == pytest.approx(max(1.0, log(price.most / price.least)))


@given(best=worths, size=st.integers(1, 16))
def test_a_full_node_is_too_dear_for_every_job(best: list[float], size: int) -> None:
    price = PriceRange.of(np.array(best), np.array(best), 1.0)
    assert all(worth <= price.at(size, size) for worth in best)


@pytest.mark.parametrize("worst", [0.0, 1e-320, 1e300])
def test_prices_do_not_overflow(worst: float) -> None:
    price = PriceRange.of(np.array([1e300]), np.array([worst]), 1e-3)
    seats = price.seats(0, 8)
    assert all(np.isfinite(seats))
    assert seats == sorted(seats)


def test_without_jobs_gpus_cost_nothing() -> None:
    price = PriceRange.of(np.zeros(0), np.zeros(0), 1.0)
    assert price.seats(0, 4) == [0.0] * 4
    assert price.alpha == 1.0


@given(
    nodes=st.lists(st.tuples(st.integers(0, 4), st.just(4)), max_size=5), taken=st.integers(0, 20)
)
def test_the_cheapest_gpus_of_a_type_go_first(nodes: list[tuple[int, int]], taken: int) -> None:
    price = PriceRange(0.5, 8.0)
    of_type = TypePrices.of(price, nodes)
    seats = sorted(cost for free, size in nodes for cost in price.seats(size - free, size))
    seats += [price.most] * 25
    assert of_type.cost(taken, 3) == pytest.approx(sum(seats[taken : taken + 3]))


def test_the_next_gpu_costs_what_equation_5_says() -> None:
    of_type = TypePrices.of(PriceRange(0.1, 10.0), [(1, 4)])
    assert of_type.cost(0, 1) == pytest.approx(0.1 * exp(log(100.0) * 3 / 4))


@given(
    worth=st.lists(st.lists(st.floats(0.0, 10.0), min_size=2, max_size=2), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    capacity=st.lists(st.integers(0, 3), min_size=2, max_size=2),
    prices=st.lists(st.floats(0.0, 10.0), min_size=2, max_size=2),
)
def test_no_choice_is_worth_more_than_the_dual_bound(
    worth: list[list[float]], sizes: list[int], capacity: list[int], prices: list[float]
) -> None:
    jobs = range(len(worth))
    net = [max(worth[j][r] - sizes[j] * prices[r] for r in range(2)) for j in jobs]
    bound = dual_bound(prices, capacity, np.array(net))
    for choice in product((0, 1, None), repeat=len(worth)):
        taken = [sum(sizes[j] for j in jobs if choice[j] == r) for r in range(2)]
        if taken[0] <= capacity[0] and taken[1] <= capacity[1]:
            total = sum(worth[j][r] for j, r in enumerate(choice) if r is not None)
            assert total <= bound + 1e-9
