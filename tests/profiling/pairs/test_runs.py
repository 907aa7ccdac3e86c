"""Pair runs: whom a kind is measured beside, how such a run ends, and what follows."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Cluster, Node, Reason, RescheduleEvent
from jobs.models import Assignment, Job, Kind
from loadmaster.protocol import OUT_OF_SHARED_MEMORY, AssignmentState
from policies.contract.snapshot import ProfileRequest
from profiling.models import PairProfile, PairRun
from profiling.pairs.estimates import next_partners
from profiling.pairs.rows import book_of, kinds_of, load_pairs
from profiling.pairs.runs import AT_ONCE, LONGEST, PARTNERS, RETRIES, reconcile_pair_runs
from profiling.selectors import profile_requests, speeds_alone
from profiling.services import forget
from tests.builders import a_cluster, a_job, a_kind
from tests.builders_agents import Attentive
from tests.builders_sharing import a_known_pair, a_shared_launch, a_shared_node, families_of_kinds

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(profiling="dedicated", profiling_steps=20, heartbeat_s=10.0)


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_shared_node(cluster, role="both")


class Stops:
    """Remembers whose end was asked for."""

    def __init__(self) -> None:
        self.asked: list[Assignment] = []

    def __call__(self, assignment: Assignment) -> None:
        self.asked.append(assignment)


def kinds_with_jobs(cluster: Cluster, count: int, *, jobs: int = 1) -> list[Kind]:
    """Kinds that run 2 steps/s, each with so many queued jobs that may share."""
    kinds = [a_kind(steps_per_s={("V100", 1): 2.0}) for _ in range(count)]
    for kind in kinds:
        for _ in range(jobs):
            a_job(cluster, kind=kind, may_share=True, repeatable=True)
    return kinds


def look(cluster: Cluster, after_s: float = 0.0) -> Stops:
    """The reconciler looks at pair runs."""
    stops = Stops()
    now = timezone.now() + timedelta(seconds=after_s)
    reconcile_pair_runs(cluster, now, stops, Attentive(now=now))
    return stops


def the_run(cluster: Cluster) -> PairRun:
    """The only pair run there is, after a look."""
    look(cluster)
    return PairRun.objects.get()


def launched(
    run: PairRun,
    node: Node,
    *,
    from_s: float = -20.0,
    live: bool = True,
    rates: tuple[float, float] = (1.5, 1.0),
) -> list[Assignment]:
    """Both launches of a run, side by side for so long."""
    ended: dict[str, Any] = {"state": AssignmentState.RUNNING, "ended_at": None} if live else {}
    return [
        a_shared_launch(
            Job.objects.get(pk=job),
            node,
            slot=slot,
            steps_per_s=rate,
            from_s=from_s,
            purpose="profiling",
            copy=copy,
            **ended,
        )
        for slot, ((job, copy), rate) in enumerate(zip(run.launches, rates, strict=True))
    ]


def pairs_wanted() -> set[frozenset[int]]:
    """The pairs of kinds that runs are there for."""
    return {frozenset((run.first_id, run.second_id)) for run in PairRun.objects.all()}


def test_kinds_of_jobs_that_may_share_are_measured_beside_each_other(
    cluster: Cluster, node: Node
) -> None:
    kinds = kinds_with_jobs(cluster, 2)
    run = the_run(cluster)
    assert {run.first_id, run.second_id} == {kind.pk for kind in kinds}
    assert (run.state, run.steps, run.first_quota) == ("wanted", 20, 240)
    assert RescheduleEvent.objects.filter(reason=Reason.PROFILE).exists()
    look(cluster)
    assert PairRun.objects.count() == 1


def test_two_jobs_of_one_kind_are_a_pair_and_one_alone_is_none(
    cluster: Cluster, node: Node
) -> None:
    (kind,) = kinds_with_jobs(cluster, 1)
    look(cluster)
    assert not PairRun.objects.exists()
    a_job(cluster, kind=kind, may_share=True, repeatable=True)
    run = the_run(cluster)
    assert (run.first_id, run.second_id, run.first_job_id == run.second_job_id) == (
        kind.pk,
        kind.pk,
        False,
    )


def test_each_kind_gets_a_few_partners_and_no_more(cluster: Cluster, node: Node) -> None:
    kinds = kinds_with_jobs(cluster, 6)
    for _ in range(10):
        look(cluster)
        for run in PairRun.objects.filter(state="wanted"):
            a_known_pair(run.first, run.second, (1.5, 1.5))
            run.delete()
    told = {
        kind.pk: PairProfile.objects.filter(first=kind).count()
        + PairProfile.objects.filter(second=kind).count()
        for kind in kinds
    }
    assert min(told.values()) >= PARTNERS
    assert PairProfile.objects.count() < 6 * 5 / 2


def test_nobody_is_measured_beside_others_where_no_device_is_shared_or_no_job_may(
    cluster: Cluster,
) -> None:
    kinds_with_jobs(cluster, 2)
    look(cluster)
    a_shared_node(cluster, role="production")
    look(cluster)
    node = a_shared_node(cluster, role="profiling")
    Job.objects.update(may_share=False)
    look(cluster)
    assert not PairRun.objects.exists()
    Job.objects.update(may_share=True)
    node.devices.update(slots=1)
    look(cluster)
    assert not PairRun.objects.exists()


def test_jobs_that_do_not_fit_on_one_machine_together_are_no_pair(
    cluster: Cluster, node: Node
) -> None:
    kinds_with_jobs(cluster, 2)
    Job.objects.update(cores=20.0)
    look(cluster)
    assert not PairRun.objects.exists()


def test_references_that_tell_most_come_first(cluster: Cluster, node: Node) -> None:
    kinds, _ = families_of_kinds()
    for kind in kinds.values():
        a_job(cluster, kind=kind, may_share=True, repeatable=True)
    new = a_kind("new", steps_per_s={("V100", 1): 2.0})
    a_job(cluster, kind=new, may_share=True, repeatable=True)
    look(cluster)
    assert PairRun.objects.count() == PARTNERS
    rows = load_pairs()
    book = book_of(rows, speeds_alone(kinds_of(rows), {"V100"}).measured, [new.pk])
    assert book is not None
    telling = next_partners(book, str(new.pk), ["V100"], PARTNERS)
    assert pairs_wanted() == {frozenset((new.pk, int(partner.reference))) for partner in telling}


def test_both_are_asked_for_on_one_device_for_as_long_as_it_takes(
    cluster: Cluster, node: Node
) -> None:
    kinds_with_jobs(cluster, 2)
    run = the_run(cluster)
    one, two = profile_requests(cluster)
    assert {(one.job, one.copy), (two.job, two.copy)} == {
        (str(job), copy) for job, copy in run.launches
    }
    assert ((one.beside, one.beside_copy), (two.beside, two.beside_copy)) == (
        (two.job, two.copy),
        (one.job, one.copy),
    )
    assert isinstance(one, ProfileRequest)
    assert (one.gpu_type, one.gpus, one.steps) == ("V100", 1, 240)


def test_a_run_with_steps_enough_is_measured_and_stopped(cluster: Cluster, node: Node) -> None:
    kinds_with_jobs(cluster, 2)
    run = the_run(cluster)
    launches = launched(run, node, from_s=-40.0)
    assert {a.pk for a in look(cluster).asked} == {a.pk for a in launches}
    run.refresh_from_db()
    pair = PairProfile.objects.get()
    assert (run.state, pair.source, pair.samples) == ("done", "measured", 1)
    assert (pair.first_steps_per_s, pair.second_steps_per_s) == pytest.approx((1.5, 1.0))
    assert not profile_requests(cluster)


def test_a_run_that_is_an_outlier_is_repeated_and_taken_when_it_shows_the_like(
    cluster: Cluster, node: Node
) -> None:
    kinds_with_jobs(cluster, 2)
    for state, measured in (("wanted", False), ("done", True)):
        there = a_shared_node(cluster)
        launched(the_run(cluster), there, from_s=-40.0, live=False, rates=(20.0, 1.0))
        look(cluster)
        assert PairRun.objects.get().state == state
        assert PairProfile.objects.exists() == measured


def test_a_run_goes_on_until_it_has_steps_enough(cluster: Cluster, node: Node) -> None:
    kinds_with_jobs(cluster, 2)
    run = the_run(cluster)
    launched(run, node, from_s=-10.0)
    assert not look(cluster).asked
    run.refresh_from_db()
    assert (run.state, PairProfile.objects.exists()) == ("running", False)


def test_what_was_measured_until_one_of_the_two_ended_counts(cluster: Cluster, node: Node) -> None:
    kinds_with_jobs(cluster, 2)
    run = the_run(cluster)
    first, second = launched(run, node, from_s=-12.0)
    Assignment.objects.filter(pk=first.pk).update(state="succeeded", ended_at=timezone.now())
    assert [a.pk for a in look(cluster).asked] == [second.pk]
    run.refresh_from_db()
    assert (run.state, PairProfile.objects.count()) == ("done", 1)


def test_one_that_is_left_alone_untold_is_stopped_and_the_run_tried_again_with_other_copies(
    cluster: Cluster, node: Node
) -> None:
    kinds_with_jobs(cluster, 2)
    run = the_run(cluster)
    first, second = launched(run, node, from_s=-3.0)
    Assignment.objects.filter(pk=first.pk).update(
        state="failed", ended_at=timezone.now(), reason="no such file"
    )
    assert [a.pk for a in look(cluster).asked] == [second.pk]
    Assignment.objects.filter(pk=second.pk).update(state="preempted", ended_at=timezone.now())
    look(cluster)
    again = PairRun.objects.get()
    assert (again.state, again.failures, again.reason) == ("wanted", 1, "no such file")
    assert set(again.launches).isdisjoint(run.launches)
    assert not profile_requests(cluster)  # it rests for a heartbeat's time first


def test_a_run_that_goes_wrong_again_and_again_is_given_up_and_not_asked_for_anew(
    cluster: Cluster, node: Node
) -> None:
    kinds_with_jobs(cluster, 2)
    for _ in range(RETRIES + 1):
        launched(the_run(cluster), node, from_s=-3.0, live=False)
        look(cluster)
    look(cluster)
    assert (PairRun.objects.get().state, PairRun.objects.get().failures) == (
        "given_up",
        RETRIES + 1,
    )


def test_a_run_without_steps_enough_is_ended_after_a_while(cluster: Cluster, node: Node) -> None:
    kinds_with_jobs(cluster, 2)
    launches = launched(the_run(cluster), node, from_s=-3.0)
    Assignment.objects.update(running_at=timezone.now())
    assert not look(cluster, LONGEST.total_seconds() - 1).asked
    assert len(look(cluster, LONGEST.total_seconds() + 1).asked) == len(launches)


@pytest.mark.parametrize("state", ["completed", "cancelled", "held"])
def test_a_run_that_was_not_launched_goes_with_its_job(
    cluster: Cluster, node: Node, state: str
) -> None:
    kinds_with_jobs(cluster, 2)
    run = the_run(cluster)
    Job.objects.filter(pk=run.first_job_id).update(state=state)
    look(cluster)
    assert not PairRun.objects.exists()


def test_jobs_that_are_not_repeatable_lend_no_command(cluster: Cluster, node: Node) -> None:
    kinds_with_jobs(cluster, 2)
    Job.objects.update(repeatable=False)
    look(cluster)
    assert not PairRun.objects.exists()


def test_by_default_only_nodes_for_profiling_alone_measure_pairs(
    cluster: Cluster, node: Node
) -> None:
    Cluster.objects.update(profiling="first_run")
    kinds_with_jobs(cluster, 2)
    look(cluster)
    assert not PairRun.objects.exists()
    Node.objects.update(role="profiling")
    look(cluster)
    assert PairRun.objects.exists()


def test_a_run_whose_job_starts_is_stopped_and_is_no_failure(cluster: Cluster, node: Node) -> None:
    kinds_with_jobs(cluster, 2)
    run = the_run(cluster)
    launches = launched(run, node, from_s=-3.0)
    Job.objects.filter(pk=run.first_job_id).update(state="starting")
    assert {a.pk for a in look(cluster).asked} == {a.pk for a in launches}
    Assignment.objects.update(state="preempted", ended_at=timezone.now())
    look(cluster)
    assert not PairRun.objects.exists()


def test_a_run_in_which_one_reports_no_steps_is_given_up(cluster: Cluster, node: Node) -> None:
    kinds_with_jobs(cluster, 2)
    first, second = launched(the_run(cluster), node, from_s=-70.0, rates=(0.001, 0.001))
    assert {a.pk for a in look(cluster).asked} == {first.pk, second.pk}
    assert (PairRun.objects.get().state, PairProfile.objects.count()) == ("given_up", 0)


def test_a_forgotten_kind_is_measured_beside_others_anew(cluster: Cluster, node: Node) -> None:
    kinds = kinds_with_jobs(cluster, 2)
    launched(the_run(cluster), node, from_s=-40.0)
    look(cluster)
    Assignment.objects.update(state="preempted", ended_at=timezone.now())
    forget(kinds[0])
    assert the_run(cluster).state == "wanted"


def test_only_so_many_runs_are_open_at_a_time(cluster: Cluster, node: Node) -> None:
    kinds_with_jobs(cluster, 8)
    look(cluster)
    assert PairRun.objects.count() == AT_ONCE


def test_a_run_in_which_one_finds_no_memory_beside_the_other_says_that_they_cannot_share(
    cluster: Cluster, node: Node
) -> None:
    kinds_with_jobs(cluster, 2)
    run = the_run(cluster)
    first, second = launched(run, node, from_s=-3.0)
    values = {
        "state": "failed",
        "reason_class": "gpu",
        "reason": OUT_OF_SHARED_MEMORY,
        "ended_at": timezone.now(),
    }
    Assignment.objects.filter(pk=first.pk).update(**values)
    assert [a.pk for a in look(cluster).asked] == [second.pk]
    run.refresh_from_db()
    assert (run.state, PairProfile.objects.get().first_steps_per_s) == ("done", 0.0)
