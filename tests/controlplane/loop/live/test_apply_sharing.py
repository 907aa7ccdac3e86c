"""A plan whose jobs share devices comes true: slots, what is expected of them, and what partners
change.
"""

import pytest

from clusters.models import Cluster, Device, Node
from jobs.models import Assignment, AssignmentSlot
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import RankPlacement
from profiling.models import Profile
from tests.builders import a_job, a_kind
from tests.builders_live import (
    a_round,
    devices_of,
)
from tests.builders_sharing import a_known_pair

pytestmark = pytest.mark.django_db


def two_together_and_one_alone(cluster: Cluster, node: Node) -> tuple[Placement, ...]:
    """Jobs a and b, of kinds known as a pair, on the halves of the node's first device, and c of
    a's kind on its second.
    """
    first, second = devices_of(node)
    Device.objects.filter(pk=first.pk).update(slots=2)
    one, other = (a_kind(name, steps_per_s={("V100", 1): 1.0}) for name in ("one", "other"))
    a_known_pair(one, other, (0.5, 0.8))
    half, whole = (
        RankPlacement(str(node.pk), (first.uuid,), share=0.5),
        RankPlacement(str(node.pk), (second.uuid,)),
    )
    seats = (("a", one, half), ("b", other, half), ("c", one, whole))
    return tuple(
        Placement(str(a_job(cluster, name=n, kind=k, may_share=True).pk), (seat,))
        for n, k, seat in seats
    )


def test_two_jobs_share_a_device_in_two_slots(cluster: Cluster, node: Node) -> None:
    first, _ = devices_of(node)
    Device.objects.filter(pk=first.pk).update(slots=2)
    jobs = [a_job(cluster, may_share=True) for _ in range(2)]
    seat = RankPlacement(str(node.pk), (first.uuid,), share=0.5)
    a_round(
        cluster,
        lambda *_: Plan(
            "told", PlanStatus.HEURISTIC, tuple(Placement(str(j.pk), (seat,)) for j in jobs)
        ),
    )
    assert sorted(AssignmentSlot.objects.filter(live=True).values_list("slot", "share")) == [
        (0, 0.5),
        (1, 0.5),
    ]


def test_under_a_power_cap_a_second_job_on_a_device_takes_no_more_power(
    cluster: Cluster, node: Node
) -> None:
    """One of the node's GPUs in use takes 530 W, two take 700 W."""
    Cluster.objects.filter(pk=cluster.pk).update(power_cap_w=600.0)
    a, b, c = two_together_and_one_alone(cluster, node)
    waits = (Waiting(c.job, WaitCode.POSTPONED),)
    a_round(cluster, lambda *_: Plan("told", PlanStatus.HEURISTIC, (a, b), waits))
    assert sorted(of.job.name for of in Assignment.objects.all()) == ["a", "b"]


def test_jobs_on_one_device_are_expected_to_be_as_fast_as_their_pair_and_to_halve_its_watts(
    cluster: Cluster, node: Node
) -> None:
    placed = two_together_and_one_alone(cluster, node)
    a_round(cluster, lambda *_: Plan("told", PlanStatus.HEURISTIC, placed))
    of_job = {a.job.name: a for a in Assignment.objects.all()}
    assert [of_job[name].predicted_steps_per_s for name in "abc"] == [0.5, 0.8, 1.0]
    assert [of_job[name].predicted_power_w for name in "abc"] == pytest.approx(
        [700.0 / 4, 700.0 / 4, 700.0 / 2]
    )


def test_the_expected_speed_follows_partners_that_come_to_a_device_and_leave_it(
    cluster: Cluster, node: Node
) -> None:
    a, b, c = two_together_and_one_alone(cluster, node)

    def after_a_round_with(*placed: Placement) -> dict[str, float | None]:
        waiting = tuple(Waiting(p.job, WaitCode.POSTPONED) for p in (a, b, c) if p not in placed)
        a_round(cluster, lambda *_: Plan("told", PlanStatus.HEURISTIC, placed, waiting))
        return {
            x.job.name: x.predicted_steps_per_s for x in Assignment.objects.filter(desired="run")
        }

    assert after_a_round_with(a, c) == {"a": 1.0, "c": 1.0}
    Profile.objects.filter(kind__name="one").update(
        steps_per_s=1.25
    )  # what was believed at a launch is what stays to compare with
    assert after_a_round_with(a, b, c) == {"a": 0.5, "b": 0.8, "c": 1.0}
    assert after_a_round_with(a, c) == {"a": 1.25, "c": 1.0}
