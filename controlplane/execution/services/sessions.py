"""Sessions: one agent at a time acts for a node; a growing epoch refuses older sessions."""

import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from clusters.agent_errors import (
    AgentCallError,
    check_devices,
    check_features,
    check_launches,
    check_text,
    not_yours,
    stale_assignment,
    stale_epoch,
    unknown_token,
)
from clusters.events import request_reschedule
from clusters.intervals import intervals_of, is_silent
from clusters.models import Node, NodeEvent, Reason
from clusters.models.nodes import State
from clusters.plausible import shown_trouble
from clusters.services.devices import sync_devices
from clusters.services.enrolment import gpu_type_of, sha256
from controlplane.execution.outcomes import end_assignment
from jobs.assignment_lifecycle import LIVE, AssignmentMove
from jobs.models import Assignment, Job
from jobs.moves import lock_assignment, lock_node
from loadmaster.protocol import (
    AssignmentState,
    ErrorCode,
    KnownAssignment,
    ReasonClass,
    Session,
    SessionRequest,
    StopReason,
)


def lock_session(node_pk: uuid.UUID, epoch: int) -> Node:
    """Lock the node if `epoch` is its session's; else refuse."""
    node = lock_node(node_pk)
    if node.epoch != epoch or epoch < 1:
        raise stale_epoch(epoch, node.epoch)
    return node


def known_tokens(tokens: Iterable[str]) -> set[str]:
    """Return those tokens (sha256) that are a node's."""
    nodes = Node.objects.filter(token_sha256__in=set(tokens)).order_by()
    return set(nodes.values_list("token_sha256", flat=True))


def token_refusals(tokens: Iterable[str]) -> dict[str, AgentCallError]:
    """Refusals of tokens (sha256) that are another node's, or nobody's."""
    sent = list(tokens)
    known = known_tokens(sent) if sent else set[str]()
    return {token: not_yours() if token in known else unknown_token() for token in sent}


def lock_own(node: Node, pk: uuid.UUID, fence: int) -> Assignment:
    """Lock the node's assignment with that fence; refuse any other."""
    try:
        assignment = lock_assignment(pk, node)
    except Job.DoesNotExist:
        raise stale_assignment(f"there is no assignment {pk} on this node") from None
    if assignment.fence != fence:
        raise stale_assignment(f"assignment {pk} has fence {assignment.fence}, not {fence}")
    return assignment


def open_session(node_pk: UUID, request: SessionRequest, now: datetime | None = None) -> Session:
    """Begin a session. The same journal supersedes its own at once, others when it is silent."""
    now = now or timezone.now()
    check_text("machine_id", request.machine_id, 100, empty=False)
    check_text("boot_id", request.boot_id, 100)
    check_text("session_secret", request.session_secret, 1000, empty=False)
    check_text("address", request.address, 255)
    check_text("process", request.process, 100)
    check_devices(request.devices)
    check_features(request.features)
    check_launches(request.assignments)
    with transaction.atomic():
        node = lock_node(node_pk)
        if not is_silent(node.session_expires_at) and not _is_same_agent(node, request):
            lease_s = intervals_of(node.cluster).lease_s
            text = f"node {node} has another session; it ends after {lease_s:.0f} s of silence"
            raise AgentCallError(409, ErrorCode.SESSION_LIVES, text)
        if _is_superseded_copy(node, request):
            text = f"another agent has the session of node {node}, by a copy of this state folder"
            raise AgentCallError(409, ErrorCode.DUPLICATE, text)
        unwritten = _accepted_but_unknown(node, request)
        silent = node.state != State.LOST and is_silent(node.session_expires_at)
        epoch = _begin(node, request, now)
        changed = sync_devices(node, request.devices, request.gpu_trouble)
        adopt, stop = _split_known(node, request.assignments)
        Assignment.objects.filter(pk__in=adopt).update(epoch=epoch, report_seq=0, metrics_seq=0)
        if changed or silent:
            request_reschedule(node.cluster, Reason.NODE_JOINED, node=node)
    for pk in unwritten:
        _end_unstarted(pk, epoch, now)
    return Session(
        epoch, intervals_of(node.cluster), adopt=tuple(str(pk) for pk in adopt), stop=stop
    )


def restore_lost_node(node: Node) -> None:
    """Restore the former state of a lost node, its row locked, with its event."""
    if node.state != State.LOST:
        return
    lost = node.events.filter(event="lost").last()
    before = State(lost.data.get("was", State.READY)) if lost else State.READY
    if Node.objects.filter(pk=node.pk, state=State.LOST).update(state=before):
        NodeEvent.objects.create(node=node, event="back", data={"state": before})
        request_reschedule(node.cluster, Reason.NODE_JOINED, node=node)
        node.state = before


def _is_same_agent(node: Node, request: SessionRequest) -> bool:
    """Return True for the same journal on the same machine as the former session's."""
    return node.machine_id == request.machine_id and node.session_secret_sha256 == sha256(
        request.session_secret
    )


def _is_superseded_copy(node: Node, request: SessionRequest) -> bool:
    """Return True if another live process of the same journal took the session of this one.

    A restarted agent has had no session yet, and an agent whose answer was lost is the process that
    has the newest one.
    """
    was_superseded = 0 < request.former_epoch < node.epoch
    if not (request.process and was_superseded) or is_silent(node.session_expires_at):
        return False
    newest = node.events.filter(event="session").last()
    return newest is not None and newest.data.get("process", "") != request.process


def _begin(node: Node, request: SessionRequest, now: datetime) -> int:
    epoch = node.epoch + 1
    gpu_type = gpu_type_of(request.devices)
    if gpu_type is None and request.gpu_trouble:
        gpu_type = node.gpu_type  # its GPUs are there, and cannot be reached
    Node.objects.filter(pk=node.pk, epoch=node.epoch).update(
        epoch=epoch,
        machine_id=request.machine_id,
        boot_id=request.boot_id,
        session_secret_sha256=sha256(request.session_secret),
        session_expires_at=now + timedelta(seconds=intervals_of(node.cluster).lease_s),
        heartbeat_seq=0,
        last_seen_at=now,
        gpu_type=gpu_type,
        gpu_trouble=shown_trouble(request.gpu_trouble),
        emulated=any(device.emulated for device in request.devices),
        address=request.address,
        **({"agent_version": request.agent_version[:50]} if request.agent_version else {}),
        **({"features": sorted(request.features)} if request.features else {}),
    )
    data = {"epoch": epoch, "boot_id": request.boot_id, "process": request.process}
    NodeEvent.objects.create(node=node, event="session", data=data)
    restore_lost_node(node)
    return epoch


def _split_known(
    node: Node, known: tuple[KnownAssignment, ...]
) -> tuple[list[UUID], tuple[str, ...]]:
    """Split the agent's known assignments into those that go on and those to stop."""
    held = Assignment.objects.filter(node=node, state__in=LIVE).order_by("pk")
    held = held.select_for_update(no_key=True)
    live = {(str(a.pk), a.fence): a for a in held}
    mine = [live.get((k.id, k.fence)) for k in known]
    adopt = [a.pk for a in mine if a is not None and a.state != AssignmentState.OFFERED]
    stop = tuple(k.id for k, a in zip(known, mine, strict=True) if a is None)
    return adopt, stop


def _accepted_but_unknown(node: Node, request: SessionRequest) -> list[UUID]:
    """Accepted assignments that the agent's own journal lacks: it died before starting them.

    Another journal's silence proves nothing; those wait for their leases.
    """
    if not _is_same_agent(node, request):
        return []
    known = {(k.id, k.fence) for k in request.assignments}
    accepted = Assignment.objects.filter(node=node, state=AssignmentState.ACCEPTED).order_by("pk")
    pairs = accepted.values_list("pk", "fence")
    return [pk for pk, fence in pairs if (str(pk), fence) not in known]


def _end_unstarted(pk: UUID, epoch: int, now: datetime) -> None:
    with transaction.atomic():
        assignment = lock_assignment(pk)
        if assignment.state != AssignmentState.ACCEPTED or assignment.epoch >= epoch:
            return
        cancelled = assignment.desired == StopReason.CANCEL
        move = AssignmentMove.CANCEL if cancelled else AssignmentMove.PREEMPT
        text = "its agent restarted before it had recorded the launch"
        end_assignment(assignment, move, ReasonClass.NODE, text, now)
