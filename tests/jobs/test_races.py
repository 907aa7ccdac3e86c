"""Many requests at once, each with a connection of its own: a key is used once, and a job moves
once.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import pytest
from django.db import connection, connections

from jobs import services
from jobs.models import Job, JobArray
from jobs.submission.refusals import JobConflict
from jobs.submission.submit import Submission
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_jobs import job_fields

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]
T = TypeVar("T")
MANY = 8


def at_once(act: Callable[[], T]) -> list[T | JobConflict]:
    """What `act` gives in many threads that begin together; a conflict is an answer too."""
    barrier = Barrier(MANY)

    def run() -> T | JobConflict:
        barrier.wait()
        try:
            return act()
        except JobConflict as conflict:
            return conflict
        finally:
            connections.close_all()

    with ThreadPoolExecutor(MANY) as pool:
        return [future.result() for future in [pool.submit(run) for _ in range(MANY)]]


@pytest.fixture(autouse=True)
def _on_a_server() -> None:
    assert connection.vendor == "postgresql", (
        "run with tests/with-postgres: threads cannot share a database in memory"
    )


def test_many_submissions_with_one_key_make_one_job() -> None:
    user = a_user(team=a_team())
    a_node(a_cluster())
    answers = at_once(lambda: services.job_submit(user, job_fields(), "key"))
    assert Job.objects.count() == 1
    assert sorted(a.created for a in answers if isinstance(a, Submission)) == [False] * (
        MANY - 1
    ) + [True]


def test_many_submissions_get_different_numbers() -> None:
    user = a_user(team=a_team())
    a_node(a_cluster())
    at_once(lambda: services.job_submit(user, {**job_fields(), "array": "0-99"}))
    numbers = [*Job.objects.values_list("number", flat=True)]
    numbers += JobArray.objects.values_list("number", flat=True)
    assert len(numbers) == len(set(numbers)) == MANY * 101


def test_many_actions_on_one_job_leave_one_history() -> None:
    team = a_team()
    user = a_user(team=team)
    job = a_job(a_cluster(), team=team, user=user)
    answers = at_once(lambda: services.job_cancel(job, user))
    assert [a.state for a in answers if isinstance(a, Job)] == ["cancelled"] * MANY
    assert list(job.events.values_list("event", flat=True)) == ["cancelled"]


def test_of_many_requeues_one_wins_and_the_rest_are_told() -> None:
    team = a_team()
    user = a_user(team=team)
    job = a_job(a_cluster(), team=team, user=user, state="failed")
    answers = at_once(lambda: services.job_requeue(job, user))
    assert sum(isinstance(a, Job) for a in answers) == 1
    assert all("it cannot be requeued" in str(a) for a in answers if isinstance(a, JobConflict))
