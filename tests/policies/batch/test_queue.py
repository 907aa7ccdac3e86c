"""Batch jobs, and nodes and jobs without GPUs, beside any policy for training."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.loop.rounds import decide
from policies.contract.plan import Plan, WaitCode
from policies.contract.snapshot import NodeState, RankPlacement, Snapshot
from policies.contract.validation import validate_plan
from policies.host import registry
from tests.builders_policies import (
    a_batch_job,
    a_cpu_node,
    a_job,
    a_node,
    a_snapshot,
    on,
    seated,
)

FEW: dict[str, dict[str, object]] = {
    "randomized_greedy": {"iterations": 20},
    "cost_search": {"moves": 10},
}
any_policy = pytest.mark.parametrize("name", tuple(registry.BUILT_IN))


def planned(snapshot: Snapshot, name: str = "fifo") -> Plan:
    """A plan that keeps to all rules: `decide` refuses any other."""
    return decide(snapshot, registry.make(name, FEW.get(name, {})))


def seats(plan: Plan) -> dict[str, dict[str, int]]:
    """Units of each placed job by node."""
    return {p.job: {seat.node: seat.units for seat in p.ranks} for p in plan.placements}


def codes(plan: Plan) -> dict[str, WaitCode]:
    return {waiting.job: waiting.code for waiting in plan.waiting}


@any_policy
def test_jobs_without_gpus_fill_the_cores_of_nodes_without_gpus(name: str) -> None:
    jobs = [a_batch_job(f"b{i}", cores=4.0, arrival_s=float(i)) for i in range(3)]
    plan = planned(a_snapshot([a_cpu_node(cores=8.0)], jobs), name)
    assert seats(plan) == {"b0": {"c1": 1}, "b1": {"c1": 1}}
    assert codes(plan) == {"b2": WaitCode.NO_CAPACITY}
    (waiting,) = plan.waiting
    assert (waiting.nodes, set(waiting.jobs)) == (("c1",), {"b0", "b1"})


@any_policy
def test_training_and_batch_jobs_share_a_cluster(name: str) -> None:
    nodes = [a_node("n1", gpus=1, cores=8.0), a_cpu_node(cores=4.0)]
    jobs = [a_job("trains", cores=2.0), a_batch_job("b1", cores=4.0), a_job("cpu", gpus_min=0,
            gpus_max=0, cores=2.0)]  # fmt: skip
    plan = planned(a_snapshot(nodes, jobs), name)
    assert seats(plan) == {"trains": {"n1": 1}, "b1": {"c1": 1}, "cpu": {"n1": 1}}
    assert validate_plan(plan, a_snapshot(nodes, jobs)) == ()


@any_policy
def test_a_running_batch_job_stays_whoever_else_waits(name: str) -> None:
    nodes = [a_node("n1", gpus=2, cores=8.0)]
    running = seated(RankPlacement("n1", ("gpu0", "gpu1"), units=2))
    jobs = [
        a_batch_job("runs", units=2, gpus_per_unit=1, running=running),
        a_job("urgent", due_s=1100.0, tardiness_weight=5.0, priority=9),
    ]
    plan = planned(a_snapshot(nodes, jobs), name)
    assert seats(plan) == {"runs": {"n1": 2}}
    assert list(codes(plan)) == ["urgent"]


@any_policy
def test_a_job_that_waits_for_a_batch_job_is_not_placed_before_its_end(name: str) -> None:
    jobs = [a_batch_job("first"), a_job("then", dependencies=("first",))]
    plan = planned(a_snapshot([a_node("n1", cores=8.0)], jobs), name)
    assert seats(plan) == {"first": {"n1": 1}}
    assert codes(plan) == {"then": WaitCode.DEPENDENCY}


def test_no_unit_crosses_a_node_and_seats_say_how_many_they_hold() -> None:
    nodes = [a_cpu_node("c1", cores=16.0), a_cpu_node("c2", cores=8.0)]
    plan = planned(a_snapshot(nodes, [a_batch_job("b", units=3, cores=8.0)]))
    assert seats(plan) == {"b": {"c1": 2, "c2": 1}}
    too_large = planned(a_snapshot(nodes, [a_batch_job("b", units=1, cores=17.0)]))
    (waiting,) = too_large.waiting
    assert (waiting.code, [lack.name for lack in waiting.lacks]) == (
        WaitCode.NO_NODE_FITS,
        ["cores"],
    )


def test_more_units_than_all_nodes_hold_are_told_with_the_number_that_fits() -> None:
    nodes = [a_cpu_node("c1", cores=16.0), a_cpu_node("c2", cores=8.0)]
    (waiting,) = planned(a_snapshot(nodes, [a_batch_job("b", units=4, cores=8.0)])).waiting
    (lack,) = waiting.lacks
    assert (waiting.code, lack.name, lack.wanted, lack.most) == (
        WaitCode.NO_NODE_FITS,
        "units",
        4.0,
        3.0,
    )


@pytest.mark.parametrize(
    ("asks", "found"),
    [
        ({"units_per_node": 1}, {"c1": 1, "c2": 1}),
        ({"nodes": 2}, {"c1": 1, "c2": 1}),
        ({}, {"c1": 2}),
    ],
)
def test_units_are_spread_as_the_job_asks(asks: dict[str, Any], found: dict[str, int]) -> None:
    nodes = [a_cpu_node("c1"), a_cpu_node("c2")]
    assert seats(planned(a_snapshot(nodes, [a_batch_job("b", units=2, **asks)]))) == {"b": found}


def test_an_exclusive_job_is_alone_on_its_nodes() -> None:
    nodes = [a_cpu_node("c1"), a_cpu_node("c2")]
    jobs = [
        a_batch_job("small", running=on("c1")),
        a_batch_job("alone", exclusive=True, arrival_s=1.0),
        a_batch_job("later", cores=8.0, arrival_s=2.0),
        a_batch_job("last", arrival_s=3.0),
    ]
    plan = planned(a_snapshot(nodes, jobs))
    assert seats(plan) == {"small": {"c1": 1}, "alone": {"c2": 1}, "last": {"c1": 1}}


def test_an_exclusive_job_keeps_its_gpus_from_training() -> None:
    nodes = [a_node("n1", gpus=2, cores=8.0)]
    jobs = [a_batch_job("alone", exclusive=True, running=on("n1")), a_job("trains", cores=1.0)]
    assert seats(planned(a_snapshot(nodes, jobs))) == {"alone": {"n1": 1}}


def test_named_resources_are_counted_by_unit() -> None:
    nodes = [a_cpu_node("c1", resources=(("mic", 2.0),)), a_cpu_node("c2")]
    jobs = [
        a_batch_job("b", units=2, resources=(("mic", 1.0),)),
        a_batch_job("none", resources=(("mic", 1.0),), arrival_s=1.0),
        a_batch_job("no such", resources=(("fpga", 1.0),), arrival_s=2.0),
    ]
    plan = planned(a_snapshot(nodes, jobs))
    assert seats(plan) == {"b": {"c1": 2}}
    assert codes(plan) == {"none": WaitCode.NO_CAPACITY, "no such": WaitCode.NO_NODE_FITS}


@pytest.mark.parametrize(
    ("batch_arrives_s", "first"), [(1.0, "batch"), (3.0, "trains")], ids=["earlier", "later"]
)
def test_whoever_came_first_has_the_free_gpu(batch_arrives_s: float, first: str) -> None:
    jobs = [
        a_batch_job("batch", gpus_per_unit=1, arrival_s=batch_arrives_s),
        a_job("trains", arrival_s=2.0),
    ]
    plan = planned(a_snapshot([a_node("n1", gpus=1, cores=8.0)], jobs))
    assert list(seats(plan)) == [first]


def test_power_of_nodes_that_work_without_gpus_counts_under_the_cap() -> None:
    nodes = [a_cpu_node("c1", cores=1.0), a_cpu_node("c2", cores=1.0)]
    jobs = [a_batch_job("a"), a_batch_job("b", arrival_s=1.0)]
    plan = planned(a_snapshot(nodes, jobs, power_cap_w=150.0))
    assert list(seats(plan)) == ["a"]
    assert codes(plan) == {"b": WaitCode.POWER_CAP}


def test_a_lost_node_names_itself_in_the_reason() -> None:
    nodes = [a_cpu_node("c1", state=NodeState.LOST), a_cpu_node("c2", cores=1.0)]
    (waiting,) = planned(a_snapshot(nodes, [a_batch_job("b", cores=4.0)])).waiting
    assert (waiting.code, waiting.nodes) == (WaitCode.NODES_LOST, ("c1",))


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    """Nodes with and without GPUs, training and batch jobs that wait or run."""
    nodes = [
        a_node("n1", gpus=draw(st.integers(1, 3)), cores=8.0, resources=(("mic", 1.0),)),
        a_cpu_node("c1", cores=draw(st.sampled_from([1.0, 4.0]))),
        a_cpu_node("c2", cores=8.0, state=draw(st.sampled_from(list(NodeState)))),
    ]
    jobs = []
    for i in range(draw(st.integers(1, 6))):
        fields: dict[str, Any] = {
            "arrival_s": float(draw(st.integers(0, 5))),
            "priority": draw(st.integers(0, 1)),
            "cores": draw(st.sampled_from([0.5, 1.0, 3.0])),
        }
        if draw(st.booleans()):
            jobs.append(a_job(f"j{i}", **fields))
            continue
        units = draw(st.integers(1, 3))
        jobs.append(
            a_batch_job(
                f"b{i}",
                units,
                draw(st.sampled_from([0, 0, 1])),
                exclusive=draw(st.booleans()),
                units_per_node=draw(st.integers(0, 2)),
                nodes=draw(st.sampled_from([0, 0, 1, 2])),
                resources=draw(st.sampled_from([(), (), (("mic", 1.0),)])),
                **fields,
            )
        )
    cap = draw(st.sampled_from([None, None, 150.0, 700.0]))
    return a_snapshot(nodes, jobs, power_cap_w=cap)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(clusters(), st.sampled_from(tuple(registry.BUILT_IN)))
def test_every_policy_beside_a_batch_queue_keeps_the_rules_now_and_in_the_next_round(
    snapshot: Snapshot, name: str
) -> None:
    plan = planned(snapshot, name)
    running = {p.job: seated(*p.ranks, since_s=1000.0) for p in plan.placements}
    jobs = [a_job(**{**_fields(job), "running": running.get(job.id, ())}) for job in snapshot.jobs]
    after = a_snapshot(snapshot.nodes, jobs, power_cap_w=snapshot.power_cap_w, now_s=1100.0)
    again = planned(after, name)
    fixed = {job.id for job in snapshot.jobs if job.batch and job.id in running}
    if snapshot.power_cap_w is None:
        assert {job: seats(again)[job] for job in fixed} == {j: seats(plan)[j] for j in fixed}


def _fields(job: Any) -> dict[str, Any]:
    fields = {name: getattr(job, name) for name in type(job).__dataclass_fields__}
    fields["job"] = fields.pop("id")
    del fields["phase"]
    return fields
