"""The plain loops for rounds in which nothing runs must decide as the arrays do."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.contract.plan import Plan, WaitCode
from policies.contract.snapshot import (
    DeviceView,
    EnergyStep,
    JobPhase,
    NodeRole,
    NodeState,
    NodeView,
    PowerCapStep,
    SlotHold,
    Snapshot,
)
from policies.placement.naming import plan_of
from policies.placement.newcomers import Queue, is_plain, plan_newcomers
from policies.placement.packing import pack
from policies.placement.problem import build
from tests.builders_policies import a_device, a_job, a_kind, a_node, a_snapshot, on

KINDS = (
    a_kind(
        "k",
        {("V100", 1): 1.0, ("V100", 2): 1.7, ("V100", 4): 3.0, ("T4", 1): 0.4, ("T4", 2): 0.7},
        setup_s=7.0,
    ),
    a_kind("l", {("V100", 1): 0.5, ("V100", 2): 0.6, ("T4", 1): 0.5}),
)
ENERGY = (
    (),
    (EnergyStep(0.0, inf, 0.172, 1.33, 400.0),),
    (
        EnergyStep(0.0, 1100.0, 0.3, 1.3, 100.0),
        EnergyStep(1100.0, 1400.0, 0.1, 1.2, 500.0),
        EnergyStep(1400.0, inf, 0.2, 1.4),
    ),
)
HELD = (SlotHold("somebody"),)


@st.composite
def devices(draw: st.DrawFn) -> tuple[DeviceView, ...]:
    """One to four, some of them held by a job that is not shown, some unhealthy."""
    states = draw(
        st.lists(st.sampled_from(["free", "free", "held", "ill"]), min_size=1, max_size=4)
    )
    return tuple(
        a_device(f"g{i}", held=HELD if s == "held" else (), healthy=s != "ill")
        for i, s in enumerate(states)
    )


@st.composite
def nodes(draw: st.DrawFn) -> tuple[NodeView, ...]:
    return tuple(
        a_node(
            f"n{i}",
            draw(st.sampled_from(["V100", "T4"])),
            devices=draw(devices()),
            state=draw(st.sampled_from([NodeState.READY] * 4 + [NodeState.CORDONED])),
            role=draw(st.sampled_from([NodeRole.PRODUCTION] * 4 + [NodeRole.PROFILING])),
            cores=16.0,
        )
        for i in range(draw(st.integers(0, 6)))
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Jobs of many shapes that wait, more than there is room for or fewer."""
    jobs = []
    for i in range(draw(st.integers(0, 12))):
        least, steps = draw(st.integers(1, 4)), float(draw(st.integers(1, 500)))
        fields: dict[str, Any] = {
            "gpus_min": least,
            "gpus_max": draw(st.integers(least, 4)),
            "remaining_steps": steps,
        }
        fields["total_steps"] = steps + draw(st.sampled_from([0.0, 10.0]))
        fields["due_s"] = draw(st.sampled_from([inf, 900.0, 1150.0, 1400.0, 2000.0]))
        fields["allowed_types"] = draw(st.sampled_from([(), (), ("V100",), ("T4", "A100")]))
        fields["cores"] = draw(st.sampled_from([0.0, 4.0]))
        jobs.append(
            a_job(
                f"j{i}",
                draw(st.sampled_from(["k", "l"])),
                arrival_s=float(i),
                restart_cost_s=30.0,
                **fields,
            )
        )
    return a_snapshot(
        draw(nodes()), jobs, KINDS, energy=draw(st.sampled_from(ENERGY)), emissions_cost_per_kg=0.05
    )


def by_arrays(snapshot: Snapshot, order: list[int]) -> Plan:
    problem = build(snapshot, never_touch=True)
    return plan_of(problem, pack(problem, np.array(order, dtype=np.int64)), "p", None)


@settings(max_examples=150, deadline=None)
@given(snapshot=snapshots(), data=st.data())
def test_plain_loops_and_arrays_make_the_same_plan(snapshot: Snapshot, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(snapshot.jobs))))
    assert is_plain(snapshot)
    assert plan_newcomers(snapshot, "p", np.array(order, dtype=np.int64)) == by_arrays(
        snapshot, order
    )


@settings(max_examples=50, deadline=None)
@given(first=snapshots(), now=nodes(), data=st.data())
def test_what_is_kept_of_the_last_round_changes_no_plan(
    first: Snapshot, now: tuple[NodeView, ...], data: st.DataObject
) -> None:
    plan_newcomers(first, "p", np.arange(len(first.jobs)))
    places = min(len(now), len(first.nodes))
    kept = data.draw(st.lists(st.booleans(), min_size=places, max_size=places))
    mixed = tuple(
        old if keep else new for keep, old, new in zip(kept, first.nodes, now, strict=False)
    )
    types = {n.gpu_type for n in mixed} == {n.gpu_type for n in first.nodes}
    largest = max((len(n.devices) for n in mixed), default=1) == first.max_gpus
    second = (
        first.following(nodes=mixed, now_s=1100.0)
        if types and largest
        else first.following(now_s=1100.0)
    )
    order = list(range(len(second.jobs)))
    assert plan_newcomers(second, "p", np.array(order, dtype=np.int64)) == by_arrays(second, order)


def test_of_nodes_alike_the_last_is_taken_first_and_filled_before_another() -> None:
    snapshot = a_snapshot(
        [a_node("n1"), a_node("n2"), a_node("n3")], [a_job(f"j{i}") for i in range(3)]
    )
    plan = plan_newcomers(snapshot, "p", np.arange(3))
    assert [p.ranks[0].node for p in plan.placements] == ["n3", "n3", "n2"]


def test_a_job_that_finds_no_room_names_who_was_given_it() -> None:
    snapshot = a_snapshot([a_node("n1", gpus=1)], [a_job("a"), a_job("b")])
    plan = plan_newcomers(snapshot, "p", np.array([1, 0]))
    assert [p.job for p in plan.placements] == ["b"]
    assert [(w.job, w.code, w.jobs) for w in plan.waiting] == [("a", WaitCode.NO_CAPACITY, ("b",))]
    assert plan.waiting[0].earliest_s == pytest.approx(1100.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"running": on("n1", "gpu0")},
        {"phase": JobPhase.PROFILING},
        {"labels": ("x",)},
        {"dependencies": ("b",)},
        {"resources": (("fpga", 1.0),)},
        {"cores": 5.0},
        {"memory_gb": 40.0},
    ],
    ids=lambda f: next(iter(f)),
)
def test_where_more_matters_than_free_gpus_the_arrays_decide(fields: dict[str, Any]) -> None:
    roomy = [a_node("n1", cores=8.0, memory_gb=64.0)]
    assert is_plain(a_snapshot(roomy, [a_job("a", cores=4.0, memory_gb=32.0), a_job("b")]))
    assert not is_plain(a_snapshot(roomy, [a_job("a", **fields), a_job("b")]))


def test_under_a_power_cap_the_arrays_decide() -> None:
    assert not is_plain(a_snapshot(jobs=[a_job()], power_cap_w=1e6))
    assert not is_plain(a_snapshot(jobs=[a_job()], power_caps=(PowerCapStep(0.0, 1.0, 1e6),)))


def test_a_job_that_still_holds_devices_is_left_to_the_arrays() -> None:
    node = a_node("n1", devices=(a_device("gpu0", held=(SlotHold("a"),)), a_device("gpu1")))
    assert not is_plain(a_snapshot([node], [a_job("a")]))
    assert is_plain(a_snapshot([node], [a_job("b")]))


def test_a_queue_is_ordered_by_the_columns_of_all_jobs() -> None:
    queue = Queue(a_snapshot(jobs=[a_job("a", priority=3), a_job("b", due_s=7.0)]).jobs.columns)
    assert queue.count("priority").tolist() == [3, 0]
    assert queue.column("due_s").tolist() == [inf, 7.0]
