"""Of a long queue a round sees a window: no team hides another, nobody waits unseen for ever."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Cluster
from controlplane.loop.live.rows import window
from jobs.models import Job
from tests.builders import a_cluster, a_job, a_team

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


def names(chosen: Sequence[Any] | None) -> set[str]:
    assert chosen is not None
    return set(Job.objects.filter(pk__in=chosen).values_list("name", flat=True))


def test_a_short_queue_is_seen_whole(cluster: Cluster) -> None:
    for _ in range(3):
        a_job(cluster)
    assert window(Job.objects.all(), 3, 1) is None


def test_a_team_with_many_jobs_hides_nobody_elses(cluster: Cluster) -> None:
    many, few = a_team("many"), a_team("few")
    for i in range(20):
        a_job(cluster, team=many, name=f"many-{i}", priority=5)
    a_job(cluster, team=few, name="few")
    assert "few" in names(window(Job.objects.all(), 4, 0))


def test_the_most_pressing_of_a_team_come_first(cluster: Cluster) -> None:
    team = a_team()
    for i in range(12):
        a_job(cluster, team=team, name=f"old-{i}")
    a_job(cluster, team=team, name="urgent", priority=1)
    seen = names(window(Job.objects.all(), 4, 0))
    assert {"urgent", "old-0"} <= seen


def test_a_job_that_is_due_soon_is_seen_however_young(cluster: Cluster) -> None:
    team = a_team()
    for i in range(12):
        a_job(cluster, team=team, name=f"old-{i}", due_at=timezone.now() + timedelta(days=9))
    a_job(cluster, team=team, name="due", due_at=timezone.now() + timedelta(hours=1))
    assert "due" in names(window(Job.objects.all(), 4, 0))


def test_a_deadline_presses_like_a_due_date_and_the_earlier_counts(cluster: Cluster) -> None:
    team, now = a_team(), timezone.now()
    for i in range(12):
        a_job(cluster, team=team, name=f"old-{i}", due_at=now + timedelta(days=9))
    a_job(cluster, team=team, name="deadline", deadline_at=now + timedelta(hours=1))
    a_job(
        cluster,
        team=team,
        name="both",
        due_at=now + timedelta(days=99),
        deadline_at=now + timedelta(hours=2),
    )
    seen = (names(window(Job.objects.all(), 8, number)) for number in range(5))
    assert all({"deadline", "both"} <= chosen for chosen in seen)


def test_jobs_that_wait_for_others_take_no_seat_of_those_that_can_start(cluster: Cluster) -> None:
    team = a_team()
    first, done = (
        a_job(cluster, team=team, name="first"),
        a_job(cluster, team=team, name="done", state="completed"),
    )
    for i in range(20):
        a_job(
            cluster, team=team, name=f"after-{i}", priority=5, due_at=timezone.now()
        ).dependencies.set([first])
    a_job(cluster, team=team, name="free").dependencies.set([done])
    queued = Job.objects.filter(state="queued")
    chosen = [names(window(queued, 8, number)) for number in range(4)]
    assert all({"first", "free"} <= seen and len(seen) <= 8 for seen in chosen)
    assert len(set().union(*chosen)) == 22


def test_most_seats_are_for_those_that_can_start(cluster: Cluster) -> None:
    team = a_team()
    first = a_job(cluster, team=team, name="first", priority=9)
    for i in range(20):
        a_job(cluster, team=team, name=f"free-{i}")
        a_job(cluster, team=team, name=f"after-{i}", priority=5).dependencies.set([first])
    seen = names(window(Job.objects.all(), 8, 0))
    assert {"first", "free-0", "free-1", "free-2", "free-3"} <= seen
    assert len([name for name in seen if name.startswith("after")]) >= 1
    assert len(seen) == 8


def test_every_job_is_seen_within_a_number_of_rounds(cluster: Cluster) -> None:
    team = a_team()
    for i in range(21):
        a_job(cluster, team=team, name=f"job-{i}")
    seen = set().union(*(names(window(Job.objects.all(), 8, number)) for number in range(11)))
    assert len(seen) == 21
    assert all(len(names(window(Job.objects.all(), 8, number))) <= 8 for number in range(11))
