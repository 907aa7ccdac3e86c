"""The paper's worked example (figure 1): whole gangs need six rounds, elastic ones five."""

import pytest

from experiments.reproduce.hadar.worked_example import decided_rounds, fewest_rounds


@pytest.mark.parametrize("may_mix", [False, True])
def test_whole_gangs_need_six_rounds(may_mix: bool) -> None:
    assert fewest_rounds(may_mix=may_mix, elastic=False) == 6


def test_elastic_gangs_need_five_rounds_at_most() -> None:
    assert fewest_rounds(may_mix=True, elastic=True) <= 5


@pytest.mark.parametrize("may_mix", [False, True])
def test_the_policy_ends_whole_gangs_in_six_rounds(may_mix: bool) -> None:
    number, _ = decided_rounds(may_mix=may_mix, elastic=False, utility="effective_throughput")
    assert number == 6


def test_the_policy_ends_elastic_gangs_in_five_rounds() -> None:
    number, part_in_use = decided_rounds(may_mix=True, elastic=True)
    assert number == 5
    assert part_in_use > 0.5
