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
ASSIGNMENTS_AT_ONCE = 1000
"""Assignments looked for at once; each look passes all that were pruned before."""

SIMULATIONS_AT_ONCE = 20
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
    until_s, gone = time.monotonic() + budget_s, dict.fromkeys((rule.name for rule in RULES), 0)
    turns = deque(
        (rule.name, rule.batches(now - timedelta(days=rule.days)))
        for rule in RULES
        if (not names or rule.name in names) and rule.days is not None
    )
    while turns and (began_s := time.monotonic()) < until_s:
        name, batches = turns.popleft()
        with patient():
            for count in batches:
                gone[name] += count
                if time.monotonic() >= min(began_s + TURN_S, until_s):
                    turns.append((name, batches))
                    break
    return {name: count for name, count in gone.items() if count}


def _delete(rows: QuerySet[Any]) -> int:
    model: type[Model] = rows.model
    keys = list(rows.order_by("pk").values_list("pk", flat=True)[:BATCH])
    if keys:
        model._default_manager.filter(pk__in=keys).delete()
    return len(keys)


def _snapshots(before: datetime) -> int:
    keys = _old_rounds(before, snapshot__isnull=False)
    return Round.objects.filter(pk__in=keys).update(snapshot=None) if keys else 0


def _old_rounds(before: datetime, **only: bool) -> list[int]:
    old = Round.objects.filter(ended_at__lt=before, **only).exclude(pk__in=_newest())
    return list(old.order_by("pk").values_list("pk", flat=True)[:BATCH])


def _rounds(before: datetime) -> int:
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
    keys: list[int] = []
    for cluster in Cluster.objects.values_list("pk", flat=True):
        rounds = Round.objects.filter(cluster=cluster).order_by("-number")
        keys += rounds.values_list("pk", flat=True)[:ROUNDS_KEPT]
    return keys


def _of_ended_jobs(what: str, *models: type[Any]) -> Batches:
    def batches(before: datetime) -> Iterator[int]:
        over = Q(state__in=_ENDED, ended_at__lt=before, job__completed_at__lt=before)
        for model in models:
            held = Exists(model.objects.filter(assignment=OuterRef("pk")))
            due = Assignment.objects.filter(held, over).order_by("ended_at")
            while keys := list(due.values_list("pk", "job")[:ASSIGNMENTS_AT_ONCE]):
                yield from (_of_assignment(model, *pair, what) for pair in keys)

    return batches


def _of_assignment(model: type[Any], assignment: UUID, job: UUID, what: str) -> int:
    """Delete all rows of one assignment in batches; note it once in the job's history."""
    gone = 0
    while keys := list(
        model.objects.filter(assignment=assignment).values_list("pk", flat=True)[:BATCH]
    ):
        with transaction.atomic():
            gone += model.objects.filter(pk__in=keys).delete()[0]
            if gone <= BATCH:
                data = {"what": what, "assignment": str(assignment), "kind": model.__name__}
                note_job(Job.objects.get(pk=job), "pruned", actor="prune", data=data)
    return gone


def _logins(before: datetime) -> int:
    return sum(
        _delete(model.objects.filter(attempt_time__lt=before))
        for model in (AccessAttempt, AccessFailureLog, AccessLog)
    )


def _each(batch: Batch) -> Batches:
    """Batches until one is empty."""

    def batches(before: datetime) -> Iterator[int]:
        while count := batch(before):
            yield count

    return batches


def _expired(model: type[Model], at: str, **only: object) -> Batches:
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
    return ((rule.name, rule.days) for rule in RULES)
