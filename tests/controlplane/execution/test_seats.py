"""Seats of a batch job at the server: what its agents are told, and whose ends decide."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import Cluster, Node
from controlplane.execution.services.assignments import accept, launch_spec, report_state
from controlplane.execution.services.stops import preempt_gang, stop_assignment
from jobs.lifecycle import JobState
from jobs.models import Assignment, Job, Secret
from jobs.secrets import set_secret
from jobs.services import job_cancel
from loadmaster.features import BATCH, GANG
from loadmaster.protocol import Accept, AssignmentState, Host, ReasonClass, StateReport, StopReason
from loadmaster.wire import to_json
from tests.builders import a_cluster, a_job
from tests.builders_agents import a_node_with_agent, an_offer, reconcile_clusters

pytestmark = pytest.mark.django_db
S = AssignmentState


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


def a_launch(cluster: Cluster, *units: int, **values: Any) -> list[Assignment]:
    """A batch job's launch, with so many units on each node; the nodes are n0, n1 and so on."""
    given = {"batch": True, "units": sum(units), "gpus_min": 0, "gpus_max": 0, "max_retries": 0}
    job = a_job(cluster, **{**given, "cores": 8.0, "memory_gb": 2.0, **values})
    nodes = [
        a_node_with_agent(cluster, token=f"token {i}", gpus=0, name=f"n{i}", machine_id=f"m{i}")
        for i in range(len(units))
    ]
    for i, node in enumerate(nodes):
        node.address = f"10.0.0.{i}"
        node.save(update_fields=["address"])
    return [
        an_offer(node, job, rank=rank, world_size=len(units), units=of, gpus=0)
        for rank, (node, of) in enumerate(zip(nodes, units, strict=True))
    ]


def run_all(*seats: Assignment) -> None:
    for seat in seats:
        accept(seat.node_id, seat.pk, Accept(1, seat.fence))
        say(seat, S.RUNNING)


def say(seat: Assignment, state: AssignmentState, **values: Any) -> None:
    seat.refresh_from_db()
    given = {"observed_at_s": timezone.now().timestamp(), **values}
    report = StateReport(1, seat.fence, seat.report_seq + 1, state, **given)
    report_state(seat.node_id, seat.pk, report)
    seat.refresh_from_db()


def job_of(seat: Assignment) -> Job:
    return Job.objects.get(pk=seat.job_id)


def test_the_first_seat_runs_with_the_list_of_hosts_and_the_others_are_held(
    cluster: Cluster,
) -> None:
    first, other = map(launch_spec, a_launch(cluster, 2, 1))
    assert (first.held, other.held) == (False, True)
    hosts = (Host("n0", "10.0.0.0", 2), Host("n1", "10.0.0.1", 1))
    assert first.hosts == other.hosts == hosts
    assert (first.cores, first.memory_gb, other.cores, other.memory_gb) == (16.0, 4.0, 8.0, 2.0)


def test_a_seat_needs_no_meeting_place_no_token_and_no_agent_that_knows_gangs(
    cluster: Cluster,
) -> None:
    seats = a_launch(cluster, 2, 1)
    Node.objects.update(address="")
    for seat in Assignment.objects.filter(pk__in=[s.pk for s in seats]):
        spec = accept(seat.node_id, seat.pk, Accept(1, seat.fence))
        assert (spec.rendezvous, spec.gang_token, spec.gang_gpus, spec.world_size) == ("", "", 0, 1)
        assert GANG not in spec.required_features
        assert BATCH in spec.required_features
        assert [host.address for host in spec.hosts] == ["", ""]


def test_a_held_seat_has_no_address_where_containers_find_one_another_by_name(
    cluster: Cluster,
) -> None:
    seats = a_launch(cluster, 1, 1)
    Node.objects.update(address="{container}")
    first = Assignment.objects.get(pk=seats[0].pk)
    named = f"lm-{first.pk}-{first.fence}"
    assert [host.address for host in launch_spec(first).hosts] == [named, ""]


def test_a_job_of_one_unit_tells_nothing_that_an_older_agent_does_not_know(
    cluster: Cluster,
) -> None:
    (seat,) = a_launch(cluster, 1)
    spec = launch_spec(seat)
    assert not {"hosts", "held"} & set(to_json(spec))
    assert BATCH not in spec.required_features


def test_a_held_seat_is_told_no_secret(cluster: Cluster) -> None:
    first, other = a_launch(cluster, 1, 1, environment={"KEY": {"secret": "key"}})
    set_secret(first.job.team, "key", "a secret value")
    assert Secret.objects.exists()
    assert launch_spec(first).secrets == {"KEY": "a secret value"}
    assert launch_spec(other).secrets == {}


@pytest.mark.parametrize(
    ("state", "values", "expected"),
    [
        (S.SUCCEEDED, {"exit_code": 0}, JobState.COMPLETED),
        (S.FAILED, {"exit_code": 3, "reason_class": ReasonClass.USER}, JobState.FAILED),
        (S.FAILED, {"reason_class": ReasonClass.LIMIT}, JobState.FAILED),
    ],
)
def test_the_first_seats_end_stops_the_others_and_alone_decides(
    cluster: Cluster, state: AssignmentState, values: dict[str, Any], expected: JobState
) -> None:
    first, *others = a_launch(cluster, 2, 1, 1)
    run_all(first, *others)
    assert job_of(first).state == JobState.RUNNING
    say(first, state, **values)
    for other in others:
        other.refresh_from_db()
        assert (other.state, other.desired) == (S.RUNNING, StopReason.PREEMPT)
    assert job_of(first).state == JobState.RUNNING, "its other seats still hold what they have"
    say(others[0], S.PREEMPTED, reason_class=ReasonClass.PREEMPT)
    say(others[1], S.PREEMPTED, reason_class=ReasonClass.PREEMPT)
    job = job_of(first)
    assert (job.state, job.retries_used) == (expected, 0)


def test_a_held_seat_that_is_lost_after_the_process_has_ended_changes_nothing(
    cluster: Cluster,
) -> None:
    first, other = a_launch(cluster, 1, 1)
    run_all(first, other)
    say(first, S.FAILED, exit_code=3, reason_class=ReasonClass.USER)
    lose(other)
    assert job_of(first).state == JobState.FAILED


def test_a_held_seat_that_is_lost_ends_the_launch_which_is_tried_again(cluster: Cluster) -> None:
    first, other = a_launch(cluster, 1, 1)
    run_all(first, other)
    lose(other)
    first.refresh_from_db()
    assert first.desired == StopReason.PREEMPT
    say(first, S.FAILED, exit_code=1, reason_class=ReasonClass.USER)
    job = job_of(first)
    assert (job.state, job.retries_used) == (JobState.QUEUED, 0), "not by its own fault"


def test_a_process_that_does_its_work_although_a_held_seat_was_lost_is_completed(
    cluster: Cluster,
) -> None:
    first, other = a_launch(cluster, 1, 1)
    run_all(first, other)
    lose(other)
    say(first, S.SUCCEEDED, exit_code=0)
    assert job_of(first).state == JobState.COMPLETED


def lose(seat: Assignment) -> None:
    """The agent of a seat is silent for ever."""
    before = timezone.now() - timedelta(days=1)
    Assignment.objects.filter(pk=seat.pk).update(renewed_at=before, lease_expires_at=before)
    reconcile_clusters()
    reconcile_clusters()
    seat.refresh_from_db()
    assert seat.state == S.LOST


def test_a_rejected_held_seat_ends_the_launch(cluster: Cluster) -> None:
    first, other = a_launch(cluster, 1, 1)
    run_all(first)
    say(other, S.REJECTED, reason_class=ReasonClass.NODE, reason="an older agent")
    first.refresh_from_db()
    assert first.desired == StopReason.PREEMPT
    say(first, S.PREEMPTED, reason_class=ReasonClass.PREEMPT)
    assert job_of(first).state == JobState.QUEUED


def test_a_preempted_job_waits_again_once_all_its_seats_are_free(cluster: Cluster) -> None:
    first, other = a_launch(cluster, 1, 1)
    run_all(first, other)
    preempt_gang(other.pk, "a test")
    say(other, S.PREEMPTED, reason_class=ReasonClass.PREEMPT)
    assert job_of(first).state == JobState.STOPPING
    say(first, S.PREEMPTED, reason_class=ReasonClass.PREEMPT)
    assert job_of(first).state == JobState.QUEUED


def test_a_cancelled_job_is_over_once_all_its_seats_are_free(cluster: Cluster) -> None:
    first, other = a_launch(cluster, 1, 1)
    run_all(first, other)
    job = job_of(first)
    job_cancel(job, job.user)
    for seat in (first, other):
        seat.refresh_from_db()
        assert seat.desired == StopReason.CANCEL
    say(first, S.CANCELLED)
    assert job_of(first).state == JobState.CANCELLING
    say(other, S.CANCELLED)
    assert job_of(first).state == JobState.CANCELLED


def test_the_process_that_ends_before_an_agent_took_a_held_seat_withdraws_it(
    cluster: Cluster,
) -> None:
    first, other = a_launch(cluster, 1, 1)
    run_all(first)
    say(first, S.SUCCEEDED, exit_code=0)
    other.refresh_from_db()
    assert (other.state, job_of(first).state) == (S.PREEMPTED, JobState.COMPLETED)


class TestEach:
    def test_every_seat_runs_and_knows_its_number(self, cluster: Cluster) -> None:
        specs = [launch_spec(seat) for seat in a_launch(cluster, 2, 1, processes="each")]
        assert [(spec.held, spec.rank) for spec in specs] == [(False, 0), (False, 1)]

    def test_the_job_completes_when_all_have(self, cluster: Cluster) -> None:
        first, other = a_launch(cluster, 1, 1, processes="each")
        run_all(first, other)
        say(first, S.SUCCEEDED, exit_code=0)
        other.refresh_from_db()
        assert (other.desired, job_of(first).state) == ("run", JobState.RUNNING)
        say(other, S.SUCCEEDED, exit_code=0)
        assert job_of(first).state == JobState.COMPLETED

    def test_one_that_fails_fails_the_job_and_stops_the_others(self, cluster: Cluster) -> None:
        first, other = a_launch(cluster, 1, 1, processes="each")
        run_all(first, other)
        say(other, S.FAILED, exit_code=3, reason_class=ReasonClass.USER)
        first.refresh_from_db()
        assert first.desired == StopReason.PREEMPT
        say(first, S.PREEMPTED, reason_class=ReasonClass.PREEMPT)
        assert job_of(first).state == JobState.FAILED


def test_a_seat_out_of_memory_says_what_its_units_asked_for(cluster: Cluster) -> None:
    first, other = a_launch(cluster, 2, 1)
    run_all(first, other)
    say(first, S.FAILED, exit_code=137, reason_class=ReasonClass.OOM)
    stop_assignment(other, StopReason.PREEMPT)
    say(other, S.PREEMPTED, reason_class=ReasonClass.PREEMPT)
    assert "it asked for 4 GB of memory" in job_of(first).failure_reason
