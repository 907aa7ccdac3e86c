"""Plans depend on the snapshot alone, with its memory as it was kept or read again."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.contract.snapshot import JobColumns, Jobs, NodeView, SlotHold, Snapshot, TeamView
from policies.gavel.allocation.observe import observe
from policies.host.registry import make
from tests.builders_policies import a_device, a_job, a_node, a_snapshot, on
from tests.builders_snapshots import snapshots


def some(data: st.DataObject, of: int) -> list[bool]:
    return data.draw(st.lists(st.booleans(), min_size=of, max_size=of))


def with_some(data: st.DataObject, snapshot: Snapshot) -> Snapshot:
    """The snapshot with some of its jobs; mostly those that are not there hold nothing either."""
    jobs = [
        job
        for job, is_there in zip(snapshot.jobs, some(data, len(snapshot.jobs)), strict=True)
        if is_there
    ]
    gone = (
        {job.id for job in snapshot.jobs} - {job.id for job in jobs}
        if data.draw(st.integers(0, 3))
        else set()
    )
    return replace(
        snapshot,
        jobs=Jobs(JobColumns.of(jobs)),
        nodes=tuple(without(node, gone) for node in snapshot.nodes),
    )


def without(node: NodeView, gone: set[str]) -> NodeView:
    """The node when these jobs are not there; itself if they never were."""
    if not any(hold.job in gone for device in node.devices for hold in device.held):
        return node
    devices = (
        replace(d, held=tuple(hold for hold in d.held if hold.job not in gone))
        for d in node.devices
    )
    return replace(node, devices=tuple(devices))


def well(node: NodeView) -> NodeView:
    return replace(node, devices=tuple(replace(d, healthy=True) for d in node.devices))


def before(data: st.DataObject, snapshot: Snapshot) -> Snapshot:
    """A round in which other jobs were there, some nodes had no broken device, and some kinds were
    known to be faster.
    """
    earlier = with_some(data, snapshot)
    nodes = zip(earlier.nodes, some(data, len(earlier.nodes)), strict=True)
    kinds = zip(earlier.kinds, some(data, len(earlier.kinds)), strict=True)
    return replace(
        earlier,
        nodes=tuple(well(node) if was_well else node for node, was_well in nodes),
        kinds=tuple(
            (
                replace(
                    k,
                    throughputs=tuple(
                        replace(t, steps_per_s=2.0 * t.steps_per_s) for t in k.throughputs
                    ),
                )
                if faster
                else k
            )
            for k, faster in kinds
        ),
    )


POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("max_min_fairness", {}),
    ("max_min_fairness", {"form": "sharing", "spread": True}),
    ("hierarchical", {}),
    ("fifo_shares", {}),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), snapshot=snapshots(), named=st.sampled_from(POLICIES))
def test_plans_do_not_depend_on_where_memory_was(
    data: st.DataObject, snapshot: Snapshot, named: tuple[str, dict[str, Any]]
) -> None:
    policy, now = make(*named), before(data, snapshot)
    memory = policy(now).memory
    for later_s in (10.0, now.round_s, 2.5 * now.round_s):
        here = (
            with_some(data, snapshot)
            if data.draw(st.booleans())
            else replace(snapshot, jobs=now.jobs, nodes=now.nodes)
        )
        now = replace(here, now_s=snapshot.now_s + later_s, memory=dict(memory))
        plan = policy(now)
        assert plan == policy(replace(now, memory=json.loads(json.dumps(memory))))
        memory = plan.memory


def test_shares_are_named_by_the_jobs_of_this_round() -> None:
    policy, node = make("max_min_fairness", {}), a_node("n1", gpus=1)
    first = a_snapshot([node], [a_job("a"), a_job("b")])
    plan = policy(first)
    others = Jobs(JobColumns.of([a_job("a"), a_job("c")]))
    assert policy(replace(first, jobs=others, memory=plan.memory)).shares.keys() == {"a", "c"}


def test_an_older_memory_that_comes_back_is_believed_and_not_what_was_kept_of_a_newer_one() -> None:
    policy, waits = make("max_min_fairness", {}), a_job("b")
    first = a_snapshot([a_node("n1", gpus=1)], [a_job("a"), waits])
    old = policy(first).memory
    runs = a_job("a", running=on("n1", "gpu0", since_s=first.now_s))
    second = replace(
        first, jobs=Jobs(JobColumns.of([runs, waits])), now_s=first.now_s + 100.0, memory=old
    )
    assert policy(second).memory["received_s"] != old["received_s"]
    third = replace(second, now_s=first.now_s + 200.0, memory=old)
    assert policy(third) == policy(replace(third, memory=json.loads(json.dumps(old))))


def test_shares_made_anew_of_the_same_jobs_are_told() -> None:
    policy = make("hierarchical", {})
    jobs = [a_job("a", team="red"), a_job("b", team="blue")]
    first = replace(
        a_snapshot([a_node("n1", gpus=1)], jobs),
        teams=(TeamView("red", 1.0), TeamView("blue", 1.0)),
    )
    plan = policy(first)
    second = policy(
        replace(first, teams=(TeamView("red", 3.0), TeamView("blue", 1.0)), memory=plan.memory)
    )
    assert [sum(plan.shares[job].values()) for job in "ab"] == pytest.approx([0.5, 0.5])
    assert [sum(second.shares[job].values()) for job in "ab"] == pytest.approx([0.75, 0.25])


def test_a_device_of_a_job_that_is_not_known_yet_or_any_more_is_not_given() -> None:
    held = a_node("n1", devices=(a_device("gpu0", held=(SlotHold("b"),)), a_device("gpu1")))
    first = a_snapshot([held], [a_job("a")])
    both = replace(first, jobs=Jobs(JobColumns.of([a_job("a"), a_job("b")])))
    assert [observe(of).problem.gpus.tolist() for of in (first, both)] == [[1.0], [2.0]]
