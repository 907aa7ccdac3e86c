"""The quick look at a plain plan lets nothing pass that the rules would find, and knows a plain
plan when it sees one.
"""

from __future__ import annotations

from math import isfinite
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.contract import validation as judge
from policies.contract.plain_plans import breaks_no_rule
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import (
    JobPhase,
    NodeRole,
    NodeState,
    NodeView,
    RankSeat,
    SlotHold,
    Snapshot,
)
from policies.contract.validation import violations
from tests.builders_policies import a_device, a_job, a_node, a_snapshot, on

many = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def put(job: str, node: str, *devices: str, **fields: Any) -> Placement:
    return Placement(**{"job": job, "ranks": (RankSeat(node, devices),), **fields})


def a_plan(snapshot: Snapshot, *placements: Placement, **fields: Any) -> Plan:
    """Of these placements; everybody else waits."""
    placed = {p.job for p in placements}
    waiting = tuple(
        Waiting(j.id, WaitCode.NO_CAPACITY) for j in snapshot.jobs if j.id not in placed
    )
    return Plan(
        **{
            "policy": "test",
            "status": PlanStatus.HEURISTIC,
            "placements": placements,
            "waiting": waiting,
            **fields,
        }
    )


def nodes(**fields: Any) -> list[NodeView]:
    return [a_node("n1", gpus=2, **fields), a_node("n2", gpus=2)]


def jobs(**fields: Any) -> list[Any]:
    return [
        a_job("a", running=on("n1", "gpu0"), **fields),
        a_job("b", gpus_min=2, gpus_max=2),
        a_job("c"),
    ]


GOOD = (put("a", "n1", "gpu0", predicted_run_s=7.0), put("b", "n2", "gpu0", "gpu1"))


def test_jobs_on_devices_of_their_own_break_no_rule() -> None:
    snapshot = a_snapshot(nodes(), jobs())
    assert breaks_no_rule(a_plan(snapshot, *GOOD), snapshot)
    assert violations(a_plan(snapshot, *GOOD), snapshot) == ()


def test_a_plain_plan_is_still_held_to_its_numbers() -> None:
    snapshot = a_snapshot(nodes(), jobs())
    plan = a_plan(snapshot, *GOOD, objective=float("nan"))
    assert [v.code for v in violations(plan, snapshot)] == ["not_finite"]


@pytest.mark.parametrize(
    "snapshot",
    [
        a_snapshot(nodes(state=NodeState.CORDONED), jobs()),
        a_snapshot(nodes(role=NodeRole.PROFILING), jobs()),
        a_snapshot(nodes(devices=(a_device("gpu0", healthy=False), a_device("gpu1"))), jobs()),
        a_snapshot(
            nodes(devices=(a_device("gpu0", held=(SlotHold("stranger"),)), a_device("gpu1"))),
            jobs(),
        ),
        a_snapshot(nodes(), jobs(), power_cap_w=1e9),
        a_snapshot(nodes(), jobs(cores=1.0)),
        a_snapshot(nodes(), jobs(labels=("fast",))),
        a_snapshot(nodes(), jobs(allowed_types=("V100",))),
        a_snapshot(nodes(), jobs(phase=JobPhase.PROFILING)),
        a_snapshot(nodes(), jobs(gpus_min=2, gpus_max=2)),
        a_snapshot(nodes(), [*jobs(), a_job("d")][1:]),
    ],
)
def test_where_other_rules_count_or_are_broken_nothing_is_said(snapshot: Snapshot) -> None:
    assert not breaks_no_rule(a_plan(snapshot, *GOOD), snapshot)


@pytest.mark.parametrize(
    "placements",
    [
        (*GOOD, GOOD[0]),
        (*GOOD, put("c", "n1", "gpu0")),
        (*GOOD, put("c", "n1", "gpu9")),
        (*GOOD, put("c", "n9", "gpu0")),
        (*GOOD, put("ghost", "n1", "gpu1")),
        (*GOOD, put("c", "n1")),
        (put("b", "n2", "gpu0", "gpu0"),),
        (put("c", "n1", "gpu1", until_s=2000.0),),
        (put("c", "n1", "gpu1", predicted_run_s=float("inf")),),
        (Placement("c", (RankSeat("n1", ("gpu1",), 0.5),)),),
        (Placement("b", (RankSeat("n1", ("gpu1",)), RankSeat("n2", ("gpu1",)))),),
    ],
)
def test_of_a_plan_that_is_not_plain_nothing_is_said(placements: tuple[Placement, ...]) -> None:
    snapshot = a_snapshot(nodes(), jobs())
    assert not breaks_no_rule(a_plan(snapshot, *placements), snapshot)


def test_a_job_that_is_neither_placed_nor_waits_is_found() -> None:
    snapshot = a_snapshot(nodes(), jobs())
    assert [v.code for v in violations(a_plan(snapshot, *GOOD, waiting=()), snapshot)] == [
        "job_missing"
    ]


def test_a_holder_that_is_gone_from_the_next_snapshot_is_a_stranger_there() -> None:
    first = a_snapshot(nodes(), jobs())
    taking = put("c", "n1", "gpu0")
    assert violations(a_plan(first, taking), first) == ()
    second = first.following(jobs=a_snapshot(nodes(), jobs()[1:]).jobs)
    assert [v.code for v in violations(a_plan(second, taking), second)] == ["device_taken"]


def test_a_device_that_falls_ill_before_the_next_round_is_not_given_there() -> None:
    first = a_snapshot(nodes(), jobs())
    assert violations(a_plan(first, *GOOD), first) == ()
    second = first.following(
        nodes=tuple(nodes(devices=(a_device("gpu0", healthy=False), a_device("gpu1"))))
    )
    assert [v.code for v in violations(a_plan(second, *GOOD), second)] == ["device_unhealthy"]


seats = st.builds(
    RankSeat,
    st.sampled_from(["n1", "n2", "n3"]),
    st.sampled_from([("gpu0",), ("gpu1",), ("gpu0", "gpu1"), ()]),
)
placements = st.builds(
    Placement,
    st.sampled_from(["a", "b", "c", "ghost"]),
    st.lists(seats, min_size=1, max_size=2).map(tuple),
    predicted_run_s=st.sampled_from([None, 1.0, float("nan")]),
    until_s=st.sampled_from([None, None, None, 500.0]),
)


@many
@given(
    st.lists(placements, max_size=4),
    st.lists(st.sampled_from(["a", "b", "c", "ghost"]), max_size=4),
    st.sampled_from(
        [{}, {"state": NodeState.DRAINING}, {"role": NodeRole.PROFILING}, {"role": NodeRole.BOTH}]
    ),
)
def test_the_rules_find_nothing_that_the_quick_look_does_not(
    placed: list[Placement], waits: list[str], fields: dict[str, Any]
) -> None:
    snapshot = a_snapshot(nodes(**fields), jobs())
    plan = Plan(
        "test",
        PlanStatus.HEURISTIC,
        tuple(placed),
        tuple(Waiting(j, WaitCode.NO_CAPACITY) for j in waits),
    )
    quick = violations(plan, snapshot)
    with patch.object(judge, "breaks_no_rule", return_value=False):
        assert quick == violations(plan, snapshot)


holds = st.lists(st.sampled_from(["a", "b", "stranger"]), max_size=2).map(
    lambda jobs: tuple(SlotHold(j) for j in jobs)
)
devices = st.builds(a_device, st.sampled_from(["gpu0"]), healthy=st.booleans(), held=holds)


@many
@given(
    st.lists(
        st.tuples(devices, st.lists(placements, max_size=3), st.booleans()), min_size=2, max_size=4
    )
)
def test_nor_do_they_in_the_rounds_that_follow_as_devices_and_jobs_come_and_go(
    rounds: list[Any],
) -> None:
    snapshot = a_snapshot(nodes(), jobs())
    for device, placed, b_is_there in rounds:
        present = a_snapshot(
            nodes(), jobs() if b_is_there else [j for j in jobs() if j.id != "b"]
        ).jobs
        snapshot = snapshot.following(
            nodes=tuple(nodes(devices=(device, a_device("gpu1")))), jobs=present
        )
        plan = a_plan(snapshot, *placed)
        quick = violations(plan, snapshot)
        with patch.object(judge, "breaks_no_rule", return_value=False):
            assert quick == violations(plan, snapshot)


figures = st.sampled_from([0.0, 0.5, 1, float("nan"), float("inf")])
by_type = st.dictionaries(st.sampled_from(["K80", "V100"]), figures)


@many
@given(st.lists(by_type, min_size=1, max_size=3), st.lists(st.integers(0, 2), max_size=5))
def test_every_share_that_is_no_figure_is_found_once_for_each_class(
    classes: list[dict[str, float]], of_job: list[int]
) -> None:
    shares = {f"j{i}": classes[c % len(classes)] for i, c in enumerate(of_job)}
    first = {id(shares[job]): job for job in reversed(shares)}
    wanted = {
        f"shares of {job} on {t}"
        for job in first.values()
        for t, share in shares[job].items()
        if not isfinite(share)
    }
    found = [
        v.detail.partition(" is ")[0]
        for v in violations(a_plan(a_snapshot([], []), shares=shares), a_snapshot([], []))
    ]
    assert sorted(found) == sorted(wanted)
