"""Amounts: what fits on a node, for whoever asks."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.contract.plan import Placement, Plan, PlanStatus, available, demanded
from policies.contract.snapshot import RankPlacement
from policies.contract.validation import validate_plan
from policies.placement.cluster_state import ClusterState
from policies.placement.layout import Layout, Span
from tests.builders_policies import a_batch_job, a_cpu_node, a_snapshot

GIB = 1.073741824


@given(st.floats(1e-6, 1e8), st.integers(1, 10_000))
def test_equal_parts_of_any_capacity_fit_into_it_together(capacity: float, parts: int) -> None:
    assert parts * demanded(capacity / parts) <= available(capacity)


@given(st.integers(1, 10**12), st.integers(1, 10**12))
def test_whole_bytes_are_compared_exactly(asked: int, has: int) -> None:
    assert (demanded(asked / 1e9) <= available(has / 1e9)) == (asked <= has)


@given(st.integers(1, 400), st.integers(0, 2))
def test_the_engine_and_the_check_of_plans_agree_on_what_fits(parts: int, more: int) -> None:
    node = a_cpu_node("c1", cores=1000.0, memory_gb=parts * GIB)
    seat = RankPlacement("c1", (), units=parts + more)
    job = a_batch_job("b", parts + more, cores=0.1, memory_gb=GIB)
    plan = Plan("p", PlanStatus.HEURISTIC, (Placement("b", (seat,)),))
    layout = Layout([node], ("cores", "memory_gb"))
    request = layout.request(0, {"cores": 0.1, "memory_gb": GIB}, units=parts + more, span=Span.ANY)
    fits = ClusterState(layout).find(request) is not None
    assert fits == (validate_plan(plan, a_snapshot([node], [job])) == ()) == (more == 0)


@pytest.mark.parametrize("of", [demanded, available])
def test_endless_amounts_are_the_largest(of: Callable[[float], int]) -> None:
    assert of(float("inf")) >= of(1e300) > 0
