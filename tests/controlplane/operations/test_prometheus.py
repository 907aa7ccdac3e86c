"""/metrics: who may read it, what it says, and what that costs."""

import time
from datetime import timedelta
from math import inf

import pytest
from django.core.cache import cache
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import DjangoAssertNumQueries, Settings
from redis.exceptions import ConnectionError as RedisConnectionError

from clusters.models import Cluster, Node
from controlplane.loop.models import Round
from controlplane.loop.round_counts import KEY, RoundCounts, count_rounds
from controlplane.operations import prometheus
from controlplane.operations.prometheus import StateCollector, exposition
from controlplane.operations.tasks import periodic_rounds, reconcile
from controlplane.web.http.request_metrics import count_request
from jobs.models import Assignment
from tests.builders import a_cluster, a_job, a_node, a_user
from tests.builders_agents import a_node_with_agent, a_running_assignment
from tests.builders_jobs import a_token
from tests.builders_live import a_round, placing

pytestmark = pytest.mark.django_db

QUERIES = 9 if connection.vendor == "sqlite" else 10
"""PostgreSQL is also asked for its clock."""


def values(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by name and labels."""
    families = text_string_to_metric_families(text)
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for family in families
        for s in family.samples
    }


def state() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return values(exposition([StateCollector()]).decode())


def of(
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str
) -> float:
    return samples[name, frozenset(labels.items())]


def test_nobody_reads_the_metrics_without_leave(client: Client, settings: Settings) -> None:
    settings.METRICS_TOKEN = ""
    assert client.get("/metrics").status_code == 401
    for given in ("", "Bearer ", "Bearer wrong"):
        assert client.get("/metrics", headers={"Authorization": given}).status_code == 401
    client.force_login(a_user())
    assert client.get("/metrics").status_code == 403
    user_token = {"Authorization": f"Bearer {a_token(a_user())}"}
    assert Client().get("/metrics", headers=user_token).status_code == 403


def test_an_operator_reads_them_by_session_and_by_token(client: Client) -> None:
    operator = a_user(operator=True)
    by_token = client.get("/metrics", headers={"Authorization": f"Bearer {a_token(operator)}"})
    assert (by_token.status_code, by_token["Content-Type"]) == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
    )
    client.force_login(operator)
    assert client.get("/metrics").status_code == 200


def test_the_scrape_token_opens_the_metrics_and_nothing_else(
    client: Client, settings: Settings
) -> None:
    settings.METRICS_TOKEN = "scrape-me"
    bearer = {"Authorization": "Bearer scrape-me"}
    assert client.get("/metrics", headers=bearer).status_code == 200
    assert client.get("/metrics/", headers=bearer).status_code == 200
    assert client.post("/metrics", headers=bearer).status_code == 405
    assert client.get("/api/v1/jobs/", headers=bearer).status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer scrape-m"}).status_code == 401


def test_queue_leases_and_nodes_are_told_by_cluster_and_state() -> None:
    cluster = a_cluster(name="main", heartbeat_s=10.0, lease_s=60.0)
    node = a_node_with_agent(cluster)
    a_running_assignment(node)
    Assignment.objects.update(lease_expires_at=timezone.now() + timedelta(seconds=3))
    a_node(cluster, state="lost")
    job = a_job(cluster)
    type(job).objects.filter(pk=job.pk).update(submitted_at=timezone.now() - timedelta(minutes=5))
    Node.objects.filter(pk=node.pk).update(last_seen_at=timezone.now() - timedelta(seconds=30))
    found = state()
    assert of(found, "loadmaster_jobs", cluster="main", state="queued") == 1
    assert of(found, "loadmaster_jobs", cluster="main", state="running") == 1
    assert of(found, "loadmaster_jobs", cluster="main", state="failed") == 0
    assert 300 <= of(found, "loadmaster_oldest_waiting_age_seconds", cluster="main") < 400
    assert of(found, "loadmaster_leases", cluster="main", state="running") == 1
    assert of(found, "loadmaster_leases", cluster="main", state="unknown") == 0
    assert of(found, "loadmaster_leases_expiring", cluster="main") == 1
    assert of(found, "loadmaster_nodes", cluster="main", state="lost") == 1
    assert 30 <= of(found, "loadmaster_heartbeat_age_seconds", cluster="main", quantile="1.0") < 100


def test_rounds_are_counted_once_with_their_reasons_and_times() -> None:
    cluster = a_cluster(name="main")
    a_round(cluster, placing())
    count_rounds()
    a_round(cluster, placing())
    a_round(cluster, placing())
    Round.objects.filter(number=3).update(solve_s=0.3)
    count_rounds()
    count_rounds()
    found = state()
    assert of(found, "loadmaster_rounds_total", cluster="main", status="applied") == 2
    assert of(found, "loadmaster_round_triggers_total", cluster="main", reason="operator") == 2
    assert of(found, "loadmaster_round_seconds_count", cluster="main") == 2
    assert of(found, "loadmaster_solver_seconds_bucket", cluster="main", le="0.5") == 2
    assert of(found, "loadmaster_solver_seconds_bucket", cluster="main", le="0.25") == 1


def _statuses() -> dict[tuple[str, str], int]:
    known = RoundCounts.from_plain(cache.get(KEY))
    assert known is not None
    return known.statuses


def test_a_round_that_still_runs_is_counted_when_it_has_ended_and_none_is_forgotten_behind_it() -> (
    None
):
    cluster = a_cluster(name="main")
    a_round(cluster, placing())
    count_rounds()
    slow = Round.objects.create(cluster=cluster, number=2, policy="fifo", seed=1)
    Round.objects.create(
        cluster=cluster, number=3, policy="fifo", seed=1, status="kept", ended_at=timezone.now()
    )
    Cluster.objects.update(round_number=3)
    count_rounds()
    assert _statuses() == {}
    Round.objects.filter(pk=slow.pk).update(status="abandoned", ended_at=timezone.now())
    count_rounds()
    assert _statuses() == {("main", "abandoned"): 1, ("main", "kept"): 1}


def test_a_new_clusters_first_round_counts() -> None:
    count_rounds()
    a_round(a_cluster(name="new"), placing())
    count_rounds()
    assert of(state(), "loadmaster_rounds_total", cluster="new", status="applied") == 1


def test_the_clocks_of_the_house_are_told() -> None:
    cluster = a_cluster(name="main")
    periodic_rounds()
    reconcile()
    found = state()
    assert of(found, "loadmaster_beat_age_seconds") >= 0
    assert of(found, "loadmaster_reconcile_age_seconds") >= 0
    assert of(found, "loadmaster_events_waiting", cluster="main") == 1
    assert ("loadmaster_last_round_age_seconds", frozenset({("cluster", "main")})) not in found
    a_round(Cluster.objects.get(pk=cluster.pk), placing())
    found = state()
    assert of(found, "loadmaster_last_round_age_seconds", cluster="main") >= 0
    assert of(found, "loadmaster_events_waiting", cluster="main") == 0


def test_signs_of_life_are_kept_for_ever_and_one_that_is_missing_is_infinitely_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ages = ("loadmaster_beat_age_seconds", "loadmaster_reconcile_age_seconds")
    assert [of(state(), age) for age in ages] == [inf, inf]
    periodic_rounds()
    reconcile()
    in_a_month_s = time.time() + 30 * 86_400
    monkeypatch.setattr(time, "time", lambda: in_a_month_s)
    assert max(of(state(), age) for age in ages) < 60


def test_the_number_of_queries_does_not_grow_with_the_house(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    for _ in range(3):
        cluster = a_cluster()
        for _ in range(3):
            a_running_assignment(a_node_with_agent(cluster, token=f"{cluster.pk}{_}"))
            a_job(cluster)
    with django_assert_num_queries(QUERIES):
        state()


def test_a_database_that_is_away_is_told_and_the_rest_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away() -> object:
        raise OperationalError("gone")

    monkeypatch.setattr(prometheus, "_from_database", away)
    found = state()
    assert (of(found, "loadmaster_database_up"), of(found, "loadmaster_cache_up")) == (0, 1)


def test_a_cache_that_is_away_is_told_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> object:
        raise RedisConnectionError("gone")

    monkeypatch.setattr(cache, "get_many", away)
    a_cluster(name="main")
    found = state()
    assert (of(found, "loadmaster_database_up"), of(found, "loadmaster_cache_up")) == (1, 0)
    assert of(found, "loadmaster_events_waiting", cluster="main") == 0


def test_requests_are_counted_by_route_and_status_and_not_by_what_a_client_makes_up(
    client: Client,
) -> None:
    before = state()
    client.get("/healthz")
    client.get("/no/such/page/1")
    client.get("/no/such/page/2")
    client.generic("BREW", "/healthz")
    found = state()

    def more(name: str, **labels: str) -> float:
        key = (name, frozenset(labels.items()))
        return found[key] - before.get(key, 0)

    assert more("loadmaster_http_requests_total", method="GET", route="/healthz", status="200") == 1
    assert (
        more("loadmaster_http_requests_total", method="OTHER", route="/healthz", status="405") == 1
    )
    assert (
        more("loadmaster_http_requests_total", method="GET", route="unmatched", status="404") == 2
    )
    assert more("loadmaster_http_request_seconds_count", route="/healthz") == 2


def test_times_of_requests_fall_into_their_buckets() -> None:
    count_request("GET", "/of/this/test", 200, 0.2)
    found = state()
    assert of(found, "loadmaster_http_request_seconds_bucket", route="/of/this/test", le="0.1") == 0
    assert (
        of(found, "loadmaster_http_request_seconds_bucket", route="/of/this/test", le="0.25") == 1
    )
