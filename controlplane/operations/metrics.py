"""/metrics in Prometheus format: state from database and cache, counters of requests.

A part that cannot be read is left out, and `loadmaster_database_up` or `_cache_up` is 0.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.core.cache import cache
from django.db import DatabaseError, connection
from django.db.models import Count, Min, Q
from django.http import HttpResponse
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from redis.exceptions import RedisError
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from clusters.models import Cluster, Node, RescheduleEvent
from controlplane.loop.metrics import KEY as ROUNDS_KEY
from controlplane.loop.metrics import RECONCILE_KEY, RoundCounts
from controlplane.operations.health import BEAT_KEY
from controlplane.web.http.metrics import http_registry
from controlplane.web.rest.defaults import BearerAuthentication
from jobs.assignment_lifecycle import LIVE
from jobs.lifecycle import JobState
from jobs.models import Assignment, Job
from loadmaster.protocol import AssignmentState

log = logging.getLogger(__name__)

SOON = timedelta(seconds=10)
"""A live lease that ends within this is "expiring": its node has missed heartbeats."""

QUANTILES = (0.5, 0.99, 1.0)
_LIVE = sorted(str(state) for state in LIVE)


class StateCollector(Collector):
    """Everything but the counters of requests."""

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "loadmaster_build_info", "1, with what runs here", labels=["version", "database"]
        )
        info.add_metric([version("loadmaster"), connection.vendor], 1)
        yield info
        yield from _up("cache", _from_cache)
        yield from _up("database", _from_database)


def _up(name: str, read: Any) -> Iterator[Metric]:
    families: list[Metric] = []
    try:
        families, up = list(read()), 1
    except (DatabaseError, RedisError) as error:
        log.warning("the metrics of the %s are left out: %s", name, type(error).__name__)
        up = 0
    yield GaugeMetricFamily(f"loadmaster_{name}_up", f"Whether the {name} answers", value=up)
    yield from families


def _from_cache() -> Iterator[Metric]:
    now_s, found = time.time(), cache.get_many([BEAT_KEY, RECONCILE_KEY, ROUNDS_KEY])
    texts = {
        BEAT_KEY: ("beat", "beat last ticked"),
        RECONCILE_KEY: ("reconcile", "the last pass of the reconciler ended"),
    }
    for key, (name, text) in texts.items():
        if isinstance(found.get(key), float):
            yield GaugeMetricFamily(
                f"loadmaster_{name}_age_seconds",
                f"Seconds since {text}",
                value=max(0.0, now_s - found[key]),
            )
    tally = found.get(ROUNDS_KEY)
    yield from _rounds(tally if isinstance(tally, RoundCounts) else RoundCounts())


def _rounds(tally: RoundCounts) -> Iterator[Metric]:
    rounds = CounterMetricFamily(
        "loadmaster_rounds", "Rounds that have ended", labels=["cluster", "status"]
    )
    reasons = CounterMetricFamily(
        "loadmaster_round_triggers",
        "Reasons of rounds that have ended",
        labels=["cluster", "reason"],
    )
    for (cluster, status), number in sorted(tally.statuses.items()):
        rounds.add_metric([cluster, status], number)
    for (cluster, reason), number in sorted(tally.reasons.items()):
        reasons.add_metric([cluster, reason], number)
    yield rounds
    yield reasons
    histograms = (
        ("round_seconds", "Seconds from a round's snapshot to its end", tally.round_seconds),
        ("solver_seconds", "Seconds a round's policy took", tally.solver_seconds),
    )
    for name, text, by_cluster in histograms:
        family = HistogramMetricFamily(f"loadmaster_{name}", text, labels=["cluster"])
        for cluster, histogram in sorted(by_cluster.items()):
            family.add_metric([cluster], histogram.buckets(), histogram.total_s)
        yield family


def _from_database() -> Iterator[Metric]:
    now = timezone.now()
    clusters = {c.pk: c for c in Cluster.objects.order_by("pk")}
    names = {pk: cluster.name for pk, cluster in clusters.items()}
    yield from _loop(clusters.values(), now)
    yield from _queue(names, now)
    yield from _leases(names, now)
    yield from _nodes(clusters, now)


def _loop(clusters: Iterable[Cluster], now: datetime) -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "loadmaster_last_round_age_seconds", "Seconds since a round was applied", labels=["cluster"]
    )
    held = GaugeMetricFamily(
        "loadmaster_round_held", "Whether a round is being held", labels=["cluster"]
    )
    waiting = GaugeMetricFamily(
        "loadmaster_events_waiting", "Rescheduling events no round has answered", labels=["cluster"]
    )
    oldest = GaugeMetricFamily(
        "loadmaster_oldest_event_age_seconds", "Age of the oldest of them", labels=["cluster"]
    )
    unanswered = RescheduleEvent.objects.filter(round=None).order_by().values("cluster")
    events = {
        row["cluster"]: row
        for row in unanswered.annotate(number=Count("pk"), first=Min("created_at"))
    }
    for cluster in clusters:
        if cluster.last_round_at is not None:
            age.add_metric([cluster.name], _age_s(cluster.last_round_at, now))
        expires = cluster.round_expires_at
        held.add_metric(
            [cluster.name], int(bool(cluster.round_owner) and expires is not None and expires > now)
        )
        row = events.get(cluster.pk)
        waiting.add_metric([cluster.name], row["number"] if row else 0)
        oldest.add_metric([cluster.name], _age_s(row["first"], now) if row else 0.0)
    yield from (age, held, waiting, oldest)


def _queue(names: dict[int, str], now: datetime) -> Iterator[Metric]:
    jobs = GaugeMetricFamily(
        "loadmaster_jobs", "Jobs, ended ones included", labels=["cluster", "state"]
    )
    oldest = GaugeMetricFamily(
        "loadmaster_oldest_waiting_age_seconds", "Age of the oldest queued job", labels=["cluster"]
    )
    by_state = Job.objects.order_by().values_list("cluster", "state").annotate(number=Count("pk"))
    found = {(cluster, state): number for cluster, state, number in by_state}
    waiting = (
        Job.objects.filter(state=JobState.QUEUED)
        .order_by()
        .values_list("cluster")
        .annotate(first=Min("submitted_at"))
    )
    first = dict(waiting)
    for pk, name in names.items():
        for state in JobState:
            jobs.add_metric([name, state.value], found.get((pk, state.value), 0))
        oldest.add_metric([name], _age_s(first[pk], now) if pk in first else 0.0)
    yield from (jobs, oldest)


def _leases(names: dict[int, str], now: datetime) -> Iterator[Metric]:
    live = GaugeMetricFamily("loadmaster_leases", "Live assignments", labels=["cluster", "state"])
    soon = GaugeMetricFamily(
        "loadmaster_leases_expiring",
        "Leases that end within 10 s, or have ended",
        labels=["cluster"],
    )
    lost = GaugeMetricFamily(
        "loadmaster_assignments_lost", "Assignments that were given up as lost", labels=["cluster"]
    )
    states = [*_LIVE, AssignmentState.LOST.value]
    held = (
        Assignment.objects.filter(state__in=states).order_by().values_list("node__cluster", "state")
    )
    ending = Count("pk", filter=Q(lease_expires_at__lt=now + SOON))
    found = {
        (cluster, state): (number, late)
        for cluster, state, number, late in held.annotate(number=Count("pk"), late=ending)
    }
    for pk, name in names.items():
        for state in _LIVE:
            live.add_metric([name, state], found.get((pk, state), (0, 0))[0])
        soon.add_metric([name], sum(found.get((pk, state), (0, 0))[1] for state in _LIVE))
        lost.add_metric([name], found.get((pk, AssignmentState.LOST.value), (0, 0))[0])
    yield from (live, soon, lost)


def _nodes(clusters: dict[int, Cluster], now: datetime) -> Iterator[Metric]:
    nodes = GaugeMetricFamily("loadmaster_nodes", "Nodes", labels=["cluster", "state"])
    ages = GaugeMetricFamily(
        "loadmaster_heartbeat_age_seconds",
        "Age of the last heartbeat of nodes that are not lost",
        labels=["cluster", "quantile"],
    )
    states: dict[tuple[int, str], int] = defaultdict(int)
    heard: dict[int, list[float]] = defaultdict(list)
    for of, state, seen in Node.objects.order_by().values_list("cluster", "state", "last_seen_at"):
        states[of, state] += 1
        if seen is not None and state != "lost":
            heard[of].append(_age_s(seen, now))
    for pk, cluster in clusters.items():
        for state in ("ready", "cordoned", "draining", "lost"):
            nodes.add_metric([cluster.name, state], states[pk, state])
        for quantile in QUANTILES if heard[pk] else ():
            sorted_s = sorted(heard[pk])
            ages.add_metric(
                [cluster.name, str(quantile)],
                sorted_s[min(len(sorted_s) - 1, int(quantile * len(sorted_s)))],
            )
    yield from (nodes, ages)


def _age_s(moment: datetime, now: datetime) -> float:
    return max(0.0, (now - moment).total_seconds())


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Scraper(AnonymousUser):
    """Whoever has the scrape token: may read the metrics and nothing else."""


class ScrapeToken(BaseAuthentication):
    """`Authorization: Bearer <LOADMASTER_METRICS_TOKEN>`; works without the database."""

    def authenticate(self, request: Request) -> tuple[Scraper, str] | None:
        given = request.META.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer ").encode()
        wanted = settings.METRICS_TOKEN.encode()
        return (Scraper(), "metrics") if wanted and hmac.compare_digest(given, wanted) else None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class MayScrape(BasePermission):
    """The scrape token, or an operator."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return isinstance(request.user, Scraper) or bool(request.user and request.user.is_staff)


class MetricsView(APIView):
    authentication_classes = [ScrapeToken, BearerAuthentication, SessionAuthentication]
    permission_classes = [MayScrape]
    schema: Any = None

    def get(self, request: Request) -> HttpResponse:
        return HttpResponse(
            exposition([StateCollector()]),
            content_type=CONTENT_TYPE,
            headers={"Cache-Control": "no-store"},
        )


def exposition(collectors: Iterable[Collector]) -> bytes:
    """The text of these collectors, followed by this machine's counters of requests."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry) + generate_latest(http_registry())
