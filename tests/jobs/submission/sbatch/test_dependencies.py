"""Scripts for Slurm that wait for other jobs and arrays."""

import pytest
from django.contrib.auth.models import User

from clusters.models import Cluster
from jobs.models import Job
from jobs.services import job_submit
from tests.builders import a_team, a_user
from tests.builders_sbatch import refused, sbatch


def test_numbers_name_jobs_arrays_and_elements(user: User, cluster: Cluster) -> None:
    one = job_submit(user, sbatch()).job
    array = job_submit(user, sbatch("-a 1-3")).job.array
    assert array is not None
    numbers = one.number, array.number
    waiting = job_submit(user, sbatch(f"-d afterok:{numbers[0]}:{numbers[1]}:{numbers[1]}_2")).job
    links = {(d.on_id, d.on_array_id) for d in waiting.dependency_links.all()}
    element = array.jobs.get(array_index=2)
    assert links == {(one.pk, None), (None, array.pk), (element.pk, None)}


def test_number_of_an_invisible_job_names_none(user: User, cluster: Cluster) -> None:
    stranger = a_user("eve", team=a_team("others"))
    number = job_submit(stranger, sbatch()).job.number
    assert "there is no job" in refused(user, f"-d afterok:{number}")["dependencies"][0]


def test_singleton_waits_for_own_jobs_of_its_name(user: User, cluster: Cluster) -> None:
    one = job_submit(user, sbatch("-J same")).job
    array = job_submit(user, sbatch("-J same -a 1-3")).job.array
    job_submit(user, sbatch("-J other"))
    team = user.teams.get()
    colleague = a_user("bea", team=team)
    job_submit(colleague, sbatch("-J same"))
    ended = job_submit(user, sbatch("-J same")).job
    Job.objects.filter(pk=ended.pk).update(state="completed")
    waiting = job_submit(user, sbatch("-J same -d singleton")).job
    links = waiting.dependency_links.values_list("on", "on_array", "condition")
    assert array is not None
    assert set(links) == {(one.pk, None, "afterany"), (None, array.pk, "afterany")}


def test_singleton_may_name_a_job_of_its_name(user: User, cluster: Cluster) -> None:
    one = job_submit(user, sbatch("-J same")).job
    waiting = job_submit(user, sbatch(f"-J same -d singleton,afterok:{one.number}")).job
    assert [link.condition for link in waiting.dependency_links.all()] == ["afterok"]


def test_singleton_behind_too_many_jobs_is_refused(
    user: User, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.submission.waits.MOST_OF_ONE_NAME", 1)
    for _ in range(2):
        job_submit(user, sbatch("-J same"))
    said = refused(user, "-J same -d singleton")["dependencies"][0]
    assert "singleton: waits for at most 1 jobs, and more are called same" in said


def test_numbers_behind_a_comma_wait_for_any_end(user: User, cluster: Cluster) -> None:
    one, two = (job_submit(user, sbatch()).job for _ in range(2))
    waiting = job_submit(user, sbatch(f"-d afterok:{one.number},{two.number}")).job
    links = {link.on_id: link.condition for link in waiting.dependency_links.all()}
    assert links == {one.pk: "afterok", two.pk: "afterany"}
