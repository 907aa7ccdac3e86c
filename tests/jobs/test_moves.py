"""Many jobs move together as each would alone: by the table, compared and swapped, each with its
event; all of them or none.
"""

from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from jobs.lifecycle import IllegalJobMoveError, JobMove
from jobs.models import Job, JobEvent
from jobs.moves import LostRaceError, Moving, move_job, move_jobs
from tests.builders import a_cluster, a_job, a_team, a_user

pytestmark = pytest.mark.django_db


def queued(count: int, **values: Any) -> list[Job]:
    team = a_team()
    common = {"cluster": a_cluster(), "team": team, "user": a_user(team=team), **values}
    return [
        a_job(
            name=f"job {i}",
            fence=i,
            waiting_code="no_capacity",
            waiting_detail={"jobs": ["x"]},
            **common,
        )
        for i in range(count)
    ]


def placing(job: Job) -> Moving:
    return Moving(
        job,
        {"fence": job.fence + 1, "waiting_code": "", "waiting_detail": {}},
        {"round": 3, "fence": job.fence + 1},
    )


def rows(jobs: list[Job]) -> list[dict[str, Any]]:
    """What is stored of them and their events, but for what differs from job to job and from moment
    to moment.
    """
    own = {
        "id",
        "name",
        "submitted_at",
        "number",
        "cluster_id",
        "team_id",
        "user_id",
        "kind_id",
        "job_id",
        "at",
    }
    read = (
        Job.objects.filter(pk__in=[j.pk for j in jobs]).order_by("name").values(),
        JobEvent.objects.filter(job__in=jobs).order_by("job__name", "id").values(),
    )
    return [
        {name: value for name, value in dict(row).items() if name not in own}
        for rows in read
        for row in rows
    ]


def test_jobs_that_move_together_are_what_they_would_be_one_by_one() -> None:
    together, alone = queued(4), queued(4)
    move_jobs([placing(job) for job in together], JobMove.PLACE, actor="round")
    for one in map(placing, alone):
        move_job(one.job, JobMove.PLACE, actor="round", data=dict(one.data), **one.values)
    assert rows(together) == rows(alone)
    assert [(j.state, j.fence, j.waiting_code, j.waiting_detail) for j in together] == [
        ("starting", i + 1, "", {}) for i in range(4)
    ]


def test_values_are_each_jobs_own() -> None:
    jobs = queued(2)
    told = [{"jobs": ["a"], "text": 'it\'s "100%"'}, {"jobs": []}]
    move_jobs(
        [Moving(j, {"waiting_detail": detail}, {}) for j, detail in zip(jobs, told, strict=True)],
        JobMove.HOLD,
    )
    assert list(Job.objects.order_by("name").values_list("state", "waiting_detail")) == [
        ("held", detail) for detail in told
    ]


@pytest.mark.parametrize(
    "changed", [{"state": "cancelled"}, {"fence": F("fence") + 1}], ids=["state", "fence"]
)
def test_where_one_has_changed_since_it_was_read_nothing_is_written(
    changed: dict[str, Any],
) -> None:
    jobs = queued(3)
    Job.objects.filter(pk=jobs[1].pk).update(**changed)
    before = rows(jobs)
    with pytest.raises(LostRaceError):
        move_jobs([placing(job) for job in jobs], JobMove.PLACE)
    assert rows(jobs) == before
    assert [(job.state, job.fence) for job in jobs] == [("queued", i) for i in range(3)], (
        "as they were read"
    )


def test_a_job_cannot_move_twice_at_once() -> None:
    (job,) = queued(1)
    with pytest.raises(LostRaceError):
        move_jobs([placing(job), placing(job)], JobMove.PLACE)
    assert not JobEvent.objects.exists()


def test_jobs_that_set_different_things_do_not_move_together() -> None:
    first, second = queued(2)
    with pytest.raises(ValueError, match="the same names"):
        move_jobs([Moving(first, {}, {}), Moving(second, {"hold_wanted": False}, {})], JobMove.HOLD)


def test_jobs_of_several_states_move_where_the_table_leads_each() -> None:
    (waits,), (held,) = queued(1), queued(1, state="held")
    move_jobs([Moving(waits, {}, {}), Moving(held, {}, {})], JobMove.CANCELLED)
    assert set(JobEvent.objects.values_list("from_state", "to_state")) == {
        ("queued", "cancelled"),
        ("held", "cancelled"),
    }
    with pytest.raises(IllegalJobMoveError):
        move_jobs([Moving(waits, {}, {})], JobMove.PLACE)


@pytest.mark.parametrize("count", [1, 30])
def test_a_crowd_costs_the_queries_of_a_few(count: int) -> None:
    jobs = queued(count)
    with CaptureQueriesContext(connection) as queries:
        move_jobs([placing(job) for job in jobs], JobMove.PLACE)
    assert len(queries) == 4, "the savepoint, the jobs, their events"
    move_jobs([], JobMove.PLACE)


def test_a_job_that_has_changed_since_it_was_read_does_not_move() -> None:
    (read,) = queued(1)
    Job.objects.update(state="held")
    with pytest.raises(LostRaceError):
        move_job(read, JobMove.PLACE, fence=9)
    assert list(Job.objects.values_list("state", "fence")) == [("held", 0)]
    assert not JobEvent.objects.exists()
