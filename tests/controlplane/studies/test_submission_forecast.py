"""Forecast of a job that is not submitted: when and where, or why not."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from clusters.models import Cluster, Node, RescheduleEvent
from controlplane.studies.what_if.submission import forecast_submission
from jobs.forecasts.run_times import remember_run_time
from jobs.models import Assignment, Job, JobEvent
from jobs.services import job_submit
from jobs.submission.refusals import JobConflict
from jobs.submission.validation import JobInvalid
from loadmaster.features import BATCH, LIMITS
from loadmaster.protocol import AssignmentState
from profiling.services import launch_ended
from tests.builders import a_cluster, a_job, a_node, a_team, a_user

PATH = "/api/v1/job-forecasts/"


@pytest.fixture
def user(db: None) -> User:
    return a_user("ada", team=a_team("research"))


@pytest.fixture
def node(db: None) -> Node:
    cluster = a_cluster(name="lab", policy="fifo")
    return a_node(
        cluster, name="volta", gpus=2, cores=8, memory_gb=32, features=["process", BATCH, LIMITS]
    )


def a_script(*options: str) -> dict[str, Any]:
    return {"sbatch": {"script": "#!/bin/sh\ntrue\n", "options": list(options)}, "name": "x"}


def counts() -> list[int]:
    return [model.objects.count() for model in (Job, JobEvent, RescheduleEvent)]


def test_a_job_with_room_would_start_now(user: User, node: Node) -> None:
    forecast = forecast_submission(user, a_script("--test-only", "-n2", "-c2", "-G2"))
    assert (forecast.starts_now, forecast.nodes) == (True, ("volta",))
    assert (forecast.cores, forecast.gpus, forecast.reason) == (4.0, 2, "")


def test_nothing_is_kept_of_a_forecast(user: User, node: Node) -> None:
    before = counts()
    forecast_submission(user, a_script("--test-only"))
    assert counts() == before


def test_a_job_behind_others_starts_after_them(user: User, node: Node) -> None:
    job_submit(user, {**a_script("-t", "60", "-c8"), "name": "first", "priority": 5})
    forecast = forecast_submission(user, a_script("--test-only", "-t", "60", "-c8"))
    assert (forecast.starts_now, forecast.nodes) == (False, ("volta",))
    assert forecast.start is not None
    assert forecast.reason


def test_a_held_job_is_forecast_as_if_released(user: User, node: Node) -> None:
    assert forecast_submission(user, a_script("--test-only", "-H")).starts_now


def test_a_job_that_begins_later_starts_then(user: User, node: Node) -> None:
    forecast = forecast_submission(user, a_script("--begin=2030-05-17T16:00"))
    assert forecast.start is not None
    assert (forecast.start.year, forecast.reason) == (2030, "It would not begin before its time.")


def test_a_job_that_waits_for_another_says_so(user: User, node: Node) -> None:
    first = job_submit(user, a_script()).job
    forecast = forecast_submission(user, {**a_script(), "dependencies": [str(first.pk)]})
    assert (forecast.starts_now, forecast.reason) == (False, "It waits for x to complete.")


def a_training_job(**values: Any) -> dict[str, Any]:
    return {"name": "fit", "steps": 100, "command": "python fit.py", "gpus": 2, **values}


def remember(job: Job, *run_s: float) -> None:
    for each_s in run_s:
        remember_run_time(job, each_s, timezone.now())


def test_first_run_has_an_interval_of_ended_jobs(user: User, node: Node) -> None:
    remember(a_job(node.cluster), *[240.0] * 10, *[7200.0] * 47)
    run_time = forecast_submission(user, a_training_job()).run_time
    assert run_time is not None
    assert run_time.words == "between 4 min and 2 h, as 80% of 57 jobs on this cluster"


def test_first_run_without_ended_jobs_is_unknown(user: User, node: Node) -> None:
    run_time = forecast_submission(user, a_training_job()).run_time
    assert run_time is not None
    assert run_time.words == "unknown until a first run"


@pytest.mark.parametrize("job", [a_script("-t", "60"), a_training_job(walltime="1h")])
def test_job_with_a_walltime_has_no_interval(user: User, node: Node, job: dict[str, Any]) -> None:
    assert forecast_submission(user, job).run_time is None


def test_batch_job_with_a_history_has_no_interval(user: User, node: Node) -> None:
    ended = job_submit(user, a_script()).job
    now = timezone.now()
    launch = Assignment.objects.create(
        job=ended, node=node, gpus=0, fence=1, state=AssignmentState.SUCCEEDED,
        running_at=now - timedelta(seconds=60), ended_at=now,
    )  # fmt: skip
    Job.objects.filter(pk=ended.pk).update(state="completed", completed_at=now)
    launch_ended(launch)
    assert forecast_submission(user, a_script()).run_time is None
    assert forecast_submission(user, {**a_script(), "kind": "new"}).run_time is not None


def test_start_behind_a_first_run_stays_unknown(user: User, node: Node) -> None:
    remember(a_job(node.cluster, state="completed"), *[240.0] * 57)
    job_submit(user, {**a_training_job(), "name": "first", "priority": 5})
    forecast = forecast_submission(user, a_training_job(kind="other"))
    assert (forecast.starts_now, forecast.start) == (False, None)
    assert "Its start is unknown: a job before it runs for the first time." in forecast.reason


def test_what_a_submission_refuses_a_forecast_refuses(user: User, node: Node) -> None:
    with pytest.raises(JobInvalid, match="no node of lab"):
        forecast_submission(user, a_script("--test-only", "-c99"))


def test_a_full_quota_is_a_conflict(user: User, node: Node) -> None:
    team = user.teams.get()
    team.max_queued_jobs = 1
    team.save()
    job_submit(user, a_script())
    with pytest.raises(JobConflict):
        forecast_submission(user, a_script("--test-only"))


def test_a_test_is_not_submitted(user: User, node: Node) -> None:
    with pytest.raises(JobInvalid, match="--test-only asks for a forecast and submits nothing"):
        job_submit(user, a_script("--test-only"))
    assert Job.objects.count() == 0


def test_rest_answers_with_the_forecast(user: User, node: Node, client: Client) -> None:
    client.force_login(user)
    answer = client.post(PATH, a_script("-n2"), content_type="application/json").json()
    assert (answer["starts_now"], answer["nodes"], answer["cores"]) == (True, ["volta"], 2.0)
    assert answer["run_time"]["words"] == "unknown without a walltime"
    refused = client.post(PATH, a_script("--foo"), content_type="application/json")
    assert refused.status_code == 400


def test_strangers_get_no_forecast(node: Node, client: Client) -> None:
    stranger = a_user("eve")
    client.force_login(stranger)
    refused = client.post(PATH, a_script(), content_type="application/json")
    assert refused.status_code == 400
    assert "only members of a team submit" in refused.content.decode()
    assert Cluster.objects.count() == 1
