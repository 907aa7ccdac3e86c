"""Errors of predicted run times on the page of kinds and by REST: each sees their teams'."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from clusters.models import Cluster
from jobs.models import Team
from profiling.models import PredictedRun
from tests.builders import a_cluster, a_job, a_team, a_user

pytestmark = pytest.mark.django_db

RUN_TIMES = "/api/v1/run-times/"


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


def ended(
    cluster: Cluster, team: Team, name: str, predicted_s: float, run_s: float, jobs: int = 20
) -> None:
    """Make so many ended jobs of a new user."""
    user = a_user(name, team=team)
    for _ in range(jobs):
        job = a_job(cluster, team=team, user=user, batch=True, state="completed")
        PredictedRun.objects.create(
            job=job, team=team, user=user, source="user+name+kind", predicted_s=predicted_s,
            run_s=run_s, ended_at=timezone.now(),
        )  # fmt: skip


def told(client: Client) -> Any:
    return client.get(RUN_TIMES).json()


def test_nobody_anonymous_sees_them(client: Client) -> None:
    assert client.get(RUN_TIMES).status_code in (401, 403)


def test_a_stranger_sees_nothing_a_member_the_teams_and_an_operator_all(
    client: Client, cluster: Cluster
) -> None:
    own, other = a_team(), a_team()
    ended(cluster, own, "ann", 100.0, 40.0)
    ended(cluster, other, "bob", 10.0, 30.0)
    client.force_login(a_user(team=a_team()))
    assert told(client) == {"total": None, "by_source": [], "by_user": []}
    assert "Run times of batch jobs" not in client.get("/kinds/").content.decode()
    client.force_login(a_user(team=own))
    assert [(row["name"], row["mean_s"]) for row in told(client)["by_user"]] == [("ann", 60.0)]
    page = client.get("/kinds/").content.decode()
    assert "user, name, kind" in page
    assert "ann" in page
    assert "bob" not in page
    client.force_login(a_user(operator=True))
    found = told(client)
    assert found["total"]["jobs"] == 40
    assert found["total"]["mean_s"] == pytest.approx(20.0)
    assert {row["name"] for row in found["by_user"]} == {"ann", "bob"}
    assert [row["too_short"] for row in found["by_source"]] == [0.5]


def test_figures_of_few_jobs_are_not_told(client: Client, cluster: Cluster) -> None:
    team = a_team()
    ended(cluster, team, "ann", 100.0, 40.0, jobs=19)
    client.force_login(a_user(team=team))
    (row,) = told(client)["by_user"]
    assert (row["name"], row["jobs"], row["mean_s"], row["too_short"]) == ("ann", 19, None, None)
    assert "Not enough jobs yet (19 of 20)" in client.get("/kinds/").content.decode()
