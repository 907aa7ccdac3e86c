"""Heartbeats: renewal of many nodes' leases in one transaction with few queries.

Samples of devices go through the cache, everything else to the database.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from clusters.agent_errors import AgentCallError, stale_epoch
from clusters.events import note_nodes_joined, request_reschedule
from clusters.intervals import intervals_by_cluster, is_silent, job_lease_s
from clusters.models import Device, Node, NodeEvent, Reason
from clusters.models.nodes import State
from clusters.plausible import Dropped, device_samples, room_gb, shown_trouble
from clusters.services.devices import keep_samples, note_health
from clusters.services.implausible import note_dropped
from controlplane.execution.directives import cursor_of, directives, is_news, is_past
from controlplane.execution.moves import move_assignment
from controlplane.execution.outcomes import assignment_running
from controlplane.execution.services.agent_clocks import AGENT_CLOCKS
from controlplane.execution.services.sessions import restore_lost_node, token_refusals
from controlplane.web.storage.bulk import update_rows
from controlplane.web.storage.turns import urgent
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

# Reasons for a node to be cordoned by its own heartbeats.
UNWELL = "its agent reports that the machine is unhealthy"
NO_ROOM = "its disk has too little room"
ROOM_AGAIN = 1.2
"""Multiple of the least room with which a node that had too little takes work again."""

IntervalsOf = Callable[[Iterable[int]], Mapping[int, Intervals]]


@dataclass(frozen=True, slots=True)
class Call:
    """Received heartbeat of a node; `token_sha256`: None if the caller has checked the token."""

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
    """Locked node before its heartbeat is written.

    `ill`: one of its devices was in trouble. `peak_w`: of its GPU type, 0 without GPUs.
    """

    pk: UUID
    cluster_id: int
    token_sha256: str
    epoch: int
    heartbeat_seq: int
    state: str
    reason: str
    session_expires_at: datetime | None
    gpu_trouble: str
    peak_w: float
    ill: bool


_COLUMNS = tuple(f.name for f in fields(_NodeRow))


@dataclass(slots=True)
class _Renewal:
    """Heartbeat of a locked node, and what comes of it.

    `clock`: intervals of its cluster. `held`: its live assignments. `renewed`: those of which the
    lease is renewed. `dropped`: figures that cannot be.
    """

    row: _NodeRow
    beat: Heartbeat
    clock: Intervals
    held: list[Assignment] = field(default_factory=list)
    renewed: list[Assignment] = field(default_factory=list)
    dropped: Dropped = field(default_factory=Dropped)

    @property
    def fresh(self) -> bool:
        """Return True unless a newer heartbeat of the node was written before."""
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
        raise AgentCallError(503, "race", "the node's row is locked; send the heartbeat again")
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
    outcomes: dict[int, Outcome]
    with urgent(), transaction.atomic():
        rows = _lock_nodes({call.node for call in calls}, wait=wait)
        outcomes = _refusals(calls, rows)

        # Lock the assignments of the nodes that are not refused.
        clock = intervals({row.cluster_id for row in rows.values()})
        renewals: dict[int, _Renewal] = {}
        for index, call in enumerate(calls):
            if index not in outcomes:
                row = rows[call.node]
                renewals[index] = _Renewal(row, call.beat, clock[row.cluster_id])
        busy_nodes = _lock_assignments(list(renewals.values()), wait=wait)

        # Write those of which all is locked, unless they have been overtaken.
        locked = {i: each for i, each in renewals.items() if each.row.pk not in busy_nodes}
        fresh = [renewal for renewal in locked.values() if renewal.fresh]
        _renew(fresh, now)
        _note_changes(fresh)
    AGENT_CLOCKS.note([renewal.beat.sent_at_s for renewal in fresh], now)
    _keep_samples(fresh, now)
    for index, renewal in locked.items():
        outcomes[index] = _renewed(renewal, now)
    return [outcomes.get(index, Busy()) for index in range(len(calls))]


def _keep_samples(renewals: Sequence[_Renewal], now: datetime) -> None:
    """Keep the samples of devices, without figures that cannot be; these are counted."""
    samples = []
    for renewal in renewals:
        row = renewal.row
        usable = device_samples(renewal.beat.devices, row.peak_w, renewal.dropped)
        samples.append((row.pk, usable))
    keep_samples(samples)
    note_dropped({each.row.pk: each.dropped for each in renewals if each.dropped.figures}, now)


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
    in_trouble = Q(healthy=False) | ~Q(trouble="")
    ill = Exists(Device.objects.filter(in_trouble, node=OuterRef("pk")))
    annotated = locked.annotate(ill=ill, peak_w=Coalesce("gpu_type__peak_w", 0.0))
    rows = [_NodeRow(*values) for values in annotated.values_list(*_COLUMNS)]
    return {row.pk: row for row in rows}


def _refusals(calls: Sequence[Call], rows: Mapping[UUID, _NodeRow]) -> dict[int, Outcome]:
    """Return by index of the call: a refusal, or Busy for a node that another one locks."""
    # 1. Tokens: of the locked nodes, and of those that others lock.
    outcomes: dict[int, Outcome] = {}
    tokens = {pk: row.token_sha256 for pk, row in rows.items()}
    not_locked = [call.node for call in calls if call.node not in rows]
    if not_locked:
        tokens.update(Node.objects.filter(pk__in=not_locked).values_list("pk", "token_sha256"))
    wrong_tokens: dict[int, str] = {}
    for index, call in enumerate(calls):
        if call.node not in tokens or call.token_sha256 not in (None, tokens[call.node]):
            wrong_tokens[index] = call.token_sha256 or ""
    if wrong_tokens:
        refusals = token_refusals(wrong_tokens.values())
        for index, token in wrong_tokens.items():
            outcomes[index] = refusals[token]

    # 2. Sessions: a heartbeat of an earlier one is stale; epochs count from 1.
    for index, call in enumerate(calls):
        if index in outcomes:
            continue
        row = rows.get(call.node)
        if row is None:
            outcomes[index] = Busy()
        elif row.epoch != call.beat.epoch or call.beat.epoch < 1:
            outcomes[index] = stale_epoch(call.beat.epoch, row.epoch)
    return outcomes


def _lock_assignments(renewals: Sequence[_Renewal], *, wait: bool) -> set[UUID]:
    """Lock the live assignments into `held`; return nodes with assignments that others lock."""
    by_node = {renewal.row.pk: renewal for renewal in renewals}
    live = Assignment.objects.filter(node__in=list(by_node), state__in=LIVE).order_by("pk")

    # 1. Where locked rows are skipped, read first which ones there are.
    expected: set[tuple[UUID, UUID]] = set()
    if not wait and connection.features.has_select_for_update_skip_locked:
        expected = set(live.values_list("pk", "node_id"))
        # By their keys, which are few where most nodes hold nothing.
        keys = [pk for pk, _ in expected]
        live = Assignment.objects.filter(pk__in=keys, state__in=LIVE).order_by("pk")

    # 2. Lock them.
    locked = live.select_for_update(of=("self",), no_key=True, skip_locked=not wait)
    held: set[tuple[UUID, UUID]] = set()
    for assignment in locked.select_related("job").only(*_COLUMNS_OF_ASSIGNMENT):
        by_node[assignment.node_id].held.append(assignment)
        held.add((assignment.pk, assignment.node_id))
    return {node for _, node in expected - held}


_COLUMNS_OF_ASSIGNMENT = (
    "id",
    "job_id",
    "node_id",
    "fence",
    "state",
    "epoch",
    "desired",
    "desired_at",
    "created_at",
    "term_until",
    "term_at",
    "steps_quota",
    "cpu_quota",
    "quota_at",
    "units",
    "job__cores",
    "job__on_disconnect",
)


def _renew(renewals: Sequence[_Renewal], now: datetime) -> None:
    """Write sessions and leases, in a statement each."""
    sessions = []
    leases = []
    for renewal in renewals:
        row = renewal.row
        beat = renewal.beat
        session_end = now + timedelta(seconds=renewal.clock.lease_s)
        free_gb = room_gb(beat.disk_free_gb, renewal.dropped)
        sessions.append((row.pk, beat.epoch, beat.seq, now, session_end, free_gb))
        renewal.renewed = _watched(renewal.held, beat)
        for assignment in renewal.renewed:
            lease_s = job_lease_s(renewal.clock, assignment.job.on_disconnect)
            lease_end = now + timedelta(seconds=lease_s)
            leases.append((assignment.pk, assignment.epoch, beat.seq, now, lease_end))
    of_session = ("heartbeat_seq", "last_seen_at", "session_expires_at", "disk_free_gb")
    update_rows(Node, ("id", "epoch"), of_session, sessions)
    of_lease = ("renewed_by", "renewed_at", "lease_expires_at")
    update_rows(Assignment, ("id", "epoch"), of_lease, leases)


def _watched(held: Iterable[Assignment], beat: Heartbeat) -> list[Assignment]:
    """Return the assignments of this session whose very launch the agent still watches."""
    watched = {(known.id, known.fence) for known in beat.assignments if known.state not in ENDED}
    return [
        assignment
        for assignment in held
        if (str(assignment.pk), assignment.fence) in watched
        and assignment.epoch == beat.epoch
        and assignment.state != AssignmentState.OFFERED
    ]


def _note_changes(renewals: Sequence[_Renewal]) -> None:
    """Note nodes that are heard again, and trouble that has come or gone."""
    heard_again = []
    for renewal in renewals:
        row = renewal.row
        if row.state != State.LOST and is_silent(row.session_expires_at):
            heard_again.append((row.cluster_id, row.pk))
    if heard_again:
        note_nodes_joined(heard_again)

    for renewal in renewals:
        row = renewal.row
        trouble = _trouble(renewal)
        is_new = row.state == State.READY and trouble
        is_over = not trouble and row.reason in (UNWELL, NO_ROOM)
        if row.state == State.LOST or is_new or is_over:
            node = Node.objects.select_related("cluster").get(pk=row.pk)
            restore_lost_node(node)
            _cordon_if_unhealthy(node, trouble)
        _note_gpu_trouble(row, shown_trouble(renewal.beat.gpu_trouble))
    note_health({each.row.pk: each.beat.devices for each in renewals if _is_doubtful(each)})


def _is_doubtful(renewal: _Renewal) -> bool:
    """Return True if a device is in trouble, or was at the last heartbeat."""
    if renewal.row.ill:
        return True
    return any(not sample.healthy or sample.trouble for sample in renewal.beat.devices)


def _note_gpu_trouble(row: _NodeRow, trouble: str) -> None:
    """Keep a changed reason why GPUs of the machine may be missing, with an event."""
    if trouble == row.gpu_trouble:
        return
    Node.objects.filter(pk=row.pk).update(gpu_trouble=trouble)
    NodeEvent.objects.create(node_id=row.pk, event="gpus", data={"trouble": trouble})


def _trouble(renewal: _Renewal) -> str:
    """Return the reason for the node to take nothing new, or an empty text.

    Agents of older versions do not report the free space of their disk.
    """
    free_gb = room_gb(renewal.beat.disk_free_gb, Dropped())
    least_gb = settings.NODE_LEAST_FREE_GB
    if renewal.row.reason == NO_ROOM:
        least_gb *= ROOM_AGAIN
    if free_gb is not None and free_gb < least_gb:
        return NO_ROOM
    return "" if renewal.beat.healthy else UNWELL


def _cordon_if_unhealthy(node: Node, trouble: str) -> None:
    """Cordon a node in trouble until it is well; leave an operator's cordon."""
    if trouble:
        if node.state == State.READY:
            cordoned = Node.objects.filter(pk=node.pk, state=State.READY).update(
                state=State.CORDONED, reason=trouble
            )
            if cordoned:
                NodeEvent.objects.create(node=node, event="unhealthy", data={"reason": trouble})
        return
    if node.state != State.CORDONED or node.reason not in (UNWELL, NO_ROOM):
        return
    opened = Node.objects.filter(pk=node.pk, state=State.CORDONED).update(
        state=State.READY, reason=""
    )
    if opened:
        NodeEvent.objects.create(node=node, event="healthy", data={"reason": node.reason})
        request_reschedule(node.cluster, Reason.NODE_JOINED, node=node)


def _renewed(renewal: _Renewal, now: datetime) -> Renewed:
    """Return the answer, with UNKNOWN assignments that the agent says it has."""
    reports = {known.id: known for known in renewal.beat.assignments}
    to_restore = []
    for assignment in renewal.renewed:
        known = reports[str(assignment.pk)]
        if assignment.state == AssignmentState.UNKNOWN and known.state in HELD_BY_AGENT:
            to_restore.append((assignment.pk, known))
    return Renewed(_reply(renewal, now), tuple(to_restore), renewal.beat.epoch)


def _restore_one(pk: UUID, known: KnownAssignment, epoch: int, now: datetime) -> None:
    """Move an assignment to the reported state, if it is still UNKNOWN in this session."""
    with urgent(), transaction.atomic():
        assignment = lock_assignment(pk)
        if assignment.state != AssignmentState.UNKNOWN or assignment.epoch != epoch:
            return
        first_run = known.state is AssignmentState.RUNNING and assignment.running_at is None
        values = {"running_at": now} if first_run else {}
        move_assignment(assignment, MOVE_TO[known.state], data={"by": "heartbeat"}, **values)
        if known.state is AssignmentState.RUNNING:
            assignment_running(assignment, now)


def _reply(renewal: _Renewal, now: datetime) -> HeartbeatReply:
    """Return the answer to a heartbeat: leases, directives, and the cursor of the long poll."""
    held = renewal.held
    beat = renewal.beat
    clock = renewal.clock
    leases = []
    for assignment in renewal.renewed:
        lease_s = job_lease_s(clock, assignment.job.on_disconnect)
        leases.append(Lease(str(assignment.pk), assignment.fence, lease_s))
    orders = directives(held, clock.grace_s) + _strays(held, beat, clock.grace_s)

    # The cursor never goes back, except where the clock did.
    cursor = cursor_of(assignment for assignment in held if is_news(assignment))
    if is_past(beat.cursor, now):
        cursor = max(beat.cursor, cursor)
    return HeartbeatReply(clock.heartbeat_s, tuple(leases), orders, cursor)


def _strays(held: Sequence[Assignment], beat: Heartbeat, grace_s: float) -> tuple[Directive, ...]:
    """Stop runs that the agent watches although they are over, replaced, or another node's."""
    live = {(str(assignment.pk), assignment.fence) for assignment in held}
    orders = []
    for known in beat.assignments:
        if known.state not in ENDED and (known.id, known.fence) not in live:
            orders.append(
                Directive(known.id, known.fence, DirectiveAction.STOP, StopReason.CANCEL, grace_s)
            )
    return tuple(orders)
