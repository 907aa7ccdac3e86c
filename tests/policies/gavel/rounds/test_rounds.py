"""Gavel's rounds: from shares and time received to turns, and from turns to seats."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.contract.plan import Plan, WaitCode
from policies.contract.policy import PolicyError, SolverFailedError
from policies.contract.snapshot import KindView, NodeState, Snapshot, Source, Throughput
from policies.contract.validation import validate_plan
from policies.gavel.allocation.observe import GroupingOptions, Observed
from policies.gavel.allocation.problem import Shares
from policies.gavel.max_min_fairness import MaxMinFairness
from policies.gavel.rounds.share_round import ShareRule, plan_of
from policies.gavel.rounds.slices import PATIENCE, Credits, received_s
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on
from tests.builders_rounds import GivenShares, after, placed

ROUND_S = 300.0
ON_ONE = {
    ("V100", 1): 4.0,
    ("V100", 2): 7.0,
    ("V100", 4): 12.0,
    ("T4", 1): 1.0,
    ("T4", 2): 1.8,
    ("T4", 4): 3.0,
}
many = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def kinds(*names: str, **fields: Any) -> list[KindView]:
    return [a_kind(name, ON_ONE, **fields) for name in names]


def run_rounds(
    policy: Any, snapshot: Snapshot, rounds: int, elapsed_s: float = ROUND_S
) -> list[Plan]:
    """Plans of so many rounds, each carried out at once; none breaks a rule."""
    plans = []
    for _ in range(rounds):
        plans.append(policy(snapshot))
        assert validate_plan(plans[-1], snapshot) == ()
        snapshot = after(snapshot, plans[-1], elapsed_s)
    return plans


def parts(plans: list[Plan], snapshot: Snapshot) -> dict[tuple[str, str], float]:
    """By job and GPU type, in which part of the rounds it ran there, in devices of its own."""
    found: dict[tuple[str, str], float] = {}
    for plan in plans:
        for p in plan.placements:
            for seat in p.ranks:
                key = p.job, snapshot.node_by_id[seat.node].gpu_type
                found[key] = found.get(key, 0.0) + len(seat.devices) * seat.share / len(plans)
    return found


# Turns


def test_time_received_comes_near_the_shares_of_each_job() -> None:
    nodes = [a_node("v", "V100", 1), a_node("t", "T4", 2)]
    snapshot = a_snapshot(nodes, [a_job(k, k) for k in "abc"], kinds("a", "b", "c"))
    shares = {
        "a": {"V100": 0.5, "T4": 0.5},
        "b": {"V100": 0.3, "T4": 0.7},
        "c": {"V100": 0.2, "T4": 0.8},
    }
    found = parts(run_rounds(GivenShares(shares), snapshot, 60), snapshot)
    for kind, by_type in shares.items():
        for gpu_type, share in by_type.items():
            assert found[kind, gpu_type] == pytest.approx(share, abs=0.05)


def lag(plans: list[Plan], shares: dict[str, float]) -> list[dict[str, float]]:
    """Lag of each job on the only GPU type after each round, in rounds."""
    turns = [
        Counter(p.job for plan in plans[: k + 1] for p in plan.placements)
        for k in range(len(plans))
    ]
    return [
        {job: share * (k + 1) - turns[k][job] for job, share in shares.items()}
        for k in range(len(plans))
    ]


def test_a_small_share_is_not_given_a_turn_before_it_is_owed_more_than_others() -> None:
    shares = {"a": 0.9, "b": 0.05, "c": 0.05}
    snapshot = a_snapshot([a_node("v", "V100", 1)], [a_job(k, k) for k in shares], kinds(*shares))
    plans = run_rounds(
        GivenShares({k: {"V100": share} for k, share in shares.items()}), snapshot, 20
    )
    assert [plan.placements[0].job for plan in plans[:7]] == ["a"] * 6 + ["b"]
    assert parts(plans, snapshot) == {
        ("a", "V100"): pytest.approx(0.9),
        **{(k, "V100"): pytest.approx(0.05) for k in "bc"},
    }


@many
@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6))
def test_on_a_gpu_of_n_jobs_nobody_is_ahead_by_a_turn_nor_behind_by_more_than_half_to_1_over_n(
    drawn: list[float],
) -> None:
    """The mean lag of the k jobs that lag most is at most that of a round ago, or 1 / (k + 1) above
    that of k + 1 then; that of all n is 0. Whoever runs lags by the mean, 1 / n, at least.
    """
    shares = {f"j{i}": part / sum(drawn) for i, part in enumerate(drawn)}
    snapshot = a_snapshot([a_node("v", "V100", 1)], [a_job(k, k) for k in shares], kinds(*shares))
    plans = run_rounds(
        GivenShares({k: {"V100": share} for k, share in shares.items()}), snapshot, 25
    )
    n = len(shares)
    for of_round in lag(plans, shares):
        assert max(of_round.values()) <= sum(1.0 / k for k in range(2, n + 1)) + 1e-6
        assert min(of_round.values()) >= 1.0 / n - 1.0 - 1e-6


def test_jobs_of_one_class_take_turns_whoever_came_first() -> None:
    jobs = [a_job(f"j{i}", "a", arrival_s=float(i)) for i in range(5)]
    snapshot = a_snapshot([a_node("v", "V100", 2)], jobs, kinds("a"))
    plans = run_rounds(GivenShares({"a": {"V100": 2.0}}), snapshot, 20)
    assert all(len(plan.placements) == 2 for plan in plans)
    assert list(parts(plans, snapshot).values()) == pytest.approx([0.4] * 5)


def test_jobs_of_one_class_that_all_run_change_places_when_one_is_ten_rounds_ahead() -> None:
    nodes, jobs = (
        [a_node("v", "V100", 1), a_node("t", "T4", 1)],
        [a_job("j0", "a"), a_job("j1", "a")],
    )
    snapshot = a_snapshot(nodes, jobs, kinds("a"))
    plans = run_rounds(GivenShares({"a": {"V100": 1.0, "T4": 1.0}}), snapshot, 204)
    seats = [{p.job: p.ranks[0].node for p in plan.placements} for plan in plans]
    changes = [i for i, (a, b) in enumerate(pairwise(seats)) if a != b]
    assert changes
    assert min(b - a for a, b in pairwise(changes)) >= PATIENCE
    assert list(parts(plans, snapshot).values()) == pytest.approx(
        [0.5] * 4, abs=PATIENCE / len(plans)
    )


def test_a_job_that_comes_in_later_starts_level_with_its_class_mates() -> None:
    policy = GivenShares({"a": {"V100": 1.0}})
    snapshot = a_snapshot(
        [a_node("v", "V100", 1)], [a_job("j0", "a"), a_job("j1", "a")], kinds("a")
    )
    for _ in range(20):
        snapshot = after(snapshot, policy(snapshot), ROUND_S)
    snapshot = after(snapshot, policy(snapshot), ROUND_S, new=(a_job("late", "a"),))
    found = parts(run_rounds(policy, snapshot, 30), snapshot)
    assert found == {(job, "V100"): pytest.approx(1 / 3, abs=0.04) for job in ("j0", "j1", "late")}


def test_what_a_class_has_received_is_read_once_however_many_jobs_come_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = GivenShares({"a": {"V100": 1.0}})
    old = [a_job(f"j{i}", "a", received_s=(("V100", 100.0 + i),)) for i in range(5)]
    snapshot = a_snapshot([a_node("v", "V100", 1)], old, kinds("a"))
    new = tuple([a_job(f"late{i}", "a") for i in range(7)])
    snapshot, read = after(snapshot, policy(snapshot), ROUND_S, new=new), list[int]()

    def counted(observed: Observed, credit: Credits, job: int) -> dict[str, float]:
        read.append(job)
        return received_s(observed, credit, job)

    monkeypatch.setattr("policies.gavel.rounds.share_round.received_s", counted)
    policy(snapshot)
    assert sorted(read) == list(range(5))


def test_shares_hold_over_time_though_they_are_made_anew_in_every_round() -> None:
    policy = GivenShares({"a": {"V100": 0.8}, "b": {"V100": 0.2}}, recompute_s=1.0)
    snapshot = a_snapshot(
        [a_node("v", "V100", 1)], [a_job("a", "a"), a_job("b", "b")], kinds("a", "b")
    )
    plans = run_rounds(policy, snapshot, 50)
    assert policy.made == 50
    assert parts(plans, snapshot) == {
        ("a", "V100"): pytest.approx(0.8, abs=0.03),
        ("b", "V100"): pytest.approx(0.2, abs=0.03),
    }


def test_a_job_is_on_one_column_at_a_time_and_leaves_the_other_to_whoever_is_next() -> None:
    snapshot = a_snapshot(
        [a_node("v", "V100", 1), a_node("t", "T4", 1)],
        [a_job("a", "a"), a_job("b", "b")],
        kinds("a", "b"),
    )
    for plan in run_rounds(
        GivenShares({"a": {"V100": 0.5, "T4": 0.5}, "b": {"V100": 0.5, "T4": 0.5}}), snapshot, 6
    ):
        assert sorted(seats[0][0] for seats in placed(plan).values()) == ["t", "v"]


def test_gangs_run_whole_and_share_time_with_single_jobs() -> None:
    jobs = [a_job("gang", "a", gpus_min=4, gpus_max=4), *(a_job(f"j{i}", "b") for i in range(4))]
    snapshot = a_snapshot([a_node("v", "V100", 4)], jobs, kinds("a", "b"))
    plans = run_rounds(GivenShares({"a": {"V100": 0.5}, "b": {"V100": 2.0}}), snapshot, 20)
    assert parts(plans, snapshot)["gang", "V100"] == pytest.approx(2.0)
    assert {frozenset(placed(plan)) for plan in plans} == {
        frozenset({"gang"}),
        frozenset({"j0", "j1", "j2", "j3"}),
    }


def test_of_jobs_that_have_received_nothing_those_with_the_greater_share_come_first() -> None:
    jobs = [a_job("a", "a"), a_job("b", "b"), a_job("z", "z")]
    snapshot = a_snapshot([a_node("v", "V100", 2)], jobs, kinds("a", "b", "z"))
    plan = GivenShares({"a": {"V100": 0.5}, "b": {"V100": 0.5}, "z": {"V100": 1.0}})(snapshot)
    assert "z" in placed(plan)


# Rounds and events


def test_while_turns_last_nobody_is_pre_empted_and_what_is_free_is_given_out() -> None:
    policy = GivenShares({"a": {"V100": 1.0}, "b": {"V100": 1.0}})
    snapshot = a_snapshot(
        [a_node("v", "V100", 2)],
        [a_job("j0", "a"), a_job("j1", "a"), a_job("j2", "a")],
        kinds("a", "b"),
    )
    first = policy(snapshot)
    later = after(snapshot, first, 100.0, gone=("j1",), new=(a_job("n0", "b"), a_job("n1", "b")))
    plan = policy(later)
    assert placed(plan)["j0"] == placed(first)["j0"]
    assert (sorted(placed(plan)), [w.job for w in plan.waiting]) == (["j0", "n0"], ["j2", "n1"])
    over = policy(after(later, plan, 200.0))
    assert sorted(placed(over)) != sorted(placed(plan))


def test_a_turn_ends_a_round_after_it_was_given_whatever_happened_meanwhile() -> None:
    policy = GivenShares({"a": {"V100": 1.0}})
    snapshot = a_snapshot(
        [a_node("v", "V100", 1)], [a_job("j0", "a"), a_job("j1", "a")], kinds("a")
    )
    ran, ends = [], []
    for elapsed_s in (100.0, 150.0, 50.0, 100.0, 200.0, 300.0):
        plan = policy(snapshot)
        ran.append(plan.placements[0].job)
        ends.append(plan.memory["round_end_s"] - 1000.0)
        snapshot = after(snapshot, plan, elapsed_s)
    assert ends == [300.0, 300.0, 300.0, 600.0, 600.0, 900.0]
    assert ran[:5] == ["j0", "j0", "j0", "j1", "j1"]


@pytest.mark.parametrize(("elapsed_s", "next_turn"), [(299.0, True), (271.0, True), (265.0, False)])
def test_a_round_that_is_held_a_little_early_ends_the_turns(
    elapsed_s: float, next_turn: bool
) -> None:
    policy = GivenShares({"a": {"V100": 1.0}})
    snapshot = a_snapshot(
        [a_node("v", "V100", 1)], [a_job("j0", "a"), a_job("j1", "a")], kinds("a")
    )
    plan = policy(after(snapshot, policy(snapshot), elapsed_s))
    assert plan.placements[0].job == ("j1" if next_turn else "j0")


def test_turns_given_out_by_a_clock_that_was_put_back_are_over() -> None:
    policy = GivenShares({"a": {"V100": 1.0}})
    snapshot = a_snapshot(
        [a_node("v", "V100", 1)], [a_job("j0", "a"), a_job("j1", "a")], kinds("a")
    )
    later = after(snapshot, policy(snapshot), 300.0)
    assert (
        policy(replace(later, now_s=snapshot.now_s - 5000.0)).memory["round_end_s"]
        == snapshot.now_s - 4700.0
    )


def test_shares_are_made_anew_only_when_the_division_has_changed() -> None:
    policy = GivenShares({"a": {"V100": 1.0}})
    snapshot = a_snapshot(
        [a_node("v", "V100", 1), a_node("w", "V100", 1)],
        [a_job("j0", "a"), a_job("j1", "a")],
        kinds("a"),
    )

    def made(changed: Snapshot) -> tuple[Snapshot, int]:
        before = policy.made
        plan = policy(changed)
        return after(changed, plan, 100.0), policy.made - before

    snapshot, first = made(snapshot)
    snapshot, nothing = made(snapshot)
    assert (first, nothing) == (1, 0)
    snapshot, arrived = made(after(snapshot, policy(snapshot), 10.0, new=(a_job("j2", "a"),)))
    snapshot, ended = made(after(snapshot, policy(snapshot), 10.0, gone=("j0",)))
    lost = replace(
        snapshot, nodes=(snapshot.nodes[0], replace(snapshot.nodes[1], state=NodeState.LOST))
    )
    _, left = made(lost)
    _, measured = made(replace(snapshot, kinds=(a_kind("a", {("V100", 1): 5.0}),)))
    assert (arrived, ended, left, measured) == (1, 1, 1, 1)


def test_shares_are_made_anew_when_they_are_as_old_as_is_allowed() -> None:
    policy = GivenShares({"a": {"V100": 1.0}}, recompute_s=700.0)
    run_rounds(
        policy,
        a_snapshot([a_node("v", "V100", 1)], [a_job("j0", "a"), a_job("j1", "a")], kinds("a")),
        9,
    )
    assert policy.made == 3


def test_what_another_policy_kept_is_not_used() -> None:
    policy = GivenShares({"a": {"V100": 1.0}})
    snapshot = a_snapshot(
        [a_node("v", "V100", 1)], [a_job("j0", "a"), a_job("j1", "a")], kinds("a")
    )
    later = after(snapshot, MaxMinFairness()(snapshot), 10.0)
    assert policy(later).memory["round_end_s"] == later.now_s + ROUND_S
    assert policy(replace(later, memory={"levels": [1, 2]})).memory["policy"] == "given"


def test_shares_that_are_no_numbers_are_refused_so_that_the_round_keeps_what_runs() -> None:
    def allocate(observed: Observed) -> Shares:
        return Shares(np.full(observed.problem.rates.shape, np.nan), np.zeros((0, 1)), 0.0)

    with pytest.raises(SolverFailedError, match="finite"):
        plan_of(
            a_snapshot([a_node("v", "V100")], [a_job("a")]), ShareRule("broken", "broken", allocate)
        )
    assert issubclass(SolverFailedError, PolicyError)


# Seats


def test_a_job_that_goes_on_keeps_its_very_placement_without_a_term() -> None:
    snapshot = a_snapshot(
        [a_node("v", "V100", 4)], [a_job("a", "a", running=on("v", "gpu2"))], kinds("a")
    )
    (seated,) = GivenShares({"a": {"V100": 1.0}})(snapshot).placements
    assert seated.ranks is snapshot.jobs[0].running[0].ranks
    assert (seated.until_s, seated.steps_quota) == (None, None)


def test_a_larger_gang_gets_a_node_of_its_own_though_smaller_jobs_would_go_on_there() -> None:
    nodes = [a_node("v", "V100", 4), a_node("w", "V100", 4)]
    jobs = [
        a_job("j0", "a", running=on("v", "gpu0")),
        a_job("j1", "a", running=on("w", "gpu0")),
        a_job("gang", "b", gpus_min=4, gpus_max=4),
    ]
    snapshot = a_snapshot(nodes, jobs, kinds("a", "b"))
    plan = GivenShares({"a": {"V100": 2.0}, "b": {"V100": 1.0}})(snapshot)
    assert (validate_plan(plan, snapshot), plan.waiting) == ((), ())
    (gang,) = placed(plan)["gang"]
    stays = "j1" if gang[0] == "v" else "j0"
    assert placed(plan)[stays] == [("w" if gang[0] == "v" else "v", ("gpu0",))]


def test_single_jobs_fill_up_nodes_so_that_gangs_find_room() -> None:
    nodes = [a_node("v", "V100", 4), a_node("w", "V100", 4)]
    gangs = [a_job("pair", "b", gpus_min=2, gpus_max=2), a_job("gang", "c", gpus_min=4, gpus_max=4)]
    jobs = [a_job("j0", "a"), a_job("j1", "a"), *gangs]
    shares = {"a": {"V100": 2.0}, "b": {"V100": 1.0}, "c": {"V100": 1.0}}
    plan = GivenShares(shares)(a_snapshot(nodes, jobs, kinds("a", "b", "c")))
    of = {job: {node for node, _ in seats} for job, seats in placed(plan).items()}
    assert of["gang"].isdisjoint(of["j0"] | of["j1"] | of["pair"])
    assert of["j0"] == of["j1"] == of["pair"]


def test_a_newcomer_sits_where_fewest_gpus_are_left() -> None:
    nodes = [a_node("v", "V100", 4), a_node("w", "V100", 4)]
    jobs = [a_job("j0", "a", running=on("w", "gpu0")), a_job("new", "a")]
    plan = GivenShares({"a": {"V100": 2.0}})(a_snapshot(nodes, jobs, kinds("a")))
    assert placed(plan) == {"j0": [("w", ("gpu0",))], "new": [("w", ("gpu1",))]}


def over_nodes(*rates: tuple[int, float]) -> tuple[Throughput, ...]:
    return tuple(
        Throughput("V100", gpus, rate, Source.MEASURED, spread=True) for gpus, rate in rates
    )


def test_a_gang_sits_on_as_few_nodes_as_will_do_where_its_share_is_on_several() -> None:
    nodes = [
        a_node("u", "V100", 1),
        a_node("v", "V100", 2),
        a_node("w", "V100", 3),
        a_node("x", "V100", 2),
    ]
    kind = replace(a_kind("a", {("V100", 1): 1.0}), throughputs=over_nodes((5, 4.0)))
    policy = GivenShares({"a": {"V100 spread": 1.0}}, GroupingOptions(spread=True))
    snapshot = a_snapshot(nodes, [a_job("a", "a", gpus_min=5, gpus_max=5)], [kind])
    plan = policy(snapshot)
    assert validate_plan(plan, snapshot) == ()
    seats = placed(plan)["a"]
    assert (len(seats), sum(len(devices) for _, devices in seats)) == (2, 5)
    assert plan.placements[0].predicted_run_s == pytest.approx(100.0 / 4.0)
    later = after(snapshot, plan, ROUND_S)
    assert policy(later).placements[0].ranks is later.jobs[0].running[0].ranks


def test_a_gang_is_on_one_node_where_one_has_room_though_its_share_is_on_several() -> None:
    nodes = [a_node("v", "V100", 1), a_node("w", "V100", 2), a_node("x", "V100", 1)]
    kind = replace(
        a_kind("a", {}),
        throughputs=(*over_nodes((2, 4.0)), Throughput("V100", 2, 5.0, Source.MEASURED)),
    )
    plan = GivenShares({"a": {"V100 spread": 1.0}}, GroupingOptions(spread=True))(
        a_snapshot(nodes, [a_job("a", "a", gpus_min=2, gpus_max=2)], [kind])
    )
    assert placed(plan) == {"a": [("w", ("gpu0", "gpu1"))]}


def test_idle_gpus_go_to_waiting_jobs_that_have_no_share_there() -> None:
    snapshot = a_snapshot(
        [a_node("v", "V100", 1), a_node("t", "T4", 1)],
        [a_job("a", "a"), a_job("b", "b")],
        kinds("a", "b"),
    )
    plan = GivenShares({"a": {"V100": 1.0}, "b": {"V100": 1e-3}})(snapshot)
    assert placed(plan) == {"a": [("v", ("gpu0",))], "b": [("t", ("gpu0",))]}


def test_a_job_of_weight_0_has_what_is_left_over() -> None:
    jobs = [a_job("idle", "a", weight=0.0), a_job("b", "b")]
    one, two = (a_snapshot([a_node("v", "V100", gpus)], jobs, kinds("a", "b")) for gpus in (1, 2))
    policy = GivenShares({"b": {"V100": 1.0}})
    assert (sorted(placed(policy(one))), sorted(placed(policy(two)))) == (["b"], ["b", "idle"])


def test_who_waits_is_told_who_holds_the_gpus() -> None:
    jobs = [a_job("j0", "a", remaining_steps=1e6), a_job("j1", "a", remaining_steps=1e6)]
    plan = GivenShares({"a": {"V100": 1.0}})(a_snapshot([a_node("v", "V100", 1)], jobs, kinds("a")))
    (waiting,) = plan.waiting
    assert (waiting.job, waiting.code, waiting.jobs) == ("j1", WaitCode.NO_CAPACITY, ("j0",))


def test_the_shares_of_each_job_by_gpu_type_are_in_the_plan() -> None:
    nodes = [a_node("v", "V100", 1), a_node("t", "T4", 1)]
    plan = GivenShares({"a": {"V100": 1.0, "T4": 0.5}})(
        a_snapshot(nodes, [a_job("j0", "a"), a_job("j1", "a")], kinds("a"))
    )
    assert plan.shares == {"j0": {"V100": 0.5, "T4": 0.25}, "j1": {"V100": 0.5, "T4": 0.25}}
