"""One round per cluster at a time: a row with an owner, an expiry and a number that only grows."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from clusters.models import Cluster
from controlplane.loop.live.lock import (
    LostLockError,
    RoundLock,
    acquire,
    check,
    is_held,
    release,
    renew,
)
from controlplane.loop.models import Round
from tests.builders import a_cluster

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


def test_a_round_whose_time_is_up_is_taken_over_and_may_not_apply_any_more() -> None:
    cluster = a_cluster()
    slow = acquire(cluster.pk, NOW, later(60))
    assert slow is not None
    with pytest.raises(LostLockError, match="round 1"):
        check(slow, later(60))
    next_one = acquire(cluster.pk, later(60), later(120))
    assert next_one is not None
    with pytest.raises(LostLockError):
        check(slow, later(1))
    check(next_one, later(61))


def test_a_slow_holder_does_not_release_its_successors_lock() -> None:
    cluster = a_cluster()
    slow = acquire(cluster.pk, NOW, later(1))
    next_one = acquire(cluster.pk, later(2), later(62))
    assert slow is not None
    assert next_one is not None
    release(slow)
    assert is_held(Cluster.objects.get(pk=cluster.pk), later(3))


def test_a_renewed_lock_is_held_on_and_a_lost_one_cannot_be_renewed() -> None:
    cluster = a_cluster()
    first = acquire(cluster.pk, NOW, later(15))
    assert first is not None
    assert renew(first, later(29))
    assert acquire(cluster.pk, later(28), later(40)) is None
    check(first, later(28))
    second = acquire(cluster.pk, later(29), later(44))
    assert second is not None
    assert not renew(first, later(90))
    cluster.refresh_from_db()
    assert (cluster.round_owner, cluster.round_expires_at) == (second.owner, later(44))
    release(second)
    assert not renew(second, later(90))
    assert acquire(cluster.pk, later(30), later(40)) is not None


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


def test_a_row_is_held_until_its_expiry() -> None:
    cluster = a_cluster()
    assert not is_held(cluster, NOW)
    acquire(cluster.pk, NOW, later(60))
    cluster.refresh_from_db()
    assert is_held(cluster, later(59))
    assert not is_held(cluster, later(60))


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
