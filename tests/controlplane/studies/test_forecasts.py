"""Starts that a policy without a schedule is expected to give, by simulation."""

from itertools import count

import pytest

from clusters.models import Cluster
from controlplane.simulation.world.run import SimulationError
from controlplane.studies import forecasts
from controlplane.studies.forecasts import forecast_round
from jobs.models import Forecast
from tests.builders import a_cluster, a_gpu_type, a_job, a_kind, a_node
from tests.builders_live import a_round

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
    row = a_round(cluster)
    assert expected(cluster) == {}
    for _ in range(2):
        assert forecast_round(cluster.pk, row.number)
        assert expected(cluster) == {"c": 1, "d": 1, "e": 2}
    assert Forecast.objects.count() == 3
    last = Forecast.objects.get(job__name="e")
    assert (last.nodes, last.gpus) == (["volta"], 1)
    assert last.end_at is not None


def test_only_the_newest_round_is_simulated(cluster: Cluster) -> None:
    before, _ = a_round(cluster), a_round(cluster)
    assert not forecast_round(cluster.pk, before.number)
    assert not forecast_round(cluster.pk + 1, 1)


def test_a_simulation_that_takes_too_long_forecasts_the_starts_it_has_seen(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = a_round(cluster)
    assert forecast_round(cluster.pk, row.number)
    Forecast.objects.filter(job__name="d").delete()
    before = expected(cluster)
    clock = count()
    monkeypatch.setattr("controlplane.simulation.ahead.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(forecasts, "BUDGET_S", 2.0)  # two looks at the clock: two rounds
    assert forecast_round(cluster.pk, row.number)
    assert expected(cluster) == {**before, "d": 1}, "those it has not seen keep their forecast"


def test_a_policy_that_fails_in_a_simulation_forecasts_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SimulationError("round at 7 s: no plan")

    monkeypatch.setattr(forecasts, "run_ahead", fail)
    row = a_round(cluster)
    assert not forecast_round(cluster.pk, row.number)
    assert expected(cluster) == {}
