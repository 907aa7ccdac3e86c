"""Profile runs are placed beside production and never on each other's devices."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings

from policies.baselines.fifo import Fifo
from policies.contract.plan import Placement
from policies.contract.snapshot import (
    JobPhase,
    JobView,
    NodeRole,
    NodeState,
    NodeView,
    Purpose,
    SlotHold,
    Snapshot,
)
from policies.contract.validation import validate_plan
from policies.placement.profiling import merge, reserve_profiling
from tests.builders_policies import (
    a_device,
    a_job,
    a_node,
    a_profile_request,
    a_profile_run,
    a_snapshot,
    on,
)
from tests.builders_snapshots import snapshots


def a_profiling_node(node: str = "p1", gpus: int = 2, **fields: Any) -> NodeView:
    return a_node(node, gpus=gpus, **{"role": NodeRole.PROFILING, **fields})


def a_new_job(job: str = "new", **fields: Any) -> JobView:
    return a_job(job, **{"phase": JobPhase.PROFILING, **fields})


def seats(placements: Sequence[Placement]) -> list[tuple[str, int, str, tuple[str, ...]]]:
    return [(p.job, p.copy, p.ranks[0].node, p.ranks[0].devices) for p in placements]


def wanting(
    *requests: Any, nodes: Sequence[NodeView] = (), jobs: Sequence[JobView] = (), **fields: Any
) -> Snapshot:
    return a_snapshot(
        nodes or [a_profiling_node()], jobs or [a_new_job()], profiling=requests, **fields
    )


def test_a_request_gets_devices_of_one_node_for_its_steps() -> None:
    _, (placed,) = reserve_profiling(wanting(a_profile_request("new", gpus=2, steps=30)))
    assert (placed.purpose, placed.steps_quota, seats([placed])) == (
        Purpose.PROFILING,
        30,
        [("new", 0, "p1", ("gpu0", "gpu1"))],
    )


def test_several_requests_run_at_once_on_several_nodes() -> None:
    requests = [a_profile_request("new", gpus=2, copy=i, since_s=float(i)) for i in range(3)]
    _, placements = reserve_profiling(
        wanting(*requests, nodes=[a_profiling_node("p1"), a_profiling_node("p2")])
    )
    assert [(p.copy, p.ranks[0].node) for p in placements] == [(0, "p1"), (1, "p2")]


def test_the_oldest_request_comes_first() -> None:
    requests = [
        a_profile_request("new", copy=0, since_s=500.0),
        a_profile_request("new", copy=1, since_s=400.0),
    ]
    _, placements = reserve_profiling(wanting(*requests, nodes=[a_profiling_node(gpus=1)]))
    assert [p.copy for p in placements] == [1]


def test_a_run_under_way_keeps_its_devices_and_is_not_started_twice() -> None:
    job = a_new_job(running=(a_profile_run("p1", "gpu1", copy=0, steps=20),))
    _, placements = reserve_profiling(
        wanting(a_profile_request("new", copy=0), a_profile_request("new", copy=1), jobs=[job])
    )
    assert seats(placements) == [("new", 0, "p1", ("gpu1",)), ("new", 1, "p1", ("gpu0",))]


def test_a_run_beside_a_job_out_of_sight_goes_on_only_where_there_is_a_slot_for_both() -> None:
    job = a_new_job(running=(a_profile_run("p1", "gpu0", copy=0),))
    ghost = (SlotHold("ghost"),)
    for slots, kept in ((1, 0), (2, 1)):
        device = a_device("gpu0", slots=slots, held=ghost)
        snapshot = wanting(nodes=[a_profiling_node(gpus=1, devices=(device,))], jobs=[job])
        reserved, placements = reserve_profiling(snapshot)
        assert len(placements) == kept
        assert validate_plan(merge(Fifo()(reserved), placements), snapshot) == ()


def test_production_nodes_and_other_types_measure_nothing() -> None:
    nodes = [
        a_node("n1"),
        a_profiling_node("p1", gpu_type="T4"),
        a_profiling_node("p2", state=NodeState.CORDONED),
    ]
    assert reserve_profiling(wanting(a_profile_request("new"), nodes=nodes))[1] == ()


def test_a_shared_node_lends_free_devices_at_once_and_busy_ones_only_to_an_old_request() -> None:
    def placed(since_s: float, *busy: str) -> list[tuple[str, int, str, tuple[str, ...]]]:
        jobs = [a_new_job(), *(a_job(f"j{d}", running=on("b1", d)) for d in busy)]
        nodes = [a_node("b1", gpus=2, role=NodeRole.BOTH)]
        return seats(
            reserve_profiling(
                wanting(a_profile_request("new", since_s=since_s), nodes=nodes, jobs=jobs)
            )[1]
        )

    assert placed(990.0, "gpu0") == [("new", 0, "b1", ("gpu1",))]
    assert placed(990.0, "gpu0", "gpu1") == []
    assert placed(600.0, "gpu0", "gpu1") == [("new", 0, "b1", ("gpu0",))]


def test_of_nodes_of_both_roles_one_at_a_time_gives_up_what_trains_there() -> None:
    nodes = [a_node(f"b{i}", gpus=2, role=NodeRole.BOTH) for i in range(2)]
    training = [a_job(f"j{n}{d}", running=on(n, d)) for n in ("b0", "b1") for d in ("gpu0", "gpu1")]
    requests = [a_profile_request("new", copy=i, since_s=float(i)) for i in range(3)]
    _, first = reserve_profiling(wanting(*requests, nodes=nodes, jobs=[a_new_job(), *training]))
    assert [(p.copy, p.ranks[0].node) for p in first] == [(0, "b0"), (1, "b0")]
    measuring = a_new_job(running=(a_profile_run("b0", "gpu0", copy=0),))
    left = [j for j in training if j.id != "jb0gpu0"]
    _, then = reserve_profiling(wanting(requests[2], nodes=nodes, jobs=[measuring, *left]))
    assert [(p.copy, p.ranks[0].node) for p in then] == [
        (0, "b0"),
        (2, "b0"),
    ], "the node that is measured on gives up more first"
    _, last = reserve_profiling(
        wanting(requests[2], nodes=nodes[1:], jobs=[a_new_job(), *left[1:]])
    )
    assert [(p.copy, p.ranks[0].node) for p in last] == [(2, "b1")]


def test_a_training_job_whose_device_is_taken_is_placed_anew() -> None:
    nodes = [a_node("b1", gpus=1, role=NodeRole.BOTH), a_node("n2", gpus=1)]
    jobs = [a_new_job(), a_job("old", running=on("b1", "gpu0"))]
    snapshot = wanting(a_profile_request("new", since_s=0.0), nodes=nodes, jobs=jobs)
    reserved, runs = reserve_profiling(snapshot)
    plan = merge(Fifo()(reserved), runs)
    assert validate_plan(plan, snapshot) == ()
    assert seats(plan.placements) == [("old", 0, "n2", ("gpu0",)), ("new", 0, "b1", ("gpu0",))]


def test_labels_resources_and_watts_hold_for_profile_runs_too() -> None:
    request = a_profile_request("new")
    assert reserve_profiling(wanting(request, jobs=[a_new_job(labels=("imagenet",))]))[1] == ()
    assert (
        reserve_profiling(
            wanting(request, nodes=[a_profiling_node(cores=2.0)], jobs=[a_new_job(cores=3.0)])
        )[1]
        == ()
    )
    assert reserve_profiling(wanting(request, power_cap_w=500.0))[1] == ()


def test_a_run_ends_with_its_device_its_node_or_its_watts() -> None:
    running = a_new_job(running=(a_profile_run("p1", "gpu0"),))
    broken = a_profiling_node(devices=(a_device("gpu0", healthy=False), a_device("gpu1")))
    assert reserve_profiling(wanting(nodes=[broken], jobs=[running]))[1] == ()
    assert (
        reserve_profiling(wanting(nodes=[a_profiling_node(state=NodeState.LOST)], jobs=[running]))[
            1
        ]
        == ()
    )
    assert reserve_profiling(wanting(jobs=[running], power_cap_w=500.0))[1] == ()


def test_the_snapshot_afterwards_holds_what_was_placed_and_frees_what_ended() -> None:
    ended = a_new_job("ended", running=(a_profile_run("p2", "gpu0"),))
    nodes = [a_profiling_node("p1", gpus=1), a_profiling_node("p2", gpus=1, state=NodeState.LOST)]
    snapshot = wanting(a_profile_request("new"), nodes=nodes, jobs=[a_new_job(), ended])
    reserved, _ = reserve_profiling(snapshot)
    held = [[(h.job, h.purpose) for h in n.devices[0].held] for n in reserved.nodes]
    assert held == [[("new", Purpose.PROFILING)], []]
    assert [len(j.running) for j in reserved.jobs] == [1, 0]
    assert [len(j.running) for j in snapshot.jobs] == [0, 1]


def test_a_request_of_a_job_that_is_gone_is_left_alone() -> None:
    assert reserve_profiling(wanting(a_profile_request("gone")))[1] == ()


def test_merging_twice_adds_nothing() -> None:
    snapshot = wanting(a_profile_request("new"))
    reserved, runs = reserve_profiling(snapshot)
    plan = merge(Fifo()(reserved), runs)
    assert merge(plan, runs) == plan


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=snapshots())
def test_no_two_profile_runs_share_a_device_and_each_has_one_node(snapshot: Snapshot) -> None:
    _, placements = reserve_profiling(snapshot)
    devices = Counter((s.node, d) for p in placements for s in p.ranks for d in s.devices)
    assert all(times == 1 for times in devices.values())
    assert all(len(p.ranks) == 1 for p in placements)
    asked = {(r.job, r.copy): r.gpus for r in snapshot.profiling}
    assert all(p.gpus == asked.get((p.job, p.copy), p.gpus) for p in placements)


def a_pair(first: str, second: str, **fields: Any) -> tuple[Any, Any]:
    """Requests of two jobs that are to share a device."""
    one = a_profile_request(first, copy=1, beside=second, beside_copy=2, **fields)
    return one, a_profile_request(second, copy=2, beside=first, beside_copy=1, **fields)


def two_jobs(**fields: Any) -> list[JobView]:
    return [a_job(name, may_share=True, **fields) for name in ("a", "b")]


def a_node_to_share(slots: int = 2, **fields: Any) -> NodeView:
    return replace(a_profiling_node(gpus=1), devices=(a_device("gpu0", slots=slots, **fields),))


def test_two_that_name_each_other_share_one_device_and_the_plan_breaks_no_rule() -> None:
    snapshot = wanting(*a_pair("a", "b"), nodes=[a_node_to_share()], jobs=two_jobs())
    rest, placements = reserve_profiling(snapshot)
    assert [(p.job, p.copy, p.ranks[0].devices, p.ranks[0].share) for p in placements] == [
        ("a", 1, ("gpu0",), 0.5),
        ("b", 2, ("gpu0",), 0.5),
    ]
    assert [hold.job for hold in rest.nodes[0].devices[0].held] == ["a", "b"]
    assert not validate_plan(merge(Fifo()(rest), placements), snapshot)


def test_a_pair_goes_on_together_and_takes_one_device() -> None:
    jobs = [
        a_job(name, may_share=True, running=(a_profile_run("p1", "gpu0", copy=copy, share=0.5),))
        for name, copy in (("a", 1), ("b", 2))
    ]
    _, placements = reserve_profiling(
        wanting(*a_pair("a", "b"), nodes=[a_node_to_share()], jobs=jobs)
    )
    assert [p.job for p in placements] == ["a", "b"]


def test_a_pair_is_placed_whole_or_not_at_all() -> None:
    short = replace(a_node_to_share(), cores=1.0)
    pair = a_pair("a", "b")
    for requests, nodes, jobs in (
        (pair, [a_node_to_share(slots=1)], two_jobs()),
        (pair, [short], two_jobs(cores=1.0)),
        (pair[:1], [a_node_to_share()], two_jobs()),
        (pair, [a_node_to_share()], two_jobs()[:1]),
    ):
        assert reserve_profiling(wanting(*requests, nodes=nodes, jobs=jobs))[1] == ()


def test_half_of_a_pair_is_not_placed_beside_its_other_half_that_runs_already() -> None:
    first, second = two_jobs()
    first = replace(first, running=(a_profile_run("p1", "gpu0", copy=1, share=0.5),))
    _, placements = reserve_profiling(
        wanting(*a_pair("a", "b"), nodes=[a_node_to_share()], jobs=[first, second])
    )
    assert [p.job for p in placements] == ["a"]
