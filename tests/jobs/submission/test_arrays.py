"""Arrays are validated once, written as one job for each index, and depend on others likewise."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from clusters.models import Cluster, Node, RescheduleEvent
from controlplane.web.storage.turns import ROWS_A_TURN
from jobs.models import Dependency, Job, JobArray, JobEvent
from jobs.services import job_submit
from jobs.submission.refusals import IdempotencyConflict
from jobs.submission.submit import Answer, Asked, Submission, submit_all
from jobs.submission.validation import JobInvalid
from tests.builders import a_cluster, a_node, a_team, a_user
from tests.builders_jobs import job_fields

pytestmark = pytest.mark.django_db


@pytest.fixture
def node() -> Node:
    return a_node(a_cluster())


@pytest.fixture
def user(node: Node) -> User:
    return a_user("ada", team=a_team("vision"))


def an_array(user: User, array: object = "0-2", **fields: Any) -> JobArray:
    found = job_submit(user, job_fields(name="sweep", steps=None, array=array, **fields)).job.array
    assert found is not None
    return found


def elements(array: JobArray) -> list[Job]:
    return list(array.jobs.order_by("array_index"))


def problems(user: User, **fields: Any) -> str:
    with pytest.raises(JobInvalid) as caught:
        job_submit(user, job_fields(steps=None, **fields))
    return str(caught.value)


def test_an_array_becomes_a_job_for_each_index(user: User) -> None:
    array = an_array(user, "1-7:2%2")
    assert (array.indices, array.at_once, str(array)) == ("1-7:2", 2, "1-7:2%2")
    assert (array.size, array.lowest, array.highest, array.step) == (4, 1, 7, 2)
    assert [str(job) for job in elements(array)] == ["sweep[1]", "sweep[3]", "sweep[5]", "sweep[7]"]
    assert {(job.user, job.state, job.batch) for job in elements(array)} == {(user, "queued", True)}
    assert JobEvent.objects.filter(event="submitted").count() == 4
    assert RescheduleEvent.objects.filter(reason="submission").count() == 1


def test_elements_beyond_the_limit_wait_for_it_from_the_start(user: User) -> None:
    codes = [job.waiting_code for job in elements(an_array(user, "0-3%2"))]
    assert codes == ["", "", "array_limit", "array_limit"]
    held = an_array(user, "0-3%2", hold=True)
    assert {(job.state, job.waiting_code) for job in elements(held)} == {("held", "")}


def test_an_array_of_one_turn_takes_as_many_statements_as_a_small_one(user: User) -> None:
    counts = []
    for array in ("0-1", "0-9", f"0-{ROWS_A_TURN - 1}"):
        with CaptureQueriesContext(connection) as queries:
            an_array(user, array)
        counts.append(len(queries))
    assert counts[1] == counts[2] <= 20


def test_a_key_covers_the_whole_array(user: User) -> None:
    asked = Asked(user, job_fields(array="0-4"), "k")
    first, again = submit_all([asked])[0], submit_all([asked])[0]
    assert isinstance(first, Submission)
    assert isinstance(again, Submission)
    assert (again.created, again.job) == (False, first.job)
    assert Job.objects.count() == 5
    other = submit_all([Asked(user, job_fields(array="0-5"), "k")])[0]
    assert isinstance(other, IdempotencyConflict)


@pytest.mark.parametrize("array", [" ", "5-1", "0-3:0", "0-3%0", "-2", "0-10000", [1], True])
def test_a_bad_array_is_refused_by_its_field(user: User, array: object) -> None:
    assert "array: " in problems(user, array=array)
    assert not Job.objects.exists()


def test_arrays_of_one_call_have_a_limit_together(user: User) -> None:
    asked = [Asked(user, job_fields(array=f"0-{most}")) for most in (5999, 3999, 0)]
    first, second, third = submit_all(asked)
    assert isinstance(first, Submission)
    assert isinstance(second, Submission)
    assert isinstance(third, JobInvalid)
    assert "array" in third.fields
    assert Job.objects.count() == 10_000


def test_a_job_may_wait_for_an_array_or_an_element(user: User) -> None:
    array = an_array(user)
    third = elements(array)[2]
    for text in (f"afterany:{array.pk}_2", f"afterany:{array.pk}[2]"):
        link = job_submit(user, job_fields(dependencies=[text])).job.dependency_links.get()
        assert (link.on, link.on_array, link.condition) == (third, None, "afterany")
    link = job_submit(user, job_fields(dependencies=[str(array.pk)])).job.dependency_links.get()
    assert (link.on, link.on_array, str(link)) == (None, array, str(array.pk))


def test_each_element_waits_for_that_of_its_index(user: User) -> None:
    first = an_array(user, "0-5")
    second = an_array(user, "1-5:2", dependencies=[f"aftercorr:{first.pk}"])
    waits = Dependency.objects.filter(job__array=second).order_by("job__array_index")
    pairs = [(w.job.array_index, w.on.array_index if w.on else None) for w in waits]
    assert pairs == [(1, 1), (3, 3), (5, 5)]


def test_all_elements_wait_for_what_the_array_waits_for(user: User) -> None:
    first = an_array(user)
    second = an_array(user, dependencies=[f"afterany:{first.pk}"])
    waits = Dependency.objects.filter(job__array=second)
    assert {(w.on_array, w.condition) for w in waits} == {(first, "afterany")}
    assert waits.count() == 3


@pytest.mark.parametrize(
    ("states", "condition", "said"),
    [
        (("completed", "failed", "queued"), "afterok", "1 failed"),
        (("completed", "cancelled", "queued"), "afterok", "can never be satisfied"),
        (("completed", "completed", "completed"), "afternotok", "can never be satisfied"),
        (("completed", "failed", "queued"), "aftercorr", "failed or cancelled element 1"),
        (("completed", "failed", "queued"), "afternotok", ""),
        (("failed", "failed", "cancelled"), "afterany", ""),
        (("completed", "completed", "queued"), "afternotok", ""),
        (("completed", "completed", "completed"), "afterok", ""),
    ],
)
def test_an_end_of_an_array_that_cannot_come_is_refused(
    user: User, states: tuple[str, ...], condition: str, said: str
) -> None:
    array = an_array(user)
    for index, state in enumerate(states):
        array.jobs.filter(array_index=index).update(state=state)
    data = job_fields(dependencies=[f"{condition}:{array.pk}"], array="0-2")
    answer = submit_all([Asked(user, data)])[0] if not said else _answer(user, data)
    assert isinstance(answer, JobInvalid) == bool(said)
    assert said in str(answer) if said else isinstance(answer, Submission)


def _answer(user: User, data: object) -> Answer:
    return submit_all([Asked(user, data)])[0]


def test_a_reference_to_what_is_not_there_is_refused(user: User, node: Node) -> None:
    array, job = an_array(user), job_submit(user, job_fields()).job
    nobody = "00000000-0000-4000-8000-000000000000"
    assert "no element 9; its indices are 0-2" in problems(user, dependencies=[f"{array.pk}_9"])
    assert "no job or array" in problems(user, dependencies=[f"{job.pk}_0"])
    assert "no job or array" in problems(user, dependencies=[f"afterany:{nobody}"])
    assert "is for arrays" in problems(user, dependencies=[f"aftercorr:{array.pk}"])
    assert "is for whole arrays" in problems(
        user, dependencies=[f"aftercorr:{job.pk}"], array="0-2"
    )
    assert "no element 3, 4" in problems(user, dependencies=[f"aftercorr:{array.pk}"], array="0-4")
    assert "different conditions" in problems(
        user, dependencies=[f"{array.pk}_1", f"afterany:{array.pk}[1]"]
    )


def test_many_references_take_as_many_statements_as_one(user: User) -> None:
    array = an_array(user, "0-49")
    numbers = [str(2**59 + index) for index in range(50)]
    for references in (numbers, [f"{array.pk}_{index}" for index in range(50)]):
        counts = []
        for given in (references[:1], references):
            with CaptureQueriesContext(connection) as queries:
                _answer(user, job_fields(dependencies=given, cores=9999))
            counts.append(len(queries))
        assert counts[0] == counts[1]


def test_a_stranger_cannot_wait_for_an_array_or_learn_that_it_is_there(user: User) -> None:
    array = an_array(user)
    eve = a_user("eve", team=a_team("others"))
    for text in (str(array.pk), f"{array.pk}_1", f"aftercorr:{array.pk}"):
        said = problems(eve, dependencies=[text], array="0-2")
        assert f"no job or array {array.pk} that you can see" in said


def test_an_array_of_another_cluster_is_not_waited_for(user: User) -> None:
    array = an_array(user, cluster=Cluster.objects.get().name)
    other = a_node(a_cluster()).cluster
    assert "in cluster" in problems(user, dependencies=[str(array.pk)], cluster=other.name)


def test_a_dependency_is_on_a_job_or_on_an_array(user: User) -> None:
    array = an_array(user)
    job, other = elements(array)[:2]
    for on in ({}, {"on": other, "on_array": array}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Dependency.objects.create(job=job, **on)


def test_elements_may_not_repeat_too_much_of_a_script_and_environment(user: User) -> None:
    large = {f"V{n}": "x" * 30_000 for n in range(10)}
    assert "environment" in problems(user, array="0-999", environment=large)
    assert Job.objects.count() == 0
    an_array(user, "0-9", environment=large)
    assert Job.objects.count() == 10
