"""Backfilling: order, reservation, and what may pass the first job that waits."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.loop.rounds import decide
from policies.batch.backfilling import Backfilling
from policies.contract.plan import Plan, WaitCode
from policies.contract.snapshot import RankPlacement, Snapshot
from tests.builders_policies import (
    a_batch_job,
    a_cpu_node,
    a_job,
    a_kind,
    a_node,
    a_snapshot,
    on,
    seated,
)
from tests.policies.batch.replay import end_s, fits_beside


def planned(snapshot: Snapshot, **parameters: str) -> Plan:
    return decide(snapshot, Backfilling(**parameters))


def started(plan: Plan) -> list[str]:
    return [p.job for p in plan.placements]


def busy(cores: float, left_s: float, job: str = "runs", node: str = "c1") -> Any:
    """A running job that is expected to end so many seconds from now (1000 s)."""
    since = on(node, since_s=900.0)
    return a_batch_job(job, cores=cores, walltime_s=100.0 + left_s, running=since)


def test_a_short_job_passes_one_that_does_not_fit_and_a_long_one_does_not() -> None:
    jobs = [
        busy(6.0, left_s=100.0),
        a_batch_job("wide", cores=8.0, arrival_s=1.0),
        a_batch_job("long", cores=2.0, walltime_s=101.0, arrival_s=2.0),
        a_batch_job("short", cores=2.0, walltime_s=99.0, arrival_s=3.0),
    ]
    snapshot = a_snapshot([a_cpu_node("c1", cores=8.0)], jobs)
    plan = planned(snapshot)
    assert started(plan) == ["runs", "short"]
    (head, *_) = [w for w in plan.waiting if w.job == "wide"]
    assert head.expected is not None
    assert (head.expected.start_s, head.expected.nodes) == (1100.0, ("c1",))
    assert started(planned(snapshot, backfill="none")) == ["runs"]


def test_a_long_job_may_use_what_the_reservation_leaves() -> None:
    jobs = [
        busy(6.0, left_s=100.0),
        a_batch_job("wide", cores=7.0, arrival_s=1.0),
        a_batch_job("narrow", cores=1.0, walltime_s=9000.0, arrival_s=2.0),
        a_batch_job("other", cores=1.0, walltime_s=9000.0, arrival_s=3.0),
    ]
    plan = planned(a_snapshot([a_cpu_node("c1", cores=8.0)], jobs))
    assert started(plan) == ["runs", "narrow"]


def test_a_job_that_can_never_start_holds_nobody_up() -> None:
    jobs = [a_batch_job("huge", cores=99.0), a_batch_job("small", arrival_s=1.0)]
    for backfill in ("easy", "none"):
        plan = planned(a_snapshot([a_cpu_node("c1")], jobs), backfill=backfill)
        assert started(plan) == ["small"]
        assert [(w.job, w.code) for w in plan.waiting] == [("huge", WaitCode.NO_NODE_FITS)]


def test_running_jobs_of_unknown_end_give_no_reservation_and_the_others_start() -> None:
    endless = a_batch_job("runs", cores=6.0, walltime_s=float("inf"), running=on("c1"))
    jobs = [
        endless,
        a_batch_job("wide", cores=8.0, arrival_s=1.0),
        a_batch_job("long", cores=2.0, walltime_s=1e6, arrival_s=2.0),
    ]
    plan = planned(a_snapshot([a_cpu_node("c1", cores=8.0)], jobs))
    assert started(plan) == ["runs", "long"]
    assert [w.expected for w in plan.waiting] == [None]


@pytest.mark.parametrize(
    ("order", "first"),
    [("arrival", "early"), ("shortest", "short"), ("longest", "long"), ("slowdown", "short")],
)
def test_the_order_says_who_is_first(order: str, first: str) -> None:
    jobs = [
        a_batch_job("early", cores=8.0, walltime_s=500.0, arrival_s=1.0),
        a_batch_job("long", cores=8.0, walltime_s=900.0, arrival_s=2.0),
        a_batch_job("short", cores=8.0, walltime_s=100.0, arrival_s=3.0),
    ]
    plan = planned(a_snapshot([a_cpu_node("c1", cores=8.0)], jobs), order=order)
    assert started(plan) == [first]


def test_priority_comes_before_the_order() -> None:
    jobs = [a_batch_job("a", cores=8.0), a_batch_job("b", cores=8.0, priority=1, arrival_s=1.0)]
    assert started(planned(a_snapshot([a_cpu_node("c1")], jobs))) == ["b"]


def test_training_jobs_wait_in_the_same_queue_for_as_long_as_their_speed_says() -> None:
    nodes = [a_node("n1", "V100", 1, cores=8.0)]
    kinds = [a_kind("k", {("V100", 1): 1.0})]
    jobs = [
        a_job("trains", running=on("n1", "gpu0"), remaining_steps=50.0, cores=1.0),
        a_batch_job("both", gpus_per_unit=1, cores=8.0, arrival_s=1.0),
        a_batch_job("long", cores=1.0, walltime_s=600.0, arrival_s=2.0),
        a_batch_job("short", cores=1.0, walltime_s=30.0, arrival_s=3.0),
    ]
    plan = planned(a_snapshot(nodes, jobs, kinds))
    assert started(plan) == ["trains", "short"]


def test_an_exclusive_job_is_not_put_beside_a_training_job_of_the_same_decision() -> None:
    nodes = [a_node("n1", "V100", 1, cores=8.0), a_cpu_node("c1", cores=0.5)]
    jobs = [a_job("trains", cores=1.0), a_batch_job("alone", exclusive=True, arrival_s=1.0)]
    plan = planned(a_snapshot(nodes, jobs))
    assert started(plan) == ["trains"]


def test_zero_amounts_do_not_break_a_reservation() -> None:
    jobs = [
        busy(8.0, left_s=100.0),
        a_batch_job("wide", cores=8.0, arrival_s=1.0, resources=(("mic", 0.0),)),
        a_batch_job("free", cores=0.0, walltime_s=9000.0, arrival_s=2.0),
    ]
    plan = planned(a_snapshot([a_cpu_node("c1", cores=8.0)], jobs))
    assert "free" in started(plan)
    assert [w.job for w in plan.waiting] == ["wide"]


NODES = (a_cpu_node("c1", cores=4.0), a_cpu_node("c2", cores=8.0, resources=(("mic", 2.0),)))


@st.composite
def queues(draw: st.DrawFn) -> Snapshot:
    """Jobs of one and several units that run or wait."""
    jobs, free = [], {node.id: node.cores for node in NODES}
    for i in range(draw(st.integers(2, 9))):
        cores, wall = draw(st.sampled_from([1.0, 2.0, 4.0])), float(draw(st.integers(1, 300)))
        node = draw(st.sampled_from(["", "c1", "c2"]))
        if node and free[node] >= cores:
            free[node] -= cores
            runs = seated(RankPlacement(node, ()), since_s=1000.0 - draw(st.integers(0, 200)))
            jobs.append(a_batch_job(f"r{i}", cores=cores, walltime_s=wall, running=runs))
            continue
        jobs.append(
            a_batch_job(
                f"w{i}", draw(st.integers(1, 3)), cores=cores, walltime_s=wall,
                arrival_s=float(draw(st.integers(0, 9))),
                resources=draw(st.sampled_from([(), (), (("mic", 1.0),)])),
            )
        )  # fmt: skip
    return a_snapshot(NODES, jobs)


@settings(deadline=None, max_examples=200)
@given(queues())
def test_what_passes_the_first_waiting_job_never_delays_it_by_the_run_times_that_are_told(
    snapshot: Snapshot,
) -> None:
    plan = planned(snapshot)
    for head in [w for w in plan.waiting if w.expected is not None]:
        start_s = head.expected.start_s if head.expected else 0.0
        still = [p for p in plan.placements if end_s(snapshot, p.job) > start_s]
        assert fits_beside(snapshot, head.job, still)
