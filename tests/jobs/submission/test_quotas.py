"""Limits of teams: what exceeds them is refused with the limit and who can raise it."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from clusters.models import Cluster
from jobs.arrays.actions import array_act
from jobs.models import Job, Team, UnfinishedArray
from jobs.services import job_clone, job_release, job_requeue, job_submit
from jobs.submission.refusals import JobConflict, QuotaReached
from jobs.submission.submit import Asked, Submission, submit_all
from jobs.submission.validation import JobInvalid
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_jobs import api, job_fields

pytestmark = pytest.mark.django_db
JOBS, BULK = "/api/v1/jobs/", "/api/v1/jobs/bulk/"


@pytest.fixture
def team() -> Team:
    return a_team("vision")


@pytest.fixture
def user(team: Team) -> User:
    return a_user("ada", team=team)


@pytest.fixture(autouse=True)
def cluster() -> Cluster:
    cluster = a_cluster()
    a_node(cluster, gpu_type="V100", gpus=8, cores=64, memory_gb=256)
    return cluster


def limit(team: Team, **limits: Any) -> None:
    """Set limits of the team."""
    Team.objects.filter(pk=team.pk).update(**limits)


def submit(user: User, **fields: Any) -> Submission:
    return job_submit(user, job_fields(**fields))


@pytest.mark.parametrize("field", ["tardiness_weight", "priority", "weight"])
def test_no_member_asks_for_a_million(user: User, field: str) -> None:
    with pytest.raises(JobInvalid) as refused:
        submit(user, **{field: 1_000_000})
    (said,) = refused.value.fields[field]
    most = {"tardiness_weight": 1, "priority": 10, "weight": 10}[field]
    assert said == (
        f"must be at most {most}, not 1e+06, or ask an operator to raise max_{field} of team vision"
    )
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("field", "most"), [("tardiness_weight", 0.01), ("priority", 0), ("weight", 1.0)]
)
def test_the_ceiling_itself_may_be_asked_for_and_no_more(
    team: Team, user: User, field: str, most: float
) -> None:
    limit(team, **{f"max_{field}": most})
    assert submit(user, **{field: most}).created
    with pytest.raises(JobInvalid):
        submit(user, **{field: most + 1})
    assert submit(user).created, "a job that does not ask for it"


def test_another_team_has_limits_of_its_own(team: Team, user: User) -> None:
    limit(team, max_priority=0, max_queued_jobs=1)
    other = a_user("eve", team=a_team("speech"))
    assert submit(other, priority=3).created
    assert submit(user).created, "the job of another team takes no room"


def test_a_job_of_more_gpus_than_its_team_may_use_is_refused(team: Team, user: User) -> None:
    limit(team, max_gpus=2)
    with pytest.raises(JobInvalid) as refused:
        submit(user, gpus=4)
    assert refused.value.fields["gpus"] == [
        "team vision may use 2 GPUs at a time, not 4, or ask an operator to raise max_gpus of team"
        " vision"
    ]
    assert submit(user, gpus="2..8").created, "which can run with as many as the team may use"


def test_a_queue_takes_as_many_jobs_as_its_limit(team: Team, user: User) -> None:
    limit(team, max_queued_jobs=2)
    submit(user, name="a")
    submit(user, name="b", hold=True)
    with pytest.raises(QuotaReached) as refused:
        submit(user, name="c")
    assert str(refused.value) == (
        "team vision has 2 jobs in the queue and may have 2; let some end, or ask an operator to"
        " raise max_queued_jobs of team vision"
    )
    Job.objects.filter(name="a").update(state="running")
    assert submit(user, name="c").created, "for one that runs is no longer in the queue"


def test_an_array_takes_the_room_of_all_its_elements(team: Team, user: User) -> None:
    limit(team, max_queued_jobs=10)
    submit(user, array="0-7")
    with pytest.raises(QuotaReached):
        submit(user, array="0-2")
    assert Job.objects.count() == 8
    assert submit(user, array="0-1").created


def test_of_many_jobs_in_one_call_those_beyond_the_limit_are_refused(
    team: Team, user: User
) -> None:
    limit(team, max_queued_jobs=2)
    items = [{"job": job_fields(name=f"j{i}"), "idempotency_key": f"k{i}"} for i in range(3)]
    answer = api(user).post(BULK, {"jobs": [*items, items[2]]}, format="json")
    assert answer.status_code == 207
    errors = [result["error"] for result in answer.json()["results"]]
    assert errors[:2] == [None, None]
    assert [e["code"] for e in errors[2:]] == ["conflict", "conflict"]
    assert "max_queued_jobs" in errors[2]["detail"]
    assert Job.objects.count() == 2
    Job.objects.update(state="running")
    again = api(user).post(BULK, {"jobs": items}, format="json")
    assert again.status_code == 201, "the key of a refused job is still free"


def test_the_same_key_gives_the_same_job_though_the_queue_is_full(team: Team, user: User) -> None:
    limit(team, max_queued_jobs=1)
    first, again = (job_submit(user, job_fields(), "key") for _ in range(2))
    assert (again.job, again.created) == (first.job, False)


def test_submissions_beyond_the_limit_of_a_minute_are_429(team: Team, user: User) -> None:
    limit(team, max_submissions_per_minute=2)
    client = api(user)
    assert client.post(JOBS, job_fields(array="0-4"), format="json").status_code == 201
    assert client.post(JOBS, job_fields(), format="json").status_code == 201
    refused = client.post(JOBS, job_fields(), format="json")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    assert refused.json()["error"] == {
        "code": "throttled",
        "detail": "team vision may submit 2 jobs or arrays a minute; wait a minute, or ask an"
        " operator to raise max_submissions_per_minute of team vision",
    }
    bulk = client.post(BULK, {"jobs": [{"job": job_fields()}]}, format="json")
    assert bulk.json()["results"][0]["error"]["code"] == "throttled"
    Job.objects.update(submitted_at=timezone.now() - timedelta(seconds=61))
    assert client.post(JOBS, job_fields(), format="json").status_code == 201


def test_submissions_of_a_time_when_the_clock_was_ahead_do_not_count(
    team: Team, user: User
) -> None:
    limit(team, max_submissions_per_minute=1)
    submit(user)
    Job.objects.update(submitted_at=timezone.now() + timedelta(hours=1))
    submit(user)
    with pytest.raises(QuotaReached):
        submit(user)


def test_a_full_queue_is_409_by_rest_and_said_on_the_page(team: Team, user: User) -> None:
    limit(team, max_queued_jobs=1)
    assert api(user).post(JOBS, job_fields(), format="json").status_code == 201
    refused = api(user).post(JOBS, job_fields(), format="json")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    page = Client()
    page.force_login(user)
    form = {"name": "digits", "command": "python train.py", "epochs": 1, "steps_per_epoch": 9}
    answer = page.post(reverse("submit"), {**form, "gpus": "1"})
    assert "and may have 1; let some end, or ask an operator" in answer.content.decode()
    assert Job.objects.count() == 1


def test_a_clone_is_held_to_the_limits_too(team: Team, user: User, cluster: Cluster) -> None:
    old = a_job(cluster, team=team, user=user, priority=500, state="completed")
    with pytest.raises(JobInvalid) as refused:
        job_clone(old, user)
    assert list(refused.value.fields) == ["priority"]
    assert job_clone(old, user, {"priority": 1}).created


def test_a_requeued_job_is_held_to_the_limits_too(team: Team, user: User, cluster: Cluster) -> None:
    greedy = a_job(cluster, team=team, user=user, tardiness_weight=1e6, state="failed")
    with pytest.raises(JobConflict, match=r"tardiness_weight: must be at most 1, .* or clone"):
        job_requeue(greedy, user)
    limit(team, max_queued_jobs=1)
    modest = a_job(cluster, team=team, user=user, state="failed")
    waiting = a_job(cluster, team=team, user=user, state="held")
    with pytest.raises(QuotaReached):
        job_requeue(modest, user)
    job_release(waiting, user)
    waiting.refresh_from_db()
    assert waiting.state == "queued", "a held job is in the queue already"


def test_requeueing_an_array_takes_room_for_all_or_none(team: Team, user: User) -> None:
    array = submit(user, array="0-3").job.array
    assert array is not None
    Job.objects.update(state="failed", completed_at=timezone.now())
    limit(team, max_queued_jobs=3)
    with pytest.raises(QuotaReached):
        array_act("requeue", array, user)
    assert set(Job.objects.values_list("state", flat=True)) == {"failed"}
    limit(team, max_queued_jobs=4)
    assert array_act("requeue", array, user) == 4


def test_lowered_limits_leave_what_is_there(team: Team, user: User) -> None:
    jobs = [submit(user, priority=9).job for _ in range(3)]
    limit(team, max_priority=1, max_queued_jobs=1, max_gpus=0)
    assert {job.state for job in Job.objects.all()} == {"queued"}
    assert {job.priority for job in Job.objects.filter(pk__in=[j.pk for j in jobs])} == {9}


def test_a_team_without_limits_of_its_own_is_not_locked(team: Team, user: User) -> None:
    submit(user)
    with CaptureQueriesContext(connection) as without:
        submit(user)
    limit(team, max_queued_jobs=9, max_submissions_per_minute=9)
    with CaptureQueriesContext(connection) as limited:
        submit(user)
    locks_and_counts_submissions = 3
    assert len(limited) - len(without) == locks_and_counts_submissions


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_many_at_once_do_not_pass_the_limit_together(team: Team, user: User) -> None:
    assert connection.vendor == "postgresql", "run with tests/with-postgres"
    limit(team, max_queued_jobs=5)

    def one(number: int) -> bool:
        try:
            return submit_all([Asked(user, job_fields(name=f"j{number}"))]) != []
        except QuotaReached:
            return False
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(24)))
    assert Job.objects.count() == 5


def test_a_team_without_a_limit_has_that_of_the_installation(
    team: Team, user: User, settings: Any
) -> None:
    settings.MAX_QUEUED_JOBS = 3
    submit(user, array="0-2", steps=None)
    with pytest.raises(QuotaReached, match=r"may have 3; .* raise max_queued_jobs of team vision"):
        submit(user)
    limit(team, max_queued_jobs=4)
    submit(user)
    limit(team, max_queued_jobs=None)
    settings.MAX_QUEUED_JOBS = 0
    submit(user)


def test_submissions_of_another_team_do_not_count(team: Team, user: User) -> None:
    limit(team, max_submissions_per_minute=1)
    submit(a_user("eve", team=a_team("speech")))
    assert submit(user).created


def test_submissions_of_more_than_a_minute_ago_do_not_count(team: Team, user: User) -> None:
    limit(team, max_submissions_per_minute=1)
    submit(user)
    Job.objects.update(submitted_at=timezone.now() - timedelta(seconds=61))
    assert submit(user).created


def test_unwritten_elements_of_another_team_take_no_room(team: Team, user: User) -> None:
    limit(team, max_queued_jobs=1)
    other = submit(a_user("eve", team=a_team("speech")), array="0-4").job
    assert other.array is not None
    UnfinishedArray.objects.create(team=other.team, array=other.array, written=1, rest={})
    assert submit(user).created
