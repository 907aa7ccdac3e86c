"""Speeds over several nodes: known ones are taken, others are estimated with source and error."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.contract.snapshot import KindView, Source, Throughput
from policies.placement.speed import Speeds
from policies.placement.spread_rates import (
    FROM_LINKS,
    FROM_OTHERS,
    FROM_OWN,
    FROM_TYPE,
    PRIOR_ERROR,
    SpreadRates,
    links_of,
    speed_on_one_node,
)
from tests.builders_policies import a_kind, a_node

speeds = st.floats(1e-3, 1e4)


def over_nodes(
    gpu_type: str, gpus: int, rate: float, source: Source = Source.MEASURED
) -> Throughput:
    """A speed over several nodes."""
    return Throughput(gpu_type, gpus, rate, source, spread=True)


def a_kind_over_nodes(name: str, efficiency: float, gpu_type: str = "V100") -> KindView:
    """A kind that keeps this part of its speed with two GPUs over nodes."""
    kind = a_kind(name, {(gpu_type, 1): 1.0, (gpu_type, 2): 1.6})
    known = over_nodes(gpu_type, 2, 1.6 * efficiency)
    return replace(kind, throughputs=(*kind.throughputs, known))


def rates(
    *kinds: KindView, gbps: float = 10.0, largest: int = 2, tflops: float = 15.0
) -> SpreadRates:
    links = links_of((name, largest, gbps) for name in ("V100", "T4"))
    return SpreadRates(kinds, links, {"V100": tflops, "T4": tflops})


def test_a_known_speed_over_nodes_is_not_estimated() -> None:
    kind = a_kind("k", {("V100", 1): 1.0})
    kind = replace(kind, throughputs=(*kind.throughputs, over_nodes("V100", 3, 7.0)))
    assert Speeds([kind], [a_node()]).alone("k", ("V100",), 3, spread=True) == 7.0


def test_nothing_is_estimated_of_an_unknown_kind_or_type() -> None:
    found = rates(a_kind("k", {("V100", 1): 1.0}))
    assert found.estimate("stranger", "V100", 3) is None
    assert found.estimate("k", "T4", 3) is None
    assert found.estimate("k", "V100", 1) is None


def test_without_other_kinds_the_links_decide() -> None:
    estimate = rates(a_kind("k", {("V100", 1): 1.0, ("V100", 2): 1.6})).estimate("k", "V100", 3)
    assert estimate is not None
    assert (estimate.basis, estimate.error) == (FROM_LINKS, PRIOR_ERROR)
    assert 0.0 < estimate.steps_per_s < speed_on_one_node(a_kind(), "V100", 3)


def test_kinds_on_this_type_come_before_those_on_others() -> None:
    kind = a_kind("k", {("V100", 1): 1.0, ("T4", 1): 0.5})
    here = a_kind_over_nodes("here", 0.5)
    elsewhere = a_kind_over_nodes("elsewhere", 0.9, "T4")
    assert _basis(rates(kind, here, elsewhere)) == FROM_TYPE
    assert _basis(rates(kind, elsewhere)) == FROM_OTHERS
    own = replace(kind, throughputs=(*kind.throughputs, over_nodes("V100", 2, 1.0)))
    assert _basis(rates(own, here, elsewhere)) == FROM_OWN


def test_the_estimate_is_the_mean_efficiency_of_others() -> None:
    kind = a_kind("k", {("V100", 1): 1.0, ("V100", 3): 2.0})
    others = a_kind_over_nodes("a", 0.4), a_kind_over_nodes("b", 0.9)
    estimate = rates(kind, *others).estimate("k", "V100", 3)
    assert estimate is not None
    assert estimate.steps_per_s == pytest.approx(2.0 * 0.6)


def test_estimates_are_no_evidence_of_other_estimates() -> None:
    guessed = a_kind("g", {("V100", 1): 1.0})
    guess = over_nodes("V100", 2, 0.1, Source.ESTIMATED)
    guessed = replace(guessed, throughputs=(*guessed.throughputs, guess))
    assert _basis(rates(a_kind("k", {("V100", 1): 1.0}), guessed)) == FROM_LINKS


@given(rate=speeds, gbps=st.floats(1.0, 400.0), tflops=st.floats(1.0, 1000.0))
def test_a_faster_link_never_lowers_an_estimate(rate: float, gbps: float, tflops: float) -> None:
    kind = a_kind("k", {("V100", 1): rate})
    slow = rates(kind, gbps=gbps, tflops=tflops).estimate("k", "V100", 4)
    fast = rates(kind, gbps=2 * gbps, tflops=tflops).estimate("k", "V100", 4)
    assert slow is not None
    assert fast is not None
    assert 0.0 < slow.steps_per_s <= fast.steps_per_s


@given(gpus=st.integers(3, 64), gbps=st.floats(1.0, 400.0))
def test_fewer_nodes_never_lower_an_estimate(gpus: int, gbps: float) -> None:
    kind = a_kind("k", {("V100", 1): 1.0})
    small = rates(kind, gbps=gbps, largest=2).estimate("k", "V100", gpus)
    large = rates(kind, gbps=gbps, largest=8).estimate("k", "V100", gpus)
    assert small is not None
    assert large is not None
    assert small.steps_per_s <= large.steps_per_s


def test_a_gang_of_two_types_is_as_fast_as_the_slower() -> None:
    kind = a_kind("k", {("V100", 1): 1.0, ("T4", 1): 0.4})
    found = Speeds([kind], [a_node("n1"), a_node("n2", "T4")])
    both = found.alone("k", ("V100", "T4"), 3, spread=True)
    assert both == pytest.approx(found.alone("k", ("T4",), 3, spread=True))


def _basis(found: SpreadRates) -> str:
    estimate = found.estimate("k", "V100", 3)
    assert estimate is not None
    return estimate.basis
