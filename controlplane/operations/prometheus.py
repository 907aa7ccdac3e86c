"""/metrics in Prometheus format: state from database and cache, counters of requests.

A part that cannot be read is left out, and `loadmaster_database_up` or `_cache_up` is 0.
"""

import hmac
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from importlib.metadata import version
from math import inf
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.core.cache import cache
from django.db import DatabaseError, connection
from django.db.models import Count, Min, Q, Sum
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

from clusters.models import Cluster, Device, ImplausibleFigure, Node, RescheduleEvent
from clusters.models.nodes import State
from controlplane.execution.services.agent_clocks import agents_skew_s
from controlplane.loop.live import lock as locks
from controlplane.loop.pages.idle import newest_by_cluster
from controlplane.loop.round_counts import KEY as ROUNDS_KEY
from controlplane.loop.round_counts import RECONCILE_KEY, RoundCounts
from controlplane.operations import clocks
from controlplane.operations.health import BEAT_KEY
from controlplane.web.http.request_metrics import http_registry
from controlplane.web.http.server_disk import server_free_gb
from controlplane.web.rest.defaults import BearerAuthentication
from controlplane.web.storage.watch import sign_age_s
from jobs.assignment_lifecycle import LIVE
from jobs.lifecycle import JobState
from jobs.models import Assignment, Job
from loadmaster.protocol import AssignmentState

log = logging.getLogger(__name__)

SOON = timedelta(seconds=10)
"""Remaining time below which a live lease is "expiring": its node has missed heartbeats."""

QUANTILES = (0.5, 0.99, 1.0)
OF_CLUSTER, OF_STATE = ("cluster",), ("cluster", "state")
_LIVE = sorted(str(state) for state in LIVE)


class StateCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        build = {(version("loadmaster"), connection.vendor): 1.0}
        yield _gauge("build_info", "1, with what runs here", ("version", "database"), build)
        text = "Free bytes on the disk of LOADMASTER_HOME"
        yield _gauge("server_disk_free_bytes", text, (), {(): 1e9 * server_free_gb()})
        yield from _up("cache", _from_cache)
        yield from _up("database", _from_database)


def _up(name: str, read: Any) -> Iterator[Metric]:
    families: list[Metric] = []
    try:
        families, up = list(read()), 1
    except (DatabaseError, RedisError) as error:
        log.warning("the metrics of the %s are left out: %s", name, type(error).__name__)
        up = 0
    yield _gauge(f"{name}_up", f"Whether the {name} answers", (), {(): up})
    yield from families


def _gauge(
    name: str, text: str, labels: Sequence[str], samples: Mapping[Any, float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"loadmaster_{name}", text, labels=labels)
    for values, number in samples.items():
        family.add_metric(values, number)
    return family


def _from_cache() -> Iterator[Metric]:
    found = cache.get_many([BEAT_KEY, RECONCILE_KEY, ROUNDS_KEY])
    texts = {
        BEAT_KEY: ("beat", "beat last ticked"),
        RECONCILE_KEY: ("reconcile", "the last pass of the reconciler ended"),
    }
    for key, (name, text) in texts.items():
        # Without a sign, as in an emptied cache, an age that raises the alarm until there is one.
        age_s = sign_age_s(key, found.get(key))
        told_s = inf if age_s is None else age_s
        yield _gauge(f"{name}_age_seconds", f"Seconds since {text}", (), {(): told_s})
    yield from _clock_jumps()
    yield from _rounds(RoundCounts.known(found.get(ROUNDS_KEY)) or RoundCounts())


def _clock_jumps() -> Iterator[Metric]:
    known, skews = clocks.jumps(), agents_skew_s()
    counter = CounterMetricFamily("loadmaster_clock_jumps", "Jumps of servers' wall clocks")
    counter.add_metric([], known.number if known else 0)
    yield counter
    if skews:
        text = "Seconds by which agents' clocks are ahead of the server's"
        ends = dict(zip((("least",), ("most",)), skews, strict=True))
        yield _gauge("agents_clock_skew_seconds", text, ("end",), ends)


def _rounds(counts: RoundCounts) -> Iterator[Metric]:
    counters = (
        ("rounds", "Rounds that have ended", "status", counts.statuses),
        ("round_triggers", "Reasons of rounds that have ended", "reason", counts.reasons),
    )
    for name, text, label, numbers in counters:
        counter = CounterMetricFamily(f"loadmaster_{name}", text, labels=["cluster", label])
        for values, number in sorted(numbers.items()):
            counter.add_metric(values, number)
        yield counter
    histograms = (
        ("round_seconds", "Seconds from a round's snapshot to its end", counts.round_seconds),
        ("solver_seconds", "Seconds a round's policy took", counts.solver_seconds),
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
    yield from _loop(clusters, now)
    yield from _queue(names, now)
    yield from _leases(names, now)
    yield from _nodes(names, now)
    yield _implausible(names)
    if (skew_s := clocks.database_skew_s()) is not None:
        text = "Seconds by which the database's clock is ahead of the server's"
        yield _gauge("database_clock_skew_seconds", text, (), {(): skew_s})


def _loop(clusters: Mapping[int, Cluster], now: datetime) -> Iterator[Metric]:
    unanswered = RescheduleEvent.objects.filter(round=None).order_by().values_list("cluster")
    events = {
        pk: (number, _age_s(first, now))
        for pk, number, first in unanswered.annotate(number=Count("pk"), first=Min("created_at"))
    }
    applied = [(c.name, c.last_round_at) for c in clusters.values() if c.last_round_at is not None]
    ages = {(name,): _age_s(at, now) for name, at in applied}
    held = {(c.name,): int(locks.is_held(c)) for c in clusters.values()}
    broken = {(c.name,): int(bool(c.broken_policy)) for c in clusters.values()}
    waiting = {(c.name,): events.get(pk, (0, 0.0))[0] for pk, c in clusters.items()}
    oldest = {(c.name,): events.get(pk, (0, 0.0))[1] for pk, c in clusters.items()}
    idle = Counter[tuple[str, str]]()
    for name, kept in newest_by_cluster(Cluster.objects.all()).items():
        for cause, gpus, *_ in (kept or {}).get("gpus", ()):
            idle[name, str(cause)] += int(gpus)
    yield _gauge("idle_gpus", "Idle GPUs beside waiting jobs", ("cluster", "cause"), idle)
    text = "Rescheduling events no round has answered"
    yield _gauge("last_round_age_seconds", "Seconds since a round was applied", OF_CLUSTER, ages)
    yield _gauge("round_held", "Whether a round is being held", OF_CLUSTER, held)
    about = "Whether the policy failed or broke a rule in each of the last rounds"
    yield _gauge("policy_broken", about, OF_CLUSTER, broken)
    yield _gauge("events_waiting", text, OF_CLUSTER, waiting)
    yield _gauge("oldest_event_age_seconds", "Age of the oldest of them", OF_CLUSTER, oldest)


def _queue(names: Mapping[int, str], now: datetime) -> Iterator[Metric]:
    by_state = Job.objects.order_by().values_list("cluster", "state").annotate(number=Count("pk"))
    found = {(cluster, state): number for cluster, state, number in by_state}
    queued = Job.objects.filter(state=JobState.QUEUED).order_by().values_list("cluster")
    first = dict(queued.annotate(first=Min("submitted_at")))
    jobs = {
        (name, state.value): found.get((pk, state.value), 0)
        for pk, name in names.items()
        for state in JobState
    }
    ages = {(name,): _age_s(first.get(pk, now), now) for pk, name in names.items()}
    yield _gauge("jobs", "Jobs, ended ones included", OF_STATE, jobs)
    yield _gauge("oldest_waiting_age_seconds", "Age of the oldest queued job", OF_CLUSTER, ages)


def _leases(names: Mapping[int, str], now: datetime) -> Iterator[Metric]:
    lost = AssignmentState.LOST.value
    held = Assignment.objects.filter(state__in=[*_LIVE, lost]).order_by()
    ending = Count("pk", filter=Q(lease_expires_at__lt=now + SOON))
    numbers, late = defaultdict[tuple[int, str], int](int), defaultdict[int, int](int)
    rows = held.values_list("node__cluster", "state").annotate(number=Count("pk"), late=ending)
    for cluster, state, number, ends in rows:
        numbers[cluster, state] = number
        late[cluster] += ends if state in _LIVE else 0
    live = {(name, state): numbers[pk, state] for pk, name in names.items() for state in _LIVE}
    soon = {(name,): late[pk] for pk, name in names.items()}
    gone = {(name,): numbers[pk, lost] for pk, name in names.items()}
    text = "Leases that end within 10 s, or have ended"
    yield _gauge("leases", "Live assignments", OF_STATE, live)
    yield _gauge("leases_expiring", text, OF_CLUSTER, soon)
    yield _gauge("assignments_lost", "Assignments that were given up as lost", OF_CLUSTER, gone)


def _nodes(names: Mapping[int, str], now: datetime) -> Iterator[Metric]:
    states, heard = defaultdict[tuple[int, str], int](int), defaultdict[int, list[float]](list)
    free: dict[int, float] = {}
    columns = ("cluster", "state", "last_seen_at", "disk_free_gb")
    for pk, state, seen, free_gb in Node.objects.order_by().values_list(*columns):
        states[pk, state] += 1
        if free_gb is not None and state != State.LOST:
            free[pk] = min(free_gb, free.get(pk, free_gb))
        if seen is not None and state != State.LOST:
            heard[pk].append(_age_s(seen, now))
    nodes = {(name, s.value): states[pk, s.value] for pk, name in names.items() for s in State}
    ages = {
        (name, str(quantile)): _quantile(heard[pk], quantile)
        for pk, name in names.items()
        for quantile in (QUANTILES if heard[pk] else ())
    }
    text = "Age of the last heartbeat of nodes that are not lost"
    yield _gauge("nodes", "Nodes", OF_STATE, nodes)
    yield _gauge("heartbeat_age_seconds", text, ("cluster", "quantile"), ages)
    least = {(names[pk],): 1e9 * gb for pk, gb in free.items()}
    text = "Free bytes on the fullest disk of a node that is not lost"
    yield _gauge("nodes_disk_free_bytes", text, OF_CLUSTER, least)
    yield _unhealthy_gpus(names)


def _unhealthy_gpus(names: Mapping[int, str]) -> Metric:
    """Unhealthy GPUs of nodes that are not lost."""
    ill = Device.objects.filter(healthy=False).exclude(node__state=State.LOST).order_by()
    counts = dict(ill.values_list("node__cluster").annotate(number=Count("pk")))
    numbers = {(name,): counts.get(pk, 0) for pk, name in names.items()}
    return _gauge("gpus_unhealthy", "Unhealthy GPUs of nodes not lost", OF_CLUSTER, numbers)


def _implausible(names: Mapping[int, str]) -> CounterMetricFamily:
    text = "Figures of nodes that cannot be, and are dropped"
    counter = CounterMetricFamily("loadmaster_implausible", text, labels=["cluster", "figure"])
    rows = ImplausibleFigure.objects.order_by().values_list("node__cluster", "name")
    for pk, name, number in rows.annotate(number=Sum("count")):
        counter.add_metric([names[pk], name], number)
    return counter


def _quantile(values: list[float], quantile: float) -> float:
    return sorted(values)[min(len(values) - 1, int(quantile * len(values)))]


def _age_s(moment: datetime, now: datetime) -> float:
    return max(0.0, (now - moment).total_seconds())


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Scraper(AnonymousUser):
    """Holder of the scrape token, who may only read the metrics."""


class ScrapeToken(BaseAuthentication):
    """`Authorization: Bearer <LOADMASTER_METRICS_TOKEN>`; works without the database."""

    def authenticate(self, request: Request) -> tuple[Scraper, str] | None:
        given = request.META.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer ").encode()
        wanted = settings.METRICS_TOKEN.encode()
        return (Scraper(), "metrics") if wanted and hmac.compare_digest(given, wanted) else None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class MayScrape(BasePermission):
    """Permission of the scrape token and of operators."""

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
    """Text of these collectors, followed by this machine's counters of requests."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry) + generate_latest(http_registry())
