"""A plan's profile runs come true beside their jobs, which go on waiting."""

from __future__ import annotations

from typing import Any

import pytest

from clusters.models import Assignment, Cluster
from jobs.models import Job
from policies.plan import Plan
from profiling.models import ProfileRun
from tests.builders import a_job, a_kind, a_node
from tests.builders_live import a_round, changes_of, placing, refused, taken

pytestmark = pytest.mark.django_db


def a_round_of_profiling(cluster: Cluster) -> Job:
    """A job of an unknown kind on a cluster whose node may profile, after the round that placed its first run."""
    node = a_node(cluster, gpus=1, role="profiling")
    job = a_job(cluster, name="new", kind=a_kind(), state="profiling", checkpoint_steps=30)
    ProfileRun.objects.create(kind=job.kind, job=job, gpu_type=node.gpu_type, gpus=1, steps=20, copy=3)
    a_round(cluster, placing())
    return job


def test_a_profile_run_is_offered_beside_its_job_which_goes_on_waiting(cluster: Cluster) -> None:
    job = a_round_of_profiling(cluster)
    run = Assignment.objects.get()
    job.refresh_from_db()
    assert (job.state, job.fence, job.checkpoint_steps) == ("profiling", 1, 30)
    assert (run.purpose, run.copy, run.steps_quota, run.fence, run.start_steps) == ("profiling", 3, 20, 1, 0)
    assert run.attempt is None
    assert ProfileRun.objects.get().state == "running"
    assert [e.event for e in job.events.all()] == ["profile_run"]


def test_a_profile_run_under_way_is_kept_by_the_next_round(cluster: Cluster) -> None:
    a_round_of_profiling(cluster)
    taken(Assignment.objects.get())
    row = a_round(cluster, placing())
    assert changes_of(row) == {"new": "keep"}
    assert Assignment.objects.get().desired == "run"


def test_a_profile_run_whose_job_was_meanwhile_cancelled_is_not_launched(cluster: Cluster) -> None:
    node = a_node(cluster, gpus=1, role="profiling")
    job = a_job(cluster, name="new", kind=a_kind(), state="profiling")
    ProfileRun.objects.create(kind=job.kind, job=job, gpu_type=node.gpu_type, gpus=1, steps=20, copy=0)

    def meanwhile(*given: Any) -> Plan:
        Job.objects.filter(pk=job.pk).update(state="cancelled")
        return placing()(*given)

    assert refused(a_round(cluster, meanwhile)) == {"new": "stale"}
    assert not Assignment.objects.exists()
