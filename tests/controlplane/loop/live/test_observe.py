"""What a policy is shown of the live cluster."""

from datetime import timedelta
from decimal import Decimal
from math import inf
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import profiling.selectors
from clusters.events import request_reschedule
from clusters.models import Cluster, Node, Reason
from controlplane.loop.live.observe import Observation, observe
from jobs.models import Assignment, AssignmentSlot, Dependency, Job
from policies.contract import snapshot_json
from policies.contract.snapshot import (
    JobPhase,
    NodeRole,
    NodeState,
    Purpose,
    RankPlacement,
    SlotHold,
    Snapshot,
    TeamOrder,
    TeamView,
)
from profiling.restarts import Restart
from tests.builders import a_cluster, a_gpu_type, a_job, a_node, a_team, at
from tests.builders_databases import sqlite_database

pytestmark = pytest.mark.django_db


def seen(cluster: Cluster, number: int = 1) -> Observation:
    return observe(cluster.pk, timezone.now().timestamp(), number, profiling.selectors)


def snapshot_of(cluster: Cluster) -> Snapshot:
    return seen(cluster).snapshot


def holding(job: Job, node: Node, *devices: int, **values: Any) -> Assignment:
    """A live assignment of the job on these devices of the node."""
    given = {
        "fence": job.fence + 1,
        "state": "running",
        "gpus": len(devices),
        "running_at": at(-100),
        **values,
    }
    assignment = Assignment.objects.create(job=job, node=node, **given)
    held = [node.devices.order_by("uuid")[i] for i in devices]
    AssignmentSlot.objects.bulk_create(
        AssignmentSlot(assignment=assignment, device=d) for d in held
    )
    return assignment


def test_a_cluster_is_shown_with_its_numbers() -> None:
    cluster = a_cluster(
        period_s=77.0,
        power_cap_w=5000.0,
        seed=40,
        currency="CHF",
        memory={"a": 1},
        horizon_s=7200.0,
    )
    snapshot = seen(cluster, number=2).snapshot
    assert (snapshot.cluster, snapshot.round_s, snapshot.power_cap_w) == (
        cluster.name,
        77.0,
        5000.0,
    )
    assert (snapshot.seed, snapshot.currency, snapshot.memory) == (42, "CHF", {"a": 1})
    (step,) = snapshot.energy
    assert (step.from_s, step.to_s - step.from_s) == (snapshot.now_s, 7200.0)


def test_a_cluster_is_shown_with_its_caps_by_hour_and_the_weight_of_its_emissions() -> None:
    caps = [{"power_cap_w": 900}, {"power_cap_w": 400, "days": "0123456"}]
    cluster = a_cluster(
        power_cap_hours=caps, emissions_cost_per_kg=Decimal("0.08"), horizon_s=60.0, period_s=300.0
    )
    snapshot = snapshot_of(cluster)
    assert (snapshot.emissions_cost_per_kg, snapshot.cap_w) == (0.08, 400.0)
    (step,) = snapshot.power_caps
    assert (step.power_cap_w, step.from_s) == (400.0, snapshot.now_s)
    assert step.to_s > snapshot.now_s + snapshot.round_s


def test_a_node_is_shown_with_what_may_be_given_away_and_its_power() -> None:
    cluster = a_cluster()
    gpu_type = a_gpu_type("V100", idle_w=30.0, peak_w=200.0)
    drained = at(600)
    values = {
        "reserved_cores": 2.0,
        "reserved_memory_gb": 8.0,
        "labels": ["b", "a"],
        "role": "both",
    }
    node = a_node(
        cluster,
        gpu_type=gpu_type,
        gpus=2,
        state="draining",
        drain_until=drained,
        base_w=300.0,
        **values,
    )
    (view,) = snapshot_of(cluster).nodes
    assert (view.id, view.gpu_type, view.power_w) == (str(node.pk), "V100", (360.0, 530.0, 700.0))
    assert (view.cores, view.memory_gb, view.labels) == (30.0, 120.0, ("a", "b", "runtime:process"))
    assert (view.role, view.state, view.drain_until_s) == (
        NodeRole.BOTH,
        NodeState.DRAINING,
        drained.timestamp(),
    )


@pytest.mark.parametrize("skew_s", [60, -60, -3600])
def test_a_node_whose_session_was_ended_is_shown_as_cordoned_whatever_the_clock_says(
    skew_s: float,
) -> None:
    cluster = a_cluster()
    for name, state in (("a", "ready"), ("b", "draining"), ("c", "lost")):
        a_node(cluster, name=name, state=state, session_expires_at=None)
    a_node(cluster, name="d", session_expires_at=at(skew_s))
    states = [n.state for n in snapshot_of(cluster).nodes]
    assert states == [NodeState.CORDONED, NodeState.DRAINING, NodeState.LOST, NodeState.READY]


def test_jobs_that_run_or_want_to_are_shown_in_the_order_they_came() -> None:
    cluster = a_cluster()
    states = ("queued", "profiling", "held", "cancelling", "completed", "failed", "cancelled")
    jobs = {state: a_job(cluster, state=state) for state in states}
    first = a_job(cluster)
    Job.objects.filter(pk=first.pk).update(submitted_at=at(-1000))
    assert [j.id for j in snapshot_of(cluster).jobs] == [
        str(first.pk),
        str(jobs["queued"].pk),
        str(jobs["profiling"].pk),
    ]


def test_a_waiting_job_has_left_what_its_checkpoint_has_not() -> None:
    cluster = a_cluster(restart_cost_s=12.0, value_of_time=0.09)
    due = at(500)
    a_job(
        cluster,
        checkpoint_steps=30,
        steps_done=45,
        due_at=due,
        tardiness_weight=0.5,
        priority=3,
        team=a_team("vision"),
    )
    (job,) = snapshot_of(cluster).jobs
    assert (job.phase, job.remaining_steps, job.total_steps) == (JobPhase.WAITING, 70.0, 100.0)
    assert (job.due_s, job.deadline_s, job.walltime_s) == (due.timestamp(), inf, inf)
    assert (job.tardiness_weight, job.priority, job.team, job.restart_cost_s) == (
        0.5,
        3,
        "vision",
        12.0,
    )
    assert job.waiting_cost == pytest.approx(0.09 / 3600.0 * 8.0)


def test_a_running_job_is_shown_where_it_runs_with_what_is_left_of_it() -> None:
    cluster = a_cluster()
    node = a_node(cluster, gpus=3)
    job = a_job(
        cluster, state="running", checkpoint_steps=10, steps_done=25, received_s={"V100": 5.0}
    )
    term = at(300)
    run = holding(job, node, 2, 0, start_steps=10, steps_done=25, term_until=term, steps_quota=50)
    snapshot = snapshot_of(cluster)
    (view,) = snapshot.jobs
    (placed,) = view.running
    uuids = [d.uuid for d in node.devices.order_by("uuid")]
    assert placed.ranks == (RankPlacement(str(node.pk), (uuids[0], uuids[2])),)
    assert run.running_at is not None
    assert (placed.since_s, placed.until_s, placed.steps_quota) == (
        run.running_at.timestamp(),
        term.timestamp(),
        50,
    )
    assert (view.phase, view.remaining_steps) == (JobPhase.RUNNING, 75.0)
    assert dict(view.received_s) == {"V100": pytest.approx(5.0 + 2 * 100.0, abs=5.0)}
    assert [bool(d.held) for d in snapshot.nodes[0].devices] == [True, False, True]


def test_an_offer_nobody_has_taken_counts_as_running() -> None:
    cluster = a_cluster()
    job = a_job(cluster, state="starting")
    holding(job, a_node(cluster), 0, state="offered", running_at=None)
    (view,) = snapshot_of(cluster).jobs
    assert (view.phase, view.received_s) == (JobPhase.RUNNING, ())
    assert len(view.running) == 1


@pytest.mark.parametrize("values", [{"desired": "preempt"}, {"state": "stopping"}])
def test_a_job_that_is_being_stopped_waits_while_its_devices_still_name_it(
    values: dict[str, str],
) -> None:
    cluster = a_cluster()
    job = a_job(cluster, state="stopping", checkpoint_steps=10)
    holding(job, a_node(cluster), 0, start_steps=10, steps_done=40, **values)
    snapshot = snapshot_of(cluster)
    (view,) = snapshot.jobs
    assert (view.phase, view.running, view.remaining_steps) == (JobPhase.WAITING, (), 60.0)
    assert snapshot.nodes[0].devices[0].held == (SlotHold(str(job.pk)),)


@pytest.mark.parametrize(
    "values", [{"state": "stopping", "hold_wanted": True}, {"state": "cancelling"}]
)
def test_devices_of_a_job_on_its_way_out_are_held_by_one_the_snapshot_does_not_show(
    values: dict[str, Any],
) -> None:
    cluster = a_cluster()
    job = a_job(cluster, **values)
    holding(job, a_node(cluster), 0, desired="cancel")
    snapshot = snapshot_of(cluster)
    assert not len(snapshot.jobs)
    assert snapshot.nodes[0].devices[0].held[0].job == str(job.pk)


def test_a_profile_run_is_shown_as_one() -> None:
    cluster = a_cluster()
    job = a_job(cluster, state="profiling")
    holding(job, a_node(cluster), 1, purpose="profiling", copy=2)
    snapshot = snapshot_of(cluster)
    (view,) = snapshot.jobs
    assert (view.phase, view.running[0].purpose, view.running[0].copy) == (
        JobPhase.PROFILING,
        Purpose.PROFILING,
        2,
    )
    assert (view.remaining_steps, view.received_s) == (100.0, ())


def test_the_waiting_events_say_why_the_round_is_held() -> None:
    cluster = a_cluster()
    job, node = a_job(cluster), a_node(cluster)
    first = request_reschedule(cluster, Reason.SUBMISSION, job=job)
    second = request_reschedule(cluster, Reason.NODE_JOINED, node=node)
    third = request_reschedule(cluster, Reason.SUBMISSION, job=job)
    request_reschedule(a_cluster(), Reason.TARIFF)
    observed = seen(cluster)
    assert observed.events == (first.pk, second.pk, third.pk)
    trigger = observed.snapshot.trigger
    assert (trigger.reasons, trigger.jobs, trigger.nodes) == (
        ("submission", "node_joined"),
        (str(job.pk),),
        (str(node.pk),),
    )


@pytest.mark.parametrize(
    ("condition", "state", "waits"),
    [
        ("afterok", "running", True),
        ("afterany", "running", True),
        ("afternotok", "queued", True),
        ("afterany", "failed", False),
        ("afternotok", "cancelled", False),
        ("afterok", "completed", False),
    ],
)
def test_a_job_waits_for_the_end_that_it_names(
    cluster: Cluster, condition: str, state: str, waits: bool
) -> None:
    first, then = a_job(cluster, state=state), a_job(cluster)
    Dependency.objects.create(job=then, on=first, condition=condition)
    shown = {j.id: j.dependencies for j in observe(cluster.pk, 1000.0, 1).snapshot.jobs}
    assert shown[str(then.pk)] == ((str(first.pk),) if waits else ())


def test_jobs_that_depend_on_what_will_not_run_are_left_out_others_name_what_they_wait_for() -> (
    None
):
    cluster = a_cluster()
    held, queued, done = (
        a_job(cluster, state="held"),
        a_job(cluster),
        a_job(cluster, state="completed"),
    )
    blocked, behind, after = a_job(cluster), a_job(cluster), a_job(cluster)
    blocked.dependencies.add(held, done)
    behind.dependencies.add(blocked)
    after.dependencies.add(queued, done)
    observed = seen(cluster)
    shown = {j.id: j.dependencies for j in observed.snapshot.jobs}
    assert shown == {str(queued.pk): (), str(after.pk): (str(queued.pk),)}
    assert observed.blocked == {
        str(blocked.pk): (str(held.pk),),
        str(behind.pk): (str(blocked.pk),),
    }


def test_a_kind_nothing_is_known_of_is_shown_without_figures_rather_than_missing() -> None:
    cluster = a_cluster()
    job = a_job(cluster)

    class Nothing:
        kind_views = staticmethod(lambda cluster, kinds: ())
        profile_requests = staticmethod(lambda cluster: ())
        error_spread = staticmethod(lambda: 0.0)
        restarts = staticmethod(lambda cluster, kinds: dict.fromkeys(kinds, Restart(10.0, 10.0)))

    snapshot = observe(cluster.pk, timezone.now().timestamp(), 1, Nothing()).snapshot
    assert [(k.id, k.throughputs) for k in snapshot.kinds] == [(str(job.kind_id), ())]


def test_nothing_of_other_clusters_is_shown() -> None:
    cluster, other = a_cluster(), a_cluster()
    a_node(other)
    a_job(other)
    snapshot = snapshot_of(cluster)
    assert (len(snapshot.nodes), len(snapshot.jobs)) == (0, 0)


def test_a_snapshot_can_be_written_down_and_read_again() -> None:
    cluster = a_cluster(power_cap_w=None)
    job = a_job(cluster, state="running", environment={"TOKEN": {"secret": "registry"}})
    holding(job, a_node(cluster), 0)
    a_job(cluster, due_at=timezone.now() + timedelta(days=1))
    snapshot = snapshot_of(cluster)
    assert snapshot_json.from_json(snapshot_json.to_json(snapshot)) == snapshot
    assert "registry" not in str(snapshot_json.to_json(snapshot))


def test_the_number_of_queries_does_not_grow_with_jobs_and_nodes() -> None:
    def queries(cluster: Cluster) -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            seen(cluster)
        return len(captured)

    small, large = a_cluster(), a_cluster()
    for cluster, times in ((small, 1), (large, 6)):
        for _ in range(times):
            node = a_node(cluster)
            holding(a_job(cluster, state="running"), node, 0)
            a_job(cluster).dependencies.add(a_job(cluster))
            request_reschedule(cluster, Reason.OPERATOR)
    assert queries(large) == queries(small)


def test_teams_of_the_jobs_are_shown_with_their_weight_and_order_and_types_with_their_price() -> (
    None
):
    cluster = a_cluster()
    a_node(cluster, gpu_type=a_gpu_type("V100", price_per_hour=Decimal("3.1")))
    a_gpu_type("T4")
    teams = [a_team("vision", weight=2.5, order="fifo"), a_team("speech")]
    for team in teams:
        a_job(cluster, team=team)
        a_job(cluster, team=team)
    a_team("idle")
    snapshot = snapshot_of(cluster)
    assert snapshot.teams == (TeamView("speech"), TeamView("vision", 2.5, TeamOrder.FIFO))
    assert {of.name: of.price_per_hour for of in snapshot.gpu_types} == {"V100": 3.1, "T4": 0.0}
    assert snapshot_json.from_json(snapshot_json.to_json(snapshot)) == snapshot


def test_observing_may_be_a_connections_first_use(tmp_path: Path) -> None:
    with sqlite_database(tmp_path / "db.sqlite3"), pytest.raises(OperationalError, match="no such"):
        observe(1, 0.0, 1)
