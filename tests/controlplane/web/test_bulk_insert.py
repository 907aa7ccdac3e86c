"""Rows inserted in bulk are the rows the ORM would have written."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from clusters.models import Reason, RescheduleEvent
from controlplane.web.storage.bulk import MOST_ROWS, insert
from jobs.lifecycle import JobState
from jobs.models import Job
from tests.builders import a_cluster, a_job, a_kind, a_team, a_user

pytestmark = pytest.mark.django_db


def unsaved_jobs(count: int = 1, **values: Any) -> list[Job]:
    cluster, team, user, kind = a_cluster(), a_team(), a_user(), a_kind()
    common = {"cluster": cluster, "team": team, "user": user, "kind": kind, "total_steps": 10}
    return [Job(name=f"job {i}", **{**common, **values}) for i in range(count)]


def stored(job: Job) -> dict[str, Any]:
    """The job's row but for what differs from job to job."""
    row = Job.objects.filter(pk=job.pk).values().get()
    return {name: value for name, value in row.items() if name not in ("id", "submitted_at")}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "environment": {"A": {"secret": "ß"}},
            "labels": ["x", "y"],
            "command": [],
            "received_s": {"V100": 1.5},
        },
        {
            "due_at": datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
            "walltime_s": 60,
            "cores": 2,
            "priority": True,
        },
        {"state": JobState.HELD, "image": "a ' quote %s and 100%", "failure_reason": "two\nlines"},
    ],
)
def test_a_row_is_what_the_orm_would_have_written(values: dict[str, Any]) -> None:
    (one,) = unsaved_jobs(**values)
    given = [f.attname for f in Job._meta.concrete_fields if f.name != "id" and not f.generated]
    same = Job(**{name: getattr(one, name) for name in given})
    same.save()
    insert(Job, [one])
    assert stored(one) == stored(same)
    assert Job.objects.get(pk=one.pk).submitted_at == one.submitted_at


def test_a_row_counts_as_saved_afterwards() -> None:
    (job,) = unsaved_jobs()
    insert(Job, [job])
    job.name = "renamed"
    job.save()
    assert Job.objects.get().name == "renamed"
    assert list(job.dependencies.all()) == []


def test_keys_that_the_database_gives_out_are_all_different() -> None:
    cluster = a_cluster()
    job = a_job(cluster)
    insert(
        RescheduleEvent,
        (
            RescheduleEvent(cluster=cluster, reason=Reason.SUBMISSION, job=j)
            for j in (job, None, job)
        ),
    )
    assert len(set(RescheduleEvent.objects.values_list("pk", flat=True))) == 3
    assert list(RescheduleEvent.objects.values_list("job", flat=True)) == [job.pk, None, job.pk]


def test_nothing_to_insert_asks_the_database_nothing() -> None:
    with CaptureQueriesContext(connection) as queries:
        insert(Job, [])
    assert len(queries) == 0


def test_more_rows_than_one_statement_holds_are_all_there() -> None:
    insert(Job, unsaved_jobs(MOST_ROWS + 1))
    assert Job.objects.count() == MOST_ROWS + 1


def test_of_rows_of_which_one_is_refused_none_is_there() -> None:
    first, second = unsaved_jobs(2)
    second.pk = first.pk
    with pytest.raises(IntegrityError), transaction.atomic():
        insert(Job, [first, second])
    assert not Job.objects.exists()
