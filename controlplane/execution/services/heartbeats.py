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
"""Multiple of the least room that a node cordoned by NO_ROOM needs before it takes work again."""

IntervalsOf = Callable[[Iterable[int]], Mapping[int, Intervals]]
"""Function from primary keys of clusters to the intervals of each."""


@dataclass(frozen=True, slots=True)
class Call:
    """Received heartbeat of a node, by its primary key.

    `token_sha256`: digest of the token that came with it, or None if the caller has checked it.
    """

    node: UUID
    beat: Heartbeat
    token_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """Answer to a heartbeat, and the UNKNOWN assignments to restore before it is sent.

    `unknown`: their primary keys with what the agent reports. `epoch`: the agent's session.
    """

    reply: HeartbeatReply
    unknown: tuple[tuple[UUID, KnownAssignment], ...] = ()
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Busy:
    """Heartbeat that was not written, as a row is locked or its batch failed: take it alone."""


Outcome = Answered | AgentCallError | Busy


@dataclass(frozen=True, slots=True)
class _NodeRow:
    """Locked node before its heartbeat is written.

    `had_ill_device`: one of its devices was in trouble. `peak_w`: of its GPU type, 0 without GPUs.
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
    had_ill_device: bool


_NODE_COLUMNS = tuple(column.name for column in fields(_NodeRow))

_ASSIGNMENT_COLUMNS = (
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


@dataclass(slots=True)
class _LockedBeat:
    """Heartbeat of a locked node, and the results of taking it.

    `intervals`: those of its cluster. `held`: the node's live assignments. `renewed`: those of them
    whose lease is renewed. `free_gb`: room on its disk, None if unknown. `dropped`: implausible
    figures of the heartbeat.
    """

    row: _NodeRow
    beat: Heartbeat
    intervals: Intervals
    held: list[Assignment] = field(default_factory=list)
    renewed: list[Assignment] = field(default_factory=list)
    free_gb: float | None = None
    dropped: Dropped = field(default_factory=Dropped)

    @property
    def is_newest(self) -> bool:
        """Return True unless a newer heartbeat of the node was written before."""
        return self.beat.seq >= self.row.heartbeat_seq


def renew_one(call: Call, now: datetime | None = None) -> HeartbeatReply:
    """Renew session and leases by one heartbeat; wait for rows that others lock.

    A heartbeat older than the node's newest renews nothing and gets no leases. Raises
    AgentCallError for a wrong token, an earlier session, or a race that it has lost.
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
    intervals_of: IntervalsOf = intervals_by_cluster,
    wait: bool = True,
) -> list[Outcome]:
    """Renew session and leases by heartbeats of different nodes, in one transaction.

    Return an outcome for each, in order. With `wait=False` rows that others lock make their
    heartbeat Busy.
    """
    now = now or timezone.now()
    outcomes: dict[int, Outcome]
    with urgent(), transaction.atomic():
        rows = _lock_nodes({call.node for call in calls}, wait=wait)

        # 1. Refuse wrong tokens and earlier sessions. A call whose node is not locked is Busy.
        outcomes = _refusals(calls, rows)

        # 2. Lock the assignments of the nodes that are not refused.
        intervals_by_id = intervals_of({row.cluster_id for row in rows.values()})
        locked_beats: dict[int, _LockedBeat] = {}
        for index, call in enumerate(calls):
            if index not in outcomes:
                row = rows[call.node]
                intervals = intervals_by_id[row.cluster_id]
                locked_beats[index] = _LockedBeat(row, call.beat, intervals)
        busy_nodes = _lock_assignments(list(locked_beats.values()), wait=wait)

        # 3. Heartbeats of nodes with an assignment that others lock are not written.
        for index, locked_beat in list(locked_beats.items()):
            if locked_beat.row.pk in busy_nodes:
                outcomes[index] = Busy()
                del locked_beats[index]

        # 4. Write the others, unless a newer one of their node has been written.
        newest = [each for each in locked_beats.values() if each.is_newest]
        _renew(newest, now)
        _note_changes(newest)

    # 5. Keep what needs no transaction, and answer.
    AGENT_CLOCKS.note([each.beat.sent_at_s for each in newest], now)
    _keep_samples(newest, now)
    for index, locked_beat in locked_beats.items():
        outcomes[index] = _answer(locked_beat, now)
    return [outcomes[index] for index in range(len(calls))]


def _keep_samples(locked_beats: Sequence[_LockedBeat], now: datetime) -> None:
    """Keep the samples of devices without implausible figures, which are counted."""
    samples = []
    for locked_beat in locked_beats:
        row = locked_beat.row
        usable = device_samples(locked_beat.beat.devices, row.peak_w, locked_beat.dropped)
        samples.append((row.pk, usable))
    keep_samples(samples)
    note_dropped({each.row.pk: each.dropped for each in locked_beats if each.dropped.figures}, now)


def restore_unknown(answered: Answered, now: datetime | None = None) -> HeartbeatReply:
    """Restore UNKNOWN assignments to the state that their agent reports; return the reply."""
    for pk, known in answered.unknown:
        _restore_one(pk, known, answered.epoch, now or timezone.now())
    return answered.reply


def _lock_nodes(pks: Iterable[UUID], *, wait: bool) -> dict[UUID, _NodeRow]:
    """Lock nodes in the order of their keys. With `wait=False` leave out those that others lock."""
    locked = (
        Node.objects.select_for_update(of=("self",), no_key=True, skip_locked=not wait)
        .filter(pk__in=list(pks))
        .order_by("pk")
    )
    in_trouble = Q(healthy=False) | ~Q(trouble="")
    annotated = locked.annotate(
        had_ill_device=Exists(Device.objects.filter(in_trouble, node=OuterRef("pk"))),
        peak_w=Coalesce("gpu_type__peak_w", 0.0),
    )
    rows = [_NodeRow(*values) for values in annotated.values_list(*_NODE_COLUMNS)]
    return {row.pk: row for row in rows}


def _refusals(calls: Sequence[Call], rows: Mapping[UUID, _NodeRow]) -> dict[int, Outcome]:
    """Return by index of the call: a refusal, or Busy for a node that others lock."""
    # 1. Tokens: of the locked nodes in `rows`, and of those that others lock.
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

    # 2. Sessions: a heartbeat of an earlier session is stale. Sessions count from 1.
    for index, call in enumerate(calls):
        if index in outcomes:
            continue
        row = rows.get(call.node)
        if row is None:
            outcomes[index] = Busy()
        elif row.epoch != call.beat.epoch or call.beat.epoch < 1:
            outcomes[index] = stale_epoch(call.beat.epoch, row.epoch)
    return outcomes


def _lock_assignments(locked_beats: Sequence[_LockedBeat], *, wait: bool) -> set[UUID]:
    """Lock the nodes' live assignments, and put them into `held` of each heartbeat.

    Return nodes with assignments that others lock; there are none with `wait`.
    """
    by_node = {locked_beat.row.pk: locked_beat for locked_beat in locked_beats}
    live = Assignment.objects.filter(node__in=list(by_node), state__in=LIVE).order_by("pk")

    # 1. Where locked rows are skipped, first read which rows there are: (assignment, node).
    expected: set[tuple[UUID, UUID]] = set()
    if not wait and connection.features.has_select_for_update_skip_locked:
        expected = set(live.values_list("pk", "node_id"))
        # Look them up by primary key below: there are few, as most nodes hold nothing.
        keys = [pk for pk, _ in expected]
        live = Assignment.objects.filter(pk__in=keys, state__in=LIVE).order_by("pk")

    # 2. Lock them. Expected rows that are not among the locked ones are locked by others.
    locked = live.select_for_update(of=("self",), no_key=True, skip_locked=not wait)
    held: set[tuple[UUID, UUID]] = set()
    for assignment in locked.select_related("job").only(*_ASSIGNMENT_COLUMNS):
        by_node[assignment.node_id].held.append(assignment)
        held.add((assignment.pk, assignment.node_id))
    return {node for _, node in expected - held}


def _renew(locked_beats: Sequence[_LockedBeat], now: datetime) -> None:
    """Write the sessions in one statement and the leases in another."""
    sessions = []
    leases = []
    for locked_beat in locked_beats:
        row = locked_beat.row
        beat = locked_beat.beat
        session_end = now + timedelta(seconds=locked_beat.intervals.lease_s)
        locked_beat.free_gb = room_gb(beat.disk_free_gb, locked_beat.dropped)
        sessions.append((row.pk, beat.epoch, beat.seq, now, session_end, locked_beat.free_gb))
        locked_beat.renewed = _watched(locked_beat.held, beat)
        for assignment in locked_beat.renewed:
            lease_s = job_lease_s(locked_beat.intervals, assignment.job.on_disconnect)
            lease_end = now + timedelta(seconds=lease_s)
            leases.append((assignment.pk, assignment.epoch, beat.seq, now, lease_end))
    session_columns = ("heartbeat_seq", "last_seen_at", "session_expires_at", "disk_free_gb")
    update_rows(Node, ("id", "epoch"), session_columns, sessions)
    lease_columns = ("renewed_by", "renewed_at", "lease_expires_at")
    update_rows(Assignment, ("id", "epoch"), lease_columns, leases)


def _watched(held: Iterable[Assignment], beat: Heartbeat) -> list[Assignment]:
    """Return the assignments of the heartbeat's session whose launch the agent still watches.

    The agent names a launch by its assignment and fence. An offer is not renewed.
    """
    watched = {(known.id, known.fence) for known in beat.assignments if known.state not in ENDED}
    return [
        assignment
        for assignment in held
        if (str(assignment.pk), assignment.fence) in watched
        and assignment.epoch == beat.epoch
        and assignment.state != AssignmentState.OFFERED
    ]


def _note_changes(locked_beats: Sequence[_LockedBeat]) -> None:
    """Note nodes that are heard again, and trouble that has come or gone."""
    # 1. Nodes whose session had ended, though they were not lost yet.
    heard_again = []
    for locked_beat in locked_beats:
        row = locked_beat.row
        if row.state != State.LOST and is_silent(row.session_expires_at):
            heard_again.append((row.cluster_id, row.pk))
    if heard_again:
        note_nodes_joined(heard_again)

    # 2. Lost nodes, nodes to cordon or to open, and GPUs that may be missing.
    for locked_beat in locked_beats:
        row = locked_beat.row
        trouble = _trouble(locked_beat)
        must_cordon = row.state == State.READY and bool(trouble)
        may_open = not trouble and row.reason in (UNWELL, NO_ROOM)
        if row.state == State.LOST or must_cordon or may_open:
            node = Node.objects.select_related("cluster").get(pk=row.pk)
            restore_lost_node(node)
            _cordon_if_unhealthy(node, trouble)
        _note_gpu_trouble(row, shown_trouble(locked_beat.beat.gpu_trouble))

    # 3. Devices in trouble, or that were.
    note_health({each.row.pk: each.beat.devices for each in locked_beats if _is_doubtful(each)})


def _is_doubtful(locked_beat: _LockedBeat) -> bool:
    """Return True if a device is in trouble, or was at the last heartbeat."""
    if locked_beat.row.had_ill_device:
        return True
    return any(not sample.healthy or sample.trouble for sample in locked_beat.beat.devices)


def _note_gpu_trouble(row: _NodeRow, trouble: str) -> None:
    """Keep a changed reason why GPUs of the machine may be missing, with an event."""
    if trouble == row.gpu_trouble:
        return
    Node.objects.filter(pk=row.pk).update(gpu_trouble=trouble)
    NodeEvent.objects.create(node_id=row.pk, event="gpus", data={"trouble": trouble})


def _trouble(locked_beat: _LockedBeat) -> str:
    """Return the reason for the node to take nothing new, or an empty text.

    The room on its disk is unknown if its agent is of an older version.
    """
    least_gb = settings.NODE_LEAST_FREE_GB
    if locked_beat.row.reason == NO_ROOM:
        least_gb *= ROOM_AGAIN
    if locked_beat.free_gb is not None and locked_beat.free_gb < least_gb:
        return NO_ROOM
    return "" if locked_beat.beat.healthy else UNWELL


def _cordon_if_unhealthy(node: Node, trouble: str) -> None:
    """Cordon a ready node in trouble, or open one that is well; leave an operator's cordon."""
    # 1. A node in trouble.
    if trouble:
        if node.state == State.READY:
            cordoned = Node.objects.filter(pk=node.pk, state=State.READY).update(
                state=State.CORDONED, reason=trouble
            )
            if cordoned:
                NodeEvent.objects.create(node=node, event="unhealthy", data={"reason": trouble})
        return

    # 2. A node without trouble that was cordoned for it.
    if node.state != State.CORDONED or node.reason not in (UNWELL, NO_ROOM):
        return
    opened = Node.objects.filter(pk=node.pk, state=State.CORDONED).update(
        state=State.READY, reason=""
    )
    if opened:
        NodeEvent.objects.create(node=node, event="healthy", data={"reason": node.reason})
        request_reschedule(node.cluster, Reason.NODE_JOINED, node=node)


def _answer(locked_beat: _LockedBeat, now: datetime) -> Answered:
    """Return the answer to a heartbeat, with the UNKNOWN assignments that the agent still holds."""
    reports = {known.id: known for known in locked_beat.beat.assignments}
    to_restore = []
    for assignment in locked_beat.renewed:
        known = reports[str(assignment.pk)]
        if assignment.state == AssignmentState.UNKNOWN and known.state in HELD_BY_AGENT:
            to_restore.append((assignment.pk, known))
    return Answered(_reply(locked_beat, now), tuple(to_restore), locked_beat.beat.epoch)


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


def _reply(locked_beat: _LockedBeat, now: datetime) -> HeartbeatReply:
    """Return the reply to a heartbeat: leases, directives, and the cursor of the long poll."""
    held = locked_beat.held
    beat = locked_beat.beat
    intervals = locked_beat.intervals
    leases = []
    for assignment in locked_beat.renewed:
        lease_s = job_lease_s(intervals, assignment.job.on_disconnect)
        leases.append(Lease(str(assignment.pk), assignment.fence, lease_s))
    stops = _stops_of_strays(held, beat, intervals.grace_s)
    orders = directives(held, intervals.grace_s) + stops

    # The cursor never goes back, except after the server's clock was set back.
    cursor = cursor_of(assignment for assignment in held if is_news(assignment))
    if is_past(beat.cursor, now):
        cursor = max(beat.cursor, cursor)
    return HeartbeatReply(intervals.heartbeat_s, tuple(leases), orders, cursor)


def _stops_of_strays(
    held: Sequence[Assignment], beat: Heartbeat, grace_s: float
) -> tuple[Directive, ...]:
    """Return orders to stop runs that the agent watches, but that are over, replaced or moved."""
    live = {(str(assignment.pk), assignment.fence) for assignment in held}
    orders = []
    for known in beat.assignments:
        if known.state not in ENDED and (known.id, known.fence) not in live:
            orders.append(
                Directive(known.id, known.fence, DirectiveAction.STOP, StopReason.CANCEL, grace_s)
            )
    return tuple(orders)
