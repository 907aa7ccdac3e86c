"""Where jobs run now: worked out anew only for who has moved, with what working out all of them comes to."""

from __future__ import annotations

from dataclasses import replace

from policies.mechanisms.homes import Home, homes_of
from policies.shares.observe import division_of
from policies.snapshot import Snapshot
from tests.builders_policies import a_device, a_job, a_node, a_snapshot, on

NODES = [a_node("n1", gpus=2), a_node("n2", gpus=2)]
STAYS, AT_FIRST, MOVED = on("n1", "gpu0"), on("n1", "gpu1"), on("n2", "gpu0")


def seen(snapshot: Snapshot) -> dict[int, Home]:
    return homes_of(division_of(snapshot))


def before() -> Snapshot:
    snapshot = a_snapshot(NODES, [a_job("a", running=STAYS), a_job("b", running=AT_FIRST)])
    assert snapshot.lasting is not snapshot.standing  # both asked for here, so that what follows has them too
    return snapshot


def test_who_has_not_moved_has_the_same_home_and_who_has_moved_a_new_one() -> None:
    first = before()
    homes = seen(first)
    jobs = a_snapshot(NODES, [a_job("a", running=STAYS), a_job("b", running=MOVED)]).jobs
    later = seen(first.following(jobs=jobs))
    assert later[0] is homes[0]
    assert (homes[1].places, later[1].places) == (((0, ("gpu1",)),), ((1, ("gpu0",)),))


def test_who_has_come_into_the_place_of_another_has_a_home_of_its_own() -> None:
    first = before()
    seen(first)
    jobs = a_snapshot(NODES, [a_job("b", running=AT_FIRST), a_job("c", running=MOVED)]).jobs
    following = first.following(jobs=jobs)
    assert seen(following) == seen(replace(following))
    assert seen(following)[0].places == ((0, ("gpu1",)),)


def test_a_home_is_lost_with_its_device() -> None:
    first = before()
    seen(first)
    broken = a_node("n1", devices=(a_device("gpu0", healthy=False), a_device("gpu1")))
    assert list(seen(first.following(nodes=(broken, NODES[1])))) == [1]
