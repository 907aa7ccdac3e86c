"""Scripts for Slurm that begin later or have a deadline."""

from datetime import timedelta

from django.contrib.auth.models import User
from django.utils import timezone

from clusters.models import Cluster
from controlplane.loop.live.rows import Rows
from jobs.services import job_hold, job_release, job_submit
from jobs.wording.explanation import explain
from tests.builders_sbatch import sbatch, taken


def test_job_is_hidden_from_policies_before_it_begins(user: User, cluster: Cluster) -> None:
    job = job_submit(user, sbatch("-b now+1hour")).job
    now = timezone.now()
    assert list(Rows(cluster, now).jobs) == []
    assert [j.pk for j in Rows(cluster, now + timedelta(hours=2)).jobs] == [job.pk]
    said = explain(job.state, job.waiting_code, job.waiting_detail, {}, now).sentence
    assert said.startswith("It does not begin before ")


def test_released_job_still_waits_for_its_beginning(user: User, cluster: Cluster) -> None:
    job = job_release(job_hold(job_submit(user, sbatch("-b now+1hour")).job, user), user)
    assert (job.state, job.waiting_code, list(Rows(cluster, timezone.now()).jobs)) == (
        "queued",
        "begins_later",
        [],
    )


def test_beginning_in_the_past_is_none(user: User, cluster: Cluster) -> None:
    job = job_submit(user, sbatch("-b now")).job
    assert (job.begin_at, job.retry_at) == (None, None)


def test_deadline_option_is_the_jobs_deadline(user: User, cluster: Cluster) -> None:
    job = taken(user, "--deadline=now+2hours").job
    assert job.deadline_at is not None
    assert timedelta(hours=1) < job.deadline_at - timezone.now() <= timedelta(hours=2)
