"""What was worked out of a snapshot goes on to those that follow: never anything else than what
working it out anew comes to.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.contract.snapshot import JobColumns, Jobs, NodeView, SlotHold, Snapshot, TeamView
from policies.gavel.allocation.allocatable import Allocatable
from policies.gavel.allocation.job_classes import JobClasses
from policies.gavel.allocation.observe import GroupingOptions, observe
from policies.host.registry import make
from policies.placement.homes import homes_of
from tests.builders_policies import a_device, a_job, a_node, a_snapshot, on
from tests.builders_snapshots import snapshots

ASKED = (
    GroupingOptions(),
    GroupingOptions(spread=True),
    GroupingOptions(pairs=True),
    GroupingOptions(teams=True),
    GroupingOptions(teams=True, users=True, queues=frozenset({"t"})),
    GroupingOptions(jobs=True),
)


def of_classes(classes: JobClasses) -> object:
    """All that follows of classes, to be compared; how groups are numbered is nobody's business."""
    groups, d = (
        [(classes.groups[g], classes.rate_lists[g]) for g in classes.group_list],
        classes.problem,
    )
    arrays = (d.column_type, d.usage, d.type_column, d.type_rates, d.equal_rates, d.fastest_rates)
    numbers = [array.tolist() for array in arrays]
    return (
        classes.fingerprint,
        classes.entities,
        classes.class_list,
        classes.members,
        dict(classes.row_of),
        groups,
        numbers,
    )


def of_ground(allocatable: Allocatable) -> object:
    """All that follows of the allocatable, likewise."""
    return (
        allocatable,
        dict(allocatable.index),
        allocatable.sizes,
        allocatable.gpus.tolist(),
        allocatable.shared,
    )


def seen(snapshot: Snapshot, asked: GroupingOptions) -> object:
    """All that is observed of a snapshot, and where its jobs run."""
    observed = observe(snapshot, asked)
    return (
        of_classes(observed.classes),
        of_ground(observed.allocatable),
        homes_of(observed),
        observed.row_list,
    )


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
    earlier = replace(
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
    assert (
        earlier.lasting is not earlier.standing
    )  # both asked for here, so that what follows has them too
    return earlier


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), snapshot=snapshots(), asked=st.sampled_from(ASKED))
def test_what_is_observed_of_a_following_snapshot_is_what_is_observed_of_one_that_follows_nothing(
    data: st.DataObject, snapshot: Snapshot, asked: GroupingOptions
) -> None:
    earlier = before(data, snapshot)
    seen(earlier, asked)
    here = with_some(data, snapshot)
    following = earlier.following(jobs=here.jobs, nodes=here.nodes, kinds=here.kinds)
    assert seen(following, asked) == seen(here, asked)
    assert seen(earlier, asked) == seen(replace(earlier), asked)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.data(),
    snapshot=snapshots(),
    name=st.sampled_from(["max_min_fairness", "hierarchical", "fifo_shares"]),
)
def test_a_following_snapshot_is_decided_like_one_with_its_memory_read_from_a_file(
    data: st.DataObject, snapshot: Snapshot, name: str
) -> None:
    policy, now = make(name, {}), before(data, snapshot)
    memory = policy(now).memory
    for later_s in (10.0, now.round_s, 2.5 * now.round_s):
        here = (
            with_some(data, snapshot)
            if data.draw(st.booleans())
            else replace(snapshot, jobs=now.jobs, nodes=now.nodes)
        )
        here = replace(here, now_s=snapshot.now_s + later_s, memory=json.loads(json.dumps(memory)))
        now = now.following(
            jobs=here.jobs,
            nodes=here.nodes,
            kinds=here.kinds,
            now_s=here.now_s,
            memory=dict(memory),
        )
        plan = policy(now)
        assert plan == policy(here)
        memory = plan.memory


def test_jobs_that_change_places_with_others_like_them_have_their_shares_by_their_own_names() -> (
    None
):
    policy, node = make("max_min_fairness", {}), a_node("n1", gpus=1)
    first = a_snapshot([node], [a_job("a"), a_job("b")])
    plan = policy(first)
    others = Jobs(JobColumns.of([a_job("a"), a_job("c")]))
    assert policy(first.following(jobs=others, memory=plan.memory)).shares.keys() == {"a", "c"}


def test_an_older_memory_that_comes_back_is_believed_and_not_what_was_kept_of_a_newer_one() -> None:
    policy, waits = make("max_min_fairness", {}), a_job("b")
    first = a_snapshot([a_node("n1", gpus=1)], [a_job("a"), waits])
    old = policy(first).memory
    runs = a_job("a", running=on("n1", "gpu0", since_s=first.now_s))
    second = first.following(
        jobs=Jobs(JobColumns.of([runs, waits])), now_s=first.now_s + 100.0, memory=old
    )
    assert policy(second).memory["entries"] != old["entries"]
    third = second.following(now_s=first.now_s + 200.0, memory=old)
    assert policy(third) == policy(replace(third, memory=json.loads(json.dumps(old))))


def test_who_writes_to_the_shares_of_a_plan_changes_no_later_plan() -> None:
    policy, first = (
        make("max_min_fairness", {}),
        a_snapshot([a_node("n1", gpus=1)], [a_job("a"), a_job("b")]),
    )
    plan = policy(first)
    written = dict(plan.shares)
    assert isinstance(plan.shares, dict)
    plan.shares.clear()
    assert policy(first.following(memory=plan.memory)).shares == written


def test_shares_made_anew_of_the_same_jobs_are_told() -> None:
    policy = make("hierarchical", {})
    jobs = [a_job("a", team="red"), a_job("b", team="blue")]
    first = replace(
        a_snapshot([a_node("n1", gpus=1)], jobs),
        teams=(TeamView("red", 1.0), TeamView("blue", 1.0)),
    )
    plan = policy(first)
    second = policy(
        first.following(teams=(TeamView("red", 3.0), TeamView("blue", 1.0)), memory=plan.memory)
    )
    assert [sum(plan.shares[job].values()) for job in "ab"] == pytest.approx([0.5, 0.5])
    assert [sum(second.shares[job].values()) for job in "ab"] == pytest.approx([0.75, 0.25])


def test_a_device_of_a_job_that_is_not_known_yet_or_any_more_is_not_given() -> None:
    held = a_node("n1", devices=(a_device("gpu0", held=(SlotHold("b"),)), a_device("gpu1")))
    first = a_snapshot([held], [a_job("a")])
    assert first.standing == {}  # asked for, so that what follows has it too
    both = Jobs(JobColumns.of([a_job("a"), a_job("b")]))
    rounds = [
        first,
        first.following(jobs=both),
        first.following(jobs=both).following(jobs=first.jobs),
    ]
    assert [observe(of).allocatable.devices for of in rounds] == [
        (("gpu1",),),
        (("gpu0", "gpu1"),),
        (("gpu1",),),
    ]
    assert [observe(of).allocatable.busy for of in rounds] == [(1,), (0,), (1,)]


def test_devices_that_take_two_jobs_are_counted_as_they_are_now() -> None:
    first = a_snapshot([a_node("n1", gpus=1)], [a_job("a")])
    assert first.standing == {}
    wider = first.following(nodes=(a_node("n1", devices=(a_device("gpu0", slots=2),)),))
    assert [observe(of).allocatable.shared for of in (first, wider)] == [(0,), (1,)]
