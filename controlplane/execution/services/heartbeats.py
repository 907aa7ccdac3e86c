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

UNWELL = "its agent reports that the machine is unhealthy"
NO_ROOM = "its disk has too little room"
ROOM_AGAIN = 1.2
"""Multiple of the least room with which a node that had too little takes work again."""

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
    """Locked node as its heartbeat finds it; `ill`: one of its devices was in trouble.

    `peak_w`: of its type of GPU, 0 without.
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
    row: _NodeRow
    beat: Heartbeat
    clock: Intervals
    held: list[Assignment] = field(default_factory=list)
    renewed: list[Assignment] = field(default_factory=list)
    dropped: Dropped = field(default_factory=Dropped)

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
    with urgent(), transaction.atomic():
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
        _note_changes(fresh)
    AGENT_CLOCKS.note([renewal.beat.sent_at_s for renewal in fresh], now)
    _keep_samples(fresh, now)
    done: dict[int, Outcome] = {index: _renewed(renewal, now) for index, renewal in taken.items()}
    return [refused.get(index) or done.get(index) or Busy() for index in range(len(calls))]


def _keep_samples(renewals: Sequence[_Renewal], now: datetime) -> None:
    """Keep the samples of devices, without figures that cannot be; these are counted."""
    keep_samples(
        [(r.row.pk, device_samples(r.beat.devices, r.row.peak_w, r.dropped)) for r in renewals]
    )
    note_dropped({r.row.pk: r.dropped for r in renewals if r.dropped.figures}, now)


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
    known = locked.annotate(ill=ill, peak_w=Coalesce("gpu_type__peak_w", 0.0))
    return {row[0]: _NodeRow(*row) for row in known.values_list(*_COLUMNS)}


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
        renewal.renewed = _watched(renewal.held, renewal.beat)
    ends = {id(renewal): now + timedelta(seconds=renewal.clock.lease_s) for renewal in renewals}
    sessions = [
        (
            t.row.pk,
            t.beat.epoch,
            t.beat.seq,
            now,
            ends[id(t)],
            room_gb(t.beat.disk_free_gb, t.dropped),
        )
        for t in renewals
    ]
    columns = ("heartbeat_seq", "last_seen_at", "session_expires_at", "disk_free_gb")
    update_rows(Node, ("id", "epoch"), columns, sessions)
    leases = [
        (a.pk, a.epoch, t.beat.seq, now, now + timedelta(seconds=lease_s))
        for t in renewals
        for a in t.renewed
        for lease_s in (job_lease_s(t.clock, a.job.on_disconnect),)
    ]
    renewed = ("renewed_by", "renewed_at", "lease_expires_at")
    update_rows(Assignment, ("id", "epoch"), renewed, leases)


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
    known = [t.row for t in renewals if t.row.state != State.LOST]
    heard = [row for row in known if is_silent(row.session_expires_at)]
    if heard:
        note_nodes_joined((row.cluster_id, row.pk) for row in heard)
    for renewal in renewals:
        row, trouble = renewal.row, _trouble(renewal)
        unwell = row.state == State.READY and trouble
        if row.state == State.LOST or unwell or (not trouble and row.reason in (UNWELL, NO_ROOM)):
            node = Node.objects.select_related("cluster").get(pk=row.pk)
            restore_lost_node(node)
            _cordon_if_unhealthy(node, trouble)
        _note_gpu_trouble(row, shown_trouble(renewal.beat.gpu_trouble))
    note_health({t.row.pk: t.beat.devices for t in renewals if _is_doubtful(t)})


def _is_doubtful(renewal: _Renewal) -> bool:
    """Return True if a device is in trouble, or was at the last heartbeat."""
    told = renewal.beat.devices
    return renewal.row.ill or any(not sample.healthy or sample.trouble for sample in told)


def _note_gpu_trouble(row: _NodeRow, trouble: str) -> None:
    """Keep a changed reason why GPUs of the machine may be missing, with an event."""
    if trouble == row.gpu_trouble:
        return
    Node.objects.filter(pk=row.pk).update(gpu_trouble=trouble)
    NodeEvent.objects.create(node_id=row.pk, event="gpus", data={"trouble": trouble})


def _trouble(renewal: _Renewal) -> str:
    """Reason for the node to take nothing new; agents of older versions do not tell their room."""
    free_gb = room_gb(renewal.beat.disk_free_gb, Dropped())
    least_gb = settings.NODE_LEAST_FREE_GB
    if renewal.row.reason == NO_ROOM:
        least_gb *= ROOM_AGAIN
    if free_gb is not None and free_gb < least_gb:
        return NO_ROOM
    return "" if renewal.beat.healthy else UNWELL


def _cordon_if_unhealthy(node: Node, trouble: str) -> None:
    """Cordon a node in trouble until it is well; leave an operator's cordon."""
    before, after = (State.READY, State.CORDONED) if trouble else (State.CORDONED, State.READY)
    if node.state != before or (not trouble and node.reason not in (UNWELL, NO_ROOM)):
        return
    if Node.objects.filter(pk=node.pk, state=before).update(state=after, reason=trouble):
        event, data = "unhealthy" if trouble else "healthy", {"reason": trouble or node.reason}
        NodeEvent.objects.create(node=node, event=event, data=data)
        if not trouble:
            request_reschedule(node.cluster, Reason.NODE_JOINED, node=node)


def _renewed(renewal: _Renewal, now: datetime) -> Renewed:
    said = {known.id: known for known in renewal.beat.assignments}
    unknown = [a.pk for a in renewal.renewed if a.state == AssignmentState.UNKNOWN]
    back = [(pk, said[str(pk)]) for pk in unknown if said[str(pk)].state in HELD_BY_AGENT]
    return Renewed(_reply(renewal, now), tuple(back), renewal.beat.epoch)


def _restore_one(pk: UUID, known: KnownAssignment, epoch: int, now: datetime) -> None:
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
    held, beat, clock = renewal.held, renewal.beat, renewal.clock
    leases = tuple(
        Lease(str(a.pk), a.fence, job_lease_s(clock, a.job.on_disconnect)) for a in renewal.renewed
    )
    wanted = directives(held, clock.grace_s) + _strays(held, beat, clock.grace_s)
    known = beat.cursor if is_past(beat.cursor, now) else 0
    cursor = max(known, cursor_of(a for a in held if is_news(a)))
    return HeartbeatReply(clock.heartbeat_s, leases, wanted, cursor)


def _strays(held: Sequence[Assignment], beat: Heartbeat, grace_s: float) -> tuple[Directive, ...]:
    """Stop what the agent watches although it is over, of another fence, or another node's."""
    live = {(str(a.pk), a.fence) for a in held}
    strays = [k for k in beat.assignments if k.state not in ENDED and (k.id, k.fence) not in live]
    return tuple(
        Directive(k.id, k.fence, DirectiveAction.STOP, StopReason.CANCEL, grace_s) for k in strays
    )
