"""Where jobs run now: worked out anew only for who has moved, with what working out all of them
comes to.
"""

from __future__ import annotations

from dataclasses import replace

from policies.contract.snapshot import Snapshot
from policies.gavel.allocation.observe import observe
from policies.placement.homes import Home, homes_of
from tests.builders_policies import a_device, a_job, a_node, a_snapshot, on

NODES = [a_node("n1", gpus=2), a_node("n2", gpus=2)]
STAYS, AT_FIRST, MOVED = on("n1", "gpu0"), on("n1", "gpu1"), on("n2", "gpu0")


def seen(snapshot: Snapshot) -> dict[int, Home]:
    return homes_of(observe(snapshot))


def before() -> Snapshot:
    snapshot = a_snapshot(NODES, [a_job("a", running=STAYS), a_job("b", running=AT_FIRST)])
    assert (
        snapshot.lasting is not snapshot.standing
    )  # both asked for here, so that what follows has them too
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
    later = a_snapshot(NODES, [a_job("b", running=AT_FIRST), a_job("c", running=MOVED)])
    following = first.following(jobs=later.jobs, nodes=later.nodes)
    assert following.standing is first.standing
    assert seen(following) == seen(later)
    assert [seen(following)[e].places for e in range(2)] == [((0, ("gpu1",)),), ((1, ("gpu0",)),)]


def test_who_has_become_another_kind_of_job_may_have_no_home_where_it_runs() -> None:
    first = before()
    seen(first)
    wider = a_snapshot(
        NODES, [a_job("a", running=STAYS, gpus_min=2, gpus_max=2), a_job("b", running=AT_FIRST)]
    ).jobs
    assert list(seen(first.following(jobs=wider))) == [1]


def test_a_home_is_lost_with_its_device() -> None:
    first = before()
    seen(first)
    broken = a_node("n1", devices=(a_device("gpu0", healthy=False), a_device("gpu1")))
    assert list(seen(first.following(nodes=(broken, NODES[1])))) == [1]


def test_a_home_is_lost_with_its_device_where_another_has_been_mended() -> None:
    broken, well = a_device("gpu0", healthy=False), a_device("gpu1")
    first = a_snapshot(
        [a_node("n1", devices=(broken, well))], [a_job("a", running=on("n1", "gpu1"))]
    )
    assert first.standing == {}  # asked for, so that what follows has it too
    assert list(seen(first)) == [0]
    after = replace(
        first.nodes[0],
        devices=(replace(broken, healthy=True), replace(first.nodes[0].devices[1], healthy=False)),
    )
    assert list(seen(first.following(nodes=(after,)))) == []
