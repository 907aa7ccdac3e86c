"""A holder that works keeps its lock however short that is; one that died or lost it does not."""

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from clusters.models import Cluster, Reason, RescheduleEvent
from controlplane.loop.live import lock as locks
from controlplane.loop.live.lock import Renewal, renewed
from controlplane.loop.live.solver import solve_here
from controlplane.loop.live.world import Ports, hold_round
from controlplane.loop.models import Round
from controlplane.loop.tasks import is_held
from jobs.models import Assignment
from policies.contract.plan import Plan
from policies.contract.snapshot import Snapshot
from tests.builders import a_cluster, a_job, a_node
from tests.builders_clocks import Machine

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE_S = 60.0
NEVER_S = 3600.0


def a_cluster_with_work() -> Cluster:
    cluster = a_cluster(policy="fifo")
    a_node(cluster, gpus=1)
    RescheduleEvent.objects.create(cluster=cluster, reason=Reason.SUBMISSION, job=a_job(cluster))
    return cluster


def expiry_of(cluster: Cluster) -> datetime:
    expires = Cluster.objects.values_list("round_expires_at", flat=True).get(pk=cluster.pk)
    assert expires is not None
    return expires


def wait_until_renewed(cluster: Cluster) -> None:
    before, pause = expiry_of(cluster), threading.Event()
    end = timezone.now() + timedelta(seconds=PATIENCE_S)
    while expiry_of(cluster) == before:
        assert timezone.now() < end, "nobody renewed the lock"
        pause.wait(0.02)


def wait_for_threads(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name.startswith(name):
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} goes on"


def test_a_round_whose_policy_thinks_for_long_keeps_its_short_lock_and_is_applied() -> None:
    cluster = a_cluster_with_work()

    def solve(policy: str, parameters: Mapping[str, Any], snapshot: Snapshot) -> Plan:
        for _ in range(3):
            wait_until_renewed(cluster)
        assert (
            locks.acquire(cluster.pk, timezone.now(), timezone.now() + timedelta(seconds=1)) is None
        )
        return solve_here(policy, parameters, snapshot)

    assert hold_round(cluster.pk, Ports(solve, renew_s=0.05)) is not None
    assert Round.objects.get().status == "applied"
    assert Assignment.objects.count() == 1
    cluster.refresh_from_db()
    assert (cluster.round_owner, cluster.round_expires_at) == ("", None)


def test_a_holder_that_lost_its_lock_neither_takes_it_back_nor_applies_anything() -> None:
    cluster = a_cluster_with_work()
    until = timezone.now() + timedelta(days=1)
    successors: list[locks.RoundLock | None] = []

    def solve(policy: str, parameters: Mapping[str, Any], snapshot: Snapshot) -> Plan:
        here = Machine()
        while not any(successors):  # as one that sees no renewal for long
            locks.acquire(cluster.pk, timezone.now(), until, here.watch)
            lock = locks.acquire(cluster.pk, timezone.now(), until, here.after(NEVER_S))
            successors[:] = [lock]
        threading.Event().wait(0.3)
        return solve_here(policy, parameters, snapshot)

    assert hold_round(cluster.pk, Ports(solve, renew_s=0.05)) is None
    (successor,) = successors
    assert successor is not None
    assert not Assignment.objects.exists()
    cluster.refresh_from_db()
    assert (cluster.round_owner, cluster.round_expires_at) == (successor.owner, until)
    assert RescheduleEvent.objects.filter(round=None).exists()


def test_nobody_renews_beyond_what_a_round_may_take() -> None:
    cluster = a_cluster()
    lock = locks.acquire(cluster.pk, timezone.now(), timezone.now() + timedelta(seconds=10))
    assert lock is not None
    with renewed(lock, Renewal(0.3, every_s=0.05)):
        wait_until_renewed(cluster)
        threading.Event().wait(0.5)
        last = expiry_of(cluster)
        threading.Event().wait(0.3)
        assert expiry_of(cluster) == last


def test_a_renewal_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster()
    tries: list[datetime] = []
    real = locks.renew

    def renew(lock: locks.RoundLock, until: datetime) -> bool:
        tries.append(until)
        if len(tries) == 1:
            raise OperationalError("database is locked")
        return real(lock, until)

    monkeypatch.setattr(locks, "renew", renew)
    lock = locks.acquire(cluster.pk, timezone.now(), timezone.now() + timedelta(seconds=10))
    assert lock is not None
    with renewed(
        lock,
        Renewal(NEVER_S, every_s=0.05),
    ):
        wait_until_renewed(cluster)
    assert len(tries) >= 2


def test_a_lock_that_a_full_disk_keeps_is_released_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, real = a_cluster_with_work(), locks.release
    tries: list[locks.RoundLock] = []

    def solve(*_: object) -> Plan:
        raise OperationalError("database or disk is full")

    def release(lock: locks.RoundLock) -> None:
        tries.append(lock)
        if len(tries) < 3:
            raise OperationalError("database or disk is full")
        real(lock)

    monkeypatch.setattr(locks, "release", release)
    monkeypatch.setattr(locks, "END_S", 0.05)
    with pytest.raises(OperationalError):
        hold_round(cluster.pk, Ports(solve))
    wait_for_threads("end of round")  # the tests' database in memory takes no reads meanwhile
    assert not is_held(cluster.pk)
    assert len(tries) == 3
    assert Round.objects.get().status == "abandoned"
    assert hold_round(cluster.pk, Ports(solve_here)) is not None
