"""The judge of whole schedules: what it proves by hand, that nothing found is below its bound, what
it refuses.
"""

from dataclasses import replace
from itertools import permutations, product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.bench.andreas.exact_schedule import judge
from policies.contract.snapshot import JobView, PriceInterval, Snapshot
from policies.cost_model.problem import build
from policies.search.kernels.local_search import Found, search
from policies.search.kernels.rollout import RolloutData
from policies.search.rollout import orders, rents, rollout_data
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on

KINDS = [a_kind("k", {("V100", 1): 1.0, ("V100", 2): 1.5, ("T4", 1): 0.5})]
NODES = [a_node("v", "V100", 2), a_node("t", "T4", 1)]


def begun(snapshot: Snapshot, moves: int = 50) -> tuple[RolloutData, Found]:
    problem = build(snapshot)
    data, _ = rollout_data(problem)
    return data, search(data, orders(problem), rents(problem), moves, 10**6, 1)


def queue(steps: list[int], due_s: list[int], weight: float = 0.001) -> list[JobView]:
    of = zip(steps, due_s, strict=True)
    return [
        a_job(
            f"j{i}",
            "k",
            remaining_steps=float(s),
            gpus_max=2,
            due_s=1000.0 + d,
            tardiness_weight=weight,
        )
        for i, (s, d) in enumerate(of)
    ]


def least_on_one_gpu(steps: list[int], due_s: list[int], data: RolloutData, weight: float) -> float:
    """By trying every order."""
    late = min(
        sum(
            max(0.0, float(end - due_s[j]))
            for j, end in zip(order, np.cumsum([steps[j] for j in order]), strict=True)
        )
        for order in permutations(range(len(steps)))
    )
    return float((data.base[0] + data.slope[0]) * sum(steps) + weight * late)


@settings(max_examples=15, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 900), st.integers(-100, 2000)), min_size=1, max_size=5)
)
def test_on_one_gpu_the_optimum_is_that_of_the_best_order(jobs: list[tuple[int, int]]) -> None:
    steps, due_s = [s for s, _ in jobs], [d for _, d in jobs]
    data, first = begun(a_snapshot([a_node("v", "V100", 1)], queue(steps, due_s), KINDS))
    judged = judge(data, first, budget=5.0)
    assert judged.proven
    assert judged.bound == pytest.approx(least_on_one_gpu(steps, due_s, data, 0.001), rel=1e-6)


@settings(max_examples=15, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(10, 3000), st.integers(-100, 4000)), min_size=1, max_size=6)
)
def test_no_schedule_of_the_search_costs_less_than_the_bound(jobs: list[tuple[int, int]]) -> None:
    data, found = begun(
        a_snapshot(NODES, queue([s for s, _ in jobs], [d for _, d in jobs]), KINDS), moves=300
    )
    judged = judge(data, found, budget=0.5)
    assert judged.bound <= found.cost * (1.0 + 1e-9)
    assert judged.bound <= judged.cost * (1.0 + 1e-9)


def test_due_dates_decide_between_one_gpu_and_two() -> None:
    for due_s, weight in product((100, 3000), (0.0, 0.01)):
        data, found = begun(a_snapshot([NODES[0]], queue([900], [due_s], weight), KINDS))
        costs = [
            (data.base[0] + data.slope[0] * g) * 900.0 / rate
            + weight * max(0.0, 900.0 / rate - due_s)
            for g, rate in ((1, 1.0), (2, 1.5))
        ]
        assert judge(data, found, budget=1.0).bound == pytest.approx(min(costs), rel=1e-6)


def test_what_the_model_leaves_out_is_refused() -> None:
    jobs = queue([100, 200], [500, 500])
    changing = (PriceInterval(0.0, 2000.0, 0.3, 1.3), PriceInterval(2000.0, inf, 0.1, 1.3))
    running = [
        replace(
            a_job(
                "r",
                "k",
                remaining_steps=50.0,
                due_s=2000.0,
                tardiness_weight=0.001,
                running=on("t", "gpu0"),
            )
        )
    ]
    for snapshot in (
        a_snapshot(NODES, [*jobs, *running], KINDS),
        replace(a_snapshot(NODES, jobs, KINDS), energy=changing),
        replace(a_snapshot(NODES, jobs, KINDS), power_cap_w=700.0),
    ):
        with pytest.raises(ValueError, match="empty nodes"):
            judge(*begun(snapshot, 0), budget=1.0)
