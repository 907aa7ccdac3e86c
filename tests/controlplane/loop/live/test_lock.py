"""One round per cluster at a time: a row with an owner, an expiry and a number that only grows."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from clusters.models import Cluster
from controlplane.loop.live.lock import (
    EXPIRY_S,
    LostLockError,
    RoundLock,
    acquire,
    check,
    close_for,
    is_held,
    release,
    renew,
)
from controlplane.loop.models import Round
from tests.builders import a_cluster
from tests.builders_clocks import Machine
from tests.interleaving import just_before

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_only_one_round_is_held_at_a_time() -> None:
    cluster = a_cluster()
    first = acquire(cluster.pk, NOW, later(60))
    assert first is not None
    assert first.number == 1
    assert acquire(cluster.pk, later(59), later(119)) is None
    release(first)
    second = acquire(cluster.pk, later(59), later(119))
    assert second is not None
    assert second.number == 2


def test_clusters_do_not_wait_for_each_other() -> None:
    assert acquire(a_cluster().pk, NOW, later(60)) is not None
    assert acquire(a_cluster().pk, NOW, later(60)) is not None


def test_a_round_that_is_not_renewed_is_taken_over_and_may_not_apply_any_more() -> None:
    cluster, here = a_cluster(), Machine()
    slow = acquire(cluster.pk, NOW, later(60))
    assert slow is not None
    assert acquire(cluster.pk, NOW, later(60), here.watch) is None
    assert acquire(cluster.pk, NOW, later(60), here.after(EXPIRY_S - 0.1)) is None
    check(slow, later(60))
    next_one = acquire(cluster.pk, NOW, later(60), here.after(0.1))
    assert next_one is not None
    with pytest.raises(LostLockError, match="round 1"):
        check(slow, later(1))
    check(next_one, later(61))


@pytest.mark.parametrize("skew_s", [-3600, -60, 60, 3600])
def test_no_wall_clock_takes_a_lock_that_is_renewed(skew_s: float) -> None:
    cluster, here = a_cluster(), Machine()
    lock = acquire(cluster.pk, NOW, later(15))
    assert lock is not None
    for _ in range(20):
        assert acquire(cluster.pk, later(skew_s), later(skew_s + 15), here.after(4)) is None
        assert renew(lock, timezone.now())
    check(lock, NOW)


def test_machines_do_not_share_what_they_have_seen_of_a_lock() -> None:
    cluster, here, there = a_cluster(), Machine(), Machine("b", 5000.0)
    assert acquire(cluster.pk, NOW, later(15)) is not None
    cluster.refresh_from_db()
    assert is_held(cluster, here.watch)
    assert is_held(cluster, there.watch), "its clock says nothing about the other's"
    assert not is_held(cluster, here.after(EXPIRY_S))
    assert is_held(cluster, there.after(EXPIRY_S - 1))


def test_a_slow_holder_does_not_release_its_successors_lock() -> None:
    cluster, here = a_cluster(), Machine()
    slow = acquire(cluster.pk, NOW, later(1))
    acquire(cluster.pk, NOW, later(1), here.watch)
    next_one = acquire(cluster.pk, later(2), later(62), here.after(EXPIRY_S))
    assert slow is not None
    assert next_one is not None
    release(slow)
    assert is_held(Cluster.objects.get(pk=cluster.pk), here.watch)


def test_a_renewed_lock_is_held_on_and_a_lost_one_cannot_be_renewed() -> None:
    cluster, here = a_cluster(), Machine()
    first = acquire(cluster.pk, NOW, later(15))
    assert first is not None
    assert acquire(cluster.pk, NOW, later(40), here.watch) is None
    assert renew(first, later(29))
    assert acquire(cluster.pk, NOW, later(40), here.after(EXPIRY_S)) is None
    check(first, later(28))
    second = acquire(cluster.pk, later(29), later(44), here.after(EXPIRY_S))
    assert second is not None
    assert not renew(first, later(90))
    cluster.refresh_from_db()
    assert (cluster.round_owner, cluster.round_expires_at) == (second.owner, later(44))
    release(second)
    assert not renew(second, later(90))
    assert acquire(cluster.pk, later(30), later(40), here.watch) is not None


def test_a_cluster_that_was_closed_stays_so_for_its_time() -> None:
    cluster, here = a_cluster(), Machine()
    close_for(cluster, 100.0, later(100))
    assert acquire(cluster.pk, later(7200), later(7215), here.watch) is None
    assert acquire(cluster.pk, NOW, later(15), here.after(99)) is None
    assert acquire(cluster.pk, NOW, later(15), here.after(1)) is not None


def test_taking_over_marks_the_unfinished_rounds_as_abandoned() -> None:
    cluster = a_cluster()
    for number, status in ((1, "running"), (2, "applied")):
        Round.objects.create(cluster=cluster, number=number, status=status, policy="fifo", seed=1)
    other = Round.objects.create(cluster=a_cluster(), number=1, policy="fifo", seed=1)
    acquire(cluster.pk, NOW, later(60))
    assert list(
        Round.objects.filter(cluster=cluster).order_by("number").values_list("status", flat=True)
    ) == [
        "abandoned",
        "applied",
    ]
    other.refresh_from_db()
    assert other.status == "running"


@pytest.mark.django_db(transaction=True)
def test_what_was_written_before_the_lock_was_found_lost_is_undone() -> None:
    cluster = a_cluster()
    stranger = RoundLock(cluster.pk, 7, "nobody")

    @transaction.atomic
    def change_and_check() -> None:
        Cluster.objects.filter(pk=cluster.pk).update(seed=99)
        check(stranger, NOW)

    with pytest.raises(LostLockError):
        change_and_check()
    assert Cluster.objects.get(pk=cluster.pk).seed == cluster.seed


def test_of_two_that_find_a_lock_free_one_takes_it() -> None:
    cluster = a_cluster()
    taken: list[RoundLock | None] = []

    def take() -> None:
        taken.append(acquire(cluster.pk, NOW, later(60)))

    with just_before(r'UPDATE "clusters_cluster"', take):
        assert acquire(cluster.pk, NOW, later(60)) is None
    assert [lock and lock.number for lock in taken] == [1]


def test_taking_over_leaves_finished_rounds_as_they_are() -> None:
    cluster = a_cluster()
    done = Round.objects.create(cluster=cluster, number=1, policy="fifo", seed=1, status="applied")
    Cluster.objects.update(round_number=1)
    acquire(cluster.pk, NOW, later(60))
    done.refresh_from_db()
    assert done.status == Round.Status.APPLIED
