"""Events, and the Celery entries that answer them: each may be lost, doubled or late, and nothing
goes wrong.
"""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone
from kombu.exceptions import OperationalError

from clusters.events import ROUND_TASK, request_reschedule
from clusters.models import Cluster, Reason, RescheduleEvent
from controlplane.celery import app
from controlplane.loop import tasks
from controlplane.loop.live.lock import acquire, release
from controlplane.loop.live.solver import solve_here
from controlplane.loop.live.world import Ports
from controlplane.loop.models import Round
from controlplane.operations.tasks import periodic_rounds, reconcile, write_samples
from controlplane.studies.running.workers import SIMULATION_TASK
from jobs.models import Assignment
from loadmaster.protocol import DeviceSample
from tests.builders import a_cluster, a_job, a_node
from tests.builders_agents import a_heartbeat, a_node_with_agent, heartbeat
from tests.builders_live import IN_ONE_TRANSACTION_S, a_round

pytestmark = pytest.mark.django_db


BACKOFF = tasks.BACKOFF


class Hints(list[tuple[int, Any]]):
    """What was enqueued instead of being run: (cluster, countdown)."""


@pytest.fixture(autouse=True)
def hints(monkeypatch: pytest.MonkeyPatch) -> Hints:
    """No broker: hints are collected, and rounds solved in this process. None is followed by a
    backoff, however slow this machine is.
    """
    found = Hints()
    monkeypatch.setattr(tasks, "BACKOFF", 0)

    def send(
        name: str, args: tuple[int], *_: Any, countdown: float | None = None, **__: Any
    ) -> None:
        if name == ROUND_TASK:  # not the forecast that follows a round
            found.append((*args, countdown))

    monkeypatch.setattr(app, "send_task", send)
    monkeypatch.setattr("controlplane.loop.tasks.solve_in_child", solve_here)
    monkeypatch.setattr("controlplane.loop.tasks.await_solver", lambda: None)
    long = partial(Ports, expiry_s=IN_ONE_TRANSACTION_S, renew_s=IN_ONE_TRANSACTION_S)
    monkeypatch.setattr("controlplane.loop.tasks.Ports", long)
    return found


def a_waiting_event(
    cluster: Cluster, seconds_ago: float = 0.0, reason: Reason = Reason.OPERATOR
) -> RescheduleEvent:
    event = request_reschedule(cluster, reason)
    RescheduleEvent.objects.filter(pk=event.pk).update(
        created_at=timezone.now() - timedelta(seconds=seconds_ago)
    )
    return event


def test_an_event_hints_the_worker_only_once_it_is_committed(
    hints: Hints, django_capture_on_commit_callbacks: Any
) -> None:
    cluster = a_cluster()
    with django_capture_on_commit_callbacks(execute=True):
        request_reschedule(cluster, Reason.OPERATOR)
        assert not hints
    assert hints == [(cluster.pk, None)]


def test_while_a_hint_is_on_its_way_events_send_no_other_one(
    hints: Hints, django_capture_on_commit_callbacks: Any
) -> None:
    cluster, other = a_cluster(), a_cluster()
    with django_capture_on_commit_callbacks(execute=True):
        for where in (cluster, cluster, other, cluster):
            request_reschedule(where, Reason.SUBMISSION)
    assert hints == [(cluster.pk, None), (other.pk, None)]


def test_what_is_written_once_a_hint_has_arrived_sends_one_of_its_own(
    hints: Hints, django_capture_on_commit_callbacks: Any
) -> None:
    cluster = a_cluster(policy="fifo")
    for _ in range(2):
        with django_capture_on_commit_callbacks(execute=True):
            request_reschedule(cluster, Reason.OPERATOR)
        tasks.run_cluster_round(cluster.pk)
    assert hints == [(cluster.pk, None)] * 2


def test_without_the_cache_every_event_hints(
    hints: Hints, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    def away(*_: Any) -> None:
        raise ConnectionError("the cache is away")

    for call in ("add", "delete_many"):
        monkeypatch.setattr(f"clusters.events.cache.{call}", away)
    cluster = a_cluster(policy="fifo")
    with django_capture_on_commit_callbacks(execute=True):
        request_reschedule(cluster, Reason.OPERATOR)
        request_reschedule(cluster, Reason.OPERATOR)
    tasks.run_cluster_round(cluster.pk)
    assert hints == [(cluster.pk, None)] * 2
    assert not RescheduleEvent.objects.filter(round=None).exists()


def test_an_event_stays_though_the_broker_is_gone_which_takes_a_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    django_capture_on_commit_callbacks: Any,
) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(app, "send_task", gone)
    cluster = a_cluster()
    with django_capture_on_commit_callbacks(execute=True):
        request_reschedule(cluster, Reason.OPERATOR)
    assert tasks.overdue_clusters(timezone.now() + timedelta(seconds=5)) == [cluster.pk]
    assert [(r.levelname, r.exc_info) for r in caplog.records] == [("WARNING", None)]
    assert "connection refused" in caplog.text


def test_waiting_events_are_answered_together_and_a_doubled_task_does_nothing(hints: Hints) -> None:
    cluster = a_cluster(policy="fifo")
    a_node(cluster)
    for _ in range(3):
        request_reschedule(cluster, Reason.SUBMISSION, job=a_job(cluster))
    tasks.run_cluster_round(cluster.pk)
    tasks.run_cluster_round(cluster.pk)
    assert Round.objects.get().events.count() == 3
    assert Assignment.objects.count() == 2
    assert not hints


def test_a_task_that_finds_another_round_held_leaves_at_once() -> None:
    cluster = a_cluster()
    event = a_waiting_event(cluster)
    acquire(cluster.pk, timezone.now(), timezone.now() + timedelta(seconds=60))
    tasks.run_cluster_round(cluster.pk)
    event.refresh_from_db()
    assert event.round is None
    assert not Round.objects.exists()


def test_events_that_come_while_a_round_is_held_send_one_hint_for_all(
    hints: Hints, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    monkeypatch.setattr("clusters.events.HINT_LIVES_S", 3600)  # however slow this machine is
    cluster = a_cluster(policy="fifo")
    acquire(cluster.pk, timezone.now(), timezone.now() + timedelta(seconds=3600))
    for _ in range(2):
        with django_capture_on_commit_callbacks(execute=True):
            request_reschedule(cluster, Reason.SUBMISSION)
        tasks.run_cluster_round(cluster.pk)
    assert hints == [(cluster.pk, None)]
    assert not Round.objects.exists()


def test_events_that_come_while_a_cluster_rests_are_answered_as_soon_as_it_has_rested(
    hints: Hints, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    monkeypatch.setattr("clusters.events.HINT_LIVES_S", 3600)
    monkeypatch.setattr(tasks, "backoff_s", lambda *_: 3.5)
    cluster = a_cluster(policy="fifo")
    tasks.run_cluster_round(cluster.pk)
    assert not hints, "nothing waits for the end of this rest"
    for _ in range(2):
        with django_capture_on_commit_callbacks(execute=True):
            request_reschedule(cluster, Reason.SUBMISSION)
        tasks.run_cluster_round(cluster.pk)
    assert hints == [(cluster.pk, None), (cluster.pk, 3.5)], (
        "one hint for both, and one for the end of the rest"
    )
    assert not Round.objects.exists()
    monkeypatch.setattr(tasks, "backoff_s", lambda *_: 0.0)
    tasks.run_cluster_round(cluster.pk)
    assert Round.objects.get().events.count() == 2


def test_events_that_a_long_round_leaves_waiting_are_answered_after_its_rest(
    monkeypatch: pytest.MonkeyPatch, hints: Hints
) -> None:
    cluster = a_cluster(policy="fifo")
    a_waiting_event(cluster)

    def meanwhile(*given: Any) -> Any:
        a_waiting_event(cluster)
        monkeypatch.setattr(tasks, "backoff_s", lambda *_: 4.0)
        return solve_here(*given)

    monkeypatch.setattr("controlplane.loop.tasks.solve_in_child", meanwhile)
    tasks.run_cluster_round(cluster.pk)
    assert Round.objects.count() == 1
    assert hints == [(cluster.pk, 4.0)]


def test_a_round_is_not_held_before_its_solver_is_warm_so_that_no_rest_follows_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = a_cluster(policy="fifo")
    a_waiting_event(cluster)
    held: list[bool] = []
    monkeypatch.setattr(
        "controlplane.loop.tasks.await_solver",
        lambda: held.append(tasks.is_held(cluster.pk)),
    )
    tasks.run_cluster_round(cluster.pk)
    assert held == [False]
    assert Round.objects.count() == 1


def test_whoever_has_held_a_round_lets_hints_be_sent_again(
    hints: Hints, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    monkeypatch.setattr("clusters.events.HINT_LIVES_S", 3600)
    cluster = a_cluster(policy="fifo")
    for round_number in (1, 2):
        with django_capture_on_commit_callbacks(execute=True):
            request_reschedule(cluster, Reason.SUBMISSION)
        lock = acquire(cluster.pk, timezone.now(), timezone.now() + timedelta(seconds=60))
        assert lock is not None
        tasks.run_cluster_round(cluster.pk)  # finds it held
        release(lock)
        tasks.run_cluster_round(cluster.pk)  # as the holder does once more
        assert hints == [(cluster.pk, None)] * round_number


def test_events_that_come_while_a_round_is_held_are_answered_together_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch, hints: Hints, django_capture_on_commit_callbacks: Any
) -> None:
    monkeypatch.setattr("clusters.events.HINT_LIVES_S", 3600)
    cluster = a_cluster(policy="fifo")
    a_waiting_event(cluster)

    def meanwhile(*given: Any) -> Any:
        if Round.objects.count() == 1:
            a_waiting_event(cluster, reason=Reason.TARIFF)
        return solve_here(*given)

    monkeypatch.setattr("controlplane.loop.tasks.solve_in_child", meanwhile)
    tasks.run_cluster_round(cluster.pk)
    assert hints == [(cluster.pk, 0.0)]
    with django_capture_on_commit_callbacks(execute=True):
        request_reschedule(cluster, Reason.SUBMISSION)
    assert hints == [(cluster.pk, 0.0)], "the hint that is on its way answers this one too"
    tasks.run_cluster_round(cluster.pk)
    assert list(Round.objects.order_by("number").values_list("reasons", flat=True)) == [
        ["operator"],
        ["tariff", "submission"],
    ]


@pytest.mark.parametrize(
    ("took_s", "rests_s"), [(0.04, 0.08), (0.2, 0.1), (0.9, 0.1), (2.0, 4.0), (60.0, 5.0)]
)
def test_a_cluster_rests_after_a_round_for_twice_as_long_but_never_for_long(
    monkeypatch: pytest.MonkeyPatch, took_s: float, rests_s: float
) -> None:
    monkeypatch.setattr(tasks, "BACKOFF", BACKOFF)
    cluster = a_cluster()
    row = Round.objects.create(cluster=cluster, number=1, status="applied", policy="fifo", seed=1)
    ended = timezone.now()
    Round.objects.filter(pk=row.pk).update(
        started_at=ended - timedelta(seconds=0.75 * took_s),
        ended_at=ended,
        snapshot_s=0.25 * took_s,
    )
    assert tasks.backoff_s(cluster.pk, ended) == pytest.approx(rests_s)
    assert tasks.backoff_s(cluster.pk, ended + timedelta(seconds=0.05)) == pytest.approx(
        max(0.0, rests_s - 0.05)
    )
    assert tasks.backoff_s(cluster.pk, ended + timedelta(seconds=rests_s)) == 0.0


def test_a_policy_that_does_not_exist_keeps_what_runs_and_answers_the_event() -> None:
    cluster = a_cluster(policy="nobody_knows_it")
    a_node(cluster)
    a_job(cluster)
    a_waiting_event(cluster)
    tasks.run_cluster_round(cluster.pk)
    row = Round.objects.get()
    assert (row.status, row.plan_status) == ("kept", "kept")
    assert "nobody_knows_it" in row.message
    assert cluster.jobs.get().waiting_code == "solver_failed"
    assert not RescheduleEvent.objects.filter(round=None).exists()


def test_a_round_is_due_a_period_after_the_last_one_whatever_its_cause() -> None:
    cluster = a_cluster(policy="fifo", period_s=100.0)
    now = timezone.now()
    assert tasks.ask_for_periodic_rounds(now) == [cluster]
    assert tasks.ask_for_periodic_rounds(now) == [], "one is waiting already"
    a_round(cluster)
    last = Cluster.objects.get().last_round_at
    assert last is not None
    assert tasks.ask_for_periodic_rounds(last + timedelta(seconds=99)) == []
    assert tasks.ask_for_periodic_rounds(last + timedelta(seconds=100)) == [cluster]


def test_the_periodic_task_asks_for_the_rounds_that_are_due() -> None:
    cluster = a_cluster()
    periodic_rounds()
    assert list(RescheduleEvent.objects.values_list("cluster", "reason")) == [
        (cluster.pk, "periodic")
    ]


def test_what_the_clock_sends_are_tasks() -> None:
    app.loader.import_default_modules()
    assert {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()} <= set(app.tasks)


def test_what_lower_layers_name_are_tasks() -> None:
    app.loader.import_default_modules()
    assert {ROUND_TASK, SIMULATION_TASK} <= set(app.tasks)


def test_samples_are_written_by_a_task_of_their_own_also_while_the_reconciler_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = a_node_with_agent(gpus=1)
    sample = DeviceSample(node.devices.get().uuid, power_w=180.0)
    heartbeat(node.pk, a_heartbeat(devices=(sample,)))
    monkeypatch.setattr("controlplane.operations.tasks.reconcile_clusters", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        reconcile()
    write_samples()
    assert node.devices.get().power_w == 180.0


def test_events_whose_hint_was_lost_are_found(hints: Hints) -> None:
    late, fresh, held = a_cluster(), a_cluster(), a_cluster()
    a_waiting_event(late, 3.0)
    a_waiting_event(fresh, 0.5)
    a_waiting_event(held, 3.0)
    acquire(held.pk, timezone.now(), timezone.now() + timedelta(seconds=60))
    reconcile()
    assert hints == [(late.pk, None)]


def test_a_round_that_is_not_renewed_is_marked_as_abandoned_and_its_events_are_found(
    hints: Hints, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = a_cluster()
    a_waiting_event(cluster, 100.0)
    lock = acquire(cluster.pk, timezone.now(), timezone.now() + timedelta(seconds=15))
    assert lock is not None
    row = Round.objects.create(cluster=cluster, number=lock.number, policy="fifo", seed=1)
    reconcile()
    assert not hints
    monkeypatch.setattr("controlplane.loop.live.lock.EXPIRY_S", 0.0)
    reconcile()
    row.refresh_from_db()
    assert row.status == "abandoned"
    assert hints == [(cluster.pk, None)]
