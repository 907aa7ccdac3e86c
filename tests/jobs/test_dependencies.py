"""Dependencies that keep a job waiting, or let it never start, by the states of the other jobs."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Cluster
from jobs.dependencies import impossible, in_job_file, unsatisfied
from jobs.models import Dependency, Job, JobArray
from jobs.services import job_clone, job_data, job_submit
from jobs.submission.elements import _dependencies as elements_dependencies
from jobs.submission.validation import JobInvalid
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_jobs import job_fields

pytestmark = pytest.mark.django_db

NOW = timezone.now()
MINUTE = timedelta(minutes=1)


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


def ago(minutes: float) -> datetime:
    return NOW - minutes * MINUTE


def waits(job: Job, now: datetime = NOW) -> bool:
    return job.dependency_links.filter(unsatisfied(now)).exists()


def never(job: Job) -> bool:
    return job.dependency_links.filter(impossible()).exists()


STARTS: list[tuple[dict[str, Any], float, bool]] = [
    ({"state": "queued"}, 0, True),
    ({"state": "held"}, 0, True),
    ({"state": "starting"}, 0, True),
    ({"state": "running", "started_at": ago(3)}, 0, False),
    ({"state": "running", "started_at": ago(3)}, 5, True),
    ({"state": "running", "started_at": ago(6)}, 5, False),
    ({"state": "stopping", "started_at": ago(6)}, 5, False),
    ({"state": "queued", "started_at": ago(6)}, 5, False),
    ({"state": "completed", "started_at": ago(6), "completed_at": ago(1)}, 5, False),
    ({"state": "failed", "started_at": ago(3), "completed_at": ago(1)}, 5, True),
    ({"state": "cancelled", "completed_at": ago(1)}, 0, False),
    ({"state": "cancelled", "completed_at": ago(1)}, 5, True),
    ({"state": "cancelled", "completed_at": ago(6)}, 5, False),
]
"""A job, minutes after its start, and whether one that waits for them still waits."""


@pytest.mark.parametrize(("other", "minutes", "still"), STARTS)
def test_a_job_waits_for_a_start_and_minutes_after_it(
    cluster: Cluster, other: dict[str, Any], minutes: float, still: bool
) -> None:
    job = a_job(cluster)
    on = a_job(cluster, **other)
    Dependency.objects.create(job=job, on=on, condition="after", delay=minutes * MINUTE)
    assert (waits(job), never(job)) == (still, False)


@pytest.mark.parametrize(("other", "minutes", "still"), STARTS)
def test_an_array_starts_with_its_last_element(
    cluster: Cluster, other: dict[str, Any], minutes: float, still: bool
) -> None:
    array = JobArray.objects.create(indices="0-1", size=2, lowest=0, highest=1)
    a_job(cluster, array=array, array_index=0, state="running", started_at=ago(60))
    a_job(cluster, array=array, array_index=1, **other)
    job = a_job(cluster)
    Dependency.objects.create(job=job, on_array=array, condition="after", delay=minutes * MINUTE)
    assert (waits(job), never(job)) == (still, False)


def test_the_minutes_pass_without_anything_else(cluster: Cluster) -> None:
    job = a_job(cluster)
    on = a_job(cluster, state="running", started_at=NOW)
    Dependency.objects.create(job=job, on=on, condition="after", delay=5 * MINUTE)
    assert waits(job, NOW + 4.9 * MINUTE)
    assert not waits(job, NOW + 5.1 * MINUTE)


@pytest.mark.parametrize(
    ("others", "still", "is_lost"),
    [
        ([("queued", "afterok"), ("queued", "afterany")], True, False),
        ([("completed", "afterok"), ("queued", "afterany")], False, False),
        ([("failed", "afterok"), ("queued", "afterany")], True, False),
        ([("failed", "afterok"), ("failed", "afterany")], False, False),
        ([("failed", "afterok"), ("completed", "afternotok")], True, True),
        ([("failed", "afterok")], True, True),
        ([("queued", "afterok"), ("running", "after")], False, False),
    ],
)
def test_of_alternatives_one_suffices(
    cluster: Cluster, others: list[tuple[str, str]], still: bool, is_lost: bool
) -> None:
    job = a_job(cluster)
    for state, condition in others:
        started_at = ago(1) if state == "running" else None
        on = a_job(cluster, state=state, started_at=started_at)
        Dependency.objects.create(job=job, on=on, condition=condition, alternative=True)
    assert (waits(job), never(job)) == (still, is_lost)


def test_alternatives_of_one_job_say_nothing_about_another(cluster: Cluster) -> None:
    done = a_job(cluster, state="completed")
    open_one = a_job(cluster)
    first, second = a_job(cluster), a_job(cluster)
    Dependency.objects.create(job=first, on=done, alternative=True)
    Dependency.objects.create(job=second, on=open_one, alternative=True)
    assert (waits(first), waits(second)) == (False, True)


def test_alternatives_among_arrays_are_told_apart(cluster: Cluster) -> None:
    array = JobArray.objects.create(indices="0-1", size=2, lowest=0, highest=1)
    for index, state in enumerate(("completed", "failed")):
        a_job(cluster, array=array, array_index=index, state=state)
    job = a_job(cluster)
    Dependency.objects.create(job=job, on_array=array, condition="afterok", alternative=True)
    assert (waits(job), never(job)) == (True, True)
    Dependency.objects.create(job=job, on=a_job(cluster), condition="afterok", alternative=True)
    assert (waits(job), never(job)) == (True, False)


def test_arrays_that_an_older_version_began_to_write_are_finished(cluster: Cluster) -> None:
    on = a_job(cluster)
    job = a_job(cluster, array_index=3)
    waits_of_old = {"dependencies": [[str(on.pk), None, "afterany"]], "of_index": {}}
    (link,) = elements_dependencies([job], waits_of_old)
    assert (link.on_id, link.condition, link.delay) == (on.pk, "afterany", timedelta(0))
    assert not link.alternative


class TestSubmission:
    """Dependencies as users write them."""

    @pytest.fixture(autouse=True)
    def site(self, cluster: Cluster) -> None:
        a_node(cluster, gpus=0, cores=8)
        self.team = a_team("research")
        self.user = a_user("ada", team=self.team)
        self.one, self.two = (a_job(cluster, team=self.team) for _ in range(2))

    def submitted(self, *dependencies: str, **fields: Any) -> Job:
        data = job_fields(steps=None, gpus=0, dependencies=list(dependencies), **fields)
        return job_submit(self.user, data).job

    def refused(self, *dependencies: str, **fields: Any) -> str:
        with pytest.raises(JobInvalid) as raised:
            self.submitted(*dependencies, **fields)
        return raised.value.fields["dependencies"][0]

    def test_a_start_is_kept_with_its_minutes(self) -> None:
        job = self.submitted(f"after:{self.one.pk}+90", f"after:{self.two.number}")
        links = {link.on: (link.condition, link.delay) for link in job.dependency_links.all()}
        assert links[self.one] == ("after", 90 * MINUTE)
        assert links[self.two] == ("after", timedelta(0))
        texts = [f"after:{self.one.pk}+90", f"after:{self.two.pk}"]
        assert sorted(job_data(job)["dependencies"]) == sorted(texts)

    def test_alternatives_are_one_text_and_cloned_as_such(self) -> None:
        job = self.submitted(f"{self.one.number}?afterany:{self.two.pk}")
        assert all(link.alternative for link in job.dependency_links.all())
        (text,) = job_data(job)["dependencies"]
        assert set(text.split("?")) == {str(self.one.pk), f"afterany:{self.two.pk}"}
        clone = job_clone(job, self.user).job
        assert in_job_file(clone.dependency_links.all()) == [text]

    def test_alternatives_beside_others_are_refused(self) -> None:
        one, two = self.one.pk, self.two.pk
        assert "write one text a?b if one suffices" in self.refused(f"{one}?{two}", str(two))
        assert "singleton goes with commas only" in self.refused(f"{one}?singleton")

    def test_an_alternative_that_cannot_come_is_kept_beside_one_that_can(self) -> None:
        Job.objects.filter(pk=self.one.pk).update(state="failed")
        assert "can never be satisfied" in self.refused(str(self.one.pk))
        assert "can never be satisfied" in self.refused(f"{self.one.pk}?afterok:{self.one.pk}")
        assert waits(self.submitted(f"{self.one.pk}?{self.two.pk}"))

    def test_minutes_of_another_condition_are_refused(self) -> None:
        assert "is none" in self.refused(f"afterok:{self.one.pk}+5")

    def test_all_elements_of_a_large_array_wait_alike(self) -> None:
        first = self.submitted(f"after:{self.one.pk}+3?{self.two.pk}", array="0-299")
        assert first.array is not None
        links = Dependency.objects.filter(job__array=first.array)
        kinds = set(links.values_list("on", "condition", "delay", "alternative"))
        assert kinds == {
            (self.one.pk, "after", 3 * MINUTE, True),
            (self.two.pk, "afterok", timedelta(0), True),
        }
        assert links.count() == 600

    def test_elements_may_wait_for_one_of_two_arrays(self) -> None:
        arrays = [self.submitted(array="0-2").array for _ in range(2)]
        text = "?".join(f"aftercorr:{array.pk}" for array in arrays if array)
        element = self.submitted(text, array="0-2")
        links = element.dependency_links.values_list("on__array_index", "alternative")
        assert list(links) == [(0, True), (0, True)]

    def test_a_singleton_waits_for_the_end_of_a_job_named_by_its_start(self) -> None:
        Job.objects.filter(pk=self.one.pk).update(name="same", user=self.user)
        job = self.submitted("singleton", f"after:{self.one.pk}", name="same")
        assert [link.condition for link in job.dependency_links.all()] == ["afterany"]
