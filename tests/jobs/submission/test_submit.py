"""Many submissions in one transaction: each has its own answer, and together they cost no more
queries than a few.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DataError, IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from clusters.models import Cluster, Node, RescheduleEvent
from jobs.models import Job, JobEvent
from jobs.submission import submit
from jobs.submission.feasibility import Inventory
from jobs.submission.refusals import IdempotencyConflict, JobConflict
from jobs.submission.submit import (
    Answer,
    Asked,
    Submission,
    submit_all,
)
from jobs.submission.validation import JobInvalid, JobRequest
from tests.builders import a_cluster, a_node, a_team, a_user
from tests.builders_jobs import job_fields

pytestmark = pytest.mark.django_db


@pytest.fixture
def node() -> Node:
    return a_node(a_cluster())


@pytest.fixture
def user(node: Node) -> User:
    return a_user("ada", team=a_team("vision"))


def test_each_job_has_its_own_answer_in_the_order_asked(user: User, node: Node) -> None:
    asked = [
        Asked(user, job_fields(name="one")),
        Asked(user, {"nmae": "x"}),
        Asked(user, job_fields(name="three")),
    ]
    first, second, third = submit_all(asked)
    assert isinstance(first, Submission)
    assert isinstance(third, Submission)
    assert isinstance(second, JobInvalid)
    assert [j.name for j in Job.objects.order_by("submitted_at")] == ["one", "three"]
    assert (first.job.name, third.job.name) == ("one", "three")
    assert "nmae" in second.fields
    assert JobEvent.objects.filter(event="submitted").count() == 2
    assert RescheduleEvent.objects.filter(reason="submission").count() == 2


def test_a_key_that_comes_twice_at_once_makes_one_job(user: User, node: Node) -> None:
    asked = [
        Asked(user, job_fields(), "k"),
        Asked(user, job_fields(), "k"),
        Asked(user, job_fields(name="other"), "k"),
    ]
    first, same, other = submit_all(asked)
    assert isinstance(first, Submission)
    assert isinstance(same, Submission)
    assert (same.job, same.created, first.created) == (first.job, False, True)
    assert isinstance(other, IdempotencyConflict)
    assert Job.objects.count() == 1


def test_a_key_taken_meanwhile_spoils_no_other_job(
    user: User, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    (winner,) = submit_all([Asked(user, job_fields(), "k")])
    earlier = submit._earlier
    calls: list[int] = []

    def blind_at_first(asked: Sequence[Asked]) -> dict[int, Answer]:
        calls.append(len(asked))
        return {} if len(calls) == 1 else earlier(asked)

    monkeypatch.setattr(submit, "_earlier", blind_at_first)
    again, new = submit_all([Asked(user, job_fields(), "k"), Asked(user, job_fields(name="new"))])
    assert isinstance(winner, Submission)
    assert isinstance(again, Submission)
    assert isinstance(new, Submission)
    assert (again.job, again.created, new.created) == (winner.job, False, True)
    assert Job.objects.count() == 2


def test_a_key_whose_first_job_was_refused_is_free_for_the_next(user: User, node: Node) -> None:
    asked = [
        Asked(user, {"nmae": "x"}, "k"),
        Asked(user, job_fields(), "k"),
        Asked(user, job_fields(name="other"), "k"),
    ]
    refused, made, other = submit_all(asked)
    assert isinstance(refused, JobInvalid)
    assert isinstance(made, Submission)
    assert isinstance(other, IdempotencyConflict)
    assert Job.objects.get() == made.job


def test_nodes_seen_a_moment_ago_let_jobs_in_but_refuse_none(user: User, node: Node) -> None:
    def submit(**wanted: Any) -> Any:
        return submit_all([Asked(user, job_fields(**wanted))])[0]

    assert isinstance(submit(), Submission)
    with CaptureQueriesContext(connection) as asked:
        assert isinstance(submit(), Submission)
    assert not [q for q in asked.captured_queries if q["sql"].startswith("SELECT DISTINCT")]
    assert isinstance(submit(gpus=8), JobInvalid)
    a_node(node.cluster, gpus=8)
    assert isinstance(submit(gpus=8), Submission)


def test_equal_nodes_are_looked_at_once(node: Node) -> None:
    for gpus, labels in ((2, []), (2, []), (4, []), (4, ["fast"]), (0, []), (0, [])):
        a_node(node.cluster, gpus=gpus, labels=labels)
    capacities = Inventory().capacities(node.cluster)
    assert sorted((c.gpus, *c.labels) for c in capacities) == [(0,), (2,), (4,), (4, "fast")]


@pytest.mark.django_db(transaction=True)
def test_a_cluster_deleted_after_it_was_read_spoils_only_its_own_job(
    user: User, node: Node
) -> None:
    gone = a_cluster(name="gone")
    a_node(gone)
    inventory = Inventory()
    assert inventory.capacities(inventory.clusters["gone"])
    here = node.cluster.name
    Cluster.objects.get(pk=gone.pk).delete()
    asked = [
        Asked(user, job_fields(name=name, cluster=where))
        for name, where in (("a", here), ("b", "gone"), ("c", here))
    ]
    first, second, third = submit_all(asked, inventory)
    assert isinstance(first, Submission)
    assert isinstance(second, JobInvalid)
    assert isinstance(third, Submission)
    assert set(Job.objects.values_list("name", flat=True)) == {"a", "c"}
    assert isinstance(submit_all(asked[1:2], inventory)[0], JobInvalid)


@pytest.mark.parametrize("error", [DataError("out of range"), IntegrityError("no such row")])
def test_what_the_database_refuses_of_a_batch_spoils_no_other_job(
    user: User, node: Node, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    write = submit._write

    def refusing(wanted: Sequence[tuple[Asked, JobRequest]]) -> None:
        write(wanted)
        if any(request.job.name == "bad" for _, request in wanted):
            raise error

    def undone(wanted: Sequence[tuple[Asked, JobRequest]]) -> None:
        with transaction.atomic():
            refusing(wanted)

    monkeypatch.setattr(submit, "_write", undone)
    first, second, third = submit_all(
        [Asked(user, job_fields(name=name)) for name in ("good", "bad", "better")]
    )
    assert isinstance(first, Submission)
    assert isinstance(second, JobConflict)
    assert isinstance(third, Submission)
    assert set(Job.objects.values_list("name", flat=True)) == {"good", "better"}
    with pytest.raises(type(error)):
        submit_all([Asked(user, job_fields(name="bad"))])


def test_the_queries_of_a_sweep_do_not_grow_with_its_jobs(user: User, node: Node) -> None:
    submit_all([Asked(user, job_fields(kind="bert"))])
    counts = []
    for size in (2, 20):
        asked = [
            Asked(user, job_fields(kind="bert", name=f"{size}-{i}"), f"{size}-{i}")
            for i in range(size)
        ]
        with CaptureQueriesContext(connection) as queries:
            submit_all(asked)
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert Job.objects.count() == 23
