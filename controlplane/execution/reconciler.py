"""Reconciler: leases that ran out, silent nodes, ignored offers, due drains, stuck jobs.

Everything is idempotent and looks again with rows locked: any number of processes may run it.
"""

import logging
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils import timezone

from clusters.events import request_reschedule
from clusters.intervals import intervals_of, lost_after
from clusters.models import Cluster, Node, NodeEvent, Reason
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
from controlplane.web.logs.structured import bound
from jobs.assignment_lifecycle import HELD_BY_AGENT, LIVE, AssignmentMove
from jobs.dependencies import impossible
from jobs.lifecycle import PLACED, JobState
from jobs.models import Assignment, Dependency, Job
from jobs.moves import LostRaceError, lock_assignment
from loadmaster.protocol import AssignmentState, Intervals, ReasonClass

log = logging.getLogger(__name__)

AT_ONCE = 500
"""Rows of each sort per pass."""

MENDED_STATES = tuple(PLACED | {JobState.CANCELLING})


def reconcile_clusters(now: datetime | None = None) -> int:
    """Make one pass over all clusters; return the number of corrections."""
    now = now or timezone.now()
    done = 0
    for cluster in Cluster.objects.order_by("pk"):
        with bound(cluster=cluster.pk):
            done += _reconcile(cluster, now)
    return done


def _reconcile(cluster: Cluster, now: datetime) -> int:
    clock = intervals_of(cluster)
    return (
        _lose_contact(cluster, now)
        + _lose_assignments(cluster, clock, now)
        + _withdraw_ignored(cluster, clock, now)
        + _lose_nodes(cluster, clock, now)
        + _end_drains(cluster, now)
        + _end_backoffs(cluster, now)
        + _fail_overdue(cluster, now)
        + _fail_never_ready(cluster, now)
        + _mend_jobs(cluster, now)
    )


def _lose_contact(cluster: Cluster, now: datetime) -> int:
    def lose_contact(assignment: Assignment) -> bool:
        data = {"lease_expires_at": str(assignment.lease_expires_at)}
        move_assignment(assignment, AssignmentMove.LOSE_CONTACT, data=data)
        return True

    return _each(
        _of(cluster).filter(state__in=HELD_BY_AGENT, lease_expires_at__lt=now), lose_contact
    )


def _lose_assignments(cluster: Cluster, clock: Intervals, now: datetime) -> int:
    """End assignments silent for lease + grace + margin, which have stopped by themselves."""

    def lose(assignment: Assignment) -> bool:
        end = assignment.lease_expires_at
        if end is None or lost_after(end, clock, assignment.grace_s) >= now:
            return False
        text = "its node was silent beyond the lease, the grace and the margin"
        end_assignment(assignment, AssignmentMove.LOSE, ReasonClass.LEASE, text, now)
        return True

    unknown = _of(cluster).filter(state=AssignmentState.UNKNOWN, lease_expires_at__lt=now)
    return _each(unknown, lose)


def _withdraw_ignored(cluster: Cluster, clock: Intervals, now: datetime) -> int:
    """Withdraw offers that nobody took for a lease and the margin, and note it for the node."""
    before = now - timedelta(seconds=clock.lease_s + clock.margin_s)

    def withdraw(assignment: Assignment) -> bool:
        node, data = assignment.node, {"assignment": str(assignment.pk)}
        NodeEvent.objects.create(node=node, event="offer_ignored", data=data)
        text = f"node {node} did not take the offer in time"
        end_assignment(assignment, AssignmentMove.PREEMPT, ReasonClass.NODE, text, now)
        return True

    offers = _of(cluster).filter(state=AssignmentState.OFFERED, created_at__lt=before)
    return _each(offers, withdraw)


def _lose_nodes(cluster: Cluster, clock: Intervals, now: datetime) -> int:
    """Mark nodes lost after grace + margin without session; they return with their state."""
    before = now - timedelta(seconds=clock.grace_s + clock.margin_s)
    never = Q(session_expires_at=None) & Q(heard_at__lt=before - timedelta(seconds=clock.lease_s))
    silent = (
        Node.objects.filter(cluster=cluster)
        .exclude(state=State.LOST)
        .annotate(heard_at=Coalesce("last_seen_at", "created_at"))
        .filter(Q(session_expires_at__lt=before) | never)
    )
    return sum(map(_lose_node, silent.select_related("cluster").order_by("pk")[:AT_ONCE]))


def _lose_node(node: Node) -> bool:
    with bound(node=node.pk), transaction.atomic():
        same = Node.objects.filter(
            pk=node.pk,
            state=node.state,
            epoch=node.epoch,
            session_expires_at=node.session_expires_at,
            last_seen_at=node.last_seen_at,
        )
        if not same.update(state=State.LOST):
            return False
        last = node.last_seen_at.isoformat() if node.last_seen_at else None
        data = {"was": node.state, "last_seen_at": last}
        NodeEvent.objects.create(node=node, event="lost", data=data)
        request_reschedule(node.cluster, Reason.NODE_LOST, node=node)
    return True


def _end_drains(cluster: Cluster, now: datetime) -> int:
    due = _of(cluster).filter(
        node__state=State.DRAINING, node__drain_until__lte=now, state__in=LIVE, desired="run"
    )
    return sum(_try(partial(_drain, pk, now), assignment=pk) for pk in _keys(due))


def _drain(pk: UUID, now: datetime) -> bool:
    node = Assignment.objects.select_related("node").get(pk=pk).node
    why = f"node {node} is drained" + (f": {node.reason}" if node.reason else "")
    preempt_gang(pk, "drain", now, why=why)
    return True


def _end_backoffs(cluster: Cluster, now: datetime) -> int:
    with transaction.atomic():
        queued = Job.objects.filter(cluster=cluster, state=JobState.QUEUED)
        rested = queued.filter(retry_at__lte=now).update(retry_at=None)
        if rested:
            request_reschedule(cluster, Reason.LEFTOVER)
    return rested


def _fail_overdue(cluster: Cluster, now: datetime) -> int:
    live = Assignment.objects.filter(job=OuterRef("pk"), state__in=LIVE)
    waiting = Job.objects.filter(~Exists(live), cluster=cluster, state__in=WAITING_STATES)
    keys = waiting.filter(deadline_at__lte=now).values_list("pk", flat=True)[:AT_ONCE]
    return sum(_try(partial(fail_overdue, pk, now), job=pk) for pk in keys)


def _fail_never_ready(cluster: Cluster, now: datetime) -> int:
    links = Dependency.objects.filter(impossible(), job=OuterRef("pk"))
    live = Assignment.objects.filter(job=OuterRef("pk"), state__in=LIVE)
    waiting = Job.objects.filter(
        Exists(links), ~Exists(live), cluster=cluster, state__in=WAITING_STATES
    )
    keys = waiting.values_list("pk", flat=True)[:AT_ONCE]
    return sum(_try(partial(fail_never_ready, pk, now), job=pk) for pk in keys)


def _mend_jobs(cluster: Cluster, now: datetime) -> int:
    live = Assignment.objects.filter(job=OuterRef("pk"), state__in=LIVE)
    stuck = Job.objects.filter(~Exists(live), cluster=cluster, state__in=MENDED_STATES)
    keys = stuck.values_list("pk", flat=True)[:AT_ONCE]
    return sum(_try(partial(settle_job, pk, now), job=pk) for pk in keys)


def _of(cluster: Cluster) -> QuerySet[Assignment]:
    return Assignment.objects.filter(node__cluster=cluster)


def _keys(found: QuerySet[Assignment]) -> Iterable[UUID]:
    return list(found.order_by("created_at").values_list("pk", flat=True)[:AT_ONCE])


def _each(found: QuerySet[Assignment], act: Callable[[Assignment], bool]) -> int:
    """Act on each assignment that is still found once locked, one transaction each."""

    def look_again(pk: UUID) -> bool:
        with transaction.atomic():
            assignment = lock_assignment(pk)
            return found.filter(pk=pk).exists() and act(assignment)

    return sum(_try(partial(look_again, pk), assignment=pk) for pk in _keys(found))


def _try(act: Callable[[], bool], **ids: object) -> bool:
    """Return True if done; losing a race is no failure. `ids` go to the log.

    Others may write for as long as this took: SQLite's next writer is whoever asks first.
    """
    began_s = time.perf_counter()
    with bound(**ids):
        try:
            return act()
        except LostRaceError as race:
            log.info("left for the next pass: %s", race)
            return False
        finally:
            time.sleep(time.perf_counter() - began_s)
