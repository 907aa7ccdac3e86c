"""The policy: whole gangs on one node, over nodes or types, running jobs, reasons and prices."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.contract.gpu_prices import gpu_prices_in
from policies.contract.plan import Plan, WaitCode
from policies.contract.snapshot import (
    JobColumns,
    Jobs,
    JobView,
    NodeState,
    NodeView,
    RankPlacement,
    Snapshot,
)
from policies.contract.validation import validate_plan
from policies.hadar.hadar import Hadar
from policies.placement.speed import Speeds
from policies.placement.waiting.explained import explained
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on, seated
from tests.builders_snapshots import snapshots

relaxed = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FORMS = pytest.mark.parametrize("exact_up_to", [0, 20_000], ids=["greedy", "exact"])


def decide(snapshot: Snapshot, **parameters: Any) -> Plan:
    """The policy's plan, which breaks no rule."""
    plan = Hadar(**parameters)(snapshot)
    assert validate_plan(plan, snapshot) == ()
    return plan


def where(plan: Plan) -> dict[str, list[tuple[str, int]]]:
    """Node and number of GPUs of each seat of each placed job."""
    return {p.job: [(seat.node, len(seat.devices)) for seat in p.ranks] for p in plan.placements}


def a_gang(job: str = "a", gpus: int = 4, **fields: Any) -> JobView:
    return a_job(job, gpus_min=gpus, gpus_max=gpus, **fields)


def two_v100_and_two_t4() -> list[NodeView]:
    return [a_node("v1", "V100", 2), a_node("t1", "T4", 2)]


KIND = a_kind(
    "k",
    {
        (name, gpus): speed * gpus
        for name, speed in (("V100", 1.0), ("T4", 0.5))
        for gpus in range(1, 9)
    },
)


@FORMS
def test_a_gang_is_on_one_node_where_that_is_faster(exact_up_to: int) -> None:
    nodes = [a_node("v1", "V100", 2), a_node("v2", "V100", 4)]
    plan = decide(a_snapshot(nodes, [a_gang(gpus=4)], [KIND]), exact_up_to=exact_up_to)
    assert where(plan) == {"a": [("v2", 4)]}


@FORMS
def test_a_gang_larger_than_any_node_is_spread_over_one_type(exact_up_to: int) -> None:
    nodes = [a_node("v1", "V100", 2), a_node("v2", "V100", 2), a_node("t1", "T4", 2)]
    plan = decide(a_snapshot(nodes, [a_gang(gpus=4)], [KIND]), exact_up_to=exact_up_to)
    assert where(plan) == {"a": [("v1", 2), ("v2", 2)]}


@FORMS
def test_a_gang_mixes_types_if_the_job_may(exact_up_to: int) -> None:
    job = a_gang(gpus=4, may_mix=True)
    snapshot = a_snapshot(two_v100_and_two_t4(), [job], [KIND])
    plan = decide(snapshot, exact_up_to=exact_up_to)
    assert where(plan) == {"a": [("v1", 2), ("t1", 2)]}


@FORMS
def test_a_gang_does_not_mix_types_if_the_job_may_not(exact_up_to: int) -> None:
    snapshot = a_snapshot(two_v100_and_two_t4(), [a_gang(gpus=4)], [KIND])
    plan = decide(snapshot, exact_up_to=exact_up_to)
    assert where(plan) == {}
    assert plan.waiting[0].code is WaitCode.NO_NODE_FITS


def test_a_mixed_gang_is_as_fast_as_its_slowest_worker() -> None:
    job = a_gang(gpus=4, may_mix=True)
    kind = replace(KIND, setup_s=7.0)
    snapshot = a_snapshot(two_v100_and_two_t4(), [job], [kind])
    (placed,) = decide(snapshot).placements
    on_t4 = snapshot_speed(snapshot, ("T4",))
    assert placed.predicted_run_s == pytest.approx(100.0 / on_t4 + 7.0)


def snapshot_speed(snapshot: Snapshot, types: tuple[str, ...]) -> float:
    return Speeds.of(snapshot).alone("k", types, 4, spread=True)


@FORMS
def test_an_elastic_gang_has_what_is_free(exact_up_to: int) -> None:
    job = a_job("a", gpus_min=1, gpus_max=4)
    snapshot = a_snapshot([a_node("v1", "V100", 3)], [job], [KIND])
    plan = decide(snapshot, exact_up_to=exact_up_to)
    assert where(plan)["a"][0][1] >= 1


@FORMS
def test_the_worthier_job_has_the_only_gpu(exact_up_to: int) -> None:
    short = a_job("short", remaining_steps=10.0)
    long = a_job("long", remaining_steps=1000.0, total_steps=1000.0)
    snapshot = a_snapshot([a_node("v1", "V100", 1)], [long, short], [KIND])
    plan = decide(snapshot, utility="shortest_first", exact_up_to=exact_up_to)
    assert where(plan) == {"short": [("v1", 1)]}


def test_the_job_that_lost_has_the_missing_price_as_its_reason() -> None:
    short = a_job("short", remaining_steps=10.0)
    long = a_job("long", remaining_steps=1000.0, total_steps=1000.0)
    snapshot = a_snapshot([a_node("v1", "V100", 1)], [long, short], [KIND])
    plan = decide(snapshot, utility="shortest_first")
    (entry,) = plan.waiting
    assert (entry.code, entry.jobs) == (WaitCode.NO_CAPACITY, ("short",))
    assert entry.price is not None
    assert entry.worth == pytest.approx(1.0 / 1000.0)
    assert entry.price == pytest.approx(1.0 / 10.0)
    assert explained(plan, snapshot) == plan.waiting


def test_without_fill_a_gpu_idles_where_nobody_pays_its_price() -> None:
    short = a_job("short", remaining_steps=1.0)
    long = a_job("long", remaining_steps=10_000.0, total_steps=10_000.0)
    snapshot = a_snapshot([a_node("v1", "V100", 2)], [long, short], [KIND])
    strict = decide(snapshot, utility="shortest_first", fill=False)
    assert list(where(strict)) == ["short"]
    assert strict.waiting[0].code is WaitCode.OUTBID
    assert explained(strict, snapshot) == strict.waiting
    filled = decide(snapshot, utility="shortest_first")
    assert sorted(where(filled)) == ["long", "short"]


@FORMS
def test_a_running_job_stays_for_a_job_that_is_hardly_worthier(exact_up_to: int) -> None:
    running = a_job("old", remaining_steps=100.0, running=on("v1", "gpu0"), restart_cost_s=60.0)
    new = a_job("new", remaining_steps=95.0, total_steps=95.0)
    snapshot = a_snapshot([a_node("v1", "V100", 1)], [running, new], [KIND])
    plan = decide(snapshot, utility="shortest_first", exact_up_to=exact_up_to)
    assert where(plan) == {"old": [("v1", 1)]}


@FORMS
def test_a_running_job_makes_way_for_one_that_pays_for_its_restart(exact_up_to: int) -> None:
    running = a_job("old", remaining_steps=1000.0, running=on("v1", "gpu0"), restart_cost_s=60.0)
    new = a_job("new", remaining_steps=10.0, total_steps=10.0)
    snapshot = a_snapshot([a_node("v1", "V100", 1)], [running, new], [KIND])
    plan = decide(snapshot, utility="shortest_first", exact_up_to=exact_up_to)
    assert where(plan) == {"new": [("v1", 1)]}


def test_a_running_job_keeps_its_gpu_while_others_wait_for_gpus() -> None:
    running = a_job("old", remaining_steps=100.0, running=on("v1", "gpu0"), restart_cost_s=1.0)
    new = a_job("new", remaining_steps=70.0, total_steps=70.0)
    snapshot = a_snapshot([a_node("v1", "V100", 1)], [running, new], [KIND])
    kept = decide(snapshot, utility="shortest_first", keep=0.8)
    assert where(kept) == {"old": [("v1", 1)]}
    yielded = decide(snapshot, utility="shortest_first", keep=0.0)
    assert where(yielded) == {"new": [("v1", 1)]}


def test_a_running_job_moves_to_a_faster_gpu_that_nobody_waits_for() -> None:
    kind = a_kind("k", {("V100", 1): 1.2, ("T4", 1): 1.0})
    running = a_job("a", remaining_steps=1000.0, running=on("t1", "gpu0"), restart_cost_s=5.0)
    waiting = [a_job(f"b{number}", remaining_steps=1000.0) for number in range(4)]
    nodes = [a_node("v1", "V100", 1), a_node("t1", "T4", 1)]
    alone = decide(a_snapshot(nodes, [running], [kind]), keep=0.8)
    assert where(alone) == {"a": [("v1", 1)]}
    crowded = decide(a_snapshot(nodes, [running, *waiting], [kind]), keep=0.8)
    assert where(crowded)["a"] == [("t1", 1)]


@FORMS
def test_a_running_gang_over_nodes_stays_whole(exact_up_to: int) -> None:
    seats = seated(RankPlacement("v1", ("gpu0", "gpu1")), RankPlacement("v2", ("gpu0", "gpu1")))
    nodes = [a_node("v1", "V100", 2), a_node("v2", "V100", 2)]
    jobs = [a_gang(gpus=4, running=seats, restart_cost_s=60.0), a_job("b", remaining_steps=99.0)]
    snapshot = a_snapshot(nodes, jobs, [KIND])
    plan = decide(snapshot, utility="shortest_first", exact_up_to=exact_up_to)
    assert where(plan)["a"] == [("v1", 2), ("v2", 2)]


def test_a_job_moves_to_a_faster_type_if_that_saves_more_than_its_restart() -> None:
    running = a_job("a", remaining_steps=1000.0, running=on("t1", "gpu0"), restart_cost_s=5.0)
    snapshot = a_snapshot(two_v100_and_two_t4(), [running], [KIND])
    assert where(decide(snapshot)) == {"a": [("v1", 1)]}
    dear = replace(running, restart_cost_s=900.0)
    stays = a_snapshot(two_v100_and_two_t4(), [dear], [KIND])
    assert where(decide(stays)) == {"a": [("t1", 1)]}


def test_a_draining_node_takes_nothing_new() -> None:
    nodes = [
        a_node("v1", "V100", 1, state=NodeState.DRAINING, drain_until_s=2000.0),
        a_node("t1", "T4", 1),
    ]
    assert where(decide(a_snapshot(nodes, [a_job("a")], [KIND]))) == {"a": [("t1", 1)]}


def test_a_power_cap_limits_the_gangs() -> None:
    snapshot = a_snapshot(two_v100_and_two_t4(), [a_job("a"), a_job("b")], [KIND], power_cap_w=540)
    plan = decide(snapshot)
    assert len(plan.placements) == 1
    assert plan.waiting[0].code is WaitCode.POWER_CAP


def test_the_message_says_which_form_decided() -> None:
    snapshot = a_snapshot(two_v100_and_two_t4(), [a_job("a")], [KIND])
    assert decide(snapshot).message.startswith("exact choice among 9 combinations")
    assert decide(snapshot, exact_up_to=0).message.startswith("greedy choice ")


def test_the_memory_has_the_price_of_the_next_gpu_of_each_type() -> None:
    snapshot = a_snapshot(two_v100_and_two_t4(), [a_job("a")], [KIND])
    prices = decide(snapshot).memory["hadar"]["prices"]
    assert sorted(prices) == ["T4", "V100"]
    assert 0.0 < prices["T4"] < prices["V100"]


def test_the_memory_has_the_price_of_each_node_after_the_round() -> None:
    snapshot = a_snapshot(two_v100_and_two_t4(), [a_job("a")], [KIND])
    plan = decide(snapshot)
    (seat,) = plan.placements[0].ranks
    free = {node.id: len(node.devices) for node in snapshot.nodes}
    free[seat.node] -= len(seat.devices)
    prices = gpu_prices_in(plan.memory)
    assert {node: of.free for of in prices for node in of.nodes} == free
    assert [of.gpu_type for of in prices] == sorted(of.gpu_type for of in prices)
    taken = next(of.price for of in prices if seat.node in of.nodes)
    assert taken == max(of.price for of in prices)


@pytest.mark.parametrize("memory", [{"hadar": {"version": 99}}, {"hadar": 1}, {"policy": "other"}])
def test_the_memory_of_another_version_changes_nothing(memory: dict[str, Any]) -> None:
    snapshot = a_snapshot(two_v100_and_two_t4(), [a_job("a")], [KIND])
    assert decide(replace(snapshot, memory=memory)) == decide(snapshot)


def test_a_type_without_a_known_rate_is_not_used() -> None:
    kind = a_kind("k", {("T4", 1): 0.5})
    snapshot = a_snapshot(two_v100_and_two_t4(), [a_job("a")], [kind])
    assert where(decide(snapshot)) == {"a": [("t1", 1)]}


def test_a_gang_that_no_set_of_nodes_could_hold_is_said_to_be_too_large() -> None:
    snapshot = a_snapshot(two_v100_and_two_t4(), [a_gang(gpus=9, may_mix=True)], [KIND])
    assert decide(snapshot).waiting[0].code is WaitCode.NO_NODE_FITS


def test_priority_doubles_the_worth_of_a_job() -> None:
    urgent = a_job("urgent", remaining_steps=150.0, total_steps=150.0, priority=1)
    usual = a_job("usual", remaining_steps=100.0)
    snapshot = a_snapshot([a_node("v1", "V100", 1)], [usual, urgent], [KIND])
    assert list(where(decide(snapshot, utility="shortest_first"))) == ["urgent"]


@relaxed
@given(snapshot=snapshots(), exact_up_to=st.sampled_from([0, 20_000]), fill=st.booleans())
def test_every_gang_is_whole_and_of_one_type_unless_it_may_mix(
    snapshot: Snapshot, exact_up_to: int, fill: bool
) -> None:
    mixing = [replace(job, may_mix=number % 2 == 0) for number, job in enumerate(snapshot.jobs)]
    snapshot = a_snapshot_with(snapshot, mixing)
    plan = decide(snapshot, exact_up_to=exact_up_to, fill=fill)
    for placed in plan.placements:
        job = snapshot.jobs.by_id(placed.job)
        assert job.gpus_min <= placed.gpus <= job.gpus_max
        types = {snapshot.node_by_id[seat.node].gpu_type for seat in placed.ranks}
        assert job.may_mix or len(types) == 1


def a_snapshot_with(snapshot: Snapshot, jobs: list[JobView]) -> Snapshot:
    return replace(snapshot, jobs=Jobs(JobColumns.of(jobs)))


@relaxed
@given(snapshot=snapshots())
def test_every_job_that_was_outbid_lacks_a_part_of_the_price(snapshot: Snapshot) -> None:
    for entry in decide(snapshot).waiting:
        if entry.code is WaitCode.OUTBID:
            assert entry.price is not None
            assert entry.worth is not None
            assert entry.price > entry.worth
