"""Numbers of jobs and arrays, which scripts for Slurm know them by."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from jobs import services
from jobs.models import Job, JobArray, JobCounter
from jobs.numbers import arrays_with_numbers, jobs_with_numbers, take_numbers
from loadmaster.slurm.scripts.numbers import MOST_NUMBER
from tests.builders import a_cluster, a_job, a_node, a_team, a_user, at
from tests.builders_jobs import job_fields

pytestmark = pytest.mark.django_db


@pytest.fixture
def user() -> User:
    a_node(a_cluster(name="lab"))
    return a_user("ada", team=a_team("research"))


def count_on_from(number: int) -> None:
    """Let the next number be the one after this."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT setval('jobs_jobcounter_id_seq', %s)", [number])
    else:
        JobCounter.objects.update_or_create(pk=1, defaults={"last": number})


def submit(user: User, **fields: object) -> Job:
    return services.job_submit(user, {**job_fields(), **fields}).job


def test_jobs_are_numbered_in_the_order_of_submission(user: User) -> None:
    count_on_from(700_000)
    assert [submit(user).number for _ in range(3)] == [700_001, 700_002, 700_003]


def test_an_array_has_the_number_before_its_elements(user: User) -> None:
    count_on_from(10)
    array = submit(user, array="3-5").array
    assert array is not None
    assert array.number == 11
    numbers = array.jobs.order_by("array_index").values_list("number", flat=True)
    assert list(numbers) == [12, 13, 14]


def test_many_numbers_are_taken_by_one_query(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1):
        assert len(set(take_numbers(10_000))) == 10_000


def test_counting_begins_again_after_the_greatest_number() -> None:
    count_on_from(MOST_NUMBER - 2)
    assert take_numbers(4) == [MOST_NUMBER - 1, MOST_NUMBER, 1, 2]
    assert take_numbers(1) == [3]


def test_a_number_of_a_failed_transaction_is_never_that_of_two_jobs(user: User) -> None:
    first = submit(user).number
    with transaction.atomic():
        take_numbers(1)
        transaction.set_rollback(True)
    assert submit(user).number > first


def test_a_number_means_the_newest_job_that_has_it(user: User) -> None:
    cluster = a_cluster(name="old")
    jobs = [a_job(cluster, number=7) for _ in range(2)]
    Job.objects.filter(pk=jobs[0].pk).update(submitted_at=at(50))
    Job.objects.filter(pk=jobs[1].pk).update(submitted_at=at(20))
    assert jobs_with_numbers(Job.objects.all(), [7, 8]) == {7: jobs[0].pk}


def test_arrays_are_found_by_number_among_visible_jobs_alone(user: User) -> None:
    array = submit(user, array="0-1").array
    assert array is not None
    assert arrays_with_numbers(Job.objects.all(), [array.number]) == {array.number: array.pk}
    assert arrays_with_numbers(Job.objects.none(), [array.number]) == {}
    assert JobArray.objects.count() == 1


def test_a_clone_has_a_number_of_its_own(user: User) -> None:
    job = submit(user)
    assert services.job_clone(job, user, {}).job.number != job.number
