"""An action on one launch changes no row of another: neither of its cluster nor of the next."""

import gzip
import hashlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Node
from clusters.services.nodes import node_cordon, node_drain, node_revoke, node_set_role
from controlplane.accounting.ledger import write_entries
from controlplane.execution.outcomes import (
    assignment_running,
    end_assignment,
    fail_never_ready,
    fail_overdue,
    settle_job,
)
from controlplane.execution.services.assignment_metrics import record_metrics
from controlplane.execution.services.assignments import accept, report_state
from controlplane.execution.services.logs import append_log
from controlplane.execution.services.sessions import open_session
from controlplane.execution.services.stops import preempt_gang, stop_assignment, stop_job
from jobs.assignment_lifecycle import AssignmentMove
from jobs.models import Assignment, Dependency
from jobs.services import job_cancel, job_hold, job_release, job_requeue
from loadmaster.protocol import Accept, AssignmentState, KnownAssignment, ReasonClass, StopReason
from loadmaster.samples import MetricsBatch, ProgressSample, UsageSample
from tests.builders import a_cluster, a_job
from tests.builders_agents import (
    CLOCK,
    a_heartbeat,
    a_node_with_agent,
    a_report,
    a_running_assignment,
    a_session_request,
    an_offer,
    heartbeat,
)
from tests.builders_jobs import output
from tests.bystanders import check_unchanged, rows

pytestmark = pytest.mark.django_db

Action = Callable[[], object]
S = AssignmentState

OF_ALL = ("Cluster", "JobCounter", "RescheduleEvent")
"""Models of rows that several jobs have in common."""


def a_gang(node: Node) -> list[Assignment]:
    """Two ranks that run on the node."""
    first = a_running_assignment(node, world_size=2)
    return [first, a_running_assignment(node, first.job, rank=1, world_size=2)]


def accepting(node: Node) -> Action:
    offer = an_offer(node)
    return lambda: accept(node.pk, offer.pk, Accept(epoch=1, fence=offer.fence))


def reporting(to: AssignmentState, **values: Any) -> Callable[[Node], Action]:
    def prepared(node: Node) -> Action:
        run, _ = a_gang(node)
        return lambda: report_state(node.pk, run.pk, a_report(run, to, **values))

    return prepared


def naming_the_image(node: Node) -> Action:
    run = a_running_assignment(node)
    Assignment.objects.filter(pk=run.pk).update(state=S.PREPARING)
    report = a_report(run, S.RUNNING, image_digest="sha256:" + "a" * 64)
    return lambda: report_state(node.pk, run.pk, report)


def beginning_at_an_older_checkpoint(node: Node) -> Action:
    job = a_job(node.cluster, steps_done=80, checkpoint_steps=60)
    run = a_running_assignment(node, job, start_steps=60, steps_done=60, checkpoint_steps=60)
    at_s = timezone.now().timestamp()
    start = ProgressSample(at_s, "start", 10, 1, 1.0)
    usage = UsageSample(at_s=at_s, cores=1.0, memory_gb=1.0)
    batch = MetricsBatch(1, run.fence, 1, (start,), (usage,))
    return lambda: record_metrics(node, run.pk, batch)


def making_progress(node: Node) -> Action:
    run = a_running_assignment(node)
    saved = ProgressSample(timezone.now().timestamp(), "checkpoint", 40, 40, 1.0, loss=0.5)
    return lambda: record_metrics(node, run.pk, MetricsBatch(1, run.fence, 1, (saved,)))


def shipping_output(node: Node) -> Action:
    run = a_running_assignment(node)
    output(run, b"epoch 1\n")
    text = b"epoch 2\n"
    digest = hashlib.sha256(text).hexdigest()
    body = gzip.compress(text)
    return lambda: append_log(node, run.pk, "stdout", 8, 1, run.fence, body, digest)


def beating(node: Node) -> Action:
    run = a_running_assignment(node)
    return lambda: heartbeat(node.pk, a_heartbeat(run, healthy=False, gpu_trouble="no driver"))


def coming_back(node: Node) -> Action:
    run = a_running_assignment(node)
    Assignment.objects.filter(pk=run.pk).update(state=S.UNKNOWN)
    return lambda: heartbeat(node.pk, a_heartbeat(run))


def opening_a_session(node: Node) -> Action:
    known, unknown = an_offer(node), an_offer(node)
    for offer in (known, unknown):
        accept(node.pk, offer.pk, Accept(epoch=1, fence=offer.fence))
    told = (KnownAssignment(str(known.pk), known.fence, S.ACCEPTED),)
    request = a_session_request(node, assignments=told, devices=())
    return lambda: open_session(node.pk, request)


def stopping_a_rank(node: Node) -> Action:
    run, _ = a_gang(node)
    return lambda: stop_assignment(run, StopReason.CANCEL)


def stopping_a_job(node: Node) -> Action:
    run, _ = a_gang(node)
    return lambda: stop_job(run.job, StopReason.CANCEL, "ada")


def preempting_a_gang(node: Node) -> Action:
    run, _ = a_gang(node)
    return lambda: preempt_gang(run.pk, "ada")


def failing_a_rank(node: Node) -> Action:
    run, _ = a_gang(node)
    run = Assignment.objects.get(pk=run.pk)
    now = timezone.now()
    return lambda: end_assignment(run, AssignmentMove.FAIL, ReasonClass.USER, "no", now)


def ending_a_profile_run(node: Node) -> Action:
    run = a_running_assignment(node, purpose="profiling", copy=1)
    run = Assignment.objects.get(pk=run.pk)
    now = timezone.now()
    return lambda: end_assignment(run, AssignmentMove.FAIL, ReasonClass.USER, "no", now)


def running_a_gang(node: Node) -> Action:
    job = a_job(node.cluster)
    ranks = [an_offer(node, job, rank=rank, world_size=2) for rank in range(2)]
    Assignment.objects.filter(job=job).update(state=S.RUNNING)
    return lambda: assignment_running(ranks[0])


def settling(node: Node) -> Action:
    run = a_running_assignment(node)
    Assignment.objects.filter(pk=run.pk).update(state=S.SUCCEEDED, ended_at=timezone.now())
    return lambda: settle_job(run.job_id)


def passing_a_deadline(node: Node) -> Action:
    now = timezone.now()
    job = a_job(node.cluster, deadline_at=now)
    return lambda: fail_overdue(job.pk, now)


def waiting_in_vain(node: Node) -> Action:
    job = a_job(node.cluster)
    Dependency.objects.create(job=job, on=a_job(node.cluster, state="failed"))
    return lambda: fail_never_ready(job.pk, timezone.now())


def cancelling(node: Node) -> Action:
    run, _ = a_gang(node)
    return lambda: job_cancel(run.job, run.job.user)


def holding(node: Node) -> Action:
    run, _ = a_gang(node)
    return lambda: job_hold(run.job, run.job.user)


def releasing_from_a_rest(node: Node) -> Action:
    job = a_job(node.cluster, retry_at=timezone.now() + timedelta(hours=1))
    return lambda: job_release(job, job.user)


def taking_a_hold_back(node: Node) -> Action:
    job = a_job(node.cluster, state="stopping", hold_wanted=True)
    return lambda: job_release(job, job.user)


def requeueing(node: Node) -> Action:
    job = a_job(node.cluster, state="failed", failure_reason="no", retries_used=1)
    return lambda: job_requeue(job, job.user)


def metering(node: Node) -> Action:
    hour_ago = timezone.now() - timedelta(hours=2)
    run = a_running_assignment(node, now=hour_ago)
    write_entries(run, hour_ago + timedelta(hours=1))
    run.refresh_from_db()
    return lambda: write_entries(run, timezone.now(), anew=True)


PREPARED: dict[str, Callable[[Node], Action]] = {
    "accepting": accepting,
    "stopping": reporting(S.STOPPING),
    "succeeding": reporting(S.SUCCEEDED, steps=100),
    "failing": reporting(S.FAILED),
    "naming the image": naming_the_image,
    "beginning at an older checkpoint": beginning_at_an_older_checkpoint,
    "making progress": making_progress,
    "shipping output": shipping_output,
    "beating": beating,
    "coming back": coming_back,
    "opening a session": opening_a_session,
    "stopping a rank": stopping_a_rank,
    "stopping a job": stopping_a_job,
    "preempting a gang": preempting_a_gang,
    "failing a rank": failing_a_rank,
    "ending a profile run": ending_a_profile_run,
    "running a gang": running_a_gang,
    "settling": settling,
    "passing a deadline": passing_a_deadline,
    "waiting in vain": waiting_in_vain,
    "cancelling": cancelling,
    "holding": holding,
    "releasing from a rest": releasing_from_a_rest,
    "taking a hold back": taking_a_hold_back,
    "requeueing": requeueing,
    "metering": metering,
    "cordoning": lambda node: lambda: node_cordon(node),
    "draining": lambda node: lambda: node_drain(node),
    "giving a role": lambda node: lambda: node_set_role(node, "both"),
    "revoking": lambda node: lambda: node_revoke(node),
}


@pytest.mark.parametrize("is_same_cluster", [True, False], ids=["same cluster", "other cluster"])
@pytest.mark.parametrize("name", PREPARED)
def test_an_action_on_one_changes_no_row_of_another(name: str, *, is_same_cluster: bool) -> None:
    # The other one is prepared alike, so that nothing but its identity tells it from the first.
    cluster = a_cluster(**CLOCK)
    PREPARED[name](a_node_with_agent(cluster, gpus=2))
    others = rows(OF_ALL)
    own_cluster = cluster if is_same_cluster else a_cluster(**CLOCK)
    act = PREPARED[name](a_node_with_agent(own_cluster, token="of the other", gpus=2))
    prepared = rows(OF_ALL)
    act()
    done = rows(OF_ALL)
    assert done != prepared
    check_unchanged(others, done)
