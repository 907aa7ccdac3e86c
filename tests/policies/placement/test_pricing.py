"""What a run costs whose price changes while it lasts."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.andreas.kernels.greedy import search
from policies.andreas.randomized_greedy import RandomizedGreedy
from policies.contract import plan_json
from policies.contract.snapshot import PriceInterval, Snapshot
from policies.cost_model.problem import build
from policies.cost_model.solution import Solution
from policies.host import registry
from policies.placement.priced_options import per_watt_second, prices_of
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on
from tests.builders_snapshots import snapshots

NOW_S = 1000.0
relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def steps(
    *prices: tuple[float, float], pue: float = 1.0, **fields: float
) -> tuple[PriceInterval, ...]:
    """(seconds, price) one after the other from now on; the last lasts for ever."""
    found, at = [], NOW_S
    for i, (seconds, price) in enumerate(prices):
        end = inf if i == len(prices) - 1 else at + seconds
        found.append(PriceInterval(at, end, price, pue, **fields))
        at = end
    return tuple(found)


def cost(snapshot: Snapshot, watts: float, run_s: float, *, emissions: bool = True) -> float:
    prices = prices_of(snapshot, emissions=emissions)
    return float(watts * prices.reference * prices.priced_s(np.array(run_s)))


def test_a_run_is_priced_at_the_prices_of_its_whole_time() -> None:
    snapshot = a_snapshot(energy=steps((1800.0, 0.4), (3600.0, 0.1), (1.0, 0.2)))
    assert cost(snapshot, 1000.0, 900.0) == pytest.approx(0.1)
    assert cost(snapshot, 1000.0, 3600.0) == pytest.approx(0.2 + 0.05)
    assert cost(snapshot, 1000.0, 9000.0) == pytest.approx(0.2 + 0.1 + 0.2)


def test_after_the_last_price_it_goes_on_and_before_the_first_it_holds_already() -> None:
    far = (PriceInterval(5000.0, 6000.0, 0.1, 1.0), PriceInterval(6000.0, 7000.0, 0.3, 1.0))
    before, after = a_snapshot(energy=far), a_snapshot(energy=far, now_s=9000.0)
    assert cost(before, 1000.0, 5000.0) == pytest.approx(0.1 * 5000 / 3600)
    assert cost(before, 1000.0, 6000.0) == pytest.approx(0.1 * 5000 / 3600 + 0.3 * 1000 / 3600)
    assert cost(after, 1000.0, 3600.0) == pytest.approx(0.3)


def test_pue_and_weighed_emissions_are_part_of_the_price_and_bills_are_without_emissions() -> None:
    step = PriceInterval(0.0, inf, 0.2, 1.5, 500.0)
    snapshot = a_snapshot(energy=(step,), emissions_cost_per_kg=0.08)
    assert per_watt_second(step, 0.08) * 3.6e6 == pytest.approx((0.2 + 0.04) * 1.5)
    assert cost(snapshot, 1000.0, 3600.0) == pytest.approx(0.36)
    assert cost(snapshot, 1000.0, 3600.0, emissions=False) == pytest.approx(0.3)
    plain = replace(snapshot, emissions_cost_per_kg=0.0)
    jobs = a_snapshot(jobs=[a_job("a")]).jobs
    (with_weight,), (without,) = (
        registry.make("fifo")(replace(s, jobs=jobs, kinds=KINDS)).placements
        for s in (snapshot, plain)
    )
    assert with_weight.predicted_energy_cost == without.predicted_energy_cost


KINDS = (a_kind("k", {("V100", 1): 1.0}),)


@relaxed
@given(
    lengths=st.lists(
        st.tuples(st.floats(1.0, 5000.0), st.floats(0.0, 1.0)), min_size=1, max_size=6
    ),
    run_s=st.floats(0.0, 30_000.0),
)
def test_the_cost_is_the_integral_of_the_price(
    lengths: list[tuple[float, float]], run_s: float
) -> None:
    snapshot = a_snapshot(energy=steps(*lengths))
    pieces = (
        (max(NOW_S, s.from_s), min(NOW_S + run_s, s.to_s), s.price_per_kwh) for s in snapshot.energy
    )
    expected = sum(max(0.0, until - since) * price for since, until, price in pieces) / 3.6e6
    assert cost(snapshot, 1.0, run_s) == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("name", ["randomized_greedy", "fifo", "edf", "priority", "exact"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=snapshots(), cuts=st.lists(st.floats(1.0, 1e4), max_size=4, unique=True))
def test_a_flat_tariff_in_pieces_decides_like_one_in_one(
    name: str, snapshot: Snapshot, cuts: list[float]
) -> None:
    edges = [0.0, *(NOW_S + c for c in sorted(cuts)), inf]
    pieces = tuple(PriceInterval(a, b, 0.172, 1.33) for a, b in pairwise(edges))
    whole = replace(snapshot, energy=(PriceInterval(0.0, inf, 0.172, 1.33),))
    policy = registry.make(name)
    assert plan_json.digest(policy(replace(snapshot, energy=pieces))) == plan_json.digest(
        policy(whole)
    )


def test_without_prices_and_with_prices_of_zero_nothing_costs_anything() -> None:
    for energy in ((), steps((100.0, 0.0), (1.0, 0.0))):
        assert cost(a_snapshot(energy=energy), 1000.0, 5000.0) == 0.0


def test_a_run_that_never_ends_has_no_end_of_its_price() -> None:
    priced = prices_of(a_snapshot(energy=steps((10.0, 0.0), (1.0, 0.5)))).priced_s(
        np.array([[inf, 5.0]])
    )
    assert priced.tolist() == [[inf, 0.0]]


def test_what_a_placement_is_predicted_to_cost_follows_the_tariff() -> None:
    energy = steps((50.0, 0.36), (1.0, 0.036))
    jobs = [a_job("stays", running=on("n1", "gpu0"), remaining_steps=100.0)]
    snapshot = a_snapshot([a_node("n1", gpus=1)], jobs, KINDS, energy=energy)
    for name in ("fifo", "randomized_greedy"):
        (placed,) = registry.make(name)(snapshot).placements
        assert placed.predicted_energy_cost == pytest.approx(
            530.0 / 3.6e6 * (50 * 0.36 + 50 * 0.036)
        )


def test_the_slow_cheap_node_is_taken_when_the_night_tariff_makes_it_cheaper() -> None:
    """Flat, the fast node costs least. If energy is nearly free from soon on, whoever runs longer
    pays less per hour.
    """
    kind = a_kind("k", {("V100", 1): 1.0, ("T4", 1): 0.7})
    nodes = [a_node("n1", gpus=1), a_node("n2", "T4", 1)]
    job = a_job("a", remaining_steps=1000.0, due_s=1e6, tardiness_weight=1.0)
    where = {}
    for name, energy in (("flat", steps((1.0, 0.2))), ("night", steps((300.0, 0.2), (1.0, 0.001)))):
        (placed,) = RandomizedGreedy()(a_snapshot(nodes, [job], [kind], energy=energy)).placements
        where[name] = placed.ranks[0].node
    assert where == {"flat": "n1", "night": "n2"}


@relaxed
@given(
    snapshot=snapshots(),
    first_end=st.booleans(),
    prices=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=4),
)
def test_the_kernel_and_the_objective_agree_at_changing_prices(
    snapshot: Snapshot, first_end: bool, prices: list[float]
) -> None:
    snapshot = replace(snapshot, energy=steps(*((70.0, p) for p in prices)))
    problem = build(snapshot)
    policy = RandomizedGreedy(iterations=30, objective="first_end" if first_end else "whole")
    node, config, best, _ = search(**policy.search_arguments(problem))
    counted = policy.f.value(problem, Solution(node, config))
    assert best + float(policy.f.postponing(problem).sum()) == pytest.approx(
        counted, rel=1e-9, abs=1e-9
    )
