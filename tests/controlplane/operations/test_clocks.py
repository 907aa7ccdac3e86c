"""Jumps of clocks and their skew are told, and silence is counted anew after a jump."""

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest
from axes.models import AccessAttempt
from django.core.cache import cache
from django.test import Client
from django.utils import timezone
from redis.exceptions import RedisError

from clusters.services import devices
from controlplane.execution.reconciler import reconcile_clusters
from controlplane.execution.services import heartbeats
from controlplane.execution.services.agent_clocks import AgentClocks
from controlplane.operations import clocks, tasks
from controlplane.operations.clocks import WallClock, note_jump
from controlplane.operations.prometheus import StateCollector, exposition
from controlplane.web.storage import watch
from controlplane.web.storage.watch import boot_s, machine, sign_age_s
from jobs.models import Job
from tests.builders import a_cluster, a_job
from tests.builders_agents import a_heartbeat, a_node_with_agent, heartbeat
from tests.builders_clocks import Machine


def reread(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


class Hand:
    """Wall and boot clock of a process, set by hand."""

    def __init__(self) -> None:
        self.wall_s, self.here = 2e9, Machine()
        self.clock = WallClock(lambda: self.wall_s, lambda: self.here.now_s)

    def after(self, seconds: float, jump_s: float = 0.0) -> bool:
        self.here.now_s += seconds
        self.wall_s += seconds + jump_s
        return note_jump(self.clock, self.here.watch)


@pytest.mark.parametrize("jump_s", [-3600.0, -60.0, -2.5, 2.5, 60.0, 3600.0])
def test_a_jump_is_noticed_once_and_counts_silence_anew(jump_s: float) -> None:
    hand = Hand()
    hand.here.watch.still_s({"node": "1"})
    assert not hand.after(2)
    assert hand.here.watch.still_s({"node": "1"}) == {"node": 2.0}
    assert hand.after(2, jump_s)
    assert hand.here.watch.still_s({"node": "1"}) == {"node": 0.0}
    assert not hand.after(2)
    assert hand.here.watch.still_s({"node": "1"}) == {"node": 2.0}
    found = clocks.jumps()
    assert found is not None
    assert (found.number, round(found.last_s, 3)) == (1, jump_s)


def test_a_drift_of_a_twentieth_and_a_slow_correction_are_no_jumps() -> None:
    hand = Hand()
    hand.after(2)
    assert not any(hand.after(seconds, 0.05 * seconds) for seconds in (2, 60, 600))
    assert not any(hand.after(2, 1.9) for _ in range(10))


def test_a_jump_that_another_process_of_the_machine_has_noted_counts_once() -> None:
    hand, other = Hand(), Hand()
    hand.after(2), other.after(2)
    assert hand.after(2, 60.0)
    found = clocks.jumps()
    assert found is not None
    cache.set(clocks.KEY, asdict(replace(found, process=found.process + 1)))
    assert not other.after(2, 60.0)
    assert hand.after(2, 60.0) is False, "as near to that one as if it were the same"
    cache.set(clocks.KEY, asdict(replace(found, machine="elsewhere")))
    assert hand.after(2, 60.0)


@pytest.mark.django_db
def test_ready_and_metrics_tell_of_jumps_and_skew(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand, node = Hand(), a_node_with_agent()
    hand.after(2)
    hand.after(2, -60.0)
    monkeypatch.setattr(heartbeats, "AGENT_CLOCKS", AgentClocks())
    monkeypatch.setattr("controlplane.execution.services.agent_clocks.EVERY_S", 0.0)
    heartbeat(node.pk, replace(a_heartbeat(), sent_at_s=0.0))
    told = client.get("/readyz").json()["clocks"]
    assert (told["jumps"], told["last_jump_s"]) == (1, -60.0)
    least_s, most_s = told["agents_skew_s"]
    assert least_s == most_s < -1e9
    text = exposition([StateCollector()]).decode()
    assert "loadmaster_clock_jumps_total 1.0" in text
    assert 'loadmaster_agents_clock_skew_seconds{end="least"} -1' in text


@pytest.fixture
def after_a_jump(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Make a pass of the reconciler after so many seconds' jump of this process's wall clock."""
    clock = WallClock()
    monkeypatch.setattr(note_jump, "__defaults__", (clock, Machine().watch))

    note_jump()

    def reconcile(jump_s: float) -> None:
        wall = clock.wall
        clock.wall = lambda: wall() + jump_s
        tasks.reconcile()

    return reconcile


@pytest.mark.django_db
def test_the_reconciler_looks_for_jumps_and_ends_what_would_last_as_long_as_one(
    after_a_jump: Callable[[float], None],
) -> None:
    for name in ("ada", "bob"):
        AccessAttempt.objects.create(username=name, failures_since_start=1)
    ahead = timezone.now() + timedelta(hours=1)
    AccessAttempt.objects.filter(username="ada").update(attempt_time=ahead)
    cache.set(devices._FLUSHING, True, 3600)
    after_a_jump(0.0)
    assert clocks.jumps() is None
    assert cache.get(devices._FLUSHING)
    after_a_jump(-3600.0)
    found = clocks.jumps()
    assert found is not None
    assert round(found.last_s) == -3600
    assert cache.get(devices._FLUSHING) is None
    assert [attempt.username for attempt in AccessAttempt.objects.all()] == ["bob"]


@pytest.mark.django_db
def test_no_deadline_passes_by_a_jump_that_may_be_taken_back(
    after_a_jump: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = a_cluster()
    job = a_job(cluster, deadline_at=timezone.now() - timedelta(seconds=1))
    long_over = a_job(cluster, deadline_at=timezone.now() - timedelta(hours=2))
    after_a_jump(3600.0)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(clocks, "machine", lambda: "elsewhere")
        other = Hand()
        other.after(2), other.after(2, -3600.0)
    tasks.reconcile()  # this machine's clock is as doubtful as before
    assert [reread(each).state for each in (job, long_over)] == ["queued", "failed"]
    monkeypatch.setattr(clocks, "DOUBT_S", 0.0)
    tasks.reconcile()
    assert "deadline passed" in reread(job).failure_reason


@pytest.mark.django_db
def test_a_clock_that_was_set_right_again_is_not_ahead(
    after_a_jump: Callable[[float], None],
) -> None:
    for jump_s, ahead_s in ((60.0, 60.0), (-60.0, 0.0), (5.0, 5.0), (5.0, 10.0), (-60.0, 0.0)):
        after_a_jump(jump_s)
        assert round(clocks.ahead_s()) == ahead_s


@pytest.mark.django_db
@pytest.mark.parametrize(("jump_s", "metered"), [(-3600.0, 1), (60.0, 1), (90_000.0, 0)])
def test_no_energy_is_metered_for_hours_to_come(
    after_a_jump: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
    jump_s: float,
    metered: int,
) -> None:
    after_a_jump(jump_s)
    monkeypatch.setattr(tasks, "meter", meter := Mock())
    tasks.meter_energy()
    assert meter.call_count == metered


@pytest.mark.django_db
def test_no_deadline_passes_while_jumps_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_job(a_cluster(), deadline_at=timezone.now() - timedelta(days=300))
    monkeypatch.setattr(clocks, "_recent_jumps", Mock(side_effect=RedisError))
    reconcile_clusters(doubt_s=clocks.ahead_s())
    assert reread(job).state == "queued"


@pytest.mark.django_db
def test_later_failures_of_a_clock_that_was_set_back_while_nobody_looked_go_by_the_hour() -> None:
    AccessAttempt.objects.create(username="ada", failures_since_start=1)
    AccessAttempt.objects.update(attempt_time=timezone.now() + timedelta(hours=1))
    tasks.prune_old()
    assert not AccessAttempt.objects.exists()


def test_what_has_changed_has_stood_still_from_then_on() -> None:
    here = Machine()
    for after_s, stamp, still_s in ((0, "1", 0.0), (5, "1", 5.0), (5, "2", 0.0), (3, "2", 3.0)):
        assert here.after(after_s).still_s({"node": stamp}) == {"node": still_s}


def test_a_machine_has_another_name_after_each_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    monkeypatch.setattr(watch, "_PROC", tmp_path)
    names = set()
    for boot_id in ("first", "second", "second"):
        boot.write_text(boot_id)
        names.add(machine.__wrapped__())
    assert len(names) == 2


def test_a_sign_of_this_machine_has_its_age_by_the_boot_clock_alone() -> None:
    at_s = boot_s()
    age_s = cast(float, sign_age_s("beat", [machine(), at_s - 5]))
    assert 5.0 <= age_s < 65.0
    assert sign_age_s("beat", ["elsewhere", 1e12]) == 0.0, "as long as this machine has seen it"
    assert sign_age_s("beat", 2e9) is None, "of an older version"
