"""Heartbeats: renewal of many nodes' leases in one transaction with few queries.

Samples of devices go through the cache, everything else to the database.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone

from clusters.agent_errors import AgentCallError, stale_epoch
from clusters.events import note_nodes_joined
from clusters.intervals import intervals_by_cluster, is_silent, job_lease_s
from clusters.models import Device, Node, NodeEvent
from clusters.models.nodes import State
from clusters.services.devices import keep_samples, note_health
from controlplane.execution.directives import cursor_of, directives, is_news
from controlplane.execution.moves import move_assignment
from controlplane.execution.outcomes import assignment_running
from controlplane.execution.services.sessions import restore_lost_node, token_refusals
from controlplane.web.storage.bulk import update_rows
from jobs.assignment_lifecycle import ENDED, HELD_BY_AGENT, LIVE, MOVE_TO
from jobs.models import Assignment
from jobs.moves import lock_assignment
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

UNWELL = "its agent reports that the machine is unhealthy"

IntervalsOf = Callable[[Iterable[int]], Mapping[int, Intervals]]


@dataclass(frozen=True, slots=True)
class Call:
    """Received heartbeat; `token_sha256` None if the caller has checked the token."""

    node: UUID
    beat: Heartbeat
    token_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Renewed:
    """Answer to a heartbeat, and the UNKNOWN assignments to restore before it is sent."""

    reply: HeartbeatReply
    unknown: tuple[tuple[UUID, KnownAssignment], ...] = ()
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Busy:
    """Heartbeat not written, as its row is locked or its batch failed: renew it by itself."""


Outcome = Renewed | AgentCallError | Busy


@dataclass(frozen=True, slots=True)
class _NodeRow:
    """Locked node as its heartbeat finds it; `ill`: one of its devices was unhealthy."""

    pk: UUID
    cluster_id: int
    token_sha256: str
    epoch: int
    heartbeat_seq: int
    state: str
    reason: str
    session_expires_at: datetime | None
    ill: bool


_COLUMNS = tuple(f.name for f in fields(_NodeRow))


@dataclass(slots=True)
class _Renewal:
    row: _NodeRow
    beat: Heartbeat
    clock: Intervals
    held: list[Assignment] = field(default_factory=list)
    renewed: list[Assignment] = field(default_factory=list)

    @property
    def fresh(self) -> bool:
        return self.beat.seq >= self.row.heartbeat_seq


def renew_one(call: Call, now: datetime | None = None) -> HeartbeatReply:
    """Renew session and leases by one heartbeat, waiting for rows. Raises AgentCallError if stale.

    A heartbeat older than the newest renews nothing and gets no leases.
    """
    now = now or timezone.now()
    (outcome,) = renew_all([call], now)
    if isinstance(outcome, AgentCallError):
        raise outcome
    if isinstance(outcome, Busy):
        raise AgentCallError(503, "race", "the node's row is taken; send the heartbeat again")
    return restore_unknown(outcome, now)


def renew_all(
    calls: Sequence[Call],
    now: datetime | None = None,
    *,
    intervals: IntervalsOf = intervals_by_cluster,
    wait: bool = True,
) -> list[Outcome]:
    """Renew heartbeats of different nodes in one transaction; an outcome for each, in order.

    With `wait=False` rows locked by others make their heartbeat Busy.
    """
    now = now or timezone.now()
    with transaction.atomic():
        rows = _lock_nodes({call.node for call in calls}, wait=wait)
        refused = _refusals(calls, rows)
        clock = intervals({row.cluster_id for row in rows.values()})
        renewals = {
            index: _Renewal(rows[call.node], call.beat, clock[rows[call.node].cluster_id])
            for index, call in enumerate(calls)
            if index not in refused
        }
        busy = _lock_assignments(list(renewals.values()), wait=wait)
        taken = {i: renewal for i, renewal in renewals.items() if renewal.row.pk not in busy}
        fresh = [renewal for renewal in taken.values() if renewal.fresh]
        _renew(fresh, now)
        _note_changes(fresh, now)
    keep_samples([(renewal.row.pk, renewal.beat.devices) for renewal in fresh])
    done: dict[int, Outcome] = {index: _renewed(renewal) for index, renewal in taken.items()}
    return [refused.get(index) or done.get(index) or Busy() for index in range(len(calls))]


def restore_unknown(renewed: Renewed, now: datetime | None = None) -> HeartbeatReply:
    """Return the reply after restoring UNKNOWN assignments to the state their agent reports."""
    for pk, known in renewed.unknown:
        _restore_one(pk, known, renewed.epoch, now or timezone.now())
    return renewed.reply


def _lock_nodes(pks: Iterable[UUID], *, wait: bool) -> dict[UUID, _NodeRow]:
    """Lock nodes in the order of their keys, without those that others hold unless `wait`."""
    locked = (
        Node.objects.select_for_update(of=("self",), no_key=True, skip_locked=not wait)
        .filter(pk__in=list(pks))
        .order_by("pk")
    )
    ill = Exists(Device.objects.filter(node=OuterRef("pk"), healthy=False))
    return {row[0]: _NodeRow(*row) for row in locked.annotate(ill=ill).values_list(*_COLUMNS)}


def _refusals(calls: Sequence[Call], rows: Mapping[UUID, _NodeRow]) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    absent = [call.node for call in calls if call.node not in rows]
    tokens = {pk: row.token_sha256 for pk, row in rows.items()}
    if absent:
        tokens |= dict(Node.objects.filter(pk__in=absent).values_list("pk", "token_sha256"))
    strange = {
        i: c.token_sha256 or ""
        for i, c in enumerate(calls)
        if c.node not in tokens or c.token_sha256 not in (None, tokens[c.node])
    }
    if strange:
        refusals = token_refusals(strange.values())
        found |= {i: refusals[token] for i, token in strange.items()}
    for index, call in enumerate(calls):
        row = rows.get(call.node)
        if index not in found and row is None:
            found[index] = Busy()
        elif index not in found and row and (row.epoch != call.beat.epoch or call.beat.epoch < 1):
            found[index] = stale_epoch(call.beat.epoch, row.epoch)
    return found


def _lock_assignments(renewals: Sequence[_Renewal], *, wait: bool) -> set[UUID]:
    """Lock the live assignments into `held`; return nodes with assignments that others lock."""
    by_node = {renewal.row.pk: renewal for renewal in renewals}
    live = Assignment.objects.filter(node__in=list(by_node), state__in=LIVE).order_by("pk")
    skips = not wait and connection.features.has_select_for_update_skip_locked
    expected = set(live.values_list("pk", "node_id")) if skips else set()
    if skips:  # by their keys, which are few where most nodes hold nothing
        keys = [pk for pk, _ in expected]
        live = Assignment.objects.filter(pk__in=keys, state__in=LIVE).order_by("pk")
    locked = live.select_for_update(of=("self",), no_key=True, skip_locked=not wait)
    for assignment in locked.select_related("job").only(*_SHOWN):
        by_node[assignment.node_id].held.append(assignment)
    held = {(a.pk, a.node_id) for renewal in renewals for a in renewal.held}
    return {node for _, node in expected - held}


_SHOWN = (
    "id", "job_id", "node_id", "fence", "state", "epoch", "desired", "desired_at", "created_at",
    "term_until", "term_at",
    "steps_quota", "job__on_disconnect",
)  # fmt: skip


def _renew(renewals: Sequence[_Renewal], now: datetime) -> None:
    for renewal in renewals:
        renewal.renewed = [a for a in renewal.held if _is_watched(a, renewal.beat)]
    ends = {id(renewal): now + timedelta(seconds=renewal.clock.lease_s) for renewal in renewals}
    sessions = [(t.row.pk, t.beat.epoch, t.beat.seq, now, ends[id(t)]) for t in renewals]
    update_rows(
        Node, ("id", "epoch"), ("heartbeat_seq", "last_seen_at", "session_expires_at"), sessions
    )
    leases = [
        (a.pk, a.epoch, now + timedelta(seconds=job_lease_s(t.clock, a.job.on_disconnect)))
        for t in renewals
        for a in t.renewed
    ]
    update_rows(Assignment, ("id", "epoch"), ("lease_expires_at",), leases)


def _is_watched(assignment: Assignment, beat: Heartbeat) -> bool:
    watched = any(
        known.fence == assignment.fence
        and known.id == str(assignment.pk)
        and known.state not in ENDED
        for known in beat.assignments
    )
    return (
        watched and assignment.epoch == beat.epoch and assignment.state != AssignmentState.OFFERED
    )


def _note_changes(renewals: Sequence[_Renewal], now: datetime) -> None:
    known = [t.row for t in renewals if t.row.state != State.LOST]
    heard = [row for row in known if is_silent(row.session_expires_at, now)]
    if heard:
        note_nodes_joined((row.cluster_id, row.pk) for row in heard)
    for renewal in renewals:
        row, healthy = renewal.row, renewal.beat.healthy
        unwell = row.state == State.READY and not healthy
        if row.state == State.LOST or unwell or (healthy and row.reason == UNWELL):
            node = Node.objects.select_related("cluster").get(pk=row.pk)
            restore_lost_node(node)
            _cordon_if_unhealthy(node, healthy=healthy)
    note_health(
        {
            t.row.pk: t.beat.devices
            for t in renewals
            if t.row.ill or not all(sample.healthy for sample in t.beat.devices)
        }
    )


def _cordon_if_unhealthy(node: Node, *, healthy: bool) -> None:
    """Cordon a node that reports itself unhealthy until it is well; leave an operator's cordon."""
    before, after, reason = (
        (State.CORDONED, State.READY, "") if healthy else (State.READY, State.CORDONED, UNWELL)
    )
    if node.state != before or (healthy and node.reason != UNWELL):
        return
    if Node.objects.filter(pk=node.pk, state=before).update(state=after, reason=reason):
        NodeEvent.objects.create(node=node, event="healthy" if healthy else "unhealthy")


def _renewed(renewal: _Renewal) -> Renewed:
    said = {known.id: known for known in renewal.beat.assignments}
    unknown = [a.pk for a in renewal.renewed if a.state == AssignmentState.UNKNOWN]
    back = [(pk, said[str(pk)]) for pk in unknown if said[str(pk)].state in HELD_BY_AGENT]
    return Renewed(_reply(renewal), tuple(back), renewal.beat.epoch)


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


def _reply(renewal: _Renewal) -> HeartbeatReply:
    held, beat, clock = renewal.held, renewal.beat, renewal.clock
    leases = tuple(
        Lease(str(a.pk), a.fence, job_lease_s(clock, a.job.on_disconnect)) for a in renewal.renewed
    )
    wanted = directives(held, clock.grace_s) + _strays(held, beat, clock.grace_s)
    cursor = max(beat.cursor, cursor_of(a for a in held if is_news(a)))
    return HeartbeatReply(clock.heartbeat_s, leases, wanted, cursor)


def _strays(held: Sequence[Assignment], beat: Heartbeat, grace_s: float) -> tuple[Directive, ...]:
    """Stop what the agent watches although it is over, of another fence, or another node's."""
    live = {(str(a.pk), a.fence) for a in held}
    strays = [k for k in beat.assignments if k.state not in ENDED and (k.id, k.fence) not in live]
    return tuple(
        Directive(k.id, k.fence, DirectiveAction.STOP, StopReason.CANCEL, grace_s) for k in strays
    )
