"""Repair of plans: what breaks a rule is left out gang by gang, and everything else stays."""

from dataclasses import replace
from math import nan

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.policy import PolicyError
from policies.contract.repair import TOGETHER, committed, repaired
from policies.contract.snapshot import JobPhase, NodeState, RankPlacement, Snapshot, TeamView
from policies.contract.validation import validate_plan
from policies.placement.profiling import merge, reserve_profiling
from tests.builders_policies import a_job, a_node, a_profile_run, a_snapshot, on
from tests.builders_snapshots import snapshots
from tests.policies.test_contract import decide


def a_plan(snapshot: Snapshot, *placements: Placement) -> Plan:
    """A plan with these placements, in which the other jobs wait."""
    placed = {p.job for p in placements}
    waiting = tuple(
        Waiting(job.id, WaitCode.NO_CAPACITY) for job in snapshot.jobs if job.id not in placed
    )
    return Plan("test", PlanStatus.HEURISTIC, placements, waiting, objective=1.0)


def put(job: str, node: str = "n1", *devices: str, **fields: object) -> Placement:
    seat = RankPlacement(node, devices or ("gpu0",))
    return replace(Placement(job, (seat,)), **fields)  # type: ignore[arg-type]


def seats(plan: Plan) -> dict[str, tuple[RankPlacement, ...]]:
    return {p.job: p.ranks for p in plan.placements}


def test_a_valid_plan_is_returned_as_it_is() -> None:
    snapshot = a_snapshot(jobs=[a_job("a"), a_job("b")])
    plan = a_plan(snapshot, put("a"))
    assert repaired(plan, snapshot) == (plan, ())


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (put("bad", "nowhere"), "unknown_node"),
        (put("bad", "n2", "gpu9"), "unknown_device"),
        (put("bad", "n2", "gpu0", "gpu1"), "gang_size"),
        (Placement("bad", ()), "empty_placement"),
        (put("bad", "cordoned"), "node_state"),
        (put("bad", "n2", until_s=1.0), "out_of_range"),
        (put("bad", "n2", until_s=nan), "not_finite"),
        (put("ghost", "n2"), "unknown_job"),
        (put("new", "n2"), "awaiting_profile"),
        (put("labelled", "n2"), "labels_missing"),
        (put("typed", "n2"), "type_not_allowed"),
        (put("bad", "n1"), "device_slots"),
        (put("fat", "n2"), "node_cores"),
    ],
)
def test_a_bad_gang_is_left_out_and_the_good_ones_stay(bad: Placement, code: str) -> None:
    nodes = [
        a_node("n1", gpus=1),
        a_node("n2", gpus=2, cores=8.0),
        a_node("cordoned", gpus=1, state=NodeState.CORDONED),
    ]
    jobs = [
        a_job("good"), a_job("bad"), a_job("new", phase=JobPhase.PROFILING),
        a_job("labelled", labels=("fast",)), a_job("typed", allowed_types=("A100",)),
        a_job("fat", cores=9.0), a_job("late"),
    ]  # fmt: skip
    snapshot = a_snapshot(nodes, jobs)
    plan = a_plan(snapshot, put("good"), bad, put("late", "n2", "gpu1"))
    waiting = (
        replace(w, code=WaitCode.AWAITING_PROFILE) if w.job == "new" else w for w in plan.waiting
    )
    plan = replace(plan, waiting=tuple(waiting))
    valid, left_out = repaired(plan, snapshot)
    assert set(seats(valid)) == {"good", "late"}
    assert [(of.key[0], of.detail.split(":")[0]) for of in left_out] == [(bad.job, code)]
    assert validate_plan(valid, snapshot) == ()
    assert valid.objective is None


def test_all_seats_of_a_gang_are_left_out_for_one_bad_seat() -> None:
    snapshot = a_snapshot([a_node("n1"), a_node("n2")], [a_job("gang", gpus_min=2, gpus_max=2)])
    gang = Placement("gang", (RankPlacement("n1", ("gpu0",)), RankPlacement("nowhere", ("gpu0",))))
    valid, left_out = repaired(a_plan(snapshot, gang), snapshot)
    assert valid.placements == ()
    assert len(left_out) == 1


def test_a_running_job_with_a_bad_new_seat_stays_where_it_is() -> None:
    run = a_job("runs", running=on("n1", "gpu0", until_s=2000.0, steps_quota=7))
    snapshot = a_snapshot([a_node("n1"), a_node("n2")], [run, a_job("waits")])
    plan = a_plan(snapshot, put("runs", "nowhere"), put("waits", "n2"))
    valid, _ = repaired(plan, snapshot)
    assert valid.placements == (put("waits", "n2"), *committed("runs", run.running))


def test_a_start_gives_way_to_a_job_whose_move_was_refused() -> None:
    run = a_job("runs", running=on("n1", "gpu0"))
    snapshot = a_snapshot([a_node("n1")], [run, a_job("waits")])
    valid, left_out = repaired(a_plan(snapshot, put("runs", "nowhere"), put("waits")), snapshot)
    assert list(seats(valid)) == ["runs"]
    assert {of.key[0] for of in left_out} == {"runs", "waits"}


def test_a_running_job_that_may_not_stay_stops() -> None:
    run = a_job("runs", running=on("n1", "gpu0"))
    snapshot = a_snapshot([a_node("n1", state=NodeState.LOST)], [run])
    valid, _ = repaired(a_plan(snapshot, put("runs")), snapshot)
    assert (valid.placements, [w.job for w in valid.waiting]) == ((), ["runs"])


def test_what_runs_keeps_its_device_though_the_plan_lists_a_start_before_it() -> None:
    run = a_job("runs", running=on("n1", "gpu0"))
    snapshot = a_snapshot([a_node("n1")], [run, a_job("waits")])
    valid, _ = repaired(a_plan(snapshot, put("waits"), put("runs")), snapshot)
    assert list(seats(valid)) == ["runs"]


def test_of_two_starts_on_one_device_the_first_of_the_plan_stays() -> None:
    snapshot = a_snapshot([a_node("n1")], [a_job("a"), a_job("b"), a_job("c")])
    valid, _ = repaired(a_plan(snapshot, put("c"), put("a"), put("b")), snapshot)
    assert list(seats(valid)) == ["c"]


def test_a_profile_run_goes_before_a_start_on_its_device() -> None:
    measured = a_job("new", phase=JobPhase.PROFILING, running=(a_profile_run("n1", "gpu0"),))
    snapshot = a_snapshot([a_node("n1", role="both")], [a_job("waits"), measured])
    plan = a_plan(snapshot, put("waits"))
    plan = replace(plan, waiting=(Waiting("new", WaitCode.AWAITING_PROFILE),))
    valid, _ = repaired(merge(plan, committed("new", measured.running)), snapshot)
    assert list(seats(valid)) == ["new"]


def test_last_starts_wait_until_the_others_fit_under_the_power_cap() -> None:
    nodes = [a_node(f"n{i}", gpus=1, power_w=(50.0, 300.0)) for i in range(5)]
    jobs = [a_job(f"j{i}") for i in range(5)]
    running = replace(jobs[4], running=on("n4", "gpu0"), phase=JobPhase.RUNNING)
    snapshot = a_snapshot(nodes, [*jobs[:4], running], power_cap_w=1000.0)
    plan = a_plan(snapshot, *(put(f"j{i}", f"n{i}") for i in range(5)))
    valid, left_out = repaired(plan, snapshot)
    assert list(seats(valid)) == ["j0", "j1", "j4"]
    assert all("power_cap" in of.detail for of in left_out)


def test_a_team_above_its_limit_loses_its_last_starts_alone() -> None:
    nodes = [a_node("n1", gpus=4)]
    jobs = [a_job(f"j{i}", team="a" if i % 2 else "b") for i in range(4)]
    snapshot = replace(a_snapshot(nodes, jobs), teams=(TeamView("a", max_gpus=1), TeamView("b")))
    plan = a_plan(snapshot, *(put(f"j{i}", "n1", f"gpu{i}") for i in range(4)))
    valid, _ = repaired(plan, snapshot)
    assert list(seats(valid)) == ["j0", "j1", "j2"]


def test_wrong_reasons_to_wait_are_replaced_and_named() -> None:
    jobs = [a_job("a"), a_job("new", phase=JobPhase.PROFILING)]
    snapshot = a_snapshot(jobs=jobs)
    twice = (Waiting("a", WaitCode.NO_CAPACITY),) * 2
    entries = (*twice, Waiting("new", WaitCode.NO_CAPACITY), Waiting("ghost", WaitCode.POSTPONED))
    valid, left_out = repaired(Plan("test", PlanStatus.HEURISTIC, (), entries), snapshot)
    assert [(w.job, w.code) for w in valid.waiting] == [
        ("a", WaitCode.SOLVER_FAILED),
        ("new", WaitCode.AWAITING_PROFILE),
    ]
    assert {of.key[0] for of in left_out} == {"a", "new", "ghost"}


def test_numbers_of_the_plan_itself_refuse_it_as_a_whole() -> None:
    snapshot = a_snapshot(jobs=[a_job("a")])
    with pytest.raises(PolicyError, match="not_finite"):
        repaired(replace(a_plan(snapshot, put("a")), bound=nan), snapshot)


def test_a_job_that_may_neither_stay_nor_stop_refuses_the_whole_plan() -> None:
    run = a_job("runs", cores=4.0, running=on("n1", "gpu0"), preemptible=False)
    snapshot = a_snapshot([a_node("n1", cores=2.0)], [run])
    with pytest.raises(PolicyError, match="may_not_stop"):
        repaired(a_plan(snapshot, put("runs")), snapshot)


def test_five_thousand_jobs_on_one_device_leave_the_first() -> None:
    snapshot = a_snapshot([a_node("n1")], [a_job(f"j{i}") for i in range(5000)])
    valid, left_out = repaired(a_plan(snapshot, *(put(f"j{i}") for i in range(5000))), snapshot)
    assert list(seats(valid)) == ["j0"]
    assert len(left_out) == 4999


NAMES = ("fifo", "randomized_greedy", "max_min_fairness")


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Snapshot, Plan, Plan]:
    """A snapshot, a valid plan for it, and that plan with some of its placements spoilt."""
    snapshot = draw(snapshots())
    reserved, runs = reserve_profiling(snapshot)
    plan = merge(decide(draw(st.sampled_from(NAMES)), reserved), runs)
    placements = list(plan.placements)
    for index in range(len(placements)):
        if draw(st.integers(0, 2)) == 0:
            placements[index] = draw(_spoilt(placements[index], snapshot))
    extra = draw(st.lists(_invented(snapshot), max_size=3))
    dropped = draw(st.integers(0, len(plan.waiting)))
    spoilt = replace(plan, placements=(*placements, *extra), waiting=plan.waiting[dropped // 2 :])
    return snapshot, plan, spoilt


def _spoilt(placement: Placement, snapshot: Snapshot) -> st.SearchStrategy[Placement]:
    nodes = [node.id for node in snapshot.nodes] + ["nowhere"]
    seat = placement.ranks[0]
    return st.one_of(
        st.sampled_from(nodes).map(lambda n: replace(placement, ranks=(replace(seat, node=n),))),
        st.just(replace(placement, ranks=())),
        st.just(replace(placement, ranks=(*placement.ranks, seat))),
        st.just(replace(placement, until_s=0.0)),
        st.just(replace(placement, ranks=(replace(seat, share=0.5),))),
        st.just(replace(placement, ranks=(replace(seat, cpu_quota=0.5),))),
        st.just(replace(placement, steps_quota=3)),
    )


def _invented(snapshot: Snapshot) -> st.SearchStrategy[Placement]:
    jobs = [*snapshot.jobs.columns.ids, "ghost"]
    spots = [(n.id, d.id) for n in snapshot.nodes for d in n.devices] or [("nowhere", "gpu0")]
    return st.builds(
        lambda job, spot: Placement(job, (RankPlacement(spot[0], (spot[1],)),)),
        st.sampled_from(jobs),
        st.sampled_from(spots),
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=mutated())
def test_any_repaired_plan_is_valid_and_keeps_every_good_gang(
    drawn: tuple[Snapshot, Plan, Plan],
) -> None:
    snapshot, plan, spoilt = drawn
    assert repaired(plan, snapshot) == (plan, ())
    try:
        valid, left_out = repaired(spoilt, snapshot)
    except PolicyError:
        assert not all(snapshot.jobs.columns.others["preemptible"])
        return
    assert validate_plan(valid, snapshot) == ()
    lost = {of.key[0] for of in left_out}
    kept = [p for p in spoilt.placements if p.job not in lost]
    assert [p for p in valid.placements if p.job not in lost] == kept
    together = {v.code for v in validate_plan(spoilt, snapshot)} & TOGETHER
    for job in lost:  # each broke a rule by itself or with others, or does beside what was kept
        gang = tuple(p for p in spoilt.placements if p.job == job)
        others = tuple(p for p in valid.placements if p.job != job)
        waiting = tuple(w for w in valid.waiting if w.job != job)
        own = tuple(w for w in spoilt.waiting if w.job == job)
        again = replace(valid, placements=(*others, *gang), waiting=(*waiting, *own))
        codes = {v.code for v in validate_plan(again, snapshot)}
        assert codes or together, job
