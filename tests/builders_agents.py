"""Builders of what agents say and of what is assigned to them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from clusters.models import Cluster, Device, Node
from clusters.services.enrolment import sha256
from controlplane.execution import reconciler
from controlplane.execution.services.heartbeats import Call, renew_one
from controlplane.execution.services.sessions import open_session
from controlplane.web.storage.watch import Watch
from jobs.lifecycle import JobMove, JobState
from jobs.models import Assignment, AssignmentSlot, Attempt, Job
from jobs.moves import move_job
from loadmaster.protocol import (
    Accept,
    AssignmentState,
    DeviceReport,
    Heartbeat,
    HeartbeatReply,
    KnownAssignment,
    Registration,
    SessionRequest,
    StateReport,
)
from tests.builders import a_cluster, a_job, a_node

NODE_TOKEN = "the token of the node"
SECRET = "the secret in the journal"
CLOCK = {"heartbeat_s": 10.0, "lease_s": 60.0, "grace_s": 30.0, "margin_s": 10.0}
LONG_AGO = datetime(2030, 1, 1, tzinfo=UTC)


def a_device_report(uuid: str = "GPU-1", gpu_type: str = "V100", **values: Any) -> DeviceReport:
    """A healthy GPU of 16 GB."""
    return DeviceReport(
        uuid=uuid, gpu_type=gpu_type, memory_gb=values.pop("memory_gb", 16.0), **values
    )


def a_registration(**values: Any) -> Registration:
    """A machine with one V100."""
    given = {
        "machine_id": "machine-1",
        "boot_id": "boot-1",
        "hostname": "volta",
        "devices": (a_device_report(),),
        "cores": 16.0,
        "memory_gb": 64.0,
        "agent_version": "0.1.0",
    }
    return Registration(**{**given, **values})


def a_session_request(node: Node, secret: str = SECRET, **values: Any) -> SessionRequest:
    """The node's own agent asks for a session, with the devices the server knows."""
    reports = tuple(
        a_device_report(d.uuid, node.type_name, slots=d.slots)
        for d in node.devices.order_by("uuid")
    )
    given = {
        "machine_id": node.machine_id,
        "boot_id": "boot-1",
        "session_secret": secret,
        "devices": reports,
    }
    return SessionRequest(**{**given, **values})


def a_node_with_agent(
    cluster: Cluster | None = None,
    *,
    token: str = NODE_TOKEN,
    now: datetime | None = None,
    **values: Any,
) -> Node:
    """A node whose agent has a session of epoch 1."""
    cluster = cluster or a_cluster(**CLOCK)
    node = a_node(cluster, **{"token_sha256": sha256(token), "session_expires_at": None, **values})
    open_session(node.pk, a_session_request(node), now)
    node.refresh_from_db()
    return node


def an_offer(
    node: Node, job: Job | None = None, *, now: datetime | None = None, gpus: int = 1, **values: Any
) -> Assignment:
    """A job's launch offered to the node, as a plan's application leaves it: the job is STARTING,
    the fence has grown.
    """
    job = job or a_job(node.cluster)
    training = values.get("purpose", "training") == "training"
    if training and job.state == JobState.QUEUED:
        move_job(job, JobMove.PLACE, fence=job.fence + 1)
    elif not training:
        job.fence += 1
        job.save(update_fields=["fence"])
    attempt = job.attempts.filter(ended_at=None).last()
    if attempt is None:
        attempt = Attempt.objects.create(job=job, number=job.attempts.count() + 1)
    defaults = {
        "fence": job.fence,
        "attempt": attempt,
        "gpus": gpus,
        "start_steps": job.checkpoint_steps,
    }
    assignment = Assignment.objects.create(job=job, node=node, **{**defaults, **values})
    free = (
        Device.objects.filter(node=node, healthy=True)
        .exclude(slots_held__live=True)
        .order_by("uuid")[:gpus]
    )
    for device in free:
        AssignmentSlot.objects.create(
            assignment=assignment, device=device, slot=0, share=assignment.share
        )
    if now is not None:
        Assignment.objects.filter(pk=assignment.pk).update(created_at=now)
    return assignment


def a_running_assignment(
    node: Node, job: Job | None = None, *, now: datetime | None = None, **values: Any
) -> Assignment:
    """A launch that the node's agent runs, with a lease; the job runs too."""
    now = now or timezone.now()
    assignment = an_offer(node, job, now=now, **values)
    Assignment.objects.filter(pk=assignment.pk).update(
        state=AssignmentState.RUNNING,
        epoch=node.epoch,
        accepted_at=now,
        running_at=now,
        renewed_at=now,
        lease_expires_at=now + timedelta(seconds=node.cluster.lease_s),
    )
    assignment.refresh_from_db()
    if assignment.purpose == "training" and assignment.job.state == JobState.STARTING:
        move_job(assignment.job, JobMove.RUN)
    return assignment


def a_report(
    assignment: Assignment, to: AssignmentState, *, epoch: int = 1, seq: int = 1, **values: Any
) -> StateReport:
    """The agent reports a state of the assignment."""
    return StateReport(
        epoch=epoch,
        fence=values.pop("fence", assignment.fence),
        seq=seq,
        to=to,
        observed_at_s=1e9,
        **values,
    )


def a_heartbeat(*assignments: Assignment, epoch: int = 1, seq: int = 1, **values: Any) -> Heartbeat:
    """A heartbeat that lists these assignments, running unless the server knows better."""
    states = {
        AssignmentState.OFFERED: AssignmentState.ACCEPTED,
        AssignmentState.UNKNOWN: AssignmentState.RUNNING,
    }
    known = tuple(
        KnownAssignment(
            str(a.pk), a.fence, states.get(AssignmentState(a.state), AssignmentState(a.state))
        )
        for a in assignments
    )
    return Heartbeat(epoch=epoch, seq=seq, sent_at_s=1e9, assignments=known, **values)


def heartbeat(node_pk: UUID, beat: Heartbeat, now: datetime | None = None) -> HeartbeatReply:
    """Renew session and leases of a node whose token has been checked."""
    return renew_one(Call(node_pk, beat), now)


@dataclass(frozen=True, slots=True)
class Attentive(Watch):
    """A machine that has looked at everything since it was written, on a test's virtual clock."""

    now: datetime = LONG_AGO

    def still_s(self, stamps: Mapping[str, str]) -> dict[str, float]:
        written = {name: text.rpartition(" ")[2] for name, text in stamps.items()}
        return {
            name: (0.0 if at == "None" else (self.now - datetime.fromisoformat(at)).total_seconds())
            for name, at in written.items()
        }


def reconcile_clusters(now: datetime | None = None) -> int:
    """A pass of a reconciler that has long been at work and has looked all the time."""
    now = now or timezone.now()
    return reconciler.reconcile_clusters(now, Attentive(now=now))


def accepts(
    call: Any, assignment: Assignment, *, epoch: int = 1, fence: int | None = None, **more: Any
) -> Any:
    """Accept an offer over HTTP; return the answer."""
    words = Accept(epoch=epoch, fence=assignment.fence if fence is None else fence)
    return call("put", f"assignments/{assignment.pk}/accept", words, **more)


def reports(call: Any, assignment: Assignment, to: AssignmentState, **more: Any) -> Any:
    """Report a state over HTTP; return the answer."""
    return call("put", f"assignments/{assignment.pk}/state", a_report(assignment, to, **more))
