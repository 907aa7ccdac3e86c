"""/metrics in Prometheus format: state from database and cache, counters of requests.

A part that cannot be read is left out, and `loadmaster_database_up` or `_cache_up` is 0.
"""

import hmac
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
"""Quantiles of the ages of heartbeats that are told."""

OF_CLUSTER = ("cluster",)
OF_STATE = ("cluster", "state")
"""Labels of metrics."""

_LIVE = sorted(str(state) for state in LIVE)


class StateCollector(Collector):
    """Collector of the state in database and cache."""

    def collect(self) -> Iterator[Metric]:
        build = {(version("loadmaster"), connection.vendor): 1.0}
        text = "Always 1; version and database are labels"
        yield _gauge("build_info", text, ("version", "database"), build)
        text = "Free bytes on the disk of LOADMASTER_HOME"
        yield _gauge("server_disk_free_bytes", text, (), {(): 1e9 * server_free_gb()})
        yield from _if_up("cache", _from_cache)
        yield from _if_up("database", _from_database)


def _if_up(name: str, read: Callable[[], Iterator[Metric]]) -> Iterator[Metric]:
    """Metrics that are read from a server, after one that tells whether it answers."""
    families: list[Metric] = []
    is_up = 0
    try:
        families = list(read())
        is_up = 1
    except (DatabaseError, RedisError) as error:
        log.warning("the metrics of the %s are left out: %s", name, type(error).__name__)
    yield _gauge(f"{name}_up", f"1 if the {name} answers, else 0", (), {(): is_up})
    yield from families


def _gauge(
    name: str, text: str, labels: Sequence[str], samples: Mapping[Any, float]
) -> GaugeMetricFamily:
    """Gauge with these samples, by the values of its labels."""
    family = GaugeMetricFamily(f"loadmaster_{name}", text, labels=labels)
    for label_values, number in samples.items():
        family.add_metric(label_values, number)
    return family


def _from_cache() -> Iterator[Metric]:
    """Signs of life, clock jumps and counts of rounds."""
    cached = cache.get_many([BEAT_KEY, RECONCILE_KEY, ROUNDS_KEY])
    texts = {
        BEAT_KEY: ("beat", "the beat last ticked"),
        RECONCILE_KEY: ("reconcile", "the last pass of the reconciler ended"),
    }
    for key, (name, text) in texts.items():
        # Without a sign, as in an emptied cache, the age raises the alarm until there is one.
        age_s = sign_age_s(key, cached.get(key))
        shown_s = inf if age_s is None else age_s
        yield _gauge(f"{name}_age_seconds", f"Seconds since {text}", (), {(): shown_s})
    yield from _clock_jumps()
    yield from _rounds(RoundCounts.from_plain(cached.get(ROUNDS_KEY)) or RoundCounts())


def _clock_jumps() -> Iterator[Metric]:
    """Jumps of the servers' wall clocks, and how far the agents' are ahead."""
    jumps = clocks.jumps()
    counter = CounterMetricFamily("loadmaster_clock_jumps", "Jumps of servers' wall clocks")
    counter.add_metric([], jumps.number if jumps else 0)
    yield counter
    skews = agents_skew_s()
    if skews:
        least_s, most_s = skews
        text = "Seconds by which agents' clocks are ahead of the server's"
        ends = {("least",): least_s, ("most",): most_s}
        yield _gauge("agents_clock_skew_seconds", text, ("end",), ends)


def _rounds(counts: RoundCounts) -> Iterator[Metric]:
    """Numbers and durations of the rounds that have ended, by cluster."""
    counters = (
        ("rounds", "Rounds that have ended", "status", counts.statuses),
        ("round_triggers", "Reasons of rounds that have ended", "reason", counts.reasons),
    )
    for name, text, label, numbers in counters:
        counter = CounterMetricFamily(f"loadmaster_{name}", text, labels=["cluster", label])
        for label_values, number in sorted(numbers.items()):
            counter.add_metric(label_values, number)
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
    """State of clusters, jobs, assignments and nodes, and the database's clock."""
    now = timezone.now()
    clusters = {cluster.pk: cluster for cluster in Cluster.objects.order_by("pk")}
    names = {pk: cluster.name for pk, cluster in clusters.items()}
    yield from _loop(clusters, now)
    yield from _queue(names, now)
    yield from _leases(names, now)
    yield from _nodes(names, now)
    yield _implausible(names)
    skew_s = clocks.database_skew_s()
    if skew_s is not None:
        text = "Seconds by which the database's clock is ahead of the server's"
        yield _gauge("database_clock_skew_seconds", text, (), {(): skew_s})


def _loop(clusters: Mapping[int, Cluster], now: datetime) -> Iterator[Metric]:
    """State of each cluster's rounds, and its idle GPUs."""
    # 1. Idle GPUs by cause, as the newest round has counted them.
    idle = Counter[tuple[str, str]]()
    for cluster_name, counts in newest_by_cluster(Cluster.objects.all()).items():
        for cause, gpus, *_ in (counts or {}).get("gpus", ()):
            idle[cluster_name, str(cause)] += int(gpus)
    yield _gauge("idle_gpus", "Idle GPUs beside waiting jobs", ("cluster", "cause"), idle)

    # 2. The last round.
    ages = {}
    held = {}
    broken = {}
    for cluster in clusters.values():
        labels = (cluster.name,)
        if cluster.last_round_at is not None:
            ages[labels] = _age_s(cluster.last_round_at, now)
        held[labels] = int(locks.is_held(cluster))
        broken[labels] = int(bool(cluster.broken_policy))
    yield _gauge("last_round_age_seconds", "Seconds since a round was applied", OF_CLUSTER, ages)
    yield _gauge("round_held", "1 while a round is under way, else 0", OF_CLUSTER, held)
    text = "1 if the policy failed or broke a rule in each of the last rounds, else 0"
    yield _gauge("policy_broken", text, OF_CLUSTER, broken)

    # 3. Events that ask for a round.
    unanswered = RescheduleEvent.objects.filter(round=None).order_by().values_list("cluster")
    counted = unanswered.annotate(number=Count("pk"), first=Min("created_at"))
    waiting = {(cluster.name,): 0 for cluster in clusters.values()}
    oldest_s = {(cluster.name,): 0.0 for cluster in clusters.values()}
    for pk, number, first in counted:
        if pk in clusters:  # else it was made meanwhile
            labels = (clusters[pk].name,)
            waiting[labels] = number
            oldest_s[labels] = _age_s(first, now)
    text = "Rescheduling events that no round has answered"
    yield _gauge("events_waiting", text, OF_CLUSTER, waiting)
    text = "Age of the oldest rescheduling event that no round has answered"
    yield _gauge("oldest_event_age_seconds", text, OF_CLUSTER, oldest_s)


def _queue(names: Mapping[int, str], now: datetime) -> Iterator[Metric]:
    """Jobs by state, and the age of the oldest one that is queued."""
    by_state = Job.objects.order_by().values_list("cluster", "state").annotate(number=Count("pk"))
    numbers = {(cluster, state): number for cluster, state, number in by_state}
    queued = Job.objects.filter(state=JobState.QUEUED).order_by().values_list("cluster")
    first_submitted = dict(queued.annotate(first=Min("submitted_at")))
    jobs = {}
    ages = {}
    for pk, name in names.items():
        for state in JobState:
            jobs[name, state.value] = numbers.get((pk, state.value), 0)
        ages[(name,)] = _age_s(first_submitted.get(pk, now), now)
    yield _gauge("jobs", "Jobs, including ended jobs", OF_STATE, jobs)
    yield _gauge("oldest_waiting_age_seconds", "Age of the oldest queued job", OF_CLUSTER, ages)


def _leases(names: Mapping[int, str], now: datetime) -> Iterator[Metric]:
    """Assignments that are live, that are about to lose their lease, and that are lost."""
    # 1. Their numbers by cluster and state.
    lost_state = AssignmentState.LOST.value
    assignments = Assignment.objects.filter(state__in=[*_LIVE, lost_state]).order_by()
    is_ending = Q(lease_expires_at__lt=now + SOON)
    by_state = assignments.values_list("node__cluster", "state").annotate(
        number=Count("pk"), ending=Count("pk", filter=is_ending)
    )
    numbers = Counter[tuple[int, str]]()
    expiring_numbers = Counter[int]()
    for cluster, state, number, ending in by_state:
        numbers[cluster, state] = number
        if state in _LIVE:
            expiring_numbers[cluster] += ending

    # 2. The metrics, with zeros where there is none.
    live = {}
    expiring = {}
    lost = {}
    for pk, name in names.items():
        for state in _LIVE:
            live[name, state] = numbers[pk, state]
        expiring[(name,)] = expiring_numbers[pk]
        lost[(name,)] = numbers[pk, lost_state]
    text = "Live assignments whose lease ends within 10 s or has ended"
    yield _gauge("leases", "Live assignments", OF_STATE, live)
    yield _gauge("leases_expiring", text, OF_CLUSTER, expiring)
    yield _gauge("assignments_lost", "Assignments in state lost", OF_CLUSTER, lost)


def _nodes(names: Mapping[int, str], now: datetime) -> Iterator[Metric]:
    """Nodes by state; heartbeats, disks and GPUs of those that are not lost."""
    # 1. Numbers, ages of heartbeats and the least free disk by cluster.
    numbers = Counter[tuple[int, str]]()
    heartbeat_ages_s = defaultdict[int, list[float]](list)
    least_free_gb: dict[int, float] = {}
    columns = ("cluster", "state", "last_seen_at", "disk_free_gb")
    for pk, state, last_seen_at, free_gb in Node.objects.order_by().values_list(*columns):
        numbers[pk, state] += 1
        if state == State.LOST:
            continue
        if free_gb is not None:
            least_free_gb[pk] = min(free_gb, least_free_gb.get(pk, free_gb))
        if last_seen_at is not None:
            heartbeat_ages_s[pk].append(_age_s(last_seen_at, now))

    # 2. The metrics.
    nodes = {}
    ages = {}
    for pk, name in names.items():
        for node_state in State:
            nodes[name, node_state.value] = numbers[pk, node_state.value]
        if heartbeat_ages_s[pk]:
            for quantile in QUANTILES:
                ages[name, str(quantile)] = _quantile(heartbeat_ages_s[pk], quantile)
    free_bytes = {(names[pk],): 1e9 * gb for pk, gb in least_free_gb.items()}
    yield _gauge("nodes", "Nodes", OF_STATE, nodes)
    text = "Age of the last heartbeat of nodes that are not lost"
    yield _gauge("heartbeat_age_seconds", text, ("cluster", "quantile"), ages)
    text = "Free bytes on the fullest disk of a node that is not lost"
    yield _gauge("nodes_disk_free_bytes", text, OF_CLUSTER, free_bytes)
    yield _unhealthy_gpus(names)


def _unhealthy_gpus(names: Mapping[int, str]) -> Metric:
    """Unhealthy GPUs of nodes that are not lost."""
    unhealthy = Device.objects.filter(healthy=False).exclude(node__state=State.LOST).order_by()
    counts = dict(unhealthy.values_list("node__cluster").annotate(number=Count("pk")))
    numbers = {(name,): counts.get(pk, 0) for pk, name in names.items()}
    text = "Unhealthy GPUs of nodes that are not lost"
    return _gauge("gpus_unhealthy", text, OF_CLUSTER, numbers)


def _implausible(names: Mapping[int, str]) -> CounterMetricFamily:
    """Figures that were dropped, by cluster and name."""
    text = "Impossible figures that nodes reported and the server dropped"
    counter = CounterMetricFamily("loadmaster_implausible", text, labels=["cluster", "figure"])
    rows = ImplausibleFigure.objects.order_by().values_list("node__cluster", "name")
    for pk, name, number in rows.annotate(number=Sum("count")):
        counter.add_metric([names[pk], name], number)
    return counter


def _quantile(values: list[float], quantile: float) -> float:
    """Value below which so large a fraction of the values lies; the greatest for 1."""
    index = min(len(values) - 1, int(quantile * len(values)))
    return sorted(values)[index]


def _age_s(moment: datetime, now: datetime) -> float:
    return max(0.0, (now - moment).total_seconds())


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Scraper(AnonymousUser):
    """Holder of the scrape token, who may only read the metrics."""


class ScrapeToken(BaseAuthentication):
    """`Authorization: Bearer <LOADMASTER_METRICS_TOKEN>`; works without the database."""

    def authenticate(self, request: Request) -> tuple[Scraper, str] | None:
        header = request.META.get("HTTP_AUTHORIZATION", "")
        token = header.removeprefix("Bearer ").encode()
        wanted = settings.METRICS_TOKEN.encode()
        if not wanted or not hmac.compare_digest(token, wanted):
            return None
        return Scraper(), "metrics"

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
