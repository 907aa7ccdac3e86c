"""Gandiva: pairs tried at random and kept where they beat taking turns; equal turns otherwise."""

import json
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.simulation.world.run import Simulation
from policies.contract import plan_json, snapshot_json
from policies.contract.plan import Plan, WaitCode
from policies.contract.snapshot import JobView, NodeState, NodeView, Snapshot
from policies.contract.validation import validate_plan
from policies.gavel.gandiva import Gandiva
from policies.placement.profiling import merge, reserve_profiling
from tests.builders_colocation import (
    a_pairing_kind,
    a_sharer,
    a_wide_node,
    after,
    half,
    wide_snapshots,
)
from tests.builders_loop import a_scenario
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on

ROUND_S = 300.0
GOOD, BAD = {"k": (0.75, 0.75)}, {"k": (0.4, 0.5)}
many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def decide(snapshot: Snapshot, **parameters: Any) -> Plan:
    plan = Gandiva(**parameters)(snapshot)
    assert validate_plan(plan, snapshot) == ()
    return plan


def seats(plan: Plan) -> dict[str, tuple[str, tuple[str, ...], float]]:
    """(node, devices, share) by job."""
    return {p.job: (p.ranks[0].node, p.ranks[0].devices, p.ranks[0].share) for p in plan.placements}


def together(plan: Plan) -> set[frozenset[str]]:
    """Jobs that share a device."""
    at = defaultdict(set)
    for job, (node, devices, _) in seats(plan).items():
        at[node, devices].add(job)
    return {frozenset(jobs) for jobs in at.values() if len(jobs) > 1}


def slices(snapshot: Snapshot, count: int, **parameters: Any) -> list[Plan]:
    """Plans of as many rounds, a slice after each other."""
    plans = []
    for _ in range(count):
        plans.append(decide(snapshot, **parameters))
        snapshot = after(snapshot, plans[-1], ROUND_S)
    return plans


def a_queue(
    beside: dict[str, tuple[float, float]],
    jobs: int = 2,
    nodes: list[NodeView] | None = None,
    **fields: Any,
) -> Snapshot:
    queue = [a_sharer(f"j{i}", **fields) for i in range(jobs)]
    return a_snapshot(nodes or [a_wide_node()], queue, [a_pairing_kind("k", beside)])


def test_a_pair_that_beats_taking_turns_stays_where_it_is() -> None:
    first, *later = slices(a_queue(GOOD), 4)
    assert seats(first) == {"j0": ("n1", ("gpu0",), 0.5), "j1": ("n1", ("gpu0",), 0.5)}
    assert [plan.placements[0].ranks for plan in later] == [first.placements[0].ranks] * 3
    assert all(together(plan) == {frozenset({"j0", "j1"})} for plan in later)


def test_a_pair_that_does_not_is_parted_after_a_slice_and_never_tried_again() -> None:
    first, *later = slices(a_queue(BAD), 8)
    assert together(first) == {frozenset({"j0", "j1"})}
    assert [together(plan) for plan in later] == [set()] * 7
    assert Counter(p.job for plan in later[:6] for p in plan.placements) == {"j0": 3, "j1": 3}
    assert later[-1].memory["gandiva"]["tried"] == [["j0", "j1"]]


def test_the_parted_pair_is_told_whom_it_waits_for() -> None:
    plan = slices(a_queue(BAD), 2)[1]
    (placed,), (waiting,) = plan.placements, plan.waiting
    assert (waiting.code, waiting.jobs) == (WaitCode.POSTPONED, (placed.job,))


def test_a_pair_is_put_together_without_a_look_at_how_it_gets_on() -> None:
    """Good and bad pairs are drawn alike: whoever comes second in the queue may be its partner."""
    kinds = [a_pairing_kind("k", {"k": (0.9, 0.9), "bad": (0.1, 0.1)}), a_pairing_kind("bad", {})]
    queue = [a_sharer("a"), a_sharer("b"), a_sharer("c", "bad")]
    found = [
        together(decide(a_snapshot([a_wide_node(gpus=2)], queue, kinds, seed=seed)))
        for seed in range(60)
    ]
    assert {pair for of in found for pair in of} == {
        frozenset("ab"),
        frozenset("ac"),
        frozenset("bc"),
    }


def test_nobody_shares_as_long_as_there_are_gpus_for_all() -> None:
    plan = decide(a_queue(GOOD, 2, [a_wide_node(gpus=2)]))
    assert together(plan) == set()
    assert {share for _, _, share in seats(plan).values()} == {1.0}


def test_no_more_pairs_are_made_than_gpus_are_missing() -> None:
    plan = decide(a_queue(GOOD, 5, [a_wide_node(gpus=4)]))
    assert (len(together(plan)), len(plan.placements)) == (1, 5)


@pytest.mark.parametrize(
    ("nodes", "fields", "beside"),
    [
        ([a_node("n1", gpus=1)], {}, GOOD),
        ([a_wide_node()], {"may_share": False}, GOOD),
        ([a_wide_node()], {}, {}),
        ([a_wide_node()], {}, {"k": (0.0, 0.0)}),
        ([a_wide_node(gpus=2)], {"gpus_min": 2, "gpus_max": 2}, GOOD),
    ],
    ids=[
        "no room on the device",
        "jobs that may not",
        "an unknown pair",
        "a pair that does not fit",
        "gangs",
    ],
)
def test_who_cannot_share_takes_turns(
    nodes: list[NodeView], fields: dict[str, Any], beside: dict[str, Any]
) -> None:
    plans = slices(a_queue(beside, 2, nodes, **fields), 6)
    assert all(len(plan.placements) == 1 for plan in plans)
    assert Counter(plan.placements[0].job for plan in plans) == {"j0": 3, "j1": 3}


def test_without_packing_good_pairs_take_turns_too() -> None:
    assert all(len(plan.placements) == 1 for plan in slices(a_queue(GOOD), 4, packing=False))


def test_jobs_of_one_seed_make_the_same_pairs_and_of_others_others() -> None:
    snapshot = a_queue(GOOD, 8, [a_wide_node(gpus=4)])
    of_seed = [together(decide(replace(snapshot, seed=seed))) for seed in (1, 1, 2, 3, 4)]
    assert of_seed[0] == of_seed[1]
    assert len({frozenset(pairs) for pairs in of_seed}) > 1


def test_everybody_has_equal_time_whoever_comes_when() -> None:
    jobs = [a_job(f"j{i}", arrival_s=float(i)) for i in range(5)]
    plans = slices(a_snapshot([a_node("n1", gpus=3)], jobs), 20)
    turns = Counter(p.job for plan in plans for p in plan.placements)
    assert sum(turns.values()) == 60
    assert all(abs(count - 12) <= 1 for count in turns.values())


def test_everybody_has_equal_time_on_every_gpu_type_whatever_its_speed_there() -> None:
    """Gavel's model of Gandiva does not regard speeds: two jobs change places in each slice or so,
    though both always run.
    """
    kinds = [
        a_kind("k", {("V100", 1): 9.0, ("T4", 1): 1.0}),
        a_kind("l", {("V100", 1): 1.0, ("T4", 1): 1.0}),
    ]
    snapshot = a_snapshot(
        [a_node("v", gpus=1), a_node("t", "T4", 1)], [a_job("a", "k"), a_job("b", "l")], kinds
    )
    turns = Counter(
        (p.job, p.ranks[0].node) for plan in slices(snapshot, 20) for p in plan.placements
    )
    assert turns == {("a", "v"): 10, ("a", "t"): 10, ("b", "v"): 10, ("b", "t"): 10}


def test_without_rotation_nobody_moves_while_nobody_waits_and_turns_are_equal_all_the_same() -> (
    None
):
    nodes = [a_node("v", gpus=1), a_node("t", "T4", 2)]
    first, *later = slices(a_snapshot(nodes, [a_job(f"j{i}") for i in range(3)]), 10, rotate=False)
    assert all(seats(plan) == seats(first) for plan in later)
    plans = slices(a_snapshot(nodes, [a_job(f"j{i}") for i in range(5)]), 20, rotate=False)
    turns = Counter(p.job for plan in plans for p in plan.placements)
    assert sum(turns.values()) == 60
    assert all(abs(count - 12) <= 1 for count in turns.values())


def test_the_shares_of_the_plan_are_equal_parts_of_every_type() -> None:
    snapshot = a_snapshot(
        [a_node("v", gpus=1), a_node("t", "T4", 2)], [a_job(f"j{i}") for i in range(6)]
    )
    assert decide(snapshot).shares["j3"] == {
        "T4": pytest.approx(2 / 6),
        "V100": pytest.approx(1 / 6),
    }


def test_a_job_that_runs_on_one_type_alone_has_its_time_there() -> None:
    kinds = [a_kind("k", {("V100", 1): 1.0}), a_kind("l", {("V100", 1): 1.0, ("T4", 1): 1.0})]
    snapshot = a_snapshot(
        [a_node("v", gpus=1), a_node("t", "T4", 1)], [a_job("a", "k"), a_job("b", "l")], kinds
    )
    turns = Counter(
        (p.job, p.ranks[0].node) for plan in slices(snapshot, 20) for p in plan.placements
    )
    assert turns["a", "v"] >= 9
    assert turns["b", "t"] + turns["b", "v"] == 20


def test_nobody_is_stopped_before_a_slice_ends_and_idle_gpus_are_filled() -> None:
    snapshot = a_snapshot([a_node("n1", gpus=2)], [a_job("a")])
    first = decide(snapshot)
    second = after(snapshot, first, 100.0, more=[a_job("b"), a_job("c", arrival_s=1.0)])
    plan = decide(second)
    assert seats(plan) == {
        **seats(first),
        "b": (
            "n1",
            ("gpu1",) if first.placements[0].ranks[0].devices == ("gpu0",) else ("gpu0",),
            1.0,
        ),
    }
    third = decide(after(second, plan, 200.0))
    assert {p.job for p in third.placements} > {"c"}


def test_a_gang_has_its_turn_among_jobs_of_one_gpu() -> None:
    jobs = [a_job("gang", gpus_min=2, gpus_max=2), *(a_job(f"j{i}") for i in range(4))]
    plans = slices(a_snapshot([a_node("n1", gpus=2), a_node("n2", gpus=2)], jobs), 15)
    turns = Counter(p.job for plan in plans for p in plan.placements)
    assert turns["gang"] >= 5
    assert min(turns[f"j{i}"] for i in range(4)) >= 9


def test_who_is_left_on_half_a_device_stays_and_is_joined_without_a_restart() -> None:
    snapshot = a_queue(GOOD, 3)
    plans = [decide(snapshot)]
    ((left, ended),) = (sorted(pair) for pair in together(plans[0]))
    second = after(snapshot, plans[0], 100.0, without=[ended])
    plans.append(decide(second))
    assert seats(plans[1])[left] == ("n1", ("gpu0",), 0.5)
    third = decide(after(second, plans[1], 200.0))
    assert third.placements[0].ranks == third.placements[1].ranks == plans[1].placements[0].ranks
    assert {p.job for p in third.placements} == {"j0", "j1", "j2"} - {ended}


def test_a_pair_parts_when_there_is_a_gpu_for_each_again() -> None:
    snapshot = a_queue(GOOD, 3, [a_wide_node(gpus=2)])
    first = decide(snapshot)
    (pair,) = together(first)
    alone = {"j0", "j1", "j2"} - pair
    plan = decide(after(snapshot, first, ROUND_S, without=list(alone)))
    assert {devices for _, devices, _ in seats(plan).values()} == {("gpu0",), ("gpu1",)}
    assert together(plan) == set()


def test_what_runs_side_by_side_is_predicted_to_take_as_long_as_that_takes() -> None:
    plan = decide(a_queue({"k": (0.75, 0.5)}, remaining_steps=300.0))
    assert [p.predicted_run_s for p in plan.placements] == [
        480.0,
        480.0,
    ], "two of one kind are equally fast: 0.625 each"
    assert all((p.predicted_energy_cost or 0.0) > 0.0 for p in plan.placements)


@pytest.mark.parametrize(
    ("state", "until_s"), [(NodeState.CORDONED, None), (NodeState.DRAINING, 1200.0)]
)
def test_a_pair_stays_on_a_node_that_takes_nothing_new(
    state: NodeState, until_s: float | None
) -> None:
    node = a_wide_node("n1", state=state, drain_until_s=until_s)
    jobs = [a_sharer(f"j{i}", running=half("n1", "gpu0")) for i in range(2)]
    plan = decide(
        a_snapshot([node, a_wide_node("n2")], [*jobs, a_sharer("new")], [a_pairing_kind()])
    )
    assert seats(plan) == {
        "j0": ("n1", ("gpu0",), 0.5),
        "j1": ("n1", ("gpu0",), 0.5),
        "new": ("n2", ("gpu0",), 1.0),
    }
    assert {p.until_s for p in plan.placements if p.job != "new"} == {until_s}


def test_another_policys_pair_with_other_parts_is_joined_by_what_is_left() -> None:
    running = half("n1", "gpu0")
    running = (replace(running[0], ranks=(replace(running[0].ranks[0], share=0.25),)),)
    jobs = [a_sharer("a", running=running), a_sharer("b")]
    assert {
        job: share
        for job, (_, _, share) in seats(
            decide(a_snapshot([a_wide_node()], jobs, [a_pairing_kind()]))
        ).items()
    } == {
        "a": 0.25,
        "b": 0.75,
    }


def test_a_pair_does_not_sit_down_where_nothing_is_known_of_it() -> None:
    """Half a T4 is held, but of the pair no more is known than how it gets on on a V100."""
    kind = a_pairing_kind()
    kind = replace(kind, pairs=tuple(pair for pair in kind.pairs if pair.gpu_type == "V100"))
    jobs = [a_sharer("a", running=half("t", "gpu0")), a_sharer("b"), a_sharer("c")]
    memory = {
        "gandiva": {
            "began_s": 700.0,
            "seen_s": 1000.0,
            "pairs": [["a", "b"]],
            "tried": [],
            "lag_s": {},
        }
    }
    snapshot = a_snapshot([a_wide_node("t", "T4"), a_wide_node("v")], jobs, [kind], memory=memory)
    at_the_end, before = decide(snapshot), decide(replace(snapshot, now_s=900.0))
    assert seats(at_the_end)["a"] == seats(at_the_end)["b"] == ("v", ("gpu0",), 0.5)
    assert seats(before)["a"] == ("t", ("gpu0",), 0.5)
    assert before.memory["gandiva"]["pairs"] == [["a", "b"]]


def test_another_policys_memory_is_not_read() -> None:
    snapshot = replace(a_queue(GOOD), memory={"policy": "another", "pairs": 7})
    assert seats(decide(snapshot)) == seats(decide(a_queue(GOOD)))


def test_a_pair_that_can_sit_nowhere_any_more_is_none() -> None:
    snapshot = after(a_queue(GOOD), decide(a_queue(GOOD)), 20.0)
    unknown = a_snapshot(
        snapshot.nodes,
        [a_sharer("j0"), a_sharer("j1")],
        [a_pairing_kind("k", {})],
        memory=snapshot.memory,
    )
    bare = replace(unknown, nodes=(a_wide_node(),))
    assert len(decide(bare).placements) == 1
    assert decide(bare).memory["gandiva"]["pairs"] == []


def test_jobs_that_are_gone_are_forgotten() -> None:
    snapshot = a_queue(BAD, 3)
    for _ in range(6):
        plan = decide(snapshot)
        snapshot = after(snapshot, plan, ROUND_S)
    assert len(plan.memory["gandiva"]["tried"]) == 3
    kept = decide(after(snapshot, decide(snapshot), ROUND_S, without=["j1"])).memory["gandiva"]
    assert kept["tried"] == [["j0", "j2"]]
    assert kept["lag_s"].keys() == {"j0", "j2"}


@many
@given(snapshot=wide_snapshots(), packing=st.booleans(), rotate=st.booleans())
def test_no_rule_is_broken_round_after_round_and_memory_is_plain_data(
    snapshot: Snapshot, packing: bool, rotate: bool
) -> None:
    reserved, runs = reserve_profiling(snapshot)
    policy = Gandiva(packing=packing, rotate=rotate)
    for seconds in (ROUND_S, 20.0, ROUND_S, ROUND_S):
        plan = merge(policy(reserved), runs)
        assert validate_plan(plan, reserved) == ()
        again = policy(snapshot_json.from_json(snapshot_json.to_json(reserved)))
        assert plan_json.digest(merge(again, runs)) == plan_json.digest(plan)
        assert json.loads(json.dumps(plan.memory)) == plan.memory
        reserved, runs = after(reserved, plan, seconds), ()


@many
@given(snapshot=wide_snapshots())
def test_nobody_shares_who_may_not_or_with_whom_nothing_is_known(snapshot: Snapshot) -> None:
    reserved, _ = reserve_profiling(snapshot)
    rows = {j.id: j for j in reserved.jobs}
    for pair in together(Gandiva()(reserved)):
        one, other = (rows[name] for name in sorted(pair))
        assert one.may_share
        assert other.may_share


def a_simulated_queue() -> list[JobView]:
    jobs = [
        a_sharer(
            f"j{i}", arrival_s=40.0 * i, remaining_steps=200.0 + 90 * i, total_steps=200.0 + 90 * i
        )
        for i in range(7)
    ]
    return [
        *jobs,
        a_job(
            "gang", arrival_s=10.0, remaining_steps=300.0, total_steps=300.0, gpus_min=2, gpus_max=2
        ),
    ]


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("pauses", [{}, {"launch_s": 5.0, "stop_s": 3.0, "restart_cost_s": 10.0}])
def test_every_job_of_a_simulated_queue_ends(packing: bool, pauses: dict[str, float]) -> None:
    nodes = (a_wide_node("v", gpus=2), a_wide_node("t", "T4", 1))
    scenario = a_scenario(nodes=nodes, kinds=(a_pairing_kind(),), round_s=60.0, **pauses)
    done = (
        Simulation(scenario, a_simulated_queue(), Gandiva(packing=packing))
        .run()
        .state.jobs.values()
    )
    assert all(job.completed_s is not None for job in done)


def test_turns_of_a_simulated_queue_are_slices_long() -> None:
    """But for the last of a job and those that began when a GPU came free, nobody runs for less
    than a slice.
    """
    scenario = a_scenario(nodes=(a_node("v", gpus=1),), kinds=(a_pairing_kind(),), round_s=60.0)
    jobs = [a_job(f"j{i}", remaining_steps=200.0, total_steps=200.0) for i in range(3)]
    done = Simulation(scenario, jobs, Gandiva()).run().state.jobs.values()
    assert all(len(job.launches) == 4 for job in done)
    assert {round(launch.end_s - launch.start_s) for job in done for launch in job.launches} == {
        60,
        20,
    }


def test_a_started_job_of_a_snapshot_without_memory_takes_part_in_the_first_slice() -> None:
    jobs = [a_job("runs", running=on("n1", "gpu0")), a_job("waits")]
    assert len(decide(a_snapshot([a_node("n1", gpus=1)], jobs)).placements) == 1
