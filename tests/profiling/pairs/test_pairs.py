"""Pairs of kinds that share a GPU: measured from launches, told to policies, shown on the page."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import profiling.selectors
from clusters.models import Cluster, Device, Node, Reason, RescheduleEvent
from controlplane.loop.live.observe import observe
from jobs.models import Assignment, Kind
from loadmaster.protocol import OUT_OF_SHARED_MEMORY, AssignmentState
from policies.contract import snapshot_json
from policies.contract.snapshot import PairThroughput, Source
from profiling.models import PairMeasurement, PairProfile, Profile
from profiling.pairs.measurements import undisturbed
from profiling.selectors import kind_views
from profiling.services import forget, production_measured
from profiling.speeds import ALPHA
from tests.builders import a_cluster, a_job, a_kind, a_node, at
from tests.builders_profiling import reconcile_profiles
from tests.builders_sharing import (
    a_known_pair,
    a_shared_launch,
    a_shared_node,
    a_sharing_job,
    families_of_kinds,
    step_until,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def kinds() -> tuple[Kind, Kind]:
    return a_kind("slow", steps_per_s={("V100", 1): 4.0}), a_kind(
        "fast", steps_per_s={("V100", 1): 10.0}
    )


def two_launches(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind], **of_second: Any
) -> tuple[Assignment, Assignment]:
    """The first kind at 2 steps/s for 100 s beside the second at 8."""
    first = a_shared_launch(a_sharing_job(cluster, kinds[0]), node, steps_per_s=2.0)
    second = a_shared_launch(
        a_sharing_job(cluster, kinds[1]), node, **{"slot": 1, "steps_per_s": 8.0, **of_second}
    )
    return first, second


def events() -> int:
    return RescheduleEvent.objects.filter(reason=Reason.PROFILE).count()


@pytest.mark.parametrize("ended", [0, 1])
def test_two_launches_on_one_gpu_measure_their_kinds_as_a_pair_whoever_ends(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind], ended: int
) -> None:
    production_measured(two_launches(cluster, node, kinds)[ended])
    pair = PairProfile.objects.get()
    assert (pair.first, pair.second, pair.gpu_type.name) == (*kinds, "V100")
    assert (pair.first_steps_per_s, pair.second_steps_per_s) == pytest.approx((2.0, 8.0))
    assert (pair.source, pair.samples) == ("measured", 1)
    assert events() == 1


def test_a_pair_says_nothing_of_its_kinds_alone(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    production_measured(two_launches(cluster, node, kinds)[0])
    assert list(Profile.objects.order_by("steps_per_s").values_list("steps_per_s", flat=True)) == [
        4.0,
        10.0,
    ]


def test_measuring_the_same_launches_again_changes_nothing(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    first, second = two_launches(cluster, node, kinds)
    for launch in (first, second, first):
        production_measured(launch)
    assert PairMeasurement.objects.count() == 1
    assert PairProfile.objects.get().samples == 1


def test_a_pair_under_way_is_measured_again_after_twice_the_steps_of_both(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    under_way: dict[str, Any] = {"state": AssignmentState.RUNNING, "ended_at": None}
    first = a_shared_launch(
        a_sharing_job(cluster, kinds[0]), node, steps_per_s=2.0, from_s=-300, to_s=-200, **under_way
    )
    second = a_shared_launch(
        a_sharing_job(cluster, kinds[1]),
        node,
        slot=1,
        steps_per_s=8.0,
        from_s=-300,
        to_s=-200,
        **under_way,
    )
    production_measured(first)
    for launch, pace in ((first, 2.0), (second, 8.0)):
        launch.progress.all().delete()
        step_until(launch, pace, at(-300), at(0))
    production_measured(second)
    assert PairMeasurement.objects.count() == 2
    assert PairProfile.objects.get().samples == 2


def test_a_later_measurement_moves_the_pairs_speeds(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    a_known_pair(*kinds, (3.0, 8.0), samples=9)
    production_measured(two_launches(cluster, node, kinds)[0])
    pair = PairProfile.objects.get()
    assert pair.first_steps_per_s == pytest.approx(3.0 + ALPHA * (2.0 - 3.0))
    assert pair.second_steps_per_s == pytest.approx(8.0)
    assert pair.samples == 10
    assert PairMeasurement.objects.get().estimated_first_steps_per_s is None
    assert events() == 1


def test_a_measurement_near_what_was_known_asks_for_no_round(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    a_known_pair(*kinds, (2.1, 8.1))
    production_measured(two_launches(cluster, node, kinds)[0])
    assert events() == 0


def test_a_measurement_replaces_a_pair_that_is_only_estimated(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    a_known_pair(*kinds, (3.0, 3.0), source="estimated", samples=0)
    production_measured(two_launches(cluster, node, kinds)[0])
    pair = PairProfile.objects.get()
    assert (pair.first_steps_per_s, pair.second_steps_per_s) == pytest.approx((2.0, 8.0))
    assert pair.source == "measured"


def test_two_jobs_of_one_kind_are_a_pair_too(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    production_measured(two_launches(cluster, node, (kinds[0], kinds[0]), steps_per_s=3.0)[0])
    pair = PairProfile.objects.get()
    assert pair.first_id == pair.second_id == kinds[0].pk
    assert sorted((pair.first_steps_per_s, pair.second_steps_per_s)) == pytest.approx([2.0, 3.0])


def test_only_the_time_counts_in_which_both_stepped(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    """The first was twice as fast before the second came."""
    first = a_shared_launch(a_sharing_job(cluster, kinds[0]), node, steps_per_s=2.0)
    first.progress.filter(at__lt=at(-50)).delete()
    step_until(first, 4.0, at(-100), at(-51))
    a_shared_launch(a_sharing_job(cluster, kinds[1]), node, slot=1, steps_per_s=8.0, from_s=-50)
    production_measured(first)
    pair = PairProfile.objects.get()
    assert (pair.first_steps_per_s, pair.second_steps_per_s) == pytest.approx((2.0, 8.0))
    assert PairMeasurement.objects.get().second_steps < 8 * 50


def test_time_beside_a_third_does_not_count(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    Device.objects.update(slots=3)
    first, _ = two_launches(cluster, node, kinds)
    a_shared_launch(a_sharing_job(cluster, a_kind()), node, slot=2, from_s=-90, to_s=-30)
    production_measured(first)
    measured = PairMeasurement.objects.get()
    assert measured.first_steps <= 2 * 30
    assert {measured.first, measured.second} == set(kinds)


@pytest.mark.parametrize(
    "of_second",
    [
        {"cpu_quota": 1.0},
        {"world_size": 2},
        {"running_at": None},
        {"from_s": -2.0},
        {"from_s": -300.0, "to_s": -150.0},
    ],
)
def test_throttled_spread_short_and_absent_partners_say_nothing(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind], of_second: dict[str, Any]
) -> None:
    production_measured(two_launches(cluster, node, kinds, **of_second)[0])
    assert not PairMeasurement.objects.exists()


def test_an_unsteady_partner_says_nothing(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    first, second = two_launches(cluster, node, kinds)
    for i, point in enumerate(second.progress.order_by("id")):
        point.elapsed_s = point.elapsed_s + (i // 3) * 5.0
        point.save()
    production_measured(first)
    assert not PairMeasurement.objects.exists()


def test_emulated_gpus_measure_pairs_unless_the_work_overran_a_clock(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    Device.objects.update(emulated=True)
    first, second = two_launches(cluster, node, kinds)
    Assignment.objects.filter(pk=second.pk).update(overrun_fraction=0.5)
    production_measured(first)
    assert not PairMeasurement.objects.exists()
    Assignment.objects.filter(pk=second.pk).update(overrun_fraction=0.0)
    production_measured(first)
    assert PairMeasurement.objects.get().first_steps > 0


def test_a_neighbour_on_another_gpu_is_no_partner(
    cluster: Cluster, kinds: tuple[Kind, Kind]
) -> None:
    first = a_shared_launch(a_sharing_job(cluster, kinds[0]), a_shared_node(cluster))
    a_shared_launch(a_sharing_job(cluster, kinds[1]), a_shared_node(cluster))
    production_measured(first)
    assert not PairMeasurement.objects.exists()


def test_the_reconciler_measures_pairs_under_way_once(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    two_launches(cluster, node, kinds)
    Assignment.objects.update(state=AssignmentState.RUNNING, ended_at=None)
    reconcile_profiles(timezone.now())
    assert PairProfile.objects.get().samples == 1
    with CaptureQueriesContext(connection) as captured:
        reconcile_profiles(timezone.now())
    assert not any("progresspoint" in q["sql"] for q in captured.captured_queries)


def test_what_had_been_estimated_is_kept_with_the_first_measurement(
    cluster: Cluster, node: Node
) -> None:
    known, truth = families_of_kinds()
    newcomer = a_kind("0.9", steps_per_s={("V100", 1): 4.0})
    for other in ("1.0", "2.0"):
        own, others = (
            truth["0.0", other] * 4.0,
            truth[other, "0.0"] * Profile.objects.get(kind=known[other]).steps_per_s,
        )
        a_known_pair(newcomer, known[other], (own, others))
    production_measured(two_launches(cluster, node, (known["1.1"], newcomer))[0])
    measured = PairMeasurement.objects.get()
    believed = Profile.objects.get(kind=known["1.1"]).steps_per_s * truth["1.1", "0.0"]
    assert measured.estimated_first_steps_per_s == pytest.approx(believed, rel=0.2)
    assert measured.estimated_second_steps_per_s == pytest.approx(
        4.0 * truth["0.0", "1.1"], rel=0.2
    )


def pairs_of(cluster: Cluster, *kinds: Kind) -> dict[str, dict[str, PairThroughput]]:
    """By name of kind and of the other's: what a snapshot says."""
    names = {str(k.pk): k.name for k in kinds}
    views = kind_views(cluster, [k.pk for k in kinds])
    return {names[v.id]: {names[p.other]: p for p in v.pairs} for v in views}


def test_a_snapshot_tells_measured_pairs_to_both_kinds(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    a_known_pair(*kinds, (3.0, 8.0))
    PairProfile.objects.update(updated_at=timezone.now() - timedelta(hours=1))
    for kind in kinds:
        a_sharing_job(cluster, kind, state="queued")
    snapshot = observe(cluster.pk, timezone.now().timestamp(), 1, profiling.selectors).snapshot
    slow, fast = snapshot.kinds
    (of_slow,), (of_fast,) = slow.pairs, fast.pairs
    assert (of_slow.other, of_slow.gpu_type, of_slow.steps_per_s, of_slow.other_steps_per_s) == (
        fast.id,
        "V100",
        3.0,
        8.0,
    )
    assert (of_fast.other, of_fast.steps_per_s, of_fast.other_steps_per_s) == (slow.id, 8.0, 3.0)
    assert of_slow.source is Source.MEASURED
    assert of_slow.age_s == pytest.approx(3600.0, abs=60)
    assert snapshot_json.from_json(snapshot_json.to_json(snapshot)) == snapshot


def test_pairs_nobody_measured_are_estimated_by_the_kinds_fingerprints(
    cluster: Cluster, node: Node
) -> None:
    known, truth = families_of_kinds()
    one, other = max(
        (pair for pair in truth if pair[0][0] < pair[1][0]),
        key=lambda p: truth[p] + truth[p[1], p[0]],
    )
    PairProfile.objects.filter(first=known[one], second=known[other]).delete()
    PairProfile.objects.update(updated_at=timezone.now() - timedelta(hours=2))
    for kind in known.values():
        a_sharing_job(cluster, kind)
    found = pairs_of(cluster, *known.values())
    pair = found[one][other]
    speed = Profile.objects.get(kind=known[one]).steps_per_s
    assert pair.source is Source.ESTIMATED
    assert pair.steps_per_s == pytest.approx(truth[one, other] * speed, rel=0.2)
    assert pair.age_s == pytest.approx(7200.0, abs=60)
    assert found[other][one].steps_per_s == pair.other_steps_per_s
    assert (
        sum(p.source is Source.ESTIMATED for pairs in found.values() for p in pairs.values()) == 2
    )


def test_an_estimated_pair_that_is_not_worth_sharing_is_not_told(
    cluster: Cluster, node: Node
) -> None:
    known, truth = families_of_kinds()
    gone = [(a, b) for a, b in truth if a < b and a[0] != b[0] and truth[a, b] + truth[b, a] < 0.9][
        :2
    ]
    assert gone
    for a, b in gone:
        PairProfile.objects.filter(first=known[a], second=known[b]).delete()
    for kind in known.values():
        a_sharing_job(cluster, kind)
    found = pairs_of(cluster, *known.values())
    assert all(b not in found[a] and a not in found[b] for a, b in gone)


def test_without_shared_gpus_or_willing_jobs_there_are_no_pairs(
    cluster: Cluster, kinds: tuple[Kind, Kind]
) -> None:
    a_known_pair(*kinds, (3.0, 8.0))
    for kind in kinds:
        a_sharing_job(cluster, kind)
    a_node(cluster)
    assert pairs_of(cluster, *kinds) == {"slow": {}, "fast": {}}
    other = a_cluster()
    a_shared_node(other)
    for kind in kinds:
        a_job(other, kind=kind)
    assert pairs_of(other, *kinds) == {"slow": {}, "fast": {}}


def test_pairs_are_told_on_the_types_that_are_shared_here(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    a_node(cluster, gpu_type="T4")
    for gpu_type in ("V100", "T4"):
        a_known_pair(*kinds, (3.0, 8.0), gpu_type)
    for kind in kinds:
        a_sharing_job(cluster, kind)
    views = kind_views(cluster, [k.pk for k in kinds])
    assert {p.gpu_type for v in views for p in v.pairs} == {"V100"}


def test_the_number_of_queries_does_not_grow_with_the_pairs(cluster: Cluster, node: Node) -> None:
    def look(count: int, each: int) -> int:
        known, _ = families_of_kinds(count, each)
        for kind in known.values():
            a_sharing_job(cluster, kind)
        with CaptureQueriesContext(connection) as captured:
            assert any(v.pairs for v in kind_views(cluster, [k.pk for k in known.values()]))
        return len(captured)

    assert look(2, 2) == look(3, 3) == 9


def test_a_forgotten_kinds_pairs_stay_as_estimates_until_they_are_measured_again(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    production_measured(two_launches(cluster, node, kinds)[0])
    forget(kinds[1])
    assert not PairMeasurement.objects.exists()
    assert pairs_of(cluster, *kinds)["slow"]["fast"].source is Source.ESTIMATED
    assert pairs_of(cluster, *kinds)["slow"]["fast"].steps_per_s == pytest.approx(2.0)


def test_the_database_keeps_a_pair_once_and_in_order(kinds: tuple[Kind, Kind]) -> None:
    pair = a_known_pair(*kinds, (1.0, 1.0))
    with pytest.raises(IntegrityError), transaction.atomic():
        a_known_pair(*kinds, (2.0, 2.0))
    pair.first, pair.second = pair.second, pair.first
    with pytest.raises(IntegrityError), transaction.atomic():
        pair.save()


def test_the_longest_time_that_others_leave_is_found() -> None:
    now = timezone.now()

    def span(since: float, until: float) -> tuple[Any, Any]:
        return now + timedelta(seconds=since), now + timedelta(seconds=until)

    assert undisturbed(span(0, 10), []) == span(0, 10)
    assert undisturbed(span(0, 10), [span(2, 3), span(-5, 1), span(20, 30)]) == span(3, 10)
    assert undisturbed(span(0, 10), [span(6, 7), span(5, 9)]) == span(0, 5)
    assert undisturbed(span(0, 10), [span(-1, 11)]) is None
    assert undisturbed(span(10, 0), []) is None


def out_of_memory(launch: Assignment) -> None:
    """It ended a moment ago for want of memory beside another."""
    values = {
        "state": "failed",
        "reason_class": "gpu",
        "reason": f"{OUT_OF_SHARED_MEMORY}: CUDA",
        "ended_at": timezone.now(),
    }
    Assignment.objects.filter(pk=launch.pk).update(**values)
    launch.refresh_from_db()


def test_two_that_do_not_fit_on_one_gpu_are_a_pair_that_cannot_share_whatever_was_measured_before(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    a_known_pair(*kinds, (1.5, 0.8), samples=9)
    first, second = two_launches(cluster, node, kinds)
    out_of_memory(first)
    for launch in (first, second, first):
        production_measured(launch)
    pair = PairProfile.objects.get()
    assert (pair.first_steps_per_s, pair.second_steps_per_s, pair.source) == (0.0, 0.0, "measured")
    assert PairMeasurement.objects.count() == 1


def test_nobody_is_told_not_to_share_where_two_others_were_there_or_the_gpu_was_at_fault(
    cluster: Cluster, node: Node, kinds: tuple[Kind, Kind]
) -> None:
    first, _ = two_launches(cluster, node, kinds)
    a_shared_launch(a_sharing_job(cluster, kinds[1]), node, slot=2)
    out_of_memory(first)
    production_measured(first)
    Assignment.objects.filter(pk=first.pk).update(reason="the Engine has no driver")
    first.refresh_from_db()
    production_measured(first)
    assert not PairProfile.objects.filter(first_steps_per_s=0.0).exists()
