"""The least cost by the snapshot: prices, SLOs, and GPUs that stay idle because they are not worth
their price.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from policies.contract.plan import Plan
from policies.contract.snapshot import GpuTypeView, JobView, Snapshot
from policies.gavel.min_cost import MinCost
from tests.builders_gavel import LONG, ROUND_S, simulated, steps_of
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot

NODES = (a_node("v", "V100", 1), a_node("k", "K80", 1))
KINDS = [a_kind("k", {("V100", 1): 2.0, ("K80", 1): 1.0})]
"""A V100 is twice as fast as a K80."""


def priced(v100: float, k80: float) -> tuple[GpuTypeView, ...]:
    return (GpuTypeView("V100", 15.7, 32.0, v100), GpuTypeView("K80", 4.1, 12.0, k80))


DEAR = priced(5.0, 1.0)
"""A step costs 2.5 times as much on a V100."""


def snapshot_of(*jobs: JobView, prices: Sequence[GpuTypeView] = DEAR, **fields: Any) -> Snapshot:
    return a_snapshot(NODES, jobs, KINDS, gpu_types=tuple(prices), **fields)


def in_use(plan: Plan) -> list[str]:
    return sorted(seat.node for placed in plan.placements for seat in placed.ranks)


def test_gpus_that_are_not_worth_their_price_stay_idle_unless_they_are_to_be_filled() -> None:
    snapshot = snapshot_of(a_job("a"), a_job("b"))
    assert in_use(MinCost(floor=0.0)(snapshot)) == ["k"]
    assert in_use(MinCost(floor=0.0, fill=True)(snapshot)) == ["k", "v"]


def test_a_floor_gives_every_job_its_part_of_what_the_cluster_would_give_it_alone() -> None:
    jobs = [a_job(f"j{i}") for i in range(4)]
    shares = MinCost(floor=1.0)(snapshot_of(*jobs)).shares
    done = [2.0 * of.get("V100", 0.0) + of.get("K80", 0.0) for of in shares.values()]
    assert done == pytest.approx([3.0 / 4.0] * 4, rel=1e-5)


def test_a_type_without_a_price_counts_as_the_dearest_and_is_named() -> None:
    plan = MinCost(floor=0.0)(snapshot_of(a_job("a"), prices=priced(0.0, 1.0)))
    assert plan.message == "no price per hour for V100: counted as the dearest"
    assert plan.shares["a"] == {"V100": pytest.approx(1.0)}  # twice the progress for the same price


def test_without_any_price_all_gpus_cost_the_same() -> None:
    plan = MinCost(floor=0.0)(snapshot_of(a_job("a"), prices=()))
    assert plan.objective == pytest.approx(1.0)
    assert plan.message == "no price per hour for K80, V100: counted as the dearest"


def test_a_due_date_that_asks_for_the_faster_gpu_gets_it() -> None:
    late, soon = (
        a_job("late", remaining_steps=900.0),
        a_job("soon", remaining_steps=1000.0, due_s=1600.0),
    )
    snapshot = snapshot_of(late, soon)
    assert "V100" not in MinCost(floor=0.0)(snapshot).shares.get("soon", {})
    plan = MinCost(floor=0.0, slos=True)(snapshot)
    assert plan.shares["soon"]["V100"] > 0.6
    assert plan.message == ""


@pytest.mark.parametrize(
    ("dollars", "resnet"), [((2.48, 1.46, 0.45), "P100"), ((3.1, 2.0, 0.8), "V100")]
)
def test_without_slos_each_model_is_where_a_dollar_goes_furthest(
    dollars: tuple[float, float, float], resnet: str
) -> None:
    """Rates of ResNet-50 (batch size 64) and A3C in Gavel's published table: what decides how many
    SLOs least cost violates.
    """
    names, rates = (
        ("V100", "P100", "K80"),
        {"resnet": (4.39, 2.62, 0.62), "a3c": (7.18, 5.68, 3.44)},
    )
    kinds = [
        a_kind(kind, {(of, 1): rate for of, rate in zip(names, row, strict=True)})
        for kind, row in rates.items()
    ]
    types = tuple(
        GpuTypeView(of, 1.0, 16.0, price) for of, price in zip(names, dollars, strict=True)
    )
    nodes = tuple(a_node(of, of, 1) for of in names)
    snapshot = a_snapshot(nodes, [a_job("r", "resnet"), a_job("a", "a3c")], kinds, gpu_types=types)
    shares = MinCost(objective="published", floor=0.0)(snapshot).shares
    assert {
        job: {of: part for of, part in row.items() if part > 1e-6} for job, row in shares.items()
    } == {
        "r": {resnet: pytest.approx(1.0)},
        "a": {"K80": pytest.approx(1.0)},
    }


def test_an_slo_is_aimed_at_a_round_early() -> None:
    job = a_job("a", remaining_steps=1000.0, due_s=1000.0 + 1000.0)
    alone, soon = (
        MinCost(floor=0.0, slos=True)(snapshot_of(job, round_s=round_s)).shares["a"]
        for round_s in (1.0, 300.0)
    )
    assert alone.get("V100", 0.0) < 0.01
    assert 2.0 * soon["V100"] + soon["K80"] == pytest.approx(1000.0 / 700.0, rel=1e-4)


def test_slos_that_only_just_can_be_met_together_are_met() -> None:
    jobs = [a_job(name, remaining_steps=150.0, due_s=1100.0) for name in "ab"]
    plan = MinCost(floor=0.0, slos=True)(snapshot_of(*jobs))
    done = [2.0 * of.get("V100", 0.0) + of.get("K80", 0.0) for of in plan.shares.values()]
    assert done == pytest.approx([1.5, 1.5], rel=1e-5)
    assert plan.message == ""


def test_an_slo_that_can_no_longer_be_met_is_dropped_and_named_as_long_as_the_job_is_there() -> (
    None
):
    lost, kept = (
        a_job("lost", remaining_steps=1e6, due_s=1060.0),
        a_job("kept", remaining_steps=100.0, deadline_s=1100.0),
    )
    plan = MinCost(slos=True)(snapshot_of(lost, kept))
    assert plan.message == "SLOs that can no longer be met: lost"
    assert plan.shares["lost"]
    later = MinCost(slos=True)(snapshot_of(lost, kept, now_s=1010.0, memory=plan.memory))
    assert later.message == plan.message
    gone = MinCost(slos=True)(snapshot_of(kept, now_s=1010.0, memory=plan.memory))
    assert gone.message == ""


def test_many_lost_slos_are_counted() -> None:
    jobs = [a_job(f"j{i}", due_s=900.0) for i in range(7)]
    assert (
        MinCost(slos=True)(snapshot_of(*jobs)).message
        == "SLOs that can no longer be met: j0, j1, j2, j3, j4 and 2 more"
    )


def test_the_sooner_of_due_date_and_deadline_is_the_slo() -> None:
    both = a_job("a", remaining_steps=1000.0, due_s=1e6, deadline_s=1600.0)
    assert MinCost(floor=0.0, slos=True)(snapshot_of(both)).shares["a"]["V100"] > 0.6


def test_time_received_is_that_of_the_shares_and_no_more() -> None:
    jobs = [steps_of("long", LONG), steps_of("promised", 1.2 * 360_000.0, due_s=360_000.0)]
    simulation = simulated(NODES, KINDS, jobs, MinCost(floor=0.0, slos=True), gpu_types=DEAR).run(
        ROUND_S * 100
    )
    promised, world = simulation.rounds[0].plan.shares["promised"], simulation.world.snapshot()
    received = dict(world.jobs.by_id("promised").received_s)
    used = (
        sum(dict(job.received_s).get("V100", 0.0) for job in world.jobs) / simulation.engine.now_s
    )
    assert 0.1 < promised["V100"] < 0.9
    assert received["V100"] / simulation.engine.now_s == pytest.approx(promised["V100"], abs=0.03)
    assert used == pytest.approx(promised["V100"], abs=0.03)


def test_jobs_with_slos_end_in_time_where_without_they_would_not() -> None:
    jobs = [
        steps_of(f"j{i}", 3000.0, arrival_s=400.0 * i, due_s=400.0 * i + 6000.0 if i % 2 else inf)
        for i in range(6)
    ]
    late = {}
    for slos in (False, True):
        simulation = simulated(NODES, KINDS, jobs, MinCost(slos=slos), gpu_types=DEAR).run()
        book = simulation.state.table
        assert simulation.state.completed == 6
        late[slos] = int((book.completed_s > book.columns.numbers["due_s"]).sum())
    assert late[True] == 0 < late[False]
