"""Prices below 0, as day-ahead markets have them: nobody burns energy for its own sake."""

from collections.abc import Iterable

import pytest

from policies.contract.plan import Plan
from policies.contract.snapshot import PriceInterval, Snapshot
from policies.contract.validation import validate_plan
from policies.placement.priced_options import prices_of
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on
from tests.policies.test_contract import VARIANTS, decide

HOUR_S = 3600.0
NEVER_PAID = [-0.3, -0.01]


def steps(prices: Iterable[float]) -> tuple[PriceInterval, ...]:
    """Prices of an hour each."""
    return tuple(
        PriceInterval(number * HOUR_S, (number + 1) * HOUR_S, price, 1.3)
        for number, price in enumerate(prices)
    )


def a_cluster(prices: Iterable[float]) -> Snapshot:
    """A fast and a slow node; one job runs on the fast one, one waits and is due."""
    kind = a_kind("k", {("V100", 1): 1.0, ("V100", 2): 1.8, ("T4", 1): 0.2})
    jobs = [
        a_job("runs", remaining_steps=7200.0, total_steps=7200.0, running=on("fast", "gpu0")),
        a_job("waits", remaining_steps=600.0, total_steps=600.0, due_s=900.0, tardiness_weight=0.1),
    ]
    nodes = [a_node("fast", "V100", gpus=2), a_node("slow", "T4", gpus=1)]
    return a_snapshot(nodes=nodes, jobs=jobs, kinds=[kind], energy=steps(prices))


def places(plan: Plan) -> set[tuple[str, str, int]]:
    """Job, node and number of GPUs of each placement."""
    return {
        (placement.job, rank.node, len(rank.devices))
        for placement in plan.placements
        for rank in placement.ranks
    }


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("price", NEVER_PAID)
def test_paid_energy_decides_as_free_energy_does(
    variant: tuple[str, dict[str, object]], price: float
) -> None:
    name, parameters = variant
    paid = a_cluster([price] * 24)
    plan = decide(name, paid, **parameters)
    assert validate_plan(plan, paid) == ()
    assert places(plan) == places(decide(name, a_cluster([0.0] * 24), **parameters))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_paid_hour_before_dear_ones_decides_as_a_free_hour_does(
    variant: tuple[str, dict[str, object]],
) -> None:
    name, parameters = variant
    paid = a_cluster([-0.5, *[0.3] * 23])
    free = a_cluster([0.0, *[0.3] * 23])
    assert places(decide(name, paid, **parameters)) == places(decide(name, free, **parameters))


def test_decisions_count_a_price_below_0_as_0_and_figures_as_it_is() -> None:
    snapshot = a_cluster([-0.2, 0.2])
    assert prices_of(snapshot).rates[0] == 0.0
    assert prices_of(snapshot, emissions=False).rates[0] < 0.0
