"""Starts that a policy without a schedule is expected to give, by simulation."""

from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Cluster
from controlplane.simulation.world.run import SimulationError
from controlplane.studies import simulated_starts
from controlplane.studies.simulated_starts import forecast_round
from jobs.forecasts.expected_starts import first_forecast, starts_of
from jobs.models import Assignment, Dependency, Forecast, Job
from jobs.services import job_submit
from policies.contract.snapshot import Source
from profiling.models import Profile
from tests.builders import a_cluster, a_gpu_type, a_job, a_kind, a_node, a_team, a_user
from tests.builders_jobs import job_fields
from tests.builders_live import a_round
from tests.builders_pages import a_forecast

pytestmark = pytest.mark.django_db


@pytest.fixture(name="cluster")
def _cluster() -> Cluster:
    """Two GPUs and five jobs of 100 s, first come first served."""
    cluster = a_cluster(policy="fifo")
    a_node(cluster, name="volta", gpu_type=a_gpu_type("V100", idle_w=30.0, peak_w=200.0), gpus=2)
    kind = a_kind("even", steps_per_s={("V100", 1): 1.0})
    for name in "abcde":
        a_job(cluster, name=name, kind=kind, total_steps=100)
    return cluster


def expected(cluster: Cluster) -> dict[str, int]:
    """Hundreds of seconds until each waiting job's expected start."""
    rows = Forecast.objects.filter(job__cluster=cluster).select_related("job")
    return {
        row.job.name: round((row.planned_at - row.made_at).total_seconds() / 100)
        for row in rows
        if row.planned_at
    }


def test_jobs_of_a_policy_without_schedule_are_forecast_by_simulation_once(
    cluster: Cluster,
) -> None:
    a_round(cluster)
    assert expected(cluster) == {}
    for _ in range(2):
        assert forecast_round(cluster.pk)
        assert expected(cluster) == {"c": 1, "d": 1, "e": 2}
    assert Forecast.objects.count() == 3
    last = Forecast.objects.get(job__name="e")
    assert (last.nodes, last.gpus) == (["volta"], 1)
    assert last.end_at is not None


def test_the_newest_round_is_simulated(cluster: Cluster) -> None:
    a_round(cluster)
    newest = a_round(cluster)
    assert forecast_round(cluster.pk)
    assert set(Forecast.objects.values_list("round", flat=True)) == {newest.number}
    assert not forecast_round(cluster.pk + 1)


def test_a_simulation_that_takes_too_long_forecasts_the_starts_it_has_seen(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_round(cluster)
    assert forecast_round(cluster.pk)
    Forecast.objects.filter(job__name="d").delete()
    before = expected(cluster)
    clock = count()
    monkeypatch.setattr("controlplane.simulation.ahead.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(simulated_starts, "BUDGET_S", 2.0)  # two looks at the clock: two rounds
    assert forecast_round(cluster.pk)
    assert expected(cluster) == {**before, "d": 1}, "those it has not seen keep their forecast"


def test_a_policy_that_fails_in_a_simulation_forecasts_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SimulationError("round at 7 s: no plan")

    monkeypatch.setattr(simulated_starts, "run_ahead", fail)
    a_round(cluster)
    assert not forecast_round(cluster.pk)
    assert expected(cluster) == {}


@pytest.mark.parametrize("policy", ["fifo", "backfilling", "cost_search"])
def test_batch_jobs_are_forecast_under_every_policy_by_their_expected_run_times(
    policy: str,
) -> None:
    cluster = a_cluster(policy=policy)
    a_node(cluster, name="cpu", gpus=0, cores=4.0)
    a_node(cluster, name="volta", gpu_type=a_gpu_type("V100", idle_w=30.0, peak_w=200.0), cores=0.5)
    a_job(cluster, name="trains", kind=a_kind("even", steps_per_s={("V100", 1): 1.0}), cores=0.1)
    batch: dict[str, Any] = {
        "batch": True, "gpus_min": 0, "gpus_max": 0, "preemptible": False, "cores": 4.0,
        "kind": a_kind("batch"),
    }  # fmt: skip
    for name in "abc":
        a_job(cluster, name=name, walltime_s=300.0, **batch)
    a_round(cluster)
    forecast_round(cluster.pk)
    assert expected(cluster) == {"b": 3, "c": 6}
    started = Assignment.objects.get(job__name="a")
    assert (started.predicted_run_s, started.predicted_source) == (300.0, "walltime")


BATCH: dict[str, Any] = {
    "batch": True, "gpus_min": 0, "gpus_max": 0, "preemptible": False, "walltime_s": 300.0,
}  # fmt: skip


@pytest.mark.parametrize("policy", ["fifo", "area_backfilling", "cost_search"])
def test_jobs_that_wait_for_others_are_forecast_in_their_turn(policy: str) -> None:
    cluster = a_cluster(policy=policy)
    a_node(cluster, name="cpu", gpus=0, cores=8.0)
    one, two, three = (a_job(cluster, kind=a_kind("batch"), name=n, **BATCH) for n in "abc")
    two.dependencies.add(one)
    three.dependencies.add(two)
    a_round(cluster)
    assert forecast_round(cluster.pk)
    assert expected(cluster) == {"b": 3, "c": 6}
    two.refresh_from_db()
    assert two.waiting_code == "dependency"
    assert two.pk in starts_of([two], timezone.now()).expected


def test_a_job_that_waits_for_an_array_is_expected_when_its_last_element_ends() -> None:
    cluster = a_cluster(policy="area_backfilling")
    a_node(cluster, name="cpu", gpus=0, cores=2.0)
    user = a_user("ada", team=a_team("vision"))
    ends = {"walltime": 300, "on_walltime": "warn"}
    fields = job_fields(name="part", steps=None, gpus=0, array="0-3", **ends)
    array = job_submit(user, fields).job.array
    assert array is not None
    last = job_submit(
        user, job_fields(name="last", steps=None, gpus=0, dependencies=[str(array.pk)])
    ).job
    a_round(cluster)
    assert forecast_round(cluster.pk)
    assert expected(cluster) == {"part": 3, "last": 6}
    last.refresh_from_db()
    assert last.pk in starts_of([last], timezone.now()).expected


def test_a_job_that_waits_for_a_start_is_expected_at_it_or_minutes_after() -> None:
    cluster = a_cluster(policy="area_backfilling")
    a_node(cluster, name="cpu", gpus=0, cores=1.0)
    kind = a_kind("batch")
    first, second, at_start, later, either = (
        a_job(cluster, name=name, kind=kind, **{**BATCH, "walltime_s": 300.0})
        for name in ("first", "second", "at-start", "later", "either")
    )
    Dependency.objects.create(job=at_start, on=second, condition="after")
    Dependency.objects.create(job=later, on=second, condition="after", delay=timedelta(minutes=10))
    Dependency.objects.create(job=either, on=second, condition="afterok", alternative=True)
    Dependency.objects.create(job=either, on=first, condition="afternotok", alternative=True)
    a_round(cluster)
    assert forecast_round(cluster.pk)
    found = expected(cluster)
    assert found == {"second": 3, "at-start": 3, "later": 9, "either": 6}


def test_a_job_whose_turn_nobody_knows_is_told_why() -> None:
    cluster = a_cluster(policy="area_backfilling")
    a_node(cluster, name="cpu", gpus=0, cores=8.0)
    runs, held, after, failed = (a_job(cluster, kind=a_kind("batch"), **BATCH) for _ in range(4))
    Job.objects.filter(pk=held.pk).update(state="held")
    after.dependencies.add(held)
    Dependency.objects.create(job=failed, on=runs, condition="afternotok")
    a_round(cluster)
    assert forecast_round(cluster.pk)
    unknown = starts_of(Job.objects.filter(pk__in=[after.pk, failed.pk]), timezone.now()).unknown
    assert "or is not in the queue" in unknown[after.pk]
    assert "only if a job that it waits for does not complete" in unknown[failed.pk]
    assert expected(cluster) == {}


def test_a_job_behind_one_of_unknown_run_time_is_told_why_it_has_no_start() -> None:
    cluster = a_cluster(policy="backfilling")
    a_node(cluster, name="cpu", gpus=0, cores=4.0)
    batch: dict[str, Any] = {
        "batch": True, "gpus_min": 0, "gpus_max": 0, "preemptible": False, "cores": 4.0,
    }  # fmt: skip
    jobs = [a_job(cluster, kind=a_kind("batch"), **batch) for _ in range(2)]
    a_round(cluster)
    assert forecast_round(cluster.pk)
    waits = jobs[1]
    waits.refresh_from_db()
    found = starts_of([waits], timezone.now())
    assert found.expected == {}
    assert "no known end" in found.unknown[waits.pk]
    assert forecast_round(cluster.pk)
    assert Forecast.objects.filter(job=waits).count() == 1, "it is written once"


def test_how_far_off_the_first_forecast_was_is_told_once_the_job_has_started() -> None:
    job = a_job(a_cluster(), batch=True)
    a_forecast(job, 600.0)
    assert first_forecast(job) is None
    told = job.forecasts.get()
    assert told.start_at is not None
    job.started_at = told.start_at + timedelta(seconds=90)
    job.save()
    found = first_forecast(job)
    assert found is not None
    assert found.later_s == pytest.approx(90.0)
    assert found.words.endswith("later than first forecast")


def test_a_start_behind_a_first_run_is_unknown(cluster: Cluster) -> None:
    new = Job.objects.get(name="a").kind
    Profile.objects.filter(kind=new).update(source=Source.ASSUMED)
    a_round(cluster)
    assert forecast_round(cluster.pk)
    assert expected(cluster) == {}
    whys = set(Forecast.objects.values_list("why", flat=True))
    assert whys == {"a job before it runs for the first time"}


def test_a_start_on_another_node_than_a_first_run_is_known(cluster: Cluster) -> None:
    a_node(cluster, name="tesla", gpu_type=a_gpu_type("T4", idle_w=30.0, peak_w=70.0), gpus=1)
    known = a_kind("known", steps_per_s={("T4", 1): 1.0})
    for name in "fg":
        a_job(cluster, name=name, kind=known, total_steps=100, allowed_types=["T4"])
    Profile.objects.filter(kind__name="even").update(source=Source.ASSUMED)
    Job.objects.filter(kind__name="even").update(allowed_types=["V100"])
    a_round(cluster)
    assert forecast_round(cluster.pk)
    assert expected(cluster) == {"g": 1}
