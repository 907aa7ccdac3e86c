"""Restoring a backup so that nothing runs twice.

Fences and epochs are raised (`engines`): later launches are stale, agents open new sessions.
Running assignments become UNKNOWN with a fresh lease: adopted by their agent, or LOST. Offers are
withdrawn; what was accepted since is stopped as a stray. Rounds wait until all leases of the old
server have run out.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Max
from django.utils import timezone
from redis.exceptions import RedisError

from clusters.events import request_reschedule
from clusters.intervals import after_lease_s, intervals_of, job_lease_s
from clusters.models import Cluster, EnrolmentToken, Node, NodeEvent, Reason
from controlplane.execution.moves import move_assignment
from controlplane.execution.outcomes import end_assignment
from controlplane.loop.live import lock as locks
from controlplane.operations.backup.backups import Manifest, check_fits, unpacked
from controlplane.operations.backup.engines import BackupError, engine
from jobs.assignment_lifecycle import LIVE, AssignmentMove
from jobs.models import Assignment, Job, Secret
from jobs.moves import lock_assignment
from jobs.secrets import SecretMissing, reveal
from loadmaster.protocol import AssignmentState, ReasonClass

WHY = "the server was restored from a backup"
HELD = sorted(str(s) for s in LIVE - {AssignmentState.OFFERED})


@dataclass(frozen=True, slots=True)
class Restored:
    manifest: Manifest
    rounds_from: dict[str, datetime]
    unknown: int
    withdrawn: int
    closed_secrets: tuple[str, ...]
    cache_emptied: bool


def restore_backup(path: Path, *, force: bool = False, least_wait_s: float = 0.0) -> Restored:
    """Replace the database by the backup, migrated and safe; rounds wait `least_wait_s` or more.

    Raises BackupError with nothing changed; `force` replaces a nonempty database or one in use.
    """
    kind = engine()
    with unpacked(path) as (manifest, dump):
        check_fits(manifest)
        if not force:
            refuse_nonempty()
            kind.refuse_other_connections()
        with kind.staged(dump):
            call_command("migrate", verbosity=0, interactive=False)
            with transaction.atomic():
                restored = make_safe(manifest, timezone.now(), least_wait_s)
    return restored


def refuse_nonempty() -> None:
    """Raise BackupError unless the database is empty."""
    tables = set(connection.introspection.table_names())
    for model in (User, Cluster, Job):
        if model._meta.db_table in tables and model._default_manager.exists():
            text = (
                f"the database has {model._meta.verbose_name_plural} in it, all of which a restore"
                " would replace"
            )
            raise BackupError(f"{text}; restore into an empty one, or use --force")


def make_safe(manifest: Manifest, now: datetime, least_wait_s: float) -> Restored:
    """Make a restored database safe in a transaction after raising fences."""
    unknown = sum(_lose_contact(pk, now) for pk in _keys(HELD))
    withdrawn = sum(_withdraw(pk, now) for pk in _keys([AssignmentState.OFFERED]))
    Session.objects.all().delete()
    EnrolmentToken.objects.filter(expires_at__gt=now).update(expires_at=now)
    Node.objects.update(last_seen_at=now)
    said = {"backup": manifest.created_at}
    NodeEvent.objects.bulk_create(
        [NodeEvent(node=node, event="restored", data=said) for node in Node.objects.all()]
    )
    clusters = Cluster.objects.order_by("name")
    waits = {cluster.name: _wait(cluster, now, least_wait_s) for cluster in clusters}
    closed = []
    for secret in Secret.objects.select_related("team"):
        try:
            reveal(secret)
        except SecretMissing:
            closed.append(str(secret))
    emptied = _empty_cache()
    for cluster in clusters.all():
        locks.is_held(cluster)  # seen now: on this machine rounds wait from here on
    return Restored(manifest, waits, unknown, withdrawn, tuple(closed), emptied)


def _keys(states: list[str]) -> list[UUID]:
    held = Assignment.objects.filter(state__in=states).order_by("job", "pk")
    return list(held.values_list("pk", flat=True))


def _lose_contact(pk: UUID, now: datetime) -> bool:
    assignment = lock_assignment(pk)
    lease = timedelta(
        seconds=job_lease_s(intervals_of(assignment.node.cluster), assignment.job.on_disconnect)
    )
    if assignment.state == AssignmentState.UNKNOWN:
        Assignment.objects.filter(pk=pk).update(renewed_at=now, lease_expires_at=now + lease)
    else:
        given = {"renewed_at": now, "lease_expires_at": now + lease}
        move_assignment(assignment, AssignmentMove.LOSE_CONTACT, data={"why": WHY}, **given)
    return True


def _withdraw(pk: UUID, now: datetime) -> bool:
    assignment = lock_assignment(pk)
    if assignment.state != AssignmentState.OFFERED:
        return False
    end_assignment(assignment, AssignmentMove.PREEMPT, ReasonClass.OPERATOR, WHY, now)
    return True


def _wait(cluster: Cluster, now: datetime, least_wait_s: float) -> datetime:
    """Delay the cluster's rounds until all earlier leases have ended; return that time."""
    clock = intervals_of(cluster)
    jobs = Job.objects.filter(cluster=cluster).order_by()
    kinds = jobs.values_list("on_disconnect", flat=True).distinct()
    lease_s = max((job_lease_s(clock, kind) for kind in kinds), default=clock.lease_s)
    held = Assignment.objects.filter(node__cluster=cluster, state__in=HELD)
    promised_s = held.aggregate(most=Max("grace_s"))["most"]
    wait_s = max(lease_s + after_lease_s(clock, promised_s), least_wait_s)
    until = now + timedelta(seconds=wait_s)
    locks.close_for(cluster, wait_s, until)
    request_reschedule(cluster, Reason.OPERATOR)
    return until


def _empty_cache() -> bool:
    try:
        cache.clear()
    except (RedisError, OSError):
        return False
    return True
