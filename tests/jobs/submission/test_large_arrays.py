"""Large arrays are written in turns: submitted at once, whole in the end, whoever is killed."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from clusters.models import Node
from controlplane.operations.tasks import finish_stalled_array
from controlplane.web.storage.turns import ROWS_A_TURN
from controlplane.web.storage.watch import Watch
from jobs.arrays.actions import array_act
from jobs.models import Dependency, Job, JobArray, JobEvent, UnfinishedArray
from jobs.services import job_submit
from jobs.submission import submit
from jobs.submission.refusals import QuotaReached
from jobs.submission.submit import Asked, Submission, finish_array, stalled_arrays, submit_all
from jobs.submission.validation import JobInvalid
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_jobs import job_fields

pytestmark = pytest.mark.django_db

SIZE = 2 * ROWS_A_TURN + 5
ALL = f"0-{SIZE - 1}"
OWN = {"id", "number", "array_index", "submitted_at", "waiting_code", "waiting_detail"}
"""Columns in which the elements of an array may differ."""


@pytest.fixture
def node() -> Node:
    return a_node(a_cluster())


@pytest.fixture
def user(node: Node) -> User:
    return a_user("ada", team=a_team("vision"))


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Whoever submits an array is killed after its first transaction."""
    monkeypatch.setattr(submit, "_finish_now", lambda array: None)
    return monkeypatch


def an_array(user: User, *, key: str | None = None, **fields: Any) -> JobArray:
    data = {**job_fields(name="sweep", steps=None, array=ALL), **fields}
    array = job_submit(user, data, key).job.array
    assert array is not None
    return array


def columns(job: Job) -> dict[str, Any]:
    fields = [field.attname for field in Job._meta.concrete_fields]
    return {name: getattr(job, name) for name in fields if name not in OWN}


def test_a_large_array_is_whole_when_it_is_answered(user: User) -> None:
    array = an_array(user)
    assert list(array.jobs.order_by("array_index").values_list("array_index", flat=True)) == [
        *range(SIZE)
    ]
    assert JobEvent.objects.filter(event="submitted", actor="ada").count() == SIZE
    assert not UnfinishedArray.objects.exists()


def test_elements_of_later_turns_are_like_the_first(user: User) -> None:
    now = timezone.now()
    fields: dict[str, Any] = {
        "due": (now + timedelta(days=2, microseconds=7)).isoformat(),
        "begin": (now + timedelta(hours=1)).isoformat(),
        "environment": {"A": "1"}, "labels": [], "walltime": 90.5, "cores": 0.5,
        "priority": 3, "command": ["echo", "a b"],
    }  # fmt: skip
    first, *others = an_array(user, **fields).jobs.order_by("array_index")
    assert first.begin_at is not None
    for job in others:
        assert columns(job) == columns(first)


def test_statements_of_a_turn_do_not_grow_with_its_elements(
    user: User, killed: pytest.MonkeyPatch
) -> None:
    counts = []
    for more in (1, ROWS_A_TURN):
        array = an_array(user, array=f"0-{ROWS_A_TURN + more - 1}")
        with CaptureQueriesContext(connection) as queries:
            finish_array(array.pk)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_the_limit_of_elements_at_a_time_counts_over_all_turns(user: User) -> None:
    array = an_array(user, array=f"{ALL}%{ROWS_A_TURN + 1}")
    free = array.jobs.filter(waiting_code="").order_by("array_index")
    assert list(free.values_list("array_index", flat=True)) == [*range(ROWS_A_TURN + 1)]


def test_held_elements_of_later_turns_ask_for_no_round(user: User) -> None:
    array = an_array(user, hold=True)
    assert set(array.jobs.values_list("state", "waiting_code")) == {("held", "")}


def test_elements_of_later_turns_wait_for_what_the_first_waits_for(user: User, node: Node) -> None:
    team = user.teams.get()
    other = a_job(node.cluster, user=user, team=team)
    others = an_array(user)
    conditions = [f"afterany:{other.pk}", f"aftercorr:{others.pk}"]
    array = an_array(user, dependencies=conditions)
    on = {other.pk: set[int | None](), **{job.pk: set[int | None]() for job in others.jobs.all()}}
    for link in Dependency.objects.filter(job__array=array).select_related("job"):
        assert link.on_id is not None
        on[link.on_id].add(link.job.array_index)
        assert link.condition == ("afterany" if link.on_id == other.pk else "afterok")
    assert on.pop(other.pk) == {*range(SIZE)}
    assert on == {job.pk: {job.array_index} for job in others.jobs.all()}


def test_the_same_key_finishes_what_a_killed_request_began(
    user: User, killed: pytest.MonkeyPatch
) -> None:
    array = an_array(user, key="key")
    assert array.jobs.count() == ROWS_A_TURN
    killed.undo()
    (again,) = submit_all([Asked(user, job_fields(name="sweep", steps=None, array=ALL), "key")])
    assert isinstance(again, Submission)
    assert (again.created, again.job.array_id) == (False, array.pk)
    assert array.jobs.count() == SIZE
    assert JobArray.objects.count() == 1


def test_the_reconciler_finishes_what_nobody_goes_on_writing(
    user: User, killed: pytest.MonkeyPatch
) -> None:
    array, now_s = an_array(user), [100.0]
    watch = Watch(lambda: now_s[0], lambda: "this-machine")
    assert stalled_arrays(watch) == []
    now_s[0] += submit.STALLED_S + 1
    assert submit._write_next(array.pk), "somebody goes on"
    assert stalled_arrays(watch) == []
    now_s[0] += submit.STALLED_S + 1
    assert stalled_arrays(watch) == [array.pk]
    finish_stalled_array(str(array.pk))
    assert array.jobs.count() == SIZE
    assert stalled_arrays(watch) == []


def test_finishing_a_whole_array_writes_nothing(user: User) -> None:
    array = an_array(user)
    finish_array(array.pk)
    finish_array(UUID(int=7))
    assert array.jobs.count() == SIZE


def test_an_array_is_submitted_though_its_other_elements_cannot_be_written_yet(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(array: UUID) -> bool:
        raise OperationalError("database or disk is full")

    monkeypatch.setattr(submit, "_write_next", full)
    array = an_array(user)
    monkeypatch.undo()
    assert array.jobs.count() == ROWS_A_TURN
    finish_array(array.pk)
    assert array.jobs.count() == SIZE


def test_an_action_reaches_elements_that_were_not_written_yet(
    user: User, killed: pytest.MonkeyPatch
) -> None:
    array = an_array(user)
    assert array_act("cancel", array, user) == SIZE
    assert set(array.jobs.values_list("state", flat=True)) == {"cancelled"}


def test_no_job_waits_for_an_array_that_is_not_whole(
    user: User, killed: pytest.MonkeyPatch
) -> None:
    array = an_array(user)
    with pytest.raises(JobInvalid, match="is still being submitted; try again"):
        job_submit(user, job_fields(dependencies=[str(array.pk)]))
    finish_array(array.pk)
    job_submit(user, job_fields(dependencies=[str(array.pk)]))


def test_elements_that_are_not_written_yet_take_room_in_the_queue(
    user: User, killed: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.MAX_QUEUED_JOBS = SIZE
    an_array(user)
    with pytest.raises(QuotaReached):
        job_submit(user, job_fields())


def test_arrays_of_one_call_are_whole(user: User) -> None:
    data = [job_fields(name=f"sweep-{n}", steps=None, array=ALL) for n in range(3)]
    answers = submit_all([Asked(user, one) for one in data])
    assert all(isinstance(answer, Submission) for answer in answers)
    assert [array.jobs.count() for array in JobArray.objects.all()] == [SIZE] * 3


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_two_that_finish_an_array_at_once_write_each_element_once(
    user: User, killed: pytest.MonkeyPatch
) -> None:
    assert connection.vendor == "postgresql", "run with tests/with-postgres"
    array = an_array(user)

    def finish(_: int) -> None:
        finish_array(array.pk)
        connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(finish, range(2)))
    assert array.jobs.count() == SIZE
    assert JobEvent.objects.filter(event="submitted").count() == SIZE


def test_finishing_one_array_leaves_another_as_it_is(
    user: User, killed: pytest.MonkeyPatch
) -> None:
    other, array = an_array(user), an_array(user)
    finish_array(array.pk)
    assert (other.jobs.count(), array.jobs.count()) == (ROWS_A_TURN, SIZE)
    assert UnfinishedArray.objects.get().written == ROWS_A_TURN
