"""A live cluster's history says what no policy is told: kills, arrays and dependencies."""

from datetime import timedelta
from typing import Any

import pytest

from clusters.models import Cluster
from controlplane.simulation.workloads import load
from controlplane.studies.live_cluster import history
from jobs.models import Dependency, Job, JobArray
from tests.builders import a_cluster, a_job, a_kind, a_node, a_team, a_user

pytestmark = pytest.mark.django_db


def the_history(cluster: Cluster, *jobs: Job) -> dict[str, Any]:
    document = history(a_user(operator=True), cluster, 1.0)
    assert {job["id"] for job in document["jobs"]} == {str(job.pk) for job in jobs}
    return document


def test_a_history_has_the_rules_of_its_jobs() -> None:
    cluster, kind, team = a_cluster(), a_kind(steps_per_s={("V100", 1): 1.0}), a_team()
    a_node(cluster)
    array = JobArray.objects.create(indices="0-1", size=2, lowest=0, highest=1, at_once=1)
    one, two = (a_job(cluster, kind=kind, team=team, array=array, array_index=i) for i in range(2))
    kills = a_job(cluster, kind=kind, team=team, walltime_s=60.0, on_walltime="kill")
    waits = a_job(cluster, kind=kind, team=team)
    Dependency.objects.create(job=waits, on=kills, condition="afternotok")
    Dependency.objects.create(job=waits, on_array=array, condition="afterany")
    document = the_history(cluster, one, two, kills, waits)
    by_id = {job["id"]: job for job in document["jobs"]}
    assert document["arrays"] == {str(array.pk): 1}
    assert by_id[str(one.pk)]["array"] == str(array.pk)
    assert by_id[str(kills.pk)]["on_walltime"] == "kill"
    assert "on_walltime" not in by_id[str(one.pk)]
    rules = load(document, 1).rules
    assert rules.kills == {str(kills.pk): True}
    conditions = {(after.jobs, str(after.condition)) for after in rules.after[str(waits.pk)]}
    elements = tuple(str(job.pk) for job in (one, two))
    assert conditions == {((str(kills.pk),), "afternotok"), (elements, "afterany")}


def test_dependencies_on_what_a_history_does_not_have_are_left_out() -> None:
    cluster, kind, team = a_cluster(), a_kind(steps_per_s={("V100", 1): 1.0}), a_team()
    a_node(cluster)
    array = JobArray.objects.create(indices="0-1", size=2, lowest=0, highest=1)
    element = a_job(cluster, kind=kind, team=team, array=array, array_index=0)
    gone = a_job(cluster, kind=kind, team=team, array=array, array_index=1, state="cancelled")
    waits = a_job(cluster, kind=kind, team=team)
    Dependency.objects.create(job=waits, on=gone, condition="afterany")
    Dependency.objects.create(job=waits, on_array=array, condition="afterany")
    document = the_history(cluster, element, waits)
    assert "arrays" not in document
    assert load(document, 1).rules.after == {}


def test_a_history_has_starts_and_alternatives_that_jobs_waited_for() -> None:
    cluster, kind, team = a_cluster(), a_kind(steps_per_s={("V100", 1): 1.0}), a_team()
    a_node(cluster)
    one, two, follows, either, lacking = (a_job(cluster, kind=kind, team=team) for _ in range(5))
    gone = a_job(cluster, kind=kind, team=team, state="cancelled")
    delay = timedelta(minutes=7)
    Dependency.objects.create(job=follows, on=one, condition="after", delay=delay)
    for on in (one, two):
        Dependency.objects.create(job=either, on=on, condition="afterok", alternative=True)
    for on in (one, gone):
        Dependency.objects.create(job=lacking, on=on, condition="afterany", alternative=True)
    document = the_history(cluster, one, two, follows, either, lacking)
    rules = load(document, 1).rules
    (start,) = rules.after[str(follows.pk)]
    assert (start.jobs, str(start.condition), start.delay_s) == ((str(one.pk),), "after", 420.0)
    assert {after.alternative for after in rules.after[str(either.pk)]} == {True}
    assert str(lacking.pk) not in rules.after, "the job that is gone may have let it start"
