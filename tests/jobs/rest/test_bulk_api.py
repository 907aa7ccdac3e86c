"""Many jobs in one call: each taken or refused by itself."""

import pytest
from django.contrib.auth.models import User

from clusters.models import Node
from jobs.models import Job, Membership
from jobs.rest.bulk_api import MOST_JOBS
from tests.builders import a_cluster, a_node, a_team, a_user
from tests.builders_jobs import api, job_fields

pytestmark = pytest.mark.django_db
PATH = "/api/v1/jobs/bulk/"


@pytest.fixture
def node() -> Node:
    return a_node(a_cluster())


@pytest.fixture
def user(node: Node) -> User:
    return a_user("ada", team=a_team("vision"))


def test_a_sweep_is_taken_whole(user: User) -> None:
    answer = api(user).post(
        PATH, {"jobs": [{"job": job_fields(name=f"lr-{i}")} for i in range(3)]}, format="json"
    )
    assert answer.status_code == 201
    results = answer.json()["results"]
    assert [(r["index"], r["created"], r["job"]["name"], r["error"]) for r in results] == [
        (i, True, f"lr-{i}", None) for i in range(3)
    ]
    assert Job.objects.count() == 3


def test_a_wrong_job_is_refused_by_index_and_field_and_the_others_are_taken(user: User) -> None:
    jobs = [{"job": job_fields(name="good")}, {"job": job_fields(gpus=-1)}]
    answer = api(user).post(PATH, {"jobs": jobs}, format="json")
    good, wrong = answer.json()["results"]
    assert answer.status_code == 207
    assert good["job"]["name"] == "good"
    assert (wrong["index"], wrong["job"], wrong["error"]["code"]) == (1, None, "invalid")
    assert "gpus" in wrong["error"]["fields"]


def test_a_key_makes_its_job_once(user: User) -> None:
    body = {
        "jobs": [{"job": job_fields(name=f"lr-{i}"), "idempotency_key": f"k-{i}"} for i in range(2)]
    }
    first, again = (api(user).post(PATH, body, format="json").json()["results"] for _ in range(2))
    assert [r["job"]["id"] for r in first] == [r["job"]["id"] for r in again]
    assert [r["created"] for r in again] == [False, False]
    other = {"jobs": [{"job": job_fields(name="other"), "idempotency_key": "k-0"}]}
    assert (
        api(user).post(PATH, other, format="json").json()["results"][0]["error"]["code"]
        == "conflict"
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "jobs"), ({"jobs": []}, "jobs"), ({"jobs": [{"job": {}}] * (MOST_JOBS + 1)}, "jobs"),
        ({"jobs": {}}, "jobs"),
        ({"jobs": [1]}, "jobs[0]"), ({"jobs": [{"jb": {}}]}, "jobs[0].jb"),
        ({"jobs": [{"job": {}, "idempotency_key": 3}]}, "jobs[0].idempotency_key"),
    ],
)  # fmt: skip
def test_a_call_that_holds_no_jobs_is_refused_by_field(
    user: User, body: object, field: str
) -> None:
    answer = api(user).post(PATH, body, format="json")
    assert answer.status_code == 400
    assert field in answer.json()["error"]["fields"]


def test_a_key_shows_no_job_of_a_team_that_its_owner_has_left(user: User) -> None:
    item = {"job": job_fields(team="vision"), "idempotency_key": "k"}
    assert api(user).post(PATH, {"jobs": [item]}, format="json").status_code == 201
    Membership.objects.filter(user=user).delete()
    answer = api(user).post(PATH, {"jobs": [item]}, format="json")
    (result,) = answer.json()["results"]
    assert (answer.status_code, result["job"], result["error"]["code"]) == (207, None, "conflict")
    assert "may no longer see" in result["error"]["detail"]
