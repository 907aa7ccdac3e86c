"""Restoring a backup so that nothing runs twice.

- Fences and epochs are raised (`engines`): launches since the backup are stale, and agents open new
  sessions.
- Running assignments become UNKNOWN with a fresh lease: their agent adopts them, or they are LOST.
- Offers are withdrawn. An agent that has accepted one since stops it as a stray.
- Rounds wait until all leases of the old server have run out.
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
HELD = sorted(str(state) for state in LIVE - {AssignmentState.OFFERED})
"""States of assignments that an agent has accepted."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Outcome of a restore.

    `rounds_from`: when rounds begin again, by cluster. `unknown`, `withdrawn`: numbers of
    assignments. `closed_secrets`: those that this server's keys do not open.
    """

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
    # 1. Assignments that may have run on since the backup, and offers.
    unknown = 0
    for pk in _assignments(HELD):
        _lose_contact(pk, now)
        unknown += 1
    withdrawn = 0
    for pk in _assignments([AssignmentState.OFFERED]):
        if _withdraw(pk, now):
            withdrawn += 1

    # 2. Sessions of people and tokens of nodes end; silence of nodes counts from now.
    Session.objects.all().delete()
    EnrolmentToken.objects.filter(expires_at__gt=now).update(expires_at=now)
    Node.objects.update(last_seen_at=now)
    data = {"backup": manifest.created_at}
    events = [NodeEvent(node=node, event="restored", data=data) for node in Node.objects.all()]
    NodeEvent.objects.bulk_create(events)

    # 3. Rounds wait for the leases of the old server.
    clusters = Cluster.objects.order_by("name")
    rounds_from = {cluster.name: _wait(cluster, now, least_wait_s) for cluster in clusters}

    # 4. Secrets may be of other keys than this server's.
    closed_secrets = []
    for secret in Secret.objects.select_related("team"):
        try:
            reveal(secret)
        except SecretMissing:
            closed_secrets.append(str(secret))

    # 5. The cache is of the state before. From here on this machine sees how long rounds have
    #    been closed.
    is_emptied = _empty_cache()
    for cluster in clusters.all():
        locks.is_held(cluster)
    return Restored(
        manifest, rounds_from, unknown, withdrawn, tuple(closed_secrets), cache_emptied=is_emptied
    )


def _assignments(states: list[str]) -> list[UUID]:
    """Keys of the assignments in these states, in the order in which their jobs are locked."""
    assignments = Assignment.objects.filter(state__in=states).order_by("job", "pk")
    return list(assignments.values_list("pk", flat=True))


def _lose_contact(pk: UUID, now: datetime) -> None:
    """Make an accepted assignment UNKNOWN with a fresh lease."""
    assignment = lock_assignment(pk)
    intervals = intervals_of(assignment.node.cluster)
    lease = timedelta(seconds=job_lease_s(intervals, assignment.job.on_disconnect))
    fresh = {"renewed_at": now, "lease_expires_at": now + lease}
    if assignment.state == AssignmentState.UNKNOWN:
        Assignment.objects.filter(pk=pk).update(**fresh)
    else:
        move_assignment(assignment, AssignmentMove.LOSE_CONTACT, data={"why": WHY}, **fresh)


def _withdraw(pk: UUID, now: datetime) -> bool:
    """End an offer; return False if it is none any more."""
    assignment = lock_assignment(pk)
    if assignment.state != AssignmentState.OFFERED:
        return False
    end_assignment(assignment, AssignmentMove.PREEMPT, ReasonClass.OPERATOR, WHY, now)
    return True


def _wait(cluster: Cluster, now: datetime, least_wait_s: float) -> datetime:
    """Delay the cluster's rounds until all earlier leases have ended; return that time."""
    # 1. The longest lease of any of its jobs.
    intervals = intervals_of(cluster)
    jobs = Job.objects.filter(cluster=cluster).order_by()
    choices = jobs.values_list("on_disconnect", flat=True).distinct()
    leases_s = [job_lease_s(intervals, on_disconnect) for on_disconnect in choices]
    lease_s = max(leases_s, default=intervals.lease_s)

    # 2. The longest time that stopping a job may take after it.
    held = Assignment.objects.filter(node__cluster=cluster, state__in=HELD)
    promised_grace_s = held.aggregate(most=Max("grace_s"))["most"]
    wait_s = max(lease_s + after_lease_s(intervals, promised_grace_s), least_wait_s)

    # 3. No round is held before.
    until = now + timedelta(seconds=wait_s)
    locks.close_for(cluster, wait_s, until)
    request_reschedule(cluster, Reason.OPERATOR)
    return until


def _empty_cache() -> bool:
    """Empty the cache; return False if it cannot be reached."""
    try:
        cache.clear()
    except (RedisError, OSError):
        return False
    return True
