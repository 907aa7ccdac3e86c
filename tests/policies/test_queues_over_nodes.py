"""Tiresias' two queues and YARN's queues by team, with gangs over nodes."""

from typing import Any

import pytest

from policies.contract.plan import Plan
from policies.contract.snapshot import JobView, RankPlacement, Snapshot, TeamView
from policies.contract.validation import validate_plan
from policies.host import registry
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on, seated

KIND = a_kind("k", {(name, gpus): float(gpus) for name in ("V100", "T4") for gpus in range(1, 9)})
HOUR_S = 3600.0


def decide(name: str, snapshot: Snapshot, **parameters: object) -> Plan:
    plan = registry.make(name, parameters)(snapshot)
    assert validate_plan(plan, snapshot) == ()
    return plan


def placed(plan: Plan) -> dict[str, set[str]]:
    """Nodes of each placed job."""
    return {p.job: {seat.node for seat in p.ranks} for p in plan.placements}


def a_gang(job: str, gpus: int, **fields: Any) -> JobView:
    return a_job(job, gpus_min=gpus, gpus_max=gpus, **fields)


def a_one_gpu_cluster(*jobs: JobView, **fields: Any) -> Snapshot:
    return a_snapshot([a_node("v1", "V100", 1)], jobs, [KIND], **fields)


@pytest.mark.parametrize("name", ["tiresias", "yarn_cs"])
def test_a_job_of_unknown_speed_on_one_node_is_spread(name: str) -> None:
    nodes = [a_node("n1", gpus=2), a_node("n2", gpus=2)]
    snapshot = a_snapshot(nodes, [a_gang("j", 2)], [a_kind("k", {("V100", 1): 1.0})])
    assert placed(decide(name, snapshot)) == {"j": {"n1", "n2"}}


@pytest.mark.parametrize("name", ["tiresias", "yarn_cs"])
def test_a_job_of_unknown_speed_waits_beside_one_node(name: str) -> None:
    kind = a_kind("k", {("V100", 1): 1.0})
    snapshot = a_snapshot([a_node("n1", gpus=2)], [a_gang("j", 2)], [kind])
    assert [entry.job for entry in decide(name, snapshot).waiting] == ["j"]


# ---- tiresias


def test_a_job_with_much_gpu_time_makes_way_for_a_new_one() -> None:
    old = a_job("old", running=on("v1", "gpu0"), received_s=(("V100", 2.0 * HOUR_S),))
    new = a_job("new", arrival_s=900.0)
    assert list(placed(decide("tiresias", a_one_gpu_cluster(old, new)))) == ["new"]


def test_below_the_threshold_jobs_go_by_arrival() -> None:
    old = a_job("old", running=on("v1", "gpu0"), received_s=(("V100", HOUR_S / 2.0),))
    new = a_job("new", arrival_s=900.0)
    assert list(placed(decide("tiresias", a_one_gpu_cluster(old, new)))) == ["old"]


def test_the_threshold_is_a_parameter() -> None:
    old = a_job("old", running=on("v1", "gpu0"), received_s=(("V100", HOUR_S / 2.0),))
    new = a_job("new", arrival_s=900.0)
    plan = decide("tiresias", a_one_gpu_cluster(old, new), threshold_s=60.0)
    assert list(placed(plan)) == ["new"]


def test_a_waiting_job_never_returns_to_the_first_queue() -> None:
    old = a_job("old", arrival_s=0.0, received_s=(("V100", HOUR_S), ("T4", HOUR_S)))
    new = a_job("new", arrival_s=900.0)
    assert list(placed(decide("tiresias", a_one_gpu_cluster(old, new)))) == ["new"]


def test_jobs_in_the_second_queue_use_what_the_first_leaves() -> None:
    old = a_job("old", running=on("v1", "gpu1"), received_s=(("V100", 2.0 * HOUR_S),))
    snapshot = a_snapshot([a_node("v1", "V100", 2)], [old, a_job("new")], [KIND])
    plan = decide("tiresias", snapshot)
    assert sorted(placed(plan)) == ["new", "old"]
    (stays,) = [p for p in plan.placements if p.job == "old"]
    assert stays.ranks == old.running[0].ranks


def test_a_gang_over_nodes_makes_the_last_jobs_stop() -> None:
    nodes = [a_node("v1", "V100", 2), a_node("v2", "V100", 2)]
    seat = RankPlacement("v1", ("gpu0",))
    second = a_job("b", running=seated(seat), received_s=(("V100", 2.0 * HOUR_S),))
    snapshot = a_snapshot(nodes, [second, a_gang("a", 4)], [KIND])
    assert placed(decide("tiresias", snapshot)) == {"a": {"v1", "v2"}}


# ---- yarn_cs


def test_nothing_is_stopped_for_another_team() -> None:
    runs = a_job("runs", team="red", running=on("v1", "gpu0"))
    waits = a_job("waits", team="blue")
    assert list(placed(decide("yarn_cs", a_one_gpu_cluster(runs, waits)))) == ["runs"]


def test_the_team_that_uses_least_goes_first() -> None:
    nodes = [a_node("v1", "V100", 2)]
    jobs = [
        a_job("r1", team="red", running=on("v1", "gpu0")),
        a_job("r2", team="red", arrival_s=1.0),
        a_job("b1", team="blue", arrival_s=2.0),
    ]
    assert sorted(placed(decide("yarn_cs", a_snapshot(nodes, jobs, [KIND])))) == ["b1", "r1"]


@pytest.mark.parametrize(("weight", "winner"), [(1.0, "b1"), (4.0, "r2")])
def test_a_teams_part_is_by_its_weight(weight: float, winner: str) -> None:
    nodes = [a_node("v1", "V100", 4)]
    jobs = [
        a_job("r1", team="red", running=on("v1", "gpu0", "gpu1"), gpus_min=2, gpus_max=2),
        a_job("b0", team="blue", running=on("v1", "gpu2")),
        a_job("r2", team="red", arrival_s=1.0),
        a_job("b1", team="blue", arrival_s=2.0),
    ]
    teams = (TeamView("red", weight), TeamView("blue", 1.0))
    plan = decide("yarn_cs", a_snapshot(nodes, jobs, [KIND], teams=teams))
    assert winner in placed(plan)
    assert len(plan.placements) == 3


def test_nobody_passes_the_first_job_of_a_queue() -> None:
    nodes = [a_node("v1", "V100", 2)]
    jobs = [
        a_job("runs", running=on("v1", "gpu0")),
        a_gang("first", 2, arrival_s=1.0),
        a_job("small", arrival_s=2.0),
    ]
    assert list(placed(decide("yarn_cs", a_snapshot(nodes, jobs, [KIND])))) == ["runs"]


def test_a_job_that_can_never_run_blocks_nobody() -> None:
    snapshot = a_one_gpu_cluster(a_gang("huge", 9), a_job("small", arrival_s=2.0))
    assert list(placed(decide("yarn_cs", snapshot))) == ["small"]


def test_a_gang_larger_than_any_node_is_over_nodes() -> None:
    nodes = [a_node("v1", "V100", 2), a_node("v2", "V100", 2)]
    snapshot = a_snapshot(nodes, [a_gang("a", 4)], [KIND])
    assert placed(decide("yarn_cs", snapshot)) == {"a": {"v1", "v2"}}
