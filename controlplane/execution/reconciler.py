"""Reconciler: leases that ran out, silent nodes, ignored offers, due drains, stuck jobs.

Everything is idempotent and looks again with rows locked: any number of processes may run it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from clusters.events import request_reschedule
from clusters.intervals import after_lease_s, intervals_of
from clusters.models import Cluster, Node, NodeEvent, Reason, RescheduleEvent
from clusters.models.nodes import State
from controlplane.execution.moves import move_assignment
from controlplane.execution.outcomes import (
    WAITING_STATES,
    end_assignment,
    fail_never_ready,
    fail_overdue,
    settle_job,
)
from controlplane.execution.services.stops import preempt_gang
from controlplane.execution.silence import (
    LEASE_COLUMNS,
    NODE_COLUMNS,
    OFFER_COLUMNS,
    Silence,
    StillRow,
    look,
    stamp_of,
)
from controlplane.web.logs.structured import bound
from controlplane.web.storage.watch import THIS_MACHINE, Watch
from jobs.assignment_lifecycle import HELD_BY_AGENT, LIVE, AssignmentMove
from jobs.dependencies import impossible, unsatisfied
from jobs.launch_outcome import LONGEST_BACKOFF_S
from jobs.lifecycle import PLACED, JobState
from jobs.models import UNFINISHED, Assignment, Condition, Dependency, Job
from jobs.moves import LostRaceError, lock_assignment
from jobs.wording.reasons import RESTING
from loadmaster.protocol import AssignmentState, Intervals, ReasonClass
from policies.contract.plan import WaitCode

log = logging.getLogger(__name__)

AT_ONCE = 500
"""Most rows of each sort that one pass corrects."""

REST_S = 0.02
"""Longest rest after a correction: writers that wait look more often (`storage.sqlite`)."""

MENDED_STATES = tuple(PLACED | {JobState.CANCELLING})


def reconcile_clusters(
    now: datetime | None = None, watch: Watch = THIS_MACHINE, *, doubt_s: float = 0.0
) -> int:
    """Make one pass over all clusters; return the number of corrections.

    `watch` says how long nodes and leases have been silent; `now` is for the record, and for times
    that people set. `doubt_s`: seconds by which this clock may be ahead; a deadline is over when it
    was so long ago.
    """
    now = now or timezone.now()
    corrections = 0
    for cluster in Cluster.objects.order_by("pk"):
        with bound(cluster=cluster.pk):
            corrections += _reconcile(cluster, now, watch)
            corrections += _fail_overdue(cluster, now - timedelta(seconds=doubt_s))
    return corrections


def _reconcile(cluster: Cluster, now: datetime, watch: Watch) -> int:
    """Make all corrections of a cluster but those of deadlines; return their number."""
    intervals = intervals_of(cluster)
    silence = look(cluster, intervals, now, watch)
    return (
        _lose_contact(silence)
        + _lose_assignments(silence, intervals, now)
        + _withdraw_ignored(silence, intervals, now)
        + _end_sessions(silence)
        + _lose_nodes(silence, intervals)
        + _end_drains(cluster, now)
        + _end_backoffs(cluster, now)
        + _notice_starts(cluster, now)
        + _fail_never_ready(cluster, now)
        + _mend_jobs(cluster, now)
    )


def _lose_contact(silence: Silence) -> int:
    """Mark assignments UNKNOWN whose lease has ended, as their agent may still run them."""

    def lose_contact(assignment: Assignment) -> bool:
        data = {"lease_expires_at": str(assignment.lease_expires_at)}
        move_assignment(assignment, AssignmentMove.LOSE_CONTACT, data=data)
        return True

    due = {pk: row for pk, row in silence.leases.items() if row.still_s > row.lease_s}
    return _each(due, LEASE_COLUMNS, Q(state__in=HELD_BY_AGENT), lose_contact)


def _lose_assignments(silence: Silence, intervals: Intervals, now: datetime) -> int:
    """End assignments silent for lease + grace + margin, which have stopped by themselves."""

    def lose(assignment: Assignment) -> bool:
        row = due[assignment.pk]
        if row.still_s <= row.lease_s + after_lease_s(intervals, assignment.grace_s):
            return False
        text = "its node was silent for longer than the lease, the grace and the margin"
        end_assignment(assignment, AssignmentMove.LOSE, ReasonClass.LEASE, text, now)
        return True

    least_s = after_lease_s(intervals)
    due = {pk: row for pk, row in silence.leases.items() if row.still_s > row.lease_s + least_s}
    return _each(due, LEASE_COLUMNS, Q(state=AssignmentState.UNKNOWN), lose)


def _withdraw_ignored(silence: Silence, intervals: Intervals, now: datetime) -> int:
    """Withdraw offers that nobody took for a lease and the margin, and note it for the node."""

    def withdraw(assignment: Assignment) -> bool:
        node = assignment.node
        data = {"assignment": str(assignment.pk)}
        NodeEvent.objects.create(node=node, event="offer_ignored", data=data)
        text = f"node {node} did not take the offer in time"
        end_assignment(assignment, AssignmentMove.PREEMPT, ReasonClass.NODE, text, now)
        return True

    longest_s = intervals.lease_s + intervals.margin_s
    due = {pk: row for pk, row in silence.offers.items() if row.still_s > longest_s}
    return _each(due, OFFER_COLUMNS, Q(state=AssignmentState.OFFERED), withdraw)


def _end_sessions(silence: Silence) -> int:
    """End sessions silent for their lease: another agent may begin one."""
    due = {pk: row for pk, row in silence.nodes.items() if row.still_s > row.lease_s}
    nodes = Node.objects.filter(pk__in=list(due)).exclude(session_expires_at=None)
    return sum(_end_session(due, node) for node in nodes.order_by("pk")[:AT_ONCE])


def _end_session(due: Mapping[UUID, StillRow], node: Node) -> bool:
    """End a node's session; return False if the node was heard meanwhile."""
    if stamp_of(node, NODE_COLUMNS) != due[node.pk].stamp:
        return False
    return bool(_as_read(node).update(session_expires_at=None))


def _lose_nodes(silence: Silence, intervals: Intervals) -> int:
    """Mark nodes lost after lease + grace + margin; they return with their state."""
    after_s = after_lease_s(intervals)
    due = {pk: row for pk, row in silence.nodes.items() if row.still_s > row.lease_s + after_s}
    nodes = Node.objects.filter(pk__in=list(due)).exclude(state=State.LOST)
    nodes = nodes.select_related("cluster").order_by("pk")
    return sum(_lose_node(due, node) for node in nodes[:AT_ONCE])


def _lose_node(due: Mapping[UUID, StillRow], node: Node) -> bool:
    """Mark a node lost, with an event; return False if it was heard meanwhile."""
    if stamp_of(node, NODE_COLUMNS) != due[node.pk].stamp:
        return False
    with bound(node=node.pk), transaction.atomic():
        if not _as_read(node).update(state=State.LOST, session_expires_at=None):
            return False
        last_seen_at = node.last_seen_at.isoformat() if node.last_seen_at else None
        data = {"was": node.state, "last_seen_at": last_seen_at}
        NodeEvent.objects.create(node=node, event="lost", data=data)
        request_reschedule(node.cluster, Reason.NODE_LOST, node=node)
    return True


def _as_read(node: Node) -> QuerySet[Node]:
    """Return a query that finds the node only if nobody has changed it since it was read."""
    same = {name: getattr(node, name) for name in ("pk", "state", *NODE_COLUMNS)}
    return Node.objects.filter(**same)


def _end_drains(cluster: Cluster, now: datetime) -> int:
    """Pre-empt jobs that still run on draining nodes when the drain's time is over."""
    due = _assignments(cluster).filter(
        node__state=State.DRAINING, node__drain_until__lte=now, state__in=LIVE, desired="run"
    )
    return sum(_try(partial(_drain, pk, now), assignment=pk) for pk in _keys(due))


def _drain(pk: UUID, now: datetime) -> bool:
    """Pre-empt the launch of an assignment, and tell its users the reason for the drain."""
    node = Assignment.objects.select_related("node").get(pk=pk).node
    why = f"node {node} is drained"
    if node.reason:
        why += f": {node.reason}"
    preempt_gang(pk, "drain", now, why=why)
    return True


def _end_backoffs(cluster: Cluster, now: datetime) -> int:
    """End backoffs that are over, and those begun when the clock was ahead, which end too late."""
    with transaction.atomic():
        queued = Job.objects.filter(UNFINISHED, cluster=cluster, state=JobState.QUEUED)
        latest = now + timedelta(seconds=LONGEST_BACKOFF_S)
        due = Q(retry_at__lte=now) | Q(retry_at__gt=latest, waiting_code=RESTING)
        rested = queued.filter(due).update(retry_at=None)
        if rested:
            request_reschedule(cluster, Reason.LEFTOVER)
    return rested


def _notice_starts(cluster: Cluster, now: datetime) -> int:
    """Ask for a round if a job no longer waits for another one's start, or for a time after it.

    Ends of jobs ask for rounds themselves. Starts do not, as few jobs wait for one.
    """
    links = Dependency.objects.filter(job=OuterRef("pk"))
    ready = Job.objects.filter(
        Exists(links.filter(condition=Condition.AFTER)),
        ~Exists(links.filter(unsatisfied(now))),
        UNFINISHED,
        cluster=cluster,
        state=JobState.QUEUED,
        waiting_code=WaitCode.DEPENDENCY,
    )
    job = ready.order_by("pk").first()
    is_asked = RescheduleEvent.objects.filter(cluster=cluster, round=None).exists()
    if job is None or is_asked:
        return 0
    request_reschedule(cluster, Reason.LEFTOVER, job=job)
    return 1


def _fail_overdue(cluster: Cluster, now: datetime) -> int:
    """Fail waiting jobs whose deadline is over."""
    waiting = _unfinished(cluster, WAITING_STATES)
    keys = waiting.filter(deadline_at__lte=now).values_list("pk", flat=True)[:AT_ONCE]
    return sum(_try(partial(fail_overdue, pk, now), job=pk) for pk in keys)


def _fail_never_ready(cluster: Cluster, now: datetime) -> int:
    """Fail waiting jobs with a dependency that can no longer be satisfied."""
    links = Dependency.objects.filter(impossible(), job=OuterRef("pk"))
    keys = (
        _unfinished(cluster, WAITING_STATES)
        .filter(Exists(links))
        .values_list("pk", flat=True)[:AT_ONCE]
    )
    return sum(_try(partial(fail_never_ready, pk, now), job=pk) for pk in keys)


def _mend_jobs(cluster: Cluster, now: datetime) -> int:
    """Settle placed and cancelling jobs without a live assignment."""
    keys = _unfinished(cluster, MENDED_STATES).values_list("pk", flat=True)[:AT_ONCE]
    return sum(_try(partial(settle_job, pk, now), job=pk) for pk in keys)


def _unfinished(cluster: Cluster, states: Sequence[JobState]) -> QuerySet[Job]:
    """Return jobs in these states without a live assignment."""
    live = Assignment.objects.filter(job=OuterRef("pk"), state__in=LIVE)
    return Job.objects.filter(UNFINISHED, ~Exists(live), cluster=cluster, state__in=states)


def _assignments(cluster: Cluster) -> QuerySet[Assignment]:
    return Assignment.objects.filter(node__cluster=cluster)


def _keys(assignments: QuerySet[Assignment]) -> Iterable[UUID]:
    """Return the primary keys of the oldest assignments, as many as a pass corrects."""
    return list(assignments.order_by("created_at").values_list("pk", flat=True)[:AT_ONCE])


def _each(
    due: Mapping[UUID, StillRow],
    columns: Iterable[str],
    allowed: Q,
    act: Callable[[Assignment], bool],
) -> int:
    """Act on each assignment of `due`, in a transaction of its own; return the number of acts.

    Once locked it must be `allowed`, and the stamp of its `columns` the one that stood still.
    """

    def look_again(pk: UUID) -> bool:
        with transaction.atomic():
            assignment = lock_assignment(pk)
            same = stamp_of(assignment, columns) == due[pk].stamp
            return same and found.filter(pk=pk).exists() and act(assignment)

    if not due:
        return 0
    found = Assignment.objects.filter(allowed)
    keys = _keys(found.filter(pk__in=list(due)))
    return sum(_try(partial(look_again, pk), assignment=pk) for pk in keys)


def _try(act: Callable[[], bool], **ids: object) -> bool:
    """Return True if done; losing a race is no failure. `ids` go to the log.

    The rest after it lets others write: SQLite's next writer is whoever asks first.
    """
    began_s = time.perf_counter()
    with bound(**ids):
        try:
            return act()
        except LostRaceError as race:
            log.info("left for the next pass: %s", race)
            return False
        finally:
            time.sleep(min(REST_S, time.perf_counter() - began_s))
