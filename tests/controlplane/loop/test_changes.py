"""From what is committed to a plan: what is started, kept, pre-empted, migrated, resized."""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.loop.changes import (
    Change,
    ChangeQuotas,
    Current,
    Keep,
    Migrate,
    PlacementKey,
    Preempt,
    Resize,
    Start,
    changes,
    current_of,
    describe,
    key_of,
)
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import Purpose, RankPlacement, Running
from tests.builders_policies import a_job, a_profile_run, a_snapshot, on

HERE = RankPlacement("n1", ("gpu0",))
THERE = RankPlacement("n2", ("gpu0",))
BOTH = RankPlacement("n1", ("gpu0", "gpu1"))


def a_plan(*placements: Placement, waiting: tuple[str, ...] = ()) -> Plan:
    return Plan(
        "told",
        PlanStatus.HEURISTIC,
        placements,
        tuple(Waiting(job, WaitCode.POSTPONED) for job in waiting),
    )


def running(
    job: str, *seats: RankPlacement, purpose: Purpose = Purpose.TRAINING, copy: int = 0
) -> Current:
    return {(job, purpose, copy): Running(copy, seats, 0.0, purpose=purpose)}


def test_a_placed_job_that_does_not_run_is_started() -> None:
    placed = Placement("a", (HERE,))
    assert changes({}, a_plan(placed)) == (Start(placed),)


def test_a_job_that_stays_on_its_devices_is_kept_whatever_their_order() -> None:
    placed = Placement("a", (RankPlacement("n1", ("gpu1", "gpu0")),))
    (change,) = changes(running("a", BOTH), a_plan(placed))
    assert isinstance(change, Keep)


def test_a_job_that_stays_with_fewer_cores_is_not_stopped() -> None:
    half = replace(HERE, cpu_quota=0.5)
    placed = Placement("a", (half,))
    (change,) = changes(running("a", HERE), a_plan(placed))
    assert change == ChangeQuotas(placed, Running(0, (HERE,), 0.0))
    assert describe(change) == {
        "change": "quotas",
        "job": "a",
        "from": [{"node": "n1", "devices": ["gpu0"]}],
        "to": [{"node": "n1", "devices": ["gpu0"], "cpu_quota": 0.5}],
    }


def test_a_gang_that_stays_with_its_ranks_exchanged_keeps_its_quotas() -> None:
    here = replace(HERE, cpu_quota=0.5)
    (change,) = changes(running("a", here, THERE), a_plan(Placement("a", (THERE, here))))
    assert isinstance(change, Keep)


def test_a_job_that_is_to_wait_is_preempted() -> None:
    (change,) = changes(running("a", HERE), a_plan(waiting=("a",)))
    assert isinstance(change, Preempt)


def test_a_job_that_is_to_run_elsewhere_migrates() -> None:
    (change,) = changes(running("a", HERE), a_plan(Placement("a", (THERE,))))
    assert isinstance(change, Migrate)


def test_a_job_that_gets_another_device_of_its_node_migrates_too() -> None:
    (change,) = changes(
        running("a", HERE), a_plan(Placement("a", (RankPlacement("n1", ("gpu1",)),)))
    )
    assert isinstance(change, Migrate)


def test_a_job_that_gets_more_or_less_is_resized() -> None:
    assert isinstance(changes(running("a", HERE), a_plan(Placement("a", (BOTH,))))[0], Resize)
    assert isinstance(changes(running("a", BOTH), a_plan(Placement("a", (THERE,))))[0], Resize)
    half = RankPlacement("n1", ("gpu0",), share=0.5)
    assert isinstance(changes(running("a", HERE), a_plan(Placement("a", (half,))))[0], Resize)


def test_work_the_plan_does_not_speak_of_goes_on() -> None:
    (change,) = changes(running("a", HERE), a_plan())
    assert change == Keep(("a", Purpose.TRAINING, 0), Running(0, (HERE,), 0.0))


def test_a_copy_the_plan_drops_is_preempted_while_its_sibling_is_kept() -> None:
    current = {**running("a", HERE), **running("a", THERE, copy=1)}
    stop, keep = changes(current, a_plan(Placement("a", (HERE,))))
    assert isinstance(stop, Preempt)
    assert stop.key == ("a", Purpose.TRAINING, 1)
    assert isinstance(keep, Keep)


def test_a_profile_run_that_the_plan_does_not_name_again_ends() -> None:
    current = running("a", HERE, purpose=Purpose.PROFILING)
    assert isinstance(changes(current, a_plan(waiting=("a",)))[0], Preempt)
    same = Placement("a", (HERE,), purpose=Purpose.PROFILING)
    assert isinstance(changes(current, a_plan(same, waiting=("a",)))[0], Keep)
    moved = Placement("a", (THERE,), purpose=Purpose.PROFILING)
    assert isinstance(changes(current, a_plan(moved, waiting=("a",)))[0], Migrate)


def test_a_keep_tells_whether_the_plan_wants_another_end() -> None:
    def kept(**fields: Any) -> Keep:
        (change,) = changes(running("a", HERE), a_plan(Placement("a", (HERE,), **fields)))
        assert isinstance(change, Keep)
        return change

    assert kept(until_s=5.0).changes_term
    assert kept(steps_quota=5).changes_term
    assert not kept().changes_term
    assert not Keep(("a", Purpose.TRAINING, 0), Running(0, (HERE,), 0.0, until_s=3.0)).changes_term


def test_stops_come_before_keeps_and_keeps_before_starts() -> None:
    current = {**running("a", HERE), **running("b", BOTH), **running("c", THERE)}
    plan = a_plan(Placement("d", (THERE,)), Placement("b", (BOTH,)), waiting=("a", "c"))
    assert [type(c) for c in changes(current, plan)] == [Preempt, Preempt, Keep, Start]


def test_what_a_snapshot_shows_as_running_is_the_current_state() -> None:
    jobs = [
        a_job("a", running=on("n1", "gpu0")),
        a_job("b", running=(a_profile_run("n2", "gpu0", copy=3),)),
        a_job("c"),
    ]
    assert list(current_of(a_snapshot(jobs=jobs))) == [
        ("a", Purpose.TRAINING, 0),
        ("b", Purpose.PROFILING, 3),
    ]


def test_a_change_is_described_by_what_it_is_and_where() -> None:
    (change,) = changes(running("a", HERE), a_plan(Placement("a", (THERE,))))
    place = [{"node": "n1", "devices": ["gpu0"]}], [{"node": "n2", "devices": ["gpu0"]}]
    assert describe(change) == {"change": "migrate", "job": "a", "from": place[0], "to": place[1]}
    run = Placement("a", (HERE,), copy=2, purpose=Purpose.PROFILING)
    assert describe(Start(run)) == {
        "change": "start",
        "job": "a",
        "purpose": "profiling",
        "copy": 2,
        "to": place[0],
    }
    (kept,) = changes(running("a", HERE), a_plan())
    assert describe(kept) == {"change": "keep", "job": "a", "from": place[0]}
    half = Placement("a", (RankPlacement("n1", ("gpu0",), 0.5),))
    assert describe(Start(half))["to"] == [{"node": "n1", "devices": ["gpu0"], "share": 0.5}]


seats = st.builds(
    RankPlacement,
    st.sampled_from(["n1", "n2"]),
    st.sampled_from([("g0",), ("g1",), ("g0", "g1"), ("g1", "g0")]),
)
keys = st.tuples(st.sampled_from("abc"), st.sampled_from(list(Purpose)), st.integers(0, 1))


@st.composite
def states(draw: st.DrawFn) -> tuple[dict[PlacementKey, Running], Plan]:
    current = {
        (job, purpose, copy): Running(copy, (draw(seats),), 0.0, purpose=purpose)
        for job, purpose, copy in draw(st.lists(keys, unique=True, max_size=5))
    }
    placements = tuple(
        Placement(job, (draw(seats),), copy, purpose)
        for job, purpose, copy in draw(st.lists(keys, unique=True, max_size=5))
    )
    trained = {p.job for p in placements if p.purpose is Purpose.TRAINING}
    waiting = draw(st.sets(st.sampled_from("abcd"))) - trained
    return current, a_plan(*placements, waiting=tuple(sorted(waiting)))


def after(
    current: Current, found: tuple[Change, ...]
) -> dict[PlacementKey, frozenset[tuple[str, frozenset[str]]]]:
    """What runs once all changes are made."""
    runs = dict(current)
    places = {key: run.ranks for key, run in runs.items()}
    for change in found:
        if isinstance(change, Preempt):
            del places[change.key]
        elif not isinstance(change, Keep):
            places[change.placement.key] = change.placement.ranks
    return {
        key: frozenset((s.node, frozenset(s.devices)) for s in ranks)
        for key, ranks in places.items()
    }


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(states())
def test_changes_lead_to_the_plan_and_touch_nothing_else(
    state: tuple[dict[PlacementKey, Running], Plan],
) -> None:
    current, plan = state
    found = changes(current, plan)
    wanted = {
        p.key: frozenset((s.node, frozenset(s.devices)) for s in p.ranks) for p in plan.placements
    }
    result = after(current, found)
    assert {key: result.get(key) for key in wanted} == wanted
    decided = {w.job for w in plan.waiting} | {job for job, _, _ in wanted}
    left = {key for key in current if key[0] not in decided}
    assert result.keys() == wanted.keys() | left


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(states())
def test_every_placement_gets_exactly_one_change_and_a_plan_made_true_changes_nothing(
    state: tuple[dict[PlacementKey, Running], Plan],
) -> None:
    current, plan = state
    touched = [key_of(change) for change in changes(current, plan)]
    assert len(touched) == len(set(touched))
    assert set(touched) == current.keys() | {p.key for p in plan.placements}
    there = {p.key: Running(p.copy, p.ranks, 0.0, purpose=p.purpose) for p in plan.placements}
    assert all(isinstance(change, Keep) for change in changes(there, plan))
