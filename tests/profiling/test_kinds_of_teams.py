"""Measurements of one team's jobs are neither read nor changed by another team's."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from clusters.models import Cluster, Node
from jobs.models import Job, Team
from profiling.models import Profile
from profiling.selectors import kind_views
from profiling.services import production_measured
from tests.builders import a_cluster, a_node, a_team, a_user
from tests.builders_profiling import a_launch

pytestmark = pytest.mark.django_db

NAMED = {"kind": "resnet", "command": ["python", "train.py"]}
HASHED = {"command": ["python", "train.py"]}


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(profiling="off")


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster)


@pytest.fixture
def team() -> Team:
    return a_team("vision")


@pytest.fixture
def rival(client: Client) -> User:
    """A member of another team, who is logged in."""
    user = a_user("rival", team=a_team("language"))
    client.force_login(user)
    return user


def submit(user: User, **described: Any) -> Job:
    """A job of this person's only team, by REST."""
    own = Client()
    own.force_login(user)
    data = {"name": "train", "steps": 100, "gpus": 1, **described}
    answer = own.post("/api/v1/jobs/", data, content_type="application/json")
    assert answer.status_code == 201, answer.content
    return Job.objects.get(pk=answer.json()["id"])


@pytest.fixture(params=[NAMED, HASHED], ids=["named", "hashed"])
def measured(request: pytest.FixtureRequest, node: Node, team: Team) -> Job:
    """A job of the team, measured at 9.7 steps/s."""
    job = submit(a_user("owner", team=team), **request.param)
    production_measured(a_launch(job, node, steps_per_s=9.7))
    return job


@pytest.fixture
def lie(measured: Job, node: Node, rival: User) -> Job:
    """A job of the rival described as the measured one, which reports 5002 steps/s twice."""
    described = {"command": measured.command, "kind": measured.kind.name}
    job = submit(rival, **{name: value for name, value in described.items() if value})
    for _ in range(2):
        production_measured(a_launch(job, node, steps_per_s=5002.0, state="succeeded"))
    return job


def test_a_job_like_another_teams_has_a_kind_of_its_own(measured: Job, lie: Job) -> None:
    assert lie.kind.digest == measured.kind.digest
    assert (measured.kind.team_id, lie.kind.team_id) == (measured.team_id, lie.team_id)
    assert lie.kind_id != measured.kind_id


def test_what_another_team_reports_does_not_change_a_teams_speeds(measured: Job, lie: Job) -> None:
    speeds = dict(Profile.objects.values_list("kind", "steps_per_s"))
    assert speeds == {
        measured.kind_id: pytest.approx(9.7),
        lie.kind_id: pytest.approx(5002.0),
    }


def test_another_teams_speeds_are_not_seen_by_page_or_rest(
    client: Client, measured: Job, rival: User
) -> None:
    described = {"command": measured.command, "kind": measured.kind.name}
    job = submit(rival, **{name: value for name, value in described.items() if value})
    (shown,) = client.get("/api/v1/kinds/").json()["results"]
    assert (shown["id"], shown["team"]) == (job.kind_id, "language")
    assert {p["source"] for p in shown["profiles"]} == {"assumed"}
    assert client.get(f"/api/v1/kinds/{measured.kind_id}/").status_code == 404
    page = client.get("/kinds/").content.decode()
    assert "9.7" not in page
    assert "vision" not in page


def test_a_snapshot_knows_nothing_of_another_teams_speeds_of_the_same_kind(
    cluster: Cluster, measured: Job, rival: User
) -> None:
    described = {"command": measured.command, "kind": measured.kind.name}
    job = submit(rival, **{name: value for name, value in described.items() if value})
    (view,) = kind_views(cluster, [job.kind_id])
    assert {t.source for t in view.throughputs} <= {"assumed", "declared"}
    assert all(t.steps_per_s != pytest.approx(9.7) for t in view.throughputs)
