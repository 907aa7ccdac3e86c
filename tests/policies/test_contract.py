"""What every registered policy keeps to, over any snapshot."""

from typing import Any, cast

import pytest

from policies.contract.plan import Plan, WaitCode
from policies.contract.snapshot import (
    JobPhase,
    NodeRole,
    NodeState,
    PowerCapStep,
    Purpose,
    RankPlacement,
    Running,
    SlotHold,
    Snapshot,
)
from policies.contract.validation import validate_plan
from policies.host import registry
from policies.placement.profiling import merge, reserve_profiling
from tests.builders_policies import (
    a_device,
    a_job,
    a_kind,
    a_node,
    a_profile_request,
    a_profile_run,
    a_snapshot,
    on,
)

POLICIES = tuple(registry.BUILT_IN)
VARIANTS = (
    *((name, {}) for name in POLICIES),
    ("randomized_greedy", {"mode": "coded"}),
    ("randomized_greedy", {"polish": 40}),
    ("priority", {"by": "weight"}),
    ("exact", {"objective": "first_end", "pricing": "own"}),
    ("exact", {"opening": "free"}),
)
FEW: dict[str, dict[str, object]] = {
    "randomized_greedy": {"iterations": 50},
    "cost_search": {"moves": 20},
}


def _name_of(value: object) -> str:
    return (
        value
        if isinstance(value, str)
        else "-".join(map(str, cast(dict[str, object], value).values()))
    )


every_variant = pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=_name_of)
any_policy = pytest.mark.parametrize("name", POLICIES)


def decide(name: str, snapshot: Snapshot, **parameters: object) -> Plan:
    few = FEW.get(name, {})
    return registry.make(name, {**few, **parameters})(snapshot)


@every_variant
def test_a_job_on_a_part_of_a_device_leaves_it_to_a_profile_run(
    name: str, parameters: dict[str, object]
) -> None:
    ranks = (RankPlacement("n1", ("gpu0",), 0.5),)
    node = a_node("n1", gpus=1, role=NodeRole.PROFILING)
    jobs = [
        a_job("a", may_share=True, running=(Running(0, ranks, 0.0),)),
        a_job("b", may_share=True),
    ]
    snapshot = a_snapshot([node], jobs, profiling=[a_profile_request("b")])
    reserved, runs = reserve_profiling(snapshot)
    assert [run.job for run in runs] == ["b"]
    plan = merge(decide(name, reserved, **parameters), runs)
    assert validate_plan(plan, reserved) == ()
    assert not [p for p in plan.placements if p.purpose is Purpose.TRAINING]


@every_variant
@pytest.mark.parametrize(
    ("asks", "lacks"),
    [
        ({"labels": ("data",)}, {"labels": ()}),
        ({"cores": 4.0}, {"cores": 2.0}),
        ({"memory_gb": 8.0}, {"memory_gb": 4.0}),
    ],
    ids=["labels", "cores", "memory"],
)
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_job_does_not_go_on_where_the_node_has_lost_what_it_asks_for(
    name: str, parameters: dict[str, object], asks: dict[str, Any], lacks: dict[str, Any], gpus: int
) -> None:
    has: dict[str, Any] = {"labels": ("data",), "cores": 8.0, "memory_gb": 16.0}
    nodes = [a_node("n1", gpus=2, **{**has, **lacks}), a_node("n2", gpus=2, **has)]
    job = a_job(
        "a",
        gpus_min=gpus,
        gpus_max=gpus,
        running=on("n1", *(f"gpu{i}" for i in range(gpus))),
        **asks,
    )
    snapshot = a_snapshot(nodes, [job])
    plan = decide(name, snapshot, **parameters)
    assert validate_plan(plan, snapshot) == ()
    assert all(seat.node == "n2" for p in plan.placements for seat in p.ranks)


@any_policy
def test_a_cluster_without_jobs_gets_an_empty_plan(name: str) -> None:
    plan = decide(name, a_snapshot())
    assert (plan.placements, plan.waiting) == ((), ())


@any_policy
def test_a_cluster_without_nodes_lets_every_job_wait(name: str) -> None:
    plan = decide(name, a_snapshot(nodes=[], jobs=[a_job("a"), a_job("b")]))
    assert [(w.job, w.code) for w in plan.waiting] == [
        ("a", WaitCode.NODES_UNAVAILABLE),
        ("b", WaitCode.NODES_UNAVAILABLE),
    ]


@any_policy
def test_a_lost_node_loses_its_jobs_to_the_others(name: str) -> None:
    nodes = [a_node("n1", state=NodeState.LOST), a_node("n2")]
    plan = decide(name, a_snapshot(nodes, [a_job("a", running=on("n1", "gpu0"))]))
    assert [p.ranks[0].node for p in plan.placements] == ["n2"]


@any_policy
def test_a_job_stays_on_a_cordoned_node_and_no_new_one_comes(name: str) -> None:
    nodes = [a_node("n1", gpus=2, state=NodeState.CORDONED)]
    plan = decide(name, a_snapshot(nodes, [a_job("a", running=on("n1", "gpu1")), a_job("b")]))
    assert [(p.job, p.ranks[0].devices) for p in plan.placements] == [("a", ("gpu1",))]
    assert [w.job for w in plan.waiting] == ["b"]


@any_policy
def test_a_job_on_a_draining_node_stays_until_the_drain_when_nothing_else_is_free(
    name: str,
) -> None:
    nodes = [a_node("n1", gpus=1, state=NodeState.DRAINING, drain_until_s=1050.0)]
    (placed,) = decide(name, a_snapshot(nodes, [a_job("a", running=on("n1", "gpu0"))])).placements
    assert (placed.ranks[0].node, placed.until_s) == ("n1", 1050.0)


@any_policy
def test_a_job_with_an_unfinished_dependency_waits_for_it(name: str) -> None:
    plan = decide(
        name, a_snapshot(jobs=[a_job("a"), a_job("b", dependencies=("a", "done long ago"))])
    )
    assert [(w.job, w.code, w.jobs) for w in plan.waiting] == [("b", WaitCode.DEPENDENCY, ("a",))]


@any_policy
def test_devices_of_profile_runs_and_of_unknown_jobs_are_not_given_away(name: str) -> None:
    held = (a_device("gpu0", held=(SlotHold("ghost"),)), a_device("gpu1"), a_device("gpu2"))
    jobs = [
        a_job("p", phase=JobPhase.PROFILING, running=(a_profile_run("n1", "gpu1"),)),
        a_job("a"),
        a_job("b"),
    ]
    plan = decide(name, a_snapshot([a_node("n1", gpus=3, devices=held, role=NodeRole.BOTH)], jobs))
    assert [p.ranks[0].devices for p in plan.placements] == [("gpu2",)]


@any_policy
def test_a_job_whose_speed_nobody_knows_waits_for_a_throughput(name: str) -> None:
    plan = decide(name, a_snapshot(jobs=[a_job("a", kind="new")], kinds=[a_kind("new", {})]))
    assert [w.code for w in plan.waiting] == [WaitCode.NO_THROUGHPUT]


@any_policy
def test_a_job_that_fits_nowhere_is_not_placed_on_a_free_node(name: str) -> None:
    kinds = [a_kind("k", {("V100", 1): 1.0}), a_kind("new", {})]
    plan = decide(
        name,
        a_snapshot(
            [a_node(gpus=3)], [a_job("a", kind="new"), a_job("b"), a_job("c", kind="new")], kinds
        ),
    )
    assert [p.job for p in plan.placements] == ["b"]


@any_policy
def test_a_job_too_large_for_every_node_is_told_so(name: str) -> None:
    rates = {("V100", g): 1.0 for g in range(1, 9)}
    plan = decide(
        name,
        a_snapshot([a_node(gpus=4)], [a_job("a", gpus_min=8, gpus_max=8)], [a_kind("k", rates)]),
    )
    assert [w.code for w in plan.waiting] == [WaitCode.NO_NODE_FITS]


@any_policy
def test_a_job_whose_types_are_all_out_of_service_is_told_which_nodes(name: str) -> None:
    nodes = [a_node("n1", "V100", state=NodeState.CORDONED), a_node("n2", "T4")]
    plan = decide(name, a_snapshot(nodes, [a_job("a", allowed_types=("V100",))]))
    assert [(w.code, w.nodes) for w in plan.waiting] == [(WaitCode.NODES_UNAVAILABLE, ("n1",))]


@every_variant
def test_a_job_whose_runtime_no_ready_node_has_is_told_the_nodes_that_would_do(
    name: str, parameters: dict[str, object]
) -> None:
    nodes = [
        a_node("n1", labels=("runtime:process",)),
        a_node("n2", labels=("runtime:docker",), state=NodeState.CORDONED),
    ]
    plan = decide(name, a_snapshot(nodes, [a_job("a", labels=("runtime:docker",))]), **parameters)
    assert [(w.code, w.nodes) for w in plan.waiting] == [(WaitCode.NODES_UNAVAILABLE, ("n2",))]


@any_policy
def test_a_job_that_waits_for_watts_is_told_how_many(name: str) -> None:
    snapshot = a_snapshot([a_node("n1", gpus=2)], [a_job("a"), a_job("b")], power_cap_w=600.0)
    plan = decide(name, snapshot)
    (waiting,) = plan.waiting
    assert (waiting.code, waiting.watts) == (WaitCode.POWER_CAP, 100.0)


@any_policy
def test_a_job_that_waits_for_watts_is_told_when_the_cap_rises(name: str) -> None:
    caps = (
        PowerCapStep(0.0, 5000.0, 600.0),
        PowerCapStep(5000.0, 6000.0, 650.0),
        PowerCapStep(6000.0, 9000.0, 700.0),
    )
    (waiting,) = decide(
        name, a_snapshot([a_node("n1", gpus=2)], [a_job("a"), a_job("b")], power_caps=caps)
    ).waiting
    assert (waiting.code, waiting.watts) == (WaitCode.POWER_CAP, 100.0)
    assert waiting.from_s == 6000.0


@any_policy
def test_a_job_stops_before_a_lower_cap_begins(name: str) -> None:
    jobs = [
        a_job("a", running=on("n1", "gpu0")),
        a_job("b", arrival_s=5.0, running=on("n1", "gpu1")),
    ]
    snapshot = a_snapshot(
        [a_node("n1", gpus=2)], jobs, power_caps=(PowerCapStep(1250.0, 9000.0, 600.0),)
    )
    plan = decide(name, snapshot)
    assert validate_plan(plan, snapshot) == ()
    assert len(plan.placements) == 1
    assert [w.code for w in plan.waiting] == [WaitCode.POWER_CAP]


@any_policy
def test_a_job_that_finds_no_room_is_told_who_is_in_the_way(name: str) -> None:
    jobs = [
        a_job("a", arrival_s=1.0, due_s=1100.0, tardiness_weight=1.0, priority=1),
        a_job("b", arrival_s=2.0),
    ]
    (waiting,) = decide(name, a_snapshot([a_node("n1", gpus=1)], jobs)).waiting
    assert (waiting.job, waiting.code, waiting.jobs) == ("b", WaitCode.NO_CAPACITY, ("a",))


@any_policy
def test_the_predicted_run_time_holds_the_launch_of_a_new_job_and_not_of_one_that_stays(
    name: str,
) -> None:
    kinds = [a_kind("k", {("V100", 1): 2.0}, setup_s=7.0)]
    jobs = [
        a_job("stays", running=on("n1", "gpu0"), restart_cost_s=20.0),
        a_job("new", restart_cost_s=20.0),
    ]
    placed = {
        p.job: p.predicted_run_s
        for p in decide(name, a_snapshot([a_node("n1", gpus=2)], jobs, kinds)).placements
    }
    assert placed == {"stays": 50.0, "new": 57.0}
