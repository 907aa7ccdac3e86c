"""Heartbeats renew leases. What must last goes to the database in a constant number of queries; samples go through the cache."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from clusters.clockwork import job_lease_s
from clusters.lifecycle import ENDED, LIVE, MOVE_TO
from clusters.locking import lock_assignment, lock_session
from clusters.models import Assignment, Node, NodeEvent
from clusters.models.nodes import State
from clusters.moves import move_assignment
from clusters.selectors import clock_of, cursor_of, directives, live_assignments
from clusters.services.devices import keep_samples, note_health
from clusters.services.sessions import come_back
from jobs.outcomes import assignment_running
from loadmaster.protocol import (
    AssignmentState,
    Directive,
    DirectiveAction,
    Heartbeat,
    HeartbeatReply,
    Intervals,
    KnownAssignment,
    Lease,
    StopReason,
)

HELD_BY_AGENT = frozenset(LIVE - {AssignmentState.OFFERED, AssignmentState.UNKNOWN})
"""What an agent can truthfully say of an assignment that is not over."""

UNWELL = "its agent reports that the machine is unhealthy"


def heartbeat(node_pk: UUID, beat: Heartbeat, now: datetime | None = None) -> HeartbeatReply:
    """Renew the session and the leases of what the agent still watches; answer with everything that is wanted and not yet done.

    A heartbeat older than the newest one received renews nothing and gets no leases. Refused if the epoch is stale.
    """
    now = now or timezone.now()
    with transaction.atomic():
        node = lock_session(node_pk, beat.epoch)
        clock = clock_of(node.cluster)
        held = list(live_assignments(node).select_for_update(of=("self",), no_key=True))
        fresh = beat.seq >= node.heartbeat_seq
        renewed = _renew(node, held, beat, clock, now) if fresh else []
        if fresh:
            note_health(node, beat.devices)
            _note_wellbeing(node, healthy=beat.healthy)
    if fresh:
        keep_samples(node, beat.devices, now)
    _restore_sight(renewed, beat, now)
    return _reply(held, renewed, beat, clock)


def _renew(node: Node, held: Sequence[Assignment], beat: Heartbeat, clock: Intervals, now: datetime) -> list[Assignment]:
    """Renew the session and the leases of listed assignments that this session holds; the assignments renewed."""
    Node.objects.filter(pk=node.pk, epoch=beat.epoch).update(
        heartbeat_seq=beat.seq, last_seen_at=now, session_expires_at=now + timedelta(seconds=clock.lease_s)
    )
    come_back(node)
    watched = {(known.id, known.fence) for known in beat.assignments if known.state not in ENDED}
    renewed = [a for a in held if (str(a.pk), a.fence) in watched and a.epoch == beat.epoch and a.state != AssignmentState.OFFERED]
    for keep in ("stop", "keep"):
        ends = now + timedelta(seconds=job_lease_s(clock, keep))
        same = [a.pk for a in renewed if a.job.on_disconnect == keep]
        if same:
            Assignment.objects.filter(pk__in=same, epoch=beat.epoch, state__in=LIVE).update(lease_expires_at=ends)
    return renewed


def _note_wellbeing(node: Node, *, healthy: bool) -> None:
    """A machine that calls itself unhealthy takes no new work until it says otherwise; an operator's cordon is left alone."""
    before, after, reason = (State.CORDONED, State.READY, "") if healthy else (State.READY, State.CORDONED, UNWELL)
    if node.state != before or (healthy and node.reason != UNWELL):
        return
    if Node.objects.filter(pk=node.pk, state=before).update(state=after, reason=reason):
        NodeEvent.objects.create(node=node, event="healthy" if healthy else "unhealthy")


def _restore_sight(renewed: Sequence[Assignment], beat: Heartbeat, now: datetime) -> None:
    """What was UNKNOWN and is watched after all goes on in the state its agent reports."""
    said = {known.id: known for known in beat.assignments}
    for assignment in renewed:
        known = said[str(assignment.pk)]
        if assignment.state == AssignmentState.UNKNOWN and known.state in HELD_BY_AGENT:
            _restore_one(assignment.pk, known, beat.epoch, now)


def _restore_one(pk: UUID, known: KnownAssignment, epoch: int, now: datetime) -> None:
    with transaction.atomic():
        assignment = lock_assignment(pk)
        if assignment.state != AssignmentState.UNKNOWN or assignment.epoch != epoch:
            return
        first_run = known.state is AssignmentState.RUNNING and assignment.running_at is None
        values = {"running_at": now} if first_run else {}
        move_assignment(assignment, MOVE_TO[known.state], data={"by": "heartbeat"}, **values)
        if known.state is AssignmentState.RUNNING:
            assignment_running(assignment, now)


def _reply(held: Sequence[Assignment], renewed: Sequence[Assignment], beat: Heartbeat, clock: Intervals) -> HeartbeatReply:
    leases = tuple(Lease(str(a.pk), a.fence, job_lease_s(clock, a.job.on_disconnect)) for a in renewed)
    wanted = directives(held, clock.grace_s) + _strays(held, beat, clock.grace_s)
    cursor = max(beat.cursor, cursor_of(a for a in held if a.desired != "run" or a.state == AssignmentState.OFFERED))
    return HeartbeatReply(clock.heartbeat_s, leases, wanted, cursor)


def _strays(held: Sequence[Assignment], beat: Heartbeat, grace_s: float) -> tuple[Directive, ...]:
    """What the agent still watches although it is over, of another fence, or not this node's: it must stop."""
    live = {(str(a.pk), a.fence) for a in held}
    strays = [k for k in beat.assignments if k.state not in ENDED and (k.id, k.fence) not in live]
    return tuple(Directive(k.id, k.fence, DirectiveAction.STOP, StopReason.CANCEL, grace_s) for k in strays)
