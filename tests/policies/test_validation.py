"""The judge finds what breaks a rule, says where, and lets the rest pass."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from policies.contract.labels import apart_label
from policies.contract.plan import Expected, Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import (
    JobPhase,
    NodeRole,
    NodeState,
    PowerCapStep,
    Purpose,
    RankPlacement,
    SlotHold,
    Snapshot,
)
from policies.contract.validation import validate_plan
from tests.builders_policies import (
    a_batch_job,
    a_cpu_node,
    a_device,
    a_job,
    a_node,
    a_profile_request,
    a_profile_run,
    a_snapshot,
    on,
    seated,
)


def codes(
    snapshot: Snapshot,
    *placements: Placement,
    waiting: tuple[Waiting, ...] | None = None,
    **fields: Any,
) -> list[str]:
    """What is wrong with these placements; jobs not named anywhere wait, unless `waiting` is
    given.
    """
    if waiting is None:
        placed = {p.job for p in placements}
        rest = (j for j in snapshot.jobs if j.id not in placed)
        waiting = tuple(Waiting(j.id, _code(j.phase)) for j in rest)
    plan = Plan("test", PlanStatus.HEURISTIC, placements, waiting, **fields)
    return [v.code for v in validate_plan(plan, snapshot)]


def _code(phase: JobPhase) -> WaitCode:
    return WaitCode.AWAITING_PROFILE if phase is JobPhase.PROFILING else WaitCode.NO_CAPACITY


def put(job: str, node: str, *devices: str, share: float = 1.0, **fields: Any) -> Placement:
    return Placement(**{"job": job, "ranks": (RankPlacement(node, devices, share),), **fields})


def test_a_plan_that_keeps_to_the_rules_passes() -> None:
    snapshot = a_snapshot(jobs=[a_job("a"), a_job("b")])
    assert codes(snapshot, put("a", "n1", "gpu0")) == []


def test_what_the_snapshot_does_not_know_cannot_be_placed() -> None:
    snapshot = a_snapshot(jobs=[a_job("a"), a_job("b"), a_job("c")])
    placements = (put("ghost", "n1", "gpu0"), put("a", "nowhere", "gpu0"), put("b", "n1", "gpu9"))
    assert codes(snapshot, *placements) == ["unknown_job", "unknown_node", "unknown_device"]


def test_a_device_serves_as_many_placements_as_it_has_slots_and_no_more_than_itself() -> None:
    nodes = [a_node("n1", devices=(a_device("gpu0", slots=2), a_device("gpu1")))]
    jobs = [a_job(j, may_share=True) for j in "abc"]
    snapshot = a_snapshot(nodes, jobs)
    halves = [put(j, "n1", "gpu0", share=0.5) for j in "ab"]
    assert codes(snapshot, *halves) == []
    assert codes(snapshot, *halves, put("c", "n1", "gpu0", share=0.1)) == [
        "device_slots",
        "device_share",
    ]
    assert codes(
        snapshot, put("a", "n1", "gpu1", share=0.5), put("b", "n1", "gpu1", share=0.5)
    ) == ["device_slots"]


def test_a_job_shares_a_device_only_if_it_may() -> None:
    snapshot = a_snapshot(
        [a_node("n1", devices=(a_device(slots=2),))], [a_job("a", may_share=True), a_job("b")]
    )
    assert codes(snapshot, *(put(j, "n1", "gpu0", share=0.5) for j in "ab")) == ["may_not_share"]


def test_broken_devices_and_devices_of_strangers_are_refused() -> None:
    devices = (a_device("gpu0", healthy=False), a_device("gpu1", held=(SlotHold("ghost"),)))
    snapshot = a_snapshot([a_node("n1", devices=devices)], [a_job("a"), a_job("b")])
    assert codes(snapshot, put("a", "n1", "gpu0"), put("b", "n1", "gpu1")) == [
        "device_unhealthy",
        "device_taken",
    ]


@pytest.mark.parametrize(
    ("gpus", "wrong"), [(1, ["gang_size"]), (2, []), (3, []), (4, ["gang_size"])]
)
def test_a_gang_gets_its_gpus_whole_over_all_ranks(gpus: int, wrong: list[str]) -> None:
    snapshot = a_snapshot([a_node("n1", gpus=4)], [a_job("a", gpus_min=2, gpus_max=3)])
    ranks = tuple(RankPlacement("n1", (f"gpu{i}",)) for i in range(gpus))
    assert codes(snapshot, Placement("a", ranks)) == wrong


def test_a_rank_without_device_is_no_placement() -> None:
    snapshot = a_snapshot(jobs=[a_job("a")])
    assert codes(snapshot, put("a", "n1")) == ["empty_placement", "gang_size"]


def test_types_must_be_allowed_and_mix_only_where_the_job_may() -> None:
    jobs = [
        a_job("a", allowed_types=("V100",)),
        a_job("b", gpus_max=2),
        a_job("c", gpus_max=2, may_mix=True),
    ]
    snapshot = a_snapshot([a_node("n1", "V100", 2), a_node("n2", "T4", 3)], jobs)
    both = (RankPlacement("n1", ("gpu0",)), RankPlacement("n2", ("gpu1",)))
    assert codes(snapshot, put("a", "n2", "gpu0")) == ["type_not_allowed"]
    assert codes(snapshot, Placement("b", both)) == ["may_not_mix"]
    assert codes(snapshot, Placement("c", both)) == []


def test_a_node_without_the_data_a_job_needs_is_refused() -> None:
    snapshot = a_snapshot(
        [a_node("n1", labels=("imagenet",)), a_node("n2")], [a_job("a", labels=("imagenet",))]
    )
    assert codes(snapshot, put("a", "n1", "gpu0")) == []
    assert codes(snapshot, put("a", "n2", "gpu0")) == ["labels_missing"]


def test_cores_memory_and_named_resources_of_a_node_are_finite() -> None:
    nodes = [a_node("n1", gpus=2, cores=4.0, memory_gb=8.0, resources=(("fpga", 1.0),))]
    jobs = [a_job(j, cores=2.5, memory_gb=5.0, resources=(("fpga", 1.0),)) for j in "ab"]
    snapshot = a_snapshot(nodes, jobs)
    both = [put("a", "n1", "gpu0"), put("b", "n1", "gpu1")]
    assert codes(snapshot, both[0]) == []
    assert sorted(codes(snapshot, *both)) == ["node_cores", "node_memory", "node_resource"]


def test_a_cpu_quota_replaces_the_cores() -> None:
    snapshot = a_snapshot([a_node("n1", cores=4.0)], [a_job("a", cores=4.5)])
    assert codes(snapshot, put("a", "n1", "gpu0")) == ["node_cores"]
    assert codes(snapshot, Placement("a", (RankPlacement("n1", ("gpu0",), cpu_quota=4.0),))) == []


@pytest.mark.parametrize(
    ("seats", "asks", "found"),
    [
        ({"c1": 2, "c2": 1}, {}, []),
        ({"c1": 1, "c2": 2}, {}, ["node_cores"]),
        ({"c1": 2}, {}, ["units"]),
        ({"c1": 2, "c2": 1}, {"units_per_node": 1}, ["units"]),
        ({"c1": 2, "c2": 1}, {"nodes": 1}, ["units"]),
        ({"c1": 2, "c2": 1}, {"exclusive": True}, []),
    ],
)
def test_each_unit_of_a_batch_job_has_what_it_needs_on_one_node(
    seats: dict[str, int], asks: dict[str, Any], found: list[str]
) -> None:
    nodes = [a_cpu_node("c1", cores=16.0), a_cpu_node("c2", cores=8.0)]
    snapshot = a_snapshot(nodes, [a_batch_job("b", units=3, cores=8.0, **asks)])
    ranks = tuple(RankPlacement(node, (), units=units) for node, units in seats.items())
    assert codes(snapshot, Placement("b", ranks)) == found


def test_units_with_gpus_have_their_own_ones_beside_them() -> None:
    snapshot = a_snapshot([a_node("n1"), a_node("n2")], [a_batch_job("b", 2, 1, cores=0.0)])
    both = RankPlacement("n1", ("gpu0", "gpu1"))
    assert codes(snapshot, Placement("b", (replace(both, units=2),))) == []
    lopsided = (both, RankPlacement("n2", ("gpu0",)))
    assert "units" in codes(snapshot, Placement("b", lopsided))


def test_an_exclusive_job_with_company_is_refused() -> None:
    snapshot = a_snapshot([a_cpu_node("c1")], [a_batch_job("a", exclusive=True), a_batch_job("b")])
    seats = (RankPlacement("c1", ()),)
    assert codes(snapshot, Placement("a", seats), Placement("b", seats)) == ["exclusive"]


@pytest.mark.parametrize(
    ("state", "preemptible", "found"),
    [
        (NodeState.READY, False, ["may_not_stop"]),
        (NodeState.READY, True, []),
        (NodeState.LOST, False, []),
        (NodeState.DRAINING, False, []),
    ],
)
def test_a_job_that_is_not_preemptible_is_not_stopped(
    state: NodeState, preemptible: bool, found: list[str]
) -> None:
    job = a_batch_job("b", preemptible=preemptible, running=on("c1"))
    snapshot = a_snapshot([a_cpu_node("c1", state=state)], [job])
    plan = Plan("p", PlanStatus.HEURISTIC, waiting=(Waiting("b", WaitCode.POSTPONED),))
    assert [v.code for v in validate_plan(plan, snapshot)] == found


def test_a_node_that_works_without_a_gpu_in_use_counts_under_the_cap() -> None:
    nodes = [a_cpu_node("c1"), a_cpu_node("c2")]
    snapshot = a_snapshot(nodes, [a_batch_job("a"), a_batch_job("b")], power_cap_w=150.0)
    one, other = (Placement(j, (RankPlacement(n, ()),)) for j, n in (("a", "c1"), ("b", "c2")))
    assert codes(snapshot, one) == []
    assert codes(snapshot, one, other) == ["power_cap"]


def test_the_power_cap_counts_each_open_node_once_and_closed_ones_not_at_all() -> None:
    snapshot = a_snapshot([a_node("n1"), a_node("n2")], [a_job("a"), a_job("b")], power_cap_w=700.0)
    assert codes(snapshot, put("a", "n1", "gpu0"), put("b", "n1", "gpu1")) == []
    assert codes(snapshot, put("a", "n1", "gpu0"), put("b", "n2", "gpu0")) == ["power_cap"]


@pytest.mark.parametrize(
    ("since_s", "until_s", "cap_w", "said"),
    [
        (0.0, 1100.0, 600.0, "the cluster may use 600 W: leave some waiting"),
        (1100.0, 1150.0, 600.0, "the cluster may use 600 W from 1100 on, before the next round"),
        (1300.0, 9000.0, 600.0, "from 1300 on, before the next round"),
        (1301.0, 9000.0, 600.0, None),
        (0.0, 1000.0, 600.0, None),
        (1100.0, 9000.0, 700.0, None),
    ],
)
def test_a_cap_by_hour_holds_now_and_until_the_next_round(
    since_s: float, until_s: float, cap_w: float, said: str | None
) -> None:
    caps = (PowerCapStep(since_s, until_s, cap_w),)
    snapshot = a_snapshot(
        [a_node("n1")], [a_job("a"), a_job("b")], power_cap_w=5000.0, power_caps=caps
    )
    plan = Plan("test", PlanStatus.HEURISTIC, (put("a", "n1", "gpu0"), put("b", "n1", "gpu1")))
    found = validate_plan(plan, snapshot)
    assert [v.code for v in found] == ([] if said is None else ["power_cap"])
    assert said is None or said in found[0].detail


def test_what_ends_before_a_lower_cap_begins_does_not_count_under_it() -> None:
    snapshot = a_snapshot(
        [a_node("n1")], [a_job("a"), a_job("b")], power_caps=(PowerCapStep(1100.0, 9000.0, 600.0),)
    )
    assert codes(snapshot, put("a", "n1", "gpu0"), put("b", "n1", "gpu1", until_s=1100.0)) == []
    assert codes(snapshot, put("a", "n1", "gpu0"), put("b", "n1", "gpu1", until_s=1101.0)) == [
        "power_cap"
    ]


def test_each_cap_that_is_broken_is_named() -> None:
    caps = (PowerCapStep(0.0, 1100.0, 650.0), PowerCapStep(1100.0, 9000.0, 600.0))
    snapshot = a_snapshot([a_node("n1")], [a_job("a"), a_job("b")], power_caps=caps)
    assert codes(snapshot, put("a", "n1", "gpu0"), put("b", "n1", "gpu1")) == [
        "power_cap",
        "power_cap",
    ]


def test_one_placement_for_each_job_purpose_and_copy() -> None:
    snapshot = a_snapshot([a_node("n1", gpus=3)], [a_job("a")])
    assert codes(snapshot, put("a", "n1", "gpu0"), put("a", "n1", "gpu1", copy=1)) == []
    assert codes(snapshot, put("a", "n1", "gpu0"), put("a", "n1", "gpu1")) == [
        "duplicate_placement"
    ]


def test_a_job_may_stay_where_it_runs_on_a_cordoned_node_and_only_there() -> None:
    nodes = [a_node("n1", gpus=2, state=NodeState.CORDONED)]
    snapshot = a_snapshot(nodes, [a_job("a", running=on("n1", "gpu0"))])
    assert codes(snapshot, put("a", "n1", "gpu0")) == []
    assert codes(snapshot, put("a", "n1", "gpu1")) == ["node_state"]


@pytest.mark.parametrize(
    ("until_s", "drained_s", "wrong"),
    [(None, 1100.0, []), (1200.0, 1100.0, ["node_state"]), (None, 1000.0, ["node_state"])],
)
def test_a_job_may_stay_on_a_draining_node_until_the_drain(
    until_s: float | None, drained_s: float, wrong: list[str]
) -> None:
    nodes = [a_node("n1", state=NodeState.DRAINING, drain_until_s=drained_s)]
    snapshot = a_snapshot(nodes, [a_job("a", running=on("n1", "gpu0"))])
    assert codes(snapshot, put("a", "n1", "gpu0", until_s=until_s)) == wrong


def test_nothing_runs_on_a_lost_node() -> None:
    snapshot = a_snapshot(
        [a_node("n1", state=NodeState.LOST)], [a_job("a", running=on("n1", "gpu0"))]
    )
    assert codes(snapshot, put("a", "n1", "gpu0")) == ["node_state"]


def test_roles_keep_training_and_profiling_apart() -> None:
    nodes = [
        a_node("n1", role=NodeRole.PROFILING),
        a_node("n2", role=NodeRole.PRODUCTION),
        a_node("n3", role=NodeRole.BOTH),
    ]
    snapshot = a_snapshot(nodes, [a_job("a"), a_job("b", phase=JobPhase.PROFILING)])
    profile: dict[str, Any] = {"purpose": Purpose.PROFILING, "steps_quota": 5}
    assert codes(snapshot, put("a", "n1", "gpu0")) == ["node_role"]
    assert codes(snapshot, put("a", "n3", "gpu0"), put("b", "n2", "gpu0", **profile)) == [
        "node_role"
    ]
    assert codes(snapshot, put("a", "n3", "gpu0"), put("b", "n1", "gpu0", **profile)) == []


def test_a_job_is_not_measured_beside_its_real_run() -> None:
    snapshot = a_snapshot([a_node("n1", role=NodeRole.BOTH, gpus=2)], [a_job("a")])
    run = put("a", "n1", "gpu1", purpose=Purpose.PROFILING, steps_quota=5)
    assert codes(snapshot, put("a", "n1", "gpu0"), run) == ["profiled_and_placed"]


def test_a_training_job_may_stay_on_a_node_that_turned_to_profiling() -> None:
    snapshot = a_snapshot(
        [a_node("n1", role=NodeRole.PROFILING)], [a_job("a", running=on("n1", "gpu0"))]
    )
    assert codes(snapshot, put("a", "n1", "gpu0")) == []


def test_a_profile_run_has_the_size_that_was_asked_for() -> None:
    nodes = [a_node("n1", role=NodeRole.PROFILING)]
    snapshot = a_snapshot(
        nodes, [a_job("k1", phase=JobPhase.PROFILING)], profiling=(a_profile_request("k1", gpus=2),)
    )
    profile: dict[str, Any] = {"purpose": Purpose.PROFILING, "steps_quota": 20}
    assert codes(snapshot, put("k1", "n1", "gpu0", **profile)) == ["profile_mismatch"]
    assert codes(snapshot, put("k1", "n1", "gpu0", "gpu1", **profile)) == []


def test_a_job_in_profiling_is_not_trained_and_waits_for_its_profile() -> None:
    snapshot = a_snapshot(jobs=[a_job("a", phase=JobPhase.PROFILING)])
    assert codes(snapshot, put("a", "n1", "gpu0")) == ["awaiting_profile"]
    assert codes(snapshot, waiting=(Waiting("a", WaitCode.NO_CAPACITY),)) == ["awaiting_profile"]
    assert codes(snapshot, waiting=(Waiting("a", WaitCode.AWAITING_PROFILE),)) == []


def test_profile_runs_under_way_must_be_in_the_plan_to_count() -> None:
    snapshot = a_snapshot(
        [a_node("n1", role=NodeRole.BOTH)],
        [a_job("a", running=(a_profile_run("n1", "gpu0"),), phase=JobPhase.PROFILING), a_job("b")],
    )
    profile = put("a", "n1", "gpu0", purpose=Purpose.PROFILING, steps_quota=20)
    assert codes(snapshot, profile, put("b", "n1", "gpu0")) == [
        "device_slots",
        "device_share",
        "may_not_share",
        "may_not_share",
    ]


def test_every_job_is_placed_or_waits_exactly_once() -> None:
    snapshot = a_snapshot(jobs=[a_job("a"), a_job("b")])
    one = Waiting("b", WaitCode.NO_CAPACITY)
    assert codes(snapshot, put("a", "n1", "gpu0"), waiting=()) == ["job_missing"]
    assert set(codes(snapshot, put("a", "n1", "gpu0"), waiting=(one, one))) == {"waiting_twice"}
    assert codes(snapshot, put("a", "n1", "gpu0"), put("b", "n1", "gpu1"), waiting=(one,)) == [
        "placed_and_waiting"
    ]
    assert codes(
        snapshot, put("a", "n1", "gpu0"), waiting=(one, Waiting("ghost", WaitCode.NO_CAPACITY))
    ) == ["unknown_job"]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"predicted_run_s": inf}, "not_finite"),
        ({"predicted_energy_cost": nan}, "not_finite"),
        ({"until_s": 999.0}, "out_of_range"),
        ({"until_s": 1e12}, "out_of_range"),
        ({"predicted_run_s": 1e18}, "out_of_range"),
        ({"predicted_run_s": -1.0}, "out_of_range"),
        ({"predicted_energy_cost": 1e8}, "out_of_range"),
        ({"steps_quota": 0}, "out_of_range"),
        ({"ranks": (RankPlacement("n1", ("gpu0",), share=0.0),)}, "out_of_range"),
        ({"ranks": (RankPlacement("n1", ("gpu0",), cpu_quota=0.0),)}, "out_of_range"),
    ],
)
def test_numbers_of_a_placement_make_sense(fields: dict[str, Any], wrong: str) -> None:
    assert codes(a_snapshot(jobs=[a_job("a")]), put("a", "n1", "gpu0", **fields)) == [wrong]


def test_numbers_of_a_plan_are_finite() -> None:
    snapshot = a_snapshot(jobs=[a_job("a")])
    waiting = (Waiting("a", WaitCode.POWER_CAP, watts=inf, expected=Expected(nan)),)
    assert (
        codes(snapshot, waiting=waiting, objective=nan, shares={"a": {"V100": inf}})
        == ["not_finite"] * 4
    )


def test_a_violation_names_job_node_values_and_remedy() -> None:
    snapshot = a_snapshot([a_node("n1", gpus=4)], [a_job("a", gpus_min=2, gpus_max=3)])
    (found,) = validate_plan(
        Plan("test", PlanStatus.HEURISTIC, (put("a", "n1", "gpu0"),)), snapshot
    )
    assert (found.job, str(found)) == (
        "a",
        "gang_size: job a needs 2 to 3 GPUs over all its ranks, not 1",
    )


def test_what_a_node_cannot_do_is_told_in_words() -> None:
    snapshot = a_snapshot(
        [a_node("n1", labels=("runtime:process",))], [a_job("a", labels=("runtime:docker",))]
    )
    plan = Plan("test", PlanStatus.HEURISTIC, (put("a", "n1", "gpu0"),))
    (found,) = validate_plan(plan, snapshot)
    assert (found.code, found.detail) == (
        "labels_missing",
        "node n1 lacks the runtime docker, which job a needs",
    )


@pytest.mark.parametrize(
    ("seat", "quota"),
    [
        (RankPlacement("n1", ("gpu0",)), 9),
        (RankPlacement("n1", ("gpu0",)), None),
        (RankPlacement("n1", ("gpu0",), cpu_quota=0.5), 7),
        (RankPlacement("n1", ("gpu0",), units=2), 7),
    ],
)
def test_a_placement_that_stays_changes_nothing_but_its_end(
    seat: RankPlacement, quota: int | None
) -> None:
    snapshot = a_snapshot(jobs=[a_job("a", running=on("n1", "gpu0", steps_quota=7))])
    kept = Placement("a", (RankPlacement("n1", ("gpu0",)),), steps_quota=7, until_s=9000.0)
    assert codes(snapshot, kept) == []
    assert codes(snapshot, Placement("a", (seat,), steps_quota=quota)) == ["not_carried_out"]


def test_the_cores_of_a_running_job_may_change_where_the_node_can_do_that() -> None:
    running = on("n1", "gpu0")
    halved = Placement("a", (RankPlacement("n1", ("gpu0",), cpu_quota=0.5),))
    job = a_job("a", running=running, cores=2.0)
    able = a_node("n1", changes_quotas=True)
    assert codes(a_snapshot([able], [job]), halved) == []
    assert codes(a_snapshot([a_node("n1")], [job]), halved) == ["not_carried_out"]
    without_cores = a_job("a", running=running)
    assert codes(a_snapshot([able], [without_cores]), halved) == ["not_carried_out"]


def test_a_placement_that_moves_may_have_another_quota() -> None:
    nodes = [a_node("n1"), a_node("n2")]
    snapshot = a_snapshot(nodes, [a_job("a", running=on("n1", "gpu0", steps_quota=7))])
    moved = Placement("a", (RankPlacement("n2", ("gpu0",), cpu_quota=0.5),), steps_quota=9)
    assert codes(snapshot, moved) == []


def test_the_order_of_seats_and_devices_changes_nothing() -> None:
    one, two = RankPlacement("n1", ("gpu0", "gpu1")), RankPlacement("n2", ("gpu0",), units=2)
    run = seated(one, two)
    job = a_job("a", gpus_min=3, gpus_max=3, running=run)
    snapshot = a_snapshot([a_node("n1", gpus=2), a_node("n2")], [job])
    swapped = (two, RankPlacement("n1", ("gpu1", "gpu0")))
    assert codes(snapshot, Placement("a", swapped)) == []


def test_an_avoided_node_breaks_no_rule() -> None:
    snapshot = a_snapshot(jobs=[a_job("a", labels=(apart_label("n1"),))])
    assert codes(snapshot, put("a", "n1", "gpu0")) == []


def test_a_gang_on_an_unknown_node_is_judged_like_any_other() -> None:
    snapshot = a_snapshot(jobs=[a_job("a", gpus_min=2, gpus_max=2)])
    ranks = (RankPlacement("n1", ("gpu0",)), RankPlacement("nowhere", ("gpu0",)))
    assert codes(snapshot, Placement("a", ranks)) == ["unknown_node"]


def test_a_batch_job_has_one_seat_on_a_node() -> None:
    snapshot = a_snapshot([a_cpu_node("c1", cores=16.0)], [a_batch_job("b", units=3)])
    seat = RankPlacement("c1", ())
    assert codes(snapshot, Placement("b", (replace(seat, units=3),))) == []
    assert codes(snapshot, Placement("b", (seat, replace(seat, units=2)))) == ["units"]


def test_no_job_holds_more_than_a_whole_device() -> None:
    found = codes(a_snapshot(jobs=[a_job("a")]), put("a", "n1", "gpu0", share=1.5))
    assert found == ["out_of_range", "device_share"]


@pytest.mark.parametrize("nodes", [[a_node("n1", devices=(a_device("gpu0", healthy=False),))], []])
def test_a_job_that_cannot_go_on_may_be_stopped(nodes: list[Any]) -> None:
    job = a_job("a", preemptible=False, running=on("n1", "gpu0"))
    snapshot = a_snapshot([*nodes, a_node("n2")], [job])
    assert codes(snapshot) == []
