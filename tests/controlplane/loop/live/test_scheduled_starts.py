"""Forecasts as rounds store them: one row a job until it moves, scored once the job has started."""

from typing import Any

import pytest

from clusters.models import Cluster, Node
from controlplane.loop.live.world import Solve
from jobs.forecasts.expected_starts import starts_of
from jobs.forecasts.scheduled_starts import simulate_paced
from jobs.forecasts.storage import calibrated, score_of
from jobs.models import Forecast, Job
from policies.contract.plan import LAST_S, Expected, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import Snapshot
from tests.builders import a_job
from tests.builders_live import a_round, placing, utc

pytestmark = pytest.mark.django_db


def expecting(
    start_s: float | None,
    status: PlanStatus = PlanStatus.HEURISTIC,
    code: WaitCode = WaitCode.NO_CAPACITY,
) -> Solve:
    """A policy that expects each job at that time, on the only node."""

    def solve(_policy: str, _parameters: Any, snapshot: Snapshot) -> Plan:
        node = snapshot.nodes[0].id
        expected = None if start_s is None else Expected(start_s, start_s + 60.0, (node,), 1)
        first, *others = (Waiting(job.id, code, expected=expected) for job in snapshot.jobs)
        other = Waiting(first.job, first.code, expected=Expected(start_s or 9e8, None, (node,), 1))
        return Plan("told", status, waiting=(other if others else first, *others))

    return solve


def starts(job: Job) -> list[float | None]:
    planned = job.forecasts.order_by("pk").values_list("planned_at", flat=True)
    return [at.timestamp() if at else None for at in planned]


@pytest.mark.parametrize(
    ("later_s", "stored"),
    [
        (1100.0, [1100.0]),
        (1190.0, [1100.0]),
        (1300.0, [1100.0, 1300.0]),
        (50.0, [1100.0, 110.0]),
    ],
)
def test_a_forecast_is_written_once_and_again_only_where_it_moved(
    cluster: Cluster, node: Node, later_s: float, stored: list[float]
) -> None:
    waits = a_job(cluster)
    for at_s, start_s in ((100.0, 1100.0), (110.0, later_s)):
        a_round(cluster, expecting(start_s), at_s=at_s)
    assert starts(waits) == stored
    first = waits.forecasts.order_by("pk")[0]
    assert (first.first, first.nodes, first.gpus) == (True, [node.name], 1)
    low, start, high, end = (
        moment.timestamp() if moment else 0.0
        for moment in (first.low_at, first.start_at, first.high_at, first.end_at)
    )
    assert 100.0 <= low <= start <= high
    assert end - start == pytest.approx(60.0)


def test_a_job_that_is_predicted_to_run_for_ever_has_a_start_but_no_end_and_none_starts_after_it(
    cluster: Cluster, node: Node
) -> None:
    jobs = [a_job(cluster), a_job(cluster)]

    def solve(_policy: str, _parameters: Any, snapshot: Snapshot) -> Plan:
        node, at_s = snapshot.nodes[0].id, {str(jobs[0].pk): 1100.0, str(jobs[1].pk): LAST_S}
        waits = (
            Waiting(j.id, WaitCode.NO_CAPACITY, expected=Expected(at_s[j.id], LAST_S, (node,), 1))
            for j in snapshot.jobs
        )
        return Plan("told", PlanStatus.HEURISTIC, waiting=tuple(waits))

    a_round(cluster, solve, at_s=100.0)
    found = starts_of(jobs, utc(2000.0)).expected
    assert {job: e.end for job, e in found.items()} == {jobs[0].pk: None}


def test_a_start_that_is_no_longer_expected_is_taken_back_and_a_failed_policy_takes_nothing_back(
    cluster: Cluster, node: Node
) -> None:
    other, waits = a_job(cluster, name="other"), a_job(cluster, name="waits")
    a_round(cluster, expecting(1100.0), at_s=100.0)
    a_round(cluster, expecting(None, PlanStatus.KEPT), at_s=110.0)
    assert [len(starts(job)) for job in (other, waits)] == [1, 1]
    Job.objects.update(labels=["on no node"])
    a_round(cluster, expecting(None), at_s=120.0)
    assert None in (starts(other)[-1], starts(waits)[-1])


def test_jobs_that_a_schedule_leaves_out_are_simulated_and_keep_their_forecast_until_then(
    cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        "jobs.forecasts.scheduled_starts.current_app.send_task",
        lambda name, args, **_: asked.append((name, args)),
    )
    jobs = [a_job(cluster), a_job(cluster)]
    a_round(cluster, expecting(1100.0), at_s=100.0)
    assert asked == []
    a_round(cluster, expecting(None), at_s=120.0)
    assert [args for _, args in asked] == [(cluster.pk,)]
    assert sorted(starts(job)[-1] or 0.0 for job in jobs) == [1100.0, 9e8]


def test_a_plan_without_a_schedule_asks_for_a_simulation(
    cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[Any, ...]]()
    monkeypatch.setattr(
        "jobs.forecasts.scheduled_starts.current_app.send_task",
        lambda name, given, countdown: asked.append((name, given)),  # no instant at which it ends
    )
    a_job(cluster)
    a_round(cluster, placing())
    task = "controlplane.studies.tasks.forecast_starts"
    assert asked == [(task, (cluster.pk,))]
    assert not Forecast.objects.exists()


def test_jobs_that_only_wait_for_others_ask_for_a_simulation_too(
    cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[Any, ...]]()
    monkeypatch.setattr(
        "jobs.forecasts.scheduled_starts.current_app.send_task",
        lambda name, given, **_: asked.append(given),
    )
    a_round(cluster, placing())
    assert asked == [], "nothing waits"
    a_job(cluster, name="after").dependencies.add(a_job(cluster, state="held"))
    a_round(cluster, placing())
    assert asked == [(cluster.pk,)]


@pytest.mark.parametrize(("start_s", "drift"), [(2100.0, 0.5), (850.0, -1 / 3)])
def test_the_first_forecast_is_scored_against_the_start_and_teaches_the_next_one(
    cluster: Cluster, node: Node, start_s: float, drift: float
) -> None:
    waits = a_job(cluster)
    assert score_of(cluster.pk) is None
    a_round(cluster, expecting(1100.0), at_s=100.0)
    a_round(cluster, expecting(1600.0), at_s=110.0)
    assert score_of(cluster.pk) is None
    Job.objects.filter(pk=waits.pk).update(started_at=utc(start_s))
    score = score_of(cluster.pk)
    assert score is not None
    assert (score.jobs, score.inside) == (1, 1.0)
    assert score.error == pytest.approx(abs(drift))
    assert score.drift == pytest.approx(drift)
    assert calibrated(cluster.pk).interval(0.0, 1.0) == calibrated(-1).interval(0.0, 1.0)


def test_rounds_that_follow_each_other_ask_once_and_a_long_simulation_is_followed_by_a_rest(
    cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = list[float]()
    monkeypatch.setattr(
        "jobs.forecasts.scheduled_starts.current_app.send_task",
        lambda *_, countdown, **__: delays.append(countdown),
    )
    clock = iter([10.0, 11.0, 20.0, 60.0])
    monkeypatch.setattr("jobs.forecasts.scheduled_starts.time.monotonic", lambda: next(clock))
    a_job(cluster)
    for _ in range(3):
        a_round(cluster, placing())
    assert delays == [0.0]
    for _ in range(2):
        simulate_paced(cluster.pk, lambda _: None)
        a_round(cluster, placing())
    assert delays == [0.0, 9.0, 20.0], "nine times as long, and at most 20 s"
