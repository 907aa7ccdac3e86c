"""A plan's profile runs come true beside their jobs, which go on waiting."""

from typing import Any

import pytest

from clusters.models import Cluster, Node
from controlplane.loop.models import Round
from jobs.models import Assignment, AssignmentSlot, Job
from loadmaster.protocol import AssignmentState
from policies.contract.plan import Placement, Plan, PlanStatus
from policies.contract.snapshot import RankPlacement
from profiling.models import PairRun, ProfileRun
from tests.builders import a_job, a_kind, a_node, type_of
from tests.builders_agents import an_offer
from tests.builders_live import (
    a_round,
    a_round_of_waiting_events,
    changes_of,
    devices_of,
    placing,
    refused,
    said,
    taken,
)
from tests.builders_sharing import a_shared_node
from tests.interleaving import just_before

pytestmark = pytest.mark.django_db


def a_round_of_profiling(cluster: Cluster) -> Job:
    """A job of an unknown kind on a cluster whose node may profile, after the round that placed its
    first run.
    """
    node = a_node(cluster, gpus=1, role="profiling")
    job = a_job(
        cluster, name="new", kind=a_kind(), state="profiling", checkpoint_steps=30, repeatable=True
    )
    ProfileRun.objects.create(
        kind=job.kind, job=job, gpu_type=type_of(node), gpus=1, steps=20, copy=3
    )
    a_round(cluster, placing())
    return job


def test_a_profile_run_is_offered_beside_its_job_which_goes_on_waiting(cluster: Cluster) -> None:
    job = a_round_of_profiling(cluster)
    run = Assignment.objects.get()
    job.refresh_from_db()
    assert (job.state, job.fence, job.checkpoint_steps) == ("profiling", 1, 30)
    assert (run.purpose, run.copy, run.steps_quota, run.fence, run.start_steps) == (
        "profiling",
        3,
        20,
        1,
        0,
    )
    assert run.attempt is None
    assert ProfileRun.objects.get().state == "running"
    assert [e.event for e in job.events.all()] == ["profile_run"]


def test_a_profile_run_under_way_is_kept_by_the_next_round(cluster: Cluster) -> None:
    a_round_of_profiling(cluster)
    taken(Assignment.objects.get())
    row = a_round(cluster, placing())
    assert changes_of(row) == {"new": "keep"}
    assert Assignment.objects.get().desired == "run"


def test_a_profile_run_whose_job_was_meanwhile_cancelled_is_not_launched(cluster: Cluster) -> None:
    node = a_node(cluster, gpus=1, role="profiling")
    job = a_job(cluster, name="new", kind=a_kind(), state="profiling")
    ProfileRun.objects.create(
        kind=job.kind, job=job, gpu_type=type_of(node), gpus=1, steps=20, copy=0
    )

    def meanwhile(*given: Any) -> Plan:
        Job.objects.filter(pk=job.pk).update(state="cancelled")
        return placing()(*given)

    assert refused(a_round(cluster, meanwhile)) == {"new": "stale"}
    assert not Assignment.objects.exists()


@pytest.mark.parametrize("meanwhile", [{"state": "cancelled"}, {"fence": 5}], ids=str)
def test_a_profile_run_whose_job_changes_in_the_last_moment_is_not_launched(
    cluster: Cluster, meanwhile: dict[str, Any]
) -> None:
    with just_before(r'UPDATE "jobs_job" SET "fence"', lambda: Job.objects.update(**meanwhile)):
        a_round_of_profiling(cluster)
    assert not Assignment.objects.exists()
    assert "the job changed" in Round.objects.get().rejected[0]["detail"]


def test_a_command_that_is_not_repeatable_is_never_launched_to_measure_it(cluster: Cluster) -> None:
    node = a_node(cluster, gpus=1, role="profiling")
    job = a_job(cluster, name="new", kind=a_kind())
    ProfileRun.objects.create(
        kind=job.kind, job=job, gpu_type=type_of(node), gpus=1, steps=20, copy=0
    )
    assert refused(a_round(cluster, placing())) == {"new": "stale"}
    assert not Assignment.objects.exists()


def a_wanted_pair(cluster: Cluster, node: Node, **values: Any) -> PairRun:
    """Two queued jobs, "one" and "other", whose kinds are to be measured side by side."""
    lent = {"may_share": True, "repeatable": True, **values}
    one, other = (a_job(cluster, name=name, **lent) for name in ("one", "other"))
    return PairRun.objects.create(
        first=one.kind, second=other.kind, gpu_type=type_of(node), first_job=one, second_job=other,
        first_copy=1, second_copy=1, first_quota=50, second_quota=50, steps=20,
    )  # fmt: skip


def profile_runs() -> list[str]:
    """The jobs that are measured now."""
    live = Assignment.objects.filter(purpose="profiling", desired="run", ended_at=None)
    return sorted(live.values_list("job__name", flat=True))


def test_a_job_that_starts_is_not_measured_beside_its_run_nor_is_its_partner(
    cluster: Cluster,
) -> None:
    a_wanted_pair(cluster, a_shared_node(cluster, role="both"))
    production = a_node(cluster, gpus=1, role="production")
    row = a_round(cluster, placing(one=(production, *devices_of(production))))
    assert (changes_of(row), refused(row)) == ({"one": "start"}, {})
    assert list(Assignment.objects.values_list("job__name", "purpose")) == [("one", "training")]


def test_a_queued_job_that_can_start_ends_its_profile_run_first(cluster: Cluster) -> None:
    job = a_round_of_profiling(cluster)
    run = taken(Assignment.objects.get())
    Job.objects.filter(pk=job.pk).update(state="queued")
    production = a_node(cluster, gpus=1)
    start = placing(new=(production, *devices_of(production)))
    row = a_round(cluster, start)
    run.refresh_from_db()
    assert (run.desired, refused(row)) == ("preempt", {"new": "deferred"})
    said(run, AssignmentState.PREEMPTED)
    assert a_round_of_waiting_events(cluster, start) is not None
    live = Assignment.objects.filter(ended_at=None)
    assert list(live.values_list("job__name", "purpose")) == [("new", "training")]


def test_a_pair_of_which_one_must_wait_for_a_stop_waits_as_a_whole_and_starts_when_it_has_ended(
    cluster: Cluster,
) -> None:
    node = a_shared_node(cluster, role="both")
    (device,) = devices_of(node)
    old = a_job(cluster, name="old", may_share=True)
    half = RankPlacement(str(node.pk), (device.uuid,), share=0.5)
    a_round(
        cluster, lambda *_: Plan("told", PlanStatus.HEURISTIC, (Placement(str(old.pk), (half,)),))
    )
    stay = taken(Assignment.objects.get())
    Node.objects.filter(pk=node.pk).update(role="profiling")
    a_wanted_pair(cluster, node)
    row = a_round(cluster, placing())
    assert refused(row) == {"one": "deferred", "other": "deferred"}
    assert profile_runs() == []
    said(stay, AssignmentState.PREEMPTED)
    assert a_round_of_waiting_events(cluster, placing()) is not None
    assert Round.objects.latest("number").carried == row.number
    assert profile_runs() == ["one", "other"]
    assert sorted(AssignmentSlot.objects.filter(live=True).values_list("slot", "share")) == [
        (0, 0.5),
        (1, 0.5),
    ]


def test_a_pair_of_which_one_was_meanwhile_cancelled_is_not_launched(cluster: Cluster) -> None:
    a_wanted_pair(cluster, a_shared_node(cluster, role="both"))

    def meanwhile(*given: Any) -> Plan:
        Job.objects.filter(name="other").update(state="cancelled")
        return placing()(*given)

    assert refused(a_round(cluster, meanwhile)) == {"one": "stale", "other": "stale"}
    assert not Assignment.objects.exists()
    assert Job.objects.get(name="one").fence == 0


def test_a_job_does_not_start_before_its_profile_run_has_ended(cluster: Cluster) -> None:
    node = a_node(cluster, gpus=2)
    job = a_job(cluster, name="new", repeatable=True)
    run = taken(an_offer(node, job, purpose="profiling", copy=1))
    plan = placing(new=(node, devices_of(node)[1]))
    assert refused(a_round(cluster, plan)) == {"new": "deferred"}
    said(run, AssignmentState.PREEMPTED)
    assert refused(a_round(cluster, plan)) == {}
