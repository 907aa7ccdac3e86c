"""Expected starts as people read them."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Cluster
from jobs.forecasts.expected_starts import day_and_time, expected_starts, starts_of
from tests.builders import a_cluster, a_job, at
from tests.builders_pages import a_forecast


@pytest.fixture(name="cluster")
def _cluster() -> Cluster:
    return a_cluster()


NOON = datetime(2027, 1, 14, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        (datetime(2027, 1, 14, 15, 59, tzinfo=UTC), "today 15:59"),
        (datetime(2027, 1, 15, 3, 59, tzinfo=UTC), "tomorrow 03:59"),
        (datetime(2027, 2, 1, 3, 59, tzinfo=UTC), "2027-02-01 03:59"),
        (datetime(2027, 1, 14, 11, 59, tzinfo=UTC), "any moment"),
    ],
)
def test_a_start_is_told_by_its_day(moment: datetime, words: str) -> None:
    assert day_and_time(moment, NOON) == words


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("job", "forecast", "shown"),
    [
        ({}, {}, True),
        ({"state": "running"}, {}, False),
        ({"state": "held"}, {}, False),
        ({"waiting_code": "resting"}, {}, False),
        ({"fence": 2}, {"fence": 1}, False),
        ({}, {"start_at": None}, False),
    ],
)
def test_a_start_is_shown_while_the_job_waits_since_its_last_launch(
    cluster: Cluster, job: dict[str, Any], forecast: dict[str, Any], shown: bool
) -> None:
    of = a_job(cluster, **job)
    a_forecast(of, 300.0)
    a_forecast(of, 600.0, **forecast)
    found = expected_starts([of], timezone.now())
    assert [e.start > at(500) for e in found.values()] == [True] * shown


@pytest.mark.django_db
def test_a_start_that_has_passed_is_expected_now_and_so_is_the_end_later(cluster: Cluster) -> None:
    job, now = a_job(cluster), at(1000)
    a_forecast(job, 400.0)
    expected = expected_starts([job], now)[job.pk]
    assert (expected.start, expected.low) == (now, now)
    assert expected.end is not None
    assert (expected.end - now).total_seconds() == pytest.approx(600.0)
    assert expected.words == day_and_time(now, timezone.now())


@pytest.mark.django_db
def test_the_place_in_the_queue_counts_jobs_of_all_teams_that_are_expected_sooner(
    cluster: Cluster,
) -> None:
    jobs = [a_job(cluster) for _ in range(4)]
    for job, start_s in zip(jobs, (900.0, 300.0, 600.0, 100.0), strict=True):
        a_forecast(job, start_s)
    a_forecast(jobs[3], start_at=None)
    a_forecast(a_job(a_cluster()), 50.0)
    for now in (timezone.now(), at(5000)):  # by then all starts have passed
        found = starts_of(jobs, now).expected
        assert [found[job.pk].position for job in jobs[:3]] == [3, 1, 2]


@pytest.mark.django_db
def test_jobs_that_start_at_once_have_places_of_their_own(cluster: Cluster) -> None:
    jobs = [a_job(cluster, priority=priority) for priority in (0, 5, 0)]
    moment = at(300)
    for job in jobs:
        a_forecast(job, planned_at=moment, low_at=moment, start_at=moment, high_at=moment)
    found = starts_of(jobs, timezone.now()).expected
    assert [found[job.pk].position for job in jobs] == [2, 1, 3]
