"""Answers to many submissions at once are what the serializer says of each of them."""

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.renderers import JSONRenderer

from clusters.models import Node
from jobs.models import Job
from jobs.rest.bulk_api import bodies
from jobs.rest.serializers import SubmissionSerializer
from jobs.submission.submit import Asked, Submission, submit_all
from tests.builders import a_cluster, a_node, a_team, a_user
from tests.builders_jobs import job_fields

pytestmark = pytest.mark.django_db


@pytest.fixture
def node() -> Node:
    return a_node(a_cluster(), gpus=2)


@pytest.fixture
def user(node: Node) -> User:
    return a_user("ada", team=a_team("vision"))


def submitted(user: User, data: dict[str, Any], cloned_from: Job | None = None) -> Submission:
    (answer,) = submit_all([Asked(user, data, cloned_from=cloned_from)])
    assert isinstance(answer, Submission)
    return answer


def sent(row: object) -> dict[str, Any]:
    """As it goes over the wire, without what the moment of asking decides."""
    body: dict[str, Any] = json.loads(JSONRenderer().render(row))
    return body


def test_a_body_is_what_the_serializer_says_of_the_stored_job(user: User) -> None:
    first = submitted(user, job_fields(name="first", kind="bert"))
    others = [
        submitted(
            user,
            job_fields(name="second", dependencies=[str(first.job.pk)], due="+2h", deadline="+3h"),
        ),
        submitted(
            user,
            job_fields(name="third", hold=True, gpus="1..8", environment={"A": "b"}, walltime="1h"),
        ),
        submitted(user, job_fields(name="clone"), cloned_from=first.job),
    ]
    for one in (first, *others):
        context = {"warnings_of": {one.job.pk: one.warnings}}
        expected = SubmissionSerializer(Job.objects.get(pk=one.job.pk), context=context).data
        assert sent(bodies([one])[0]) == sent(expected)
    assert sent(bodies(others)[0])["spec"]["dependencies"] == [str(first.job.pk)]
    assert sent(bodies(others)[2])["cloned_from"] == str(first.job.pk)


def test_bodies_of_jobs_made_just_now_ask_the_database_nothing(user: User) -> None:
    answers = submit_all([Asked(user, job_fields(name=f"{i}")) for i in range(3)])
    with CaptureQueriesContext(connection) as queries:
        rows = bodies([a for a in answers if isinstance(a, Submission)])
    assert [row["name"] for row in rows] == ["0", "1", "2"]
    assert len(queries) == 0


def test_dependencies_of_jobs_that_were_known_are_read(user: User) -> None:
    first = submitted(user, job_fields(name="first"))
    data = job_fields(name="second", dependencies=[str(first.job.pk)])
    submit_all([Asked(user, data, "k")])
    (again,) = submit_all([Asked(user, data, "k")])
    assert isinstance(again, Submission)
    assert not again.created
    assert bodies([again])[0]["spec"]["dependencies"] == [str(first.job.pk)]
