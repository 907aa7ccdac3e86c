"""The policy slot by slot against the optimum of P1 over all slots, by CP-SAT."""

import numpy as np
import pytest

from experiments.bench.hadar.optimum import Instance, achieved, optimum

SEEDS = range(12)


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_no_schedule_is_worth_more_than_the_optimum(gpus: int) -> None:
    for seed in SEEDS:
        instance = Instance.drawn(seed, gpus)
        worth, _ = achieved(instance)
        assert worth <= optimum(instance) * (1.0 + 1e-6)


@pytest.mark.parametrize("gpus", [2, 4])
def test_the_competitive_ratio_holds_where_prices_rise_smoothly(gpus: int) -> None:
    for seed in SEEDS:
        instance = Instance.drawn(seed, gpus)
        worth, alpha = achieved(instance)
        assert worth >= optimum(instance) / (2.0 * alpha)


def test_in_the_mean_the_policy_is_near_the_optimum() -> None:
    ratios = []
    for seed in SEEDS:
        instance = Instance.drawn(seed, 4)
        ratios.append(achieved(instance)[0] / optimum(instance))
    assert np.mean(ratios) >= 0.85
