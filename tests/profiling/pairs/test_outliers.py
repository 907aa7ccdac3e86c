"""A pair's speed far from what is known waits for a second run."""

import pytest

from clusters.models import Cluster, Node, Reason, RescheduleEvent
from jobs.models import JobEvent, Kind
from profiling.models import PairMeasurement, PairProfile, Profile
from profiling.outliers import OUTLIER
from profiling.services import production_measured
from tests.builders import a_kind, at
from tests.builders_sharing import (
    a_known_pair,
    a_shared_launch,
    a_shared_node,
    a_sharing_job,
    step_until,
)

pytestmark = pytest.mark.django_db

ALONE = 2.0
FAR = ALONE * OUTLIER * 2


@pytest.fixture
def kinds() -> tuple[Kind, Kind]:
    first, second = (a_kind(steps_per_s={("V100", 1): ALONE}) for _ in range(2))
    return first, second


def show(cluster: Cluster, kinds: tuple[Kind, Kind], first: float, second: float = 1.0) -> None:
    """Two launches side by side at these steps/s, to their ends, on a node of their own."""
    node = a_shared_node(cluster)
    launches = [
        a_shared_launch(a_sharing_job(cluster, kind), node, slot=slot, steps_per_s=speed)
        for slot, (kind, speed) in enumerate(zip(kinds, (first, second), strict=True))
    ]
    production_measured(launches[0])


def known() -> list[tuple[float, float, int]]:
    """(steps/s of the first, of the second, samples) of the only pair, if measured."""
    rows = PairProfile.objects.filter(source="measured")
    return [
        (round(row.first_steps_per_s, 6), round(row.second_steps_per_s, 6), row.samples)
        for row in rows
    ]


def test_a_speed_far_above_the_kinds_own_is_kept_and_changes_nothing(
    cluster: Cluster, kinds: tuple[Kind, Kind]
) -> None:
    show(cluster, kinds, FAR)
    assert known() == []
    row = PairMeasurement.objects.get()
    assert (row.held, round(row.first_steps_per_s, 6)) == (True, FAR)
    assert not RescheduleEvent.objects.filter(reason=Reason.PROFILE).exists()
    told = [event.data["message"] for event in JobEvent.objects.filter(event="warning")]
    assert len(told) == 2
    assert any("12 steps/s beside another job on its GPU" in message for message in told)


def test_a_speed_far_below_the_kinds_own_is_what_sharing_may_cost(
    cluster: Cluster, kinds: tuple[Kind, Kind]
) -> None:
    show(cluster, kinds, ALONE / OUTLIER / 2)
    assert known() == [(round(ALONE / OUTLIER / 2, 6), 1.0, 1)]


@pytest.mark.parametrize("speed", [FAR, 0.2])
def test_a_speed_far_from_the_pairs_changes_nothing(
    cluster: Cluster, kinds: tuple[Kind, Kind], speed: float
) -> None:
    a_known_pair(*kinds, (1.0, 1.0), samples=9)
    show(cluster, kinds, speed)
    assert known() == [(1.0, 1.0, 9)]


def test_two_other_launches_that_show_the_like_replace_what_was_known(
    cluster: Cluster, kinds: tuple[Kind, Kind]
) -> None:
    a_known_pair(*kinds, (1.0, 1.0), samples=9)
    show(cluster, kinds, FAR)
    show(cluster, kinds, FAR)
    assert known() == [(FAR, 1.0, 1)]
    show(cluster, kinds, FAR)
    assert known() == [(FAR, 1.0, 2)]


def test_a_pair_near_what_is_known_ends_the_wait(
    cluster: Cluster, kinds: tuple[Kind, Kind]
) -> None:
    a_known_pair(*kinds, (1.0, 1.0), samples=9)
    for speed in (FAR, 1.0, FAR):
        show(cluster, kinds, speed)
    assert known() == [(1.0, 1.0, 10)]


def test_one_launch_beside_several_others_does_not_confirm_itself(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    lying = a_shared_launch(a_sharing_job(cluster, kinds[0]), node, steps_per_s=FAR)
    for from_s, to_s in ((-100.0, -60.0), (-50.0, -10.0)):
        beside = a_sharing_job(cluster, kinds[1])
        a_shared_launch(beside, node, slot=1, steps_per_s=1.0, from_s=from_s, to_s=to_s)
    production_measured(lying)
    assert PairMeasurement.objects.filter(held=True).count() == 2
    assert known() == []


def show_twice(cluster: Cluster, kinds: tuple[Kind, Kind], before: float, after: float) -> None:
    """Two launches side by side, the first of which goes at one speed and then at another."""
    node, under_way = a_shared_node(cluster), {"state": "running", "ended_at": None}
    first, second = (
        a_shared_launch(
            a_sharing_job(cluster, kind), node, slot=slot, steps_per_s=speed, from_s=-300.0,
            to_s=-200.0, **under_way,
        )
        for slot, (kind, speed) in enumerate(zip(kinds, (before, 1.0), strict=True))
    )  # fmt: skip
    production_measured(first)
    for launch, speed in ((first, after), (second, 1.0)):
        launch.progress.all().delete()
        step_until(launch, speed, at(-300), at(0))
    production_measured(first)


def test_a_launch_that_was_believed_once_is_held_to_the_kinds_own_speed(
    cluster: Cluster, kinds: tuple[Kind, Kind]
) -> None:
    show_twice(cluster, kinds, 1.0, FAR)
    assert known() == [(1.0, 1.0, 1)]
    assert PairMeasurement.objects.filter(held=True).count() == 1


def test_launches_correct_what_they_alone_have_shown(
    cluster: Cluster, kinds: tuple[Kind, Kind]
) -> None:
    show_twice(cluster, kinds, 0.25, 1.25)
    assert known() == [(0.75, 1.0, 2)]


def test_kinds_without_a_speed_of_their_own_hold_nothing_back(
    cluster: Cluster, kinds: tuple[Kind, Kind]
) -> None:
    Profile.objects.all().delete()
    show(cluster, kinds, FAR)
    assert known() == [(FAR, 1.0, 1)]
