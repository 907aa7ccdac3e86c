"""Retention: old bulk data is deleted in small batches by `RULES`, in days (0: never).

Jobs, attempts, events, assignments with their costs, the ledger, tariffs, measurements and shared
simulations stay for ever. Output and samples of ended jobs stay for LEAST_DAYS.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.conf import settings
from django.contrib.sessions.models import Session
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.db.models import Exists, Model, OuterRef, Q, QuerySet
from knox.models import AuthToken

from clusters.models import Cluster, EnrolmentToken, RescheduleEvent
from controlplane.audit.models import Entry
from controlplane.loop.models import Round
from controlplane.operations.models import PruneClock
from controlplane.studies.lifecycle import ACTIVE
from controlplane.studies.models import Simulation
from controlplane.web.storage.turns import patient
from jobs.assignment_lifecycle import ENDED
from jobs.models import (
    Assignment,
    Forecast,
    IdempotencyKey,
    Job,
    LogChunk,
    ProgressPoint,
    RunTimeHistory,
    UsagePoint,
)
from jobs.moves import note_job
from profiling.models import PredictedRun, RunTimeGroup

log = logging.getLogger(__name__)

BATCH = 500
"""Rows of a batch."""

ASSIGNMENTS_AT_ONCE = 1000
"""Assignments looked for at once; each look passes all that were pruned before."""

SIMULATIONS_AT_ONCE = 20
"""Simulations of a batch, with their files."""

TURN_S = 1.0
"""Seconds after which a rule lets the next go on, so that each has its share."""

LEAST_AUDIT_DAYS = 30
"""Fewest days for which rows of the audit are kept."""

LEAST_DAYS = 7
"""Fewest days for which output and samples of ended jobs are kept."""

LEAP = timedelta(days=8)
"""Change of the wall clock between two hourly looks beyond which it is not believed at once."""

REST = timedelta(days=1)
"""Time after a leap in which nothing is deleted by the hour."""

ROUNDS_KEPT = 50
"""Newest rounds per cluster that keep snapshots at any age, to be replayed."""

_ENDED = sorted(str(state) for state in ENDED)

Batch = Callable[[datetime], int]
"""Deletion of one batch of rows older than a moment; returns their number."""

Batches = Callable[[datetime], Iterator[int]]
"""Deletion of all of them; yields the number of each batch."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`setting`: key in settings.KEEP_DAYS; None if useless once expired."""

    name: str
    setting: str | None
    batches: Batches
    least_days: int = 0

    @property
    def days(self) -> float | None:
        """Days to keep; None to keep for ever. ImproperlyConfigured for fewer than the least."""
        if self.setting is None:
            return 0.0
        days = float(settings.KEEP_DAYS[self.setting])
        if days and days < self.least_days:
            variable = f"LOADMASTER_KEEP_{self.setting.upper()}_DAYS"
            raise ImproperlyConfigured(
                f"{variable} must be 0 (for ever) or at least {self.least_days}, not {days:g}"
            )
        return days or None


def is_steady(now: datetime) -> bool:
    """Note an hourly look; return True if the wall clock made no leap within REST before `now`.

    By a clock that is months ahead all output would be old. An operator has REST to set it right.
    """
    with transaction.atomic():
        clock, _ = PruneClock.objects.select_for_update().get_or_create(
            pk=1, defaults={"seen_at": now, "steady_since": now}
        )
        if abs(now - clock.seen_at) > LEAP:
            log.warning("the last look for old data was at %s: none goes for a day", clock.seen_at)
            clock.steady_since = now
        clock.seen_at = now
        clock.save()
    return now - clock.steady_since >= REST


def prune(now: datetime, *, budget_s: float = 60.0, names: tuple[str, ...] = ()) -> dict[str, int]:
    """Delete due data (of named rules, else all) for about `budget_s`; return rows by rule."""
    # 1. The rules to apply, each with its batches of rows that are too old.
    until_s = time.monotonic() + budget_s
    deleted = {rule.name: 0 for rule in RULES}
    queue: deque[tuple[str, Iterator[int]]] = deque()
    for rule in RULES:
        if names and rule.name not in names:
            continue
        days = rule.days
        if days is not None:
            queue.append((rule.name, rule.batches(now - timedelta(days=days))))

    # 2. Let them delete by turns until all are through, or the time is over.
    while queue:
        began_s = time.monotonic()
        if began_s >= until_s:
            break
        name, batches = queue.popleft()
        with patient():
            for count in batches:
                deleted[name] += count
                if time.monotonic() >= min(began_s + TURN_S, until_s):
                    queue.append((name, batches))
                    break
    return {name: count for name, count in deleted.items() if count}


def _delete(rows: QuerySet[Any]) -> int:
    """Delete one batch of these rows; return its number."""
    model: type[Model] = rows.model
    keys = list(rows.order_by("pk").values_list("pk", flat=True)[:BATCH])
    if keys:
        model._default_manager.filter(pk__in=keys).delete()
    return len(keys)


def _snapshots(before: datetime) -> int:
    """Delete the snapshots of old rounds, whose rows stay."""
    keys = _old_rounds(before, snapshot__isnull=False)
    return Round.objects.filter(pk__in=keys).update(snapshot=None) if keys else 0


def _old_rounds(before: datetime, **only: bool) -> list[int]:
    """Keys of one batch of old rounds that fit `only`, without the newest of each cluster."""
    old = Round.objects.filter(ended_at__lt=before, **only).exclude(pk__in=_newest())
    return list(old.order_by("pk").values_list("pk", flat=True)[:BATCH])


def _rounds(before: datetime) -> int:
    """Delete old rounds with the events that they have answered."""
    keys = _old_rounds(before)
    if keys:
        with transaction.atomic():
            RescheduleEvent.objects.filter(round__in=keys).delete()
            Round.objects.filter(pk__in=keys).delete()
    return len(keys)


def _simulations(before: datetime) -> int:
    """Delete ended, unshared simulations with their files, without reading studies."""
    old = Simulation.objects.filter(ended_at__lt=before, share_key="").exclude(state__in=ACTIVE)
    with transaction.atomic():  # one that is being shared meanwhile stays
        due = old.select_for_update().order_by("ended_at", "pk").values_list("pk", flat=True)
        keys = list(due[:SIMULATIONS_AT_ONCE])
        Simulation.objects.filter(pk__in=keys).only("pk").delete()
    return len(keys)


def _newest() -> list[int]:
    """Keys of the newest rounds of each cluster."""
    keys: list[int] = []
    for cluster in Cluster.objects.values_list("pk", flat=True):
        rounds = Round.objects.filter(cluster=cluster).order_by("-number")
        keys += rounds.values_list("pk", flat=True)[:ROUNDS_KEPT]
    return keys


def _of_ended_jobs(what: str, *models: type[Any]) -> Batches:
    """Make the deletion of these models' rows of ended jobs; `what` they are, for the history."""

    def batches(before: datetime) -> Iterator[int]:
        has_ended = Q(state__in=_ENDED, ended_at__lt=before, job__completed_at__lt=before)
        for model in models:
            has_rows = Exists(model.objects.filter(assignment=OuterRef("pk")))
            due = Assignment.objects.filter(has_rows, has_ended).order_by("ended_at")
            while True:
                keys = list(due.values_list("pk", "job")[:ASSIGNMENTS_AT_ONCE])
                if not keys:
                    break
                for assignment, job in keys:
                    yield _delete_of_assignment(model, assignment, job, what)

    return batches


def _delete_of_assignment(model: type[Any], assignment: UUID, job: UUID, what: str) -> int:
    """Delete all rows of one assignment in batches; note it once in the job's history."""
    deleted = 0
    while True:
        rows = model.objects.filter(assignment=assignment)
        keys = list(rows.values_list("pk", flat=True)[:BATCH])
        if not keys:
            return deleted
        with transaction.atomic():
            is_first = deleted == 0
            deleted += model.objects.filter(pk__in=keys).delete()[0]
            if is_first:
                data = {"what": what, "assignment": str(assignment), "kind": model.__name__}
                note_job(Job.objects.get(pk=job), "pruned", actor="prune", data=data)


def _logins(before: datetime) -> int:
    """Delete one batch of old attempts and logs of logins of each kind."""
    deleted = 0
    for model in (AccessAttempt, AccessFailureLog, AccessLog):
        deleted += _delete(model.objects.filter(attempt_time__lt=before))
    return deleted


def _each(batch: Batch) -> Batches:
    """Make the deletion of batches until one is empty."""

    def batches(before: datetime) -> Iterator[int]:
        while True:
            count = batch(before)
            if not count:
                return
            yield count

    return batches


def _expired(model: type[Model], at: str, **only: object) -> Batches:
    """Make the deletion of a model's rows that fit `only`, by their age since the field `at`."""
    rows = model._default_manager.filter(**only)
    return _each(lambda before: _delete(rows.filter(**{f"{at}__lt": before})))


RULES = (
    Rule("snapshots", "snapshots", _each(_snapshots)),
    Rule("rounds", "rounds", _each(_rounds)),
    Rule("events", "events", _expired(RescheduleEvent, "created_at", round__isnull=False)),
    Rule("output", "output", _of_ended_jobs("output", LogChunk), LEAST_DAYS),
    Rule("samples", "samples", _of_ended_jobs("samples", ProgressPoint, UsagePoint), LEAST_DAYS),
    Rule("forecasts", "samples", _expired(Forecast, "job__completed_at"), LEAST_DAYS),
    Rule("run times", "samples", _expired(RunTimeGroup, "updated_at"), LEAST_DAYS),
    Rule("run time histories", "samples", _expired(RunTimeHistory, "updated_at"), LEAST_DAYS),
    Rule("predicted runs", "samples", _expired(PredictedRun, "ended_at"), LEAST_DAYS),
    Rule("simulations", "simulations", _each(_simulations)),
    Rule("idempotency keys", "keys", _expired(IdempotencyKey, "created_at"), 1),
    Rule("audit", "audit", _each(lambda t: Entry.objects.expire(t, BATCH)), LEAST_AUDIT_DAYS),
    Rule("logins", "logins", _each(_logins)),
    Rule("enrolment tokens", "logins", _expired(EnrolmentToken, "expires_at", used_at=None)),
    Rule("sessions", None, _expired(Session, "expire_date")),
    Rule("tokens", None, _expired(AuthToken, "expiry")),
)


def kept() -> Iterator[tuple[str, float | None]]:
    """(name, days) of each rule; None for what is kept for ever, 0 for until it expires."""
    return ((rule.name, rule.days) for rule in RULES)
