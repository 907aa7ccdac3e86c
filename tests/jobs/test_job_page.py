"""The page of a job with many placements: the newest ones, and totals of all."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from jobs.models import Job, Team, UsagePoint
from jobs.pages import job_page as pages
from jobs.pages.job_page import job_page
from loadmaster.protocol import AssignmentState
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_jobs import a_placement

pytestmark = pytest.mark.django_db
PREEMPTED, FAILED = AssignmentState.PREEMPTED, AssignmentState.FAILED


@pytest.fixture
def team() -> Team:
    return a_team()


@pytest.fixture
def user(team: Team) -> User:
    return a_user(team=team)


@pytest.fixture
def moving(user: User, team: Team, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job of five placements, of which the page shows two.

    It was pre-empted thrice, moved twice (0 -> 1, 1 -> 0), and runs for half of its forecast.
    """
    monkeypatch.setattr(pages, "PLACEMENTS", 2, raising=False)
    cluster, now = a_cluster(), timezone.now()
    nodes = [a_node(cluster, gpus=1), a_node(cluster, gpus=1)]
    job = a_job(cluster, state="running", team=team, user=user)
    ran: dict[str, Any] = {
        "gpus": 1, "running_at": now - timedelta(hours=2), "predicted_energy_cost": 9,
        "predicted_run_s": 7200.0, "energy_cost": 1, "power_source": "measured", "ended_ago_s": 60,
    }  # fmt: skip
    for node, state in ((0, PREEMPTED), (0, PREEMPTED), (1, PREEMPTED), (1, FAILED)):
        a_placement(job, nodes[node], state, **ran)
    runs = ran | {
        "running_at": now - timedelta(hours=1), "ended_ago_s": None, "energy_cost": None,
        "predicted_energy_cost": 4,
    }  # fmt: skip
    a_placement(job, nodes[0], **runs)
    return job


def test_totals_count_the_placements_that_are_not_shown(moving: Job, user: User) -> None:
    page = job_page(user, moving.pk)
    assert [(p.assignment.fence, p.moved) for p in page.placements] == [(5, True), (4, False)]
    assert (page.older, page.migrations, page.preemptions) == (3, 2, 3)
    assert float(page.cost.so_far) == pytest.approx(4 * 1 + 4 / 2, rel=1e-3)
    assert page.cost.predicted == Decimal(4 * 1 + 4)
    assert page.cost.estimated


def test_the_page_says_how_many_placements_are_not_shown_and_where_they_are(
    moving: Job, user: User, client: Client
) -> None:
    client.force_login(user)
    page = client.get(f"/jobs/{moving.pk}/").content.decode()
    assert page.count('data-label="Launch"') == 2
    assert f"3 older ones by REST: <code>/api/v1/jobs/{moving.pk}/assignments/</code>" in page


def test_a_bill_of_measured_watts_alone_is_no_estimate(moving: Job, user: User) -> None:
    moving.assignments.get(fence=5).delete()
    cost = job_page(user, moving.pk).cost
    assert (cost.so_far, cost.predicted, cost.estimated) == (Decimal(4), None, False)
    moving.assignments.filter(fence=1).update(power_source="modelled")
    assert job_page(user, moving.pk).cost.estimated


def test_the_page_shows_what_a_running_job_uses_and_what_its_quota_withholds(
    client: Client, user: User, moving: Job
) -> None:
    client.force_login(user)
    assert "Uses now" not in client.get(f"/jobs/{moving.pk}/").content.decode()
    live = moving.assignments.get(ended_at=None)
    for second, cores in enumerate((1.0, 1.5)):
        UsagePoint.objects.create(
            assignment=live, at=timezone.now() + timedelta(seconds=second), cores=cores,
            memory_gb=3.0, power_source="modelled", throttled_cores=0.25, cores_limit=2.0,
        )  # fmt: skip
    page = client.get(f"/jobs/{moving.pk}/").content.decode()
    assert "1.5 cores, 3 GB" in page
    assert "its quota withholds 0.25 cores more" in page
