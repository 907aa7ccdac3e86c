"""Under any power cap something starts where nothing runs and something could."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.contract.plan import WaitCode
from policies.contract.snapshot import Snapshot
from policies.host import registry
from policies.placement.from_snapshot import cluster_of
from policies.placement.priced_options import JobOptions
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on
from tests.policies.test_contract import VARIANTS, decide
from tests.policies.test_contract_of_variants import VARIANTS as MORE_VARIANTS

KINDS = (
    a_kind("k", {("V100", 1): 1.0, ("V100", 2): 1.7, ("T4", 1): 0.4, ("T4", 2): 0.7}),
    a_kind("l", {("V100", 1): 0.5, ("T4", 1): 0.5}),
)


@st.composite
def idle_snapshots(draw: st.DrawFn) -> Snapshot:
    """Jobs that wait on an idle cluster below a power cap."""
    nodes = [
        a_node(f"n{i}", draw(st.sampled_from(["V100", "T4"])), draw(st.integers(1, 2)))
        for i in range(draw(st.integers(1, 4)))
    ]
    jobs = [
        a_job(
            f"j{i}",
            draw(st.sampled_from(["k", "l"])),
            arrival_s=float(i),
            remaining_steps=draw(st.sampled_from([1.0, 100.0, 1e5])),
            gpus_min=draw(st.sampled_from([1, 1, 2])),
            gpus_max=2,
            due_s=draw(st.sampled_from([float("inf"), 900.0, 1100.0, 1e5])),
            tardiness_weight=draw(st.sampled_from([0.0, 0.001, 1.0])),
        )
        for i in range(draw(st.integers(1, 5)))
    ]
    cap_w = draw(st.sampled_from([390.0, 400.0, 520.0, 530.0, 600.0, 700.0, 1000.0]))
    return a_snapshot(nodes, jobs, KINDS, power_cap_w=cap_w)


def something_fits(snapshot: Snapshot) -> bool:
    state = cluster_of(snapshot)
    options_of = JobOptions(snapshot, state)
    options = (option for row in range(len(snapshot.jobs)) for option in options_of.of(row))
    return any(state.find(option.request, option.nodes) for option in options)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(variant=st.sampled_from((*VARIANTS, *MORE_VARIANTS)), snapshot=idle_snapshots())
def test_something_starts_where_nothing_runs_and_something_fits(
    variant: tuple[str, dict[str, object]], snapshot: Snapshot
) -> None:
    name, parameters = variant
    assert bool(decide(name, snapshot, **parameters).placements) == something_fits(snapshot)


def test_cost_search_runs_a_job_on_the_type_that_the_cap_allows() -> None:
    nodes = [a_node("fast", "V100", 2), a_node("slow", "T4", 1)]
    job = a_job("a", gpus_max=2, remaining_steps=1e5, total_steps=1e5)
    snapshot = a_snapshot(nodes, [job], KINDS, power_cap_w=520.0)
    (placed,) = registry.make("cost_search")(snapshot).placements
    assert placed.ranks[0].node == "slow"


def test_no_share_is_of_a_type_that_the_cap_never_allows() -> None:
    snapshot = a_snapshot([a_node("fast", "V100"), a_node("slow", "T4")], [a_job("a")], KINDS)
    capped = replace(snapshot, power_cap_w=400.0)
    assert decide("min_cost", snapshot).placements[0].ranks[0].node == "fast"
    assert decide("min_cost", capped).placements[0].ranks[0].node == "slow"


@pytest.mark.parametrize("name", ["cost_search", "randomized_greedy", "exact", "fifo", "allox"])
def test_a_job_that_the_cap_never_allows_waits_for_power_until_the_cap_rises(name: str) -> None:
    snapshot = a_snapshot([a_node("fast", "V100")], [a_job("a")], KINDS, power_cap_w=400.0)
    (waiting,) = decide(name, snapshot).waiting
    assert (waiting.code, waiting.watts) == (WaitCode.POWER_CAP, 130.0)


@pytest.mark.parametrize("name", ["cost_search", "exact"])
def test_a_running_job_above_a_lowered_cap_is_shrunk_rather_than_replaced(name: str) -> None:
    nodes = [a_node("fast", "V100", 2)]
    both = on("fast", "gpu0", "gpu1")
    # with as much left as the other has, either order would cost the same
    runs = a_job("a", gpus_max=2, remaining_steps=9e3, total_steps=1e5, running=both)
    waits = a_job("b", gpus_max=2, remaining_steps=1e4, total_steps=1e5)
    snapshot = a_snapshot(nodes, [waits, runs], KINDS, power_cap_w=540.0)
    (placed,) = decide(name, snapshot).placements
    assert (placed.job, placed.gpus) == ("a", 1)
