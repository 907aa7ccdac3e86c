"""Search among the jobs that pass the reserved ones: never worse than its lists, and judged."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.loop.rounds import decide
from policies.batch.area_backfilling import AreaBackfilling
from policies.batch.easy import start_in_order
from policies.batch.packing import Packed, Packing
from policies.batch.plan import BatchPlan
from policies.contract.plan import Plan, PlanStatus
from policies.contract.snapshot import RankPlacement, Snapshot
from policies.contract.validation import validate_plan
from tests.builders_policies import a_batch_job, a_cpu_node, a_snapshot, on, seated
from tests.policies.batch.replay import end_s, fits_beside

NODES = (a_cpu_node("c1", cores=4.0), a_cpu_node("c2", cores=8.0, resources=(("mic", 2.0),)))


def planned(snapshot: Snapshot, **parameters: Any) -> Plan:
    return decide(snapshot, AreaBackfilling(search="packing", **parameters))


def started(plan: Plan) -> set[str]:
    return {p.job for p in plan.placements}


def competing() -> Snapshot:
    """Behind a wide job 3 cores are free: for one job of 3 or for one of 1 and one of 2."""
    jobs = [
        a_batch_job("runs", cores=5.0, walltime_s=1000.0, running=on("c1", since_s=900.0)),
        a_batch_job("wide", cores=8.0, walltime_s=100.0, arrival_s=0.0),
        a_batch_job("three", cores=3.0, walltime_s=100.0, arrival_s=900.0),
        a_batch_job("one", cores=1.0, walltime_s=350.0, arrival_s=900.0),
        a_batch_job("two", cores=2.0, walltime_s=200.0, arrival_s=900.0),
    ]
    return a_snapshot([a_cpu_node("c1", cores=8.0)], jobs, now_s=1000.0)


def test_two_jobs_start_instead_of_one_whose_weight_is_less_than_theirs() -> None:
    tuned: Mapping[str, Any] = {"pass_s": 800.0, "pass_backlog": 0.0, "reservations": 1}
    listed = decide(competing(), AreaBackfilling(**tuned))
    packed = planned(competing(), **tuned)
    assert started(listed) == {"runs", "three"}
    assert started(packed) == {"runs", "one", "two"}
    assert packed.status is PlanStatus.OPTIMAL
    assert packed.objective is not None
    assert packed.objective == packed.bound


def test_without_search_the_plan_has_no_bound() -> None:
    plan = decide(competing(), AreaBackfilling())
    assert (plan.status, plan.objective, plan.bound) == (PlanStatus.HEURISTIC, None, None)


def test_where_nobody_competes_the_list_is_optimal() -> None:
    plan = planned(a_snapshot([a_cpu_node("c1", cores=8.0)], [a_batch_job("only", cores=4.0)]))
    assert (started(plan), plan.status, plan.objective) == ({"only"}, PlanStatus.OPTIMAL, 0.0)


@st.composite
def queues(draw: st.DrawFn) -> Snapshot:
    """Jobs of one and several units that run or wait, of two priorities."""
    jobs, free = [], {node.id: node.cores for node in NODES}
    for i in range(draw(st.integers(3, 10))):
        cores, wall = float(draw(st.integers(1, 4))), float(draw(st.integers(1, 300)))
        node = draw(st.sampled_from(["", "", "c1", "c2"]))
        if node and free[node] >= cores:
            free[node] -= cores
            runs = seated(RankPlacement(node, ()), since_s=1000.0 - draw(st.integers(0, 200)))
            jobs.append(a_batch_job(f"r{i}", cores=cores, walltime_s=wall, running=runs))
            continue
        waits = a_batch_job(
            f"w{i}",
            draw(st.integers(1, 3)),
            cores=cores,
            walltime_s=wall,
            arrival_s=float(draw(st.integers(0, 900))),
            resources=draw(st.sampled_from([(), (), (("mic", 1.0),)])),
        )
        jobs.append(replace(waits, priority=draw(st.sampled_from([0, 0, 0, 1]))))
    return a_snapshot(NODES, jobs)


def packed_of(snapshot: Snapshot, reservations: int) -> tuple[Packed, BatchPlan, Packing]:
    plan = BatchPlan(snapshot, range(len(snapshot.jobs)), ())
    rows = sorted(plan.eligible(), key=lambda row: (-priority(plan, row), row))
    logs = {row: -0.3 * i for i, row in enumerate(rows)}
    packing = Packing(plan, rows, logs, reservations)
    listed = plan.copy()
    start_in_order(listed, rows, reservations=reservations)
    return packing.best(0.05), listed, packing


def priority(plan: BatchPlan, row: int) -> int:
    return int(plan.columns.counts["priority"][row])


def competitors(packing: Packing) -> Sequence[Any]:
    _, heads = packing.listed(packing.rows)
    last = max((packing.rows.index(head.row) for head in heads), default=0) + 1
    return list(packing.bids(last)) if heads else []


@settings(deadline=None, max_examples=100)
@given(queues(), st.integers(1, 3))
def test_no_more_weight_waits_than_in_the_list_and_no_less_than_the_bound(
    snapshot: Snapshot, reservations: int
) -> None:
    packed, listed, packing = packed_of(snapshot, reservations)
    bids = competitors(packing)
    of_list = sum(bid.weight for bid in bids if bid.row not in listed.rows) / 1e6
    assert packed.bound <= packed.lost + 1e-6
    assert packed.lost <= of_list + 1e-9


@settings(deadline=None, max_examples=100)
@given(queues(), st.integers(1, 3))
def test_plans_with_search_are_valid_and_delay_no_reserved_job(
    snapshot: Snapshot, reservations: int
) -> None:
    plan = planned(snapshot, reservations=reservations)
    assert validate_plan(plan, snapshot) == ()
    told = [w for w in plan.waiting if w.expected is not None]
    assert len(told) <= reservations
    for head in told:
        start_s = head.expected.start_s if head.expected else 0.0
        still = [p for p in plan.placements if end_s(snapshot, p.job) > start_s]
        assert fits_beside(snapshot, head.job, still)
