"""What people do with jobs, and what becomes of them."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from clusters.models import Cluster, Node, RescheduleEvent
from jobs import services
from jobs.kinds import digest
from jobs.lifecycle import JobState
from jobs.models import Assignment, IdempotencyKey, Job, JobEvent, TeamRole
from jobs.moves import LostRaceError
from jobs.selectors import JobNotFound
from jobs.submission import submit as intake
from jobs.submission.refusals import IdempotencyConflict, JobConflict
from jobs.submission.validation import JobInvalid
from loadmaster.protocol import AssignmentState
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_jobs import a_placement, job_fields

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster()


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster, gpus=2)


@pytest.fixture
def user() -> User:
    return a_user("ada", team=a_team("research"))


def a_job_of(user: User, cluster: Cluster, state: JobState = JobState.QUEUED, **values: Any) -> Job:
    return a_job(cluster, team=user.teams.get(), user=user, state=state, **values)


def running(
    user: User, node: Node, state: AssignmentState = AssignmentState.RUNNING
) -> tuple[Job, Assignment]:
    job = a_job_of(user, node.cluster, JobState.RUNNING)
    return job, a_placement(job, node, state)


def events(job: Job) -> list[str]:
    return list(job.events.values_list("event", flat=True))


def test_a_submission_writes_the_job_its_event_and_asks_for_a_round(user: User, node: Node) -> None:
    done = services.job_submit(
        user,
        job_fields(epochs=2, steps_per_epoch=5, steps=None, gpus="1..2", labels=["a"], priority=3),
    )
    job = Job.objects.get(pk=done.job.pk)
    assert done.created
    assert (job.total_steps, job.gpus_min, job.gpus_max, job.labels, job.priority) == (
        10,
        1,
        2,
        ["a"],
        3,
    )
    assert job.command == ["python", "train.py"]
    assert job.user == user
    assert events(job)[0] == "submitted"
    assert (
        RescheduleEvent.objects.filter(cluster=node.cluster, job=job, reason="submission").count()
        == 1
    )
    assert job.state in (JobState.QUEUED, JobState.PROFILING)


def test_a_job_may_be_submitted_held(user: User, node: Node) -> None:
    job = services.job_submit(user, job_fields(hold=True)).job
    assert job.state == JobState.HELD
    assert not RescheduleEvent.objects.exists()
    assert services.job_release(job, user).state in (JobState.QUEUED, JobState.PROFILING)


def test_a_refused_submission_leaves_nothing_behind(user: User, node: Node) -> None:
    with pytest.raises(JobInvalid):
        services.job_submit(user, job_fields(gpus=99), "key")
    assert not Job.objects.exists()
    assert not IdempotencyKey.objects.exists()


def test_the_same_key_and_body_give_the_same_job(user: User, node: Node) -> None:
    first = services.job_submit(user, job_fields(), "key")
    again = services.job_submit(user, dict(reversed(job_fields().items())), "key")
    assert (again.job, again.created) == (first.job, False)
    assert Job.objects.count() == 1


def test_the_same_key_gives_the_job_again_even_when_it_would_be_refused_by_now(
    user: User, node: Node
) -> None:
    first = services.job_submit(user, job_fields(), "key")
    a_cluster()
    assert services.job_submit(user, job_fields(), "key").job == first.job


def test_the_same_key_with_another_body_is_a_conflict(user: User, node: Node) -> None:
    services.job_submit(user, job_fields(), "key")
    with pytest.raises(IdempotencyConflict, match="another body"):
        services.job_submit(user, job_fields(steps=7), "key")


def test_keys_are_each_users_own(user: User, node: Node) -> None:
    other = a_user(team=user.teams.get())
    assert (
        services.job_submit(user, job_fields(), "key").job
        != services.job_submit(other, job_fields(), "key").job
    )


@pytest.mark.parametrize("key", ["", " ", "x" * 201, "a\nb"])
def test_a_key_that_is_none_is_refused(user: User, node: Node, key: str) -> None:
    with pytest.raises(JobInvalid, match="Idempotency-Key"):
        services.job_submit(user, job_fields(), key)


def test_who_loses_the_race_for_a_key_gets_the_winners_job(
    user: User, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    winner = services.job_submit(user, job_fields(), "key")
    earlier = intake._earlier
    answers = iter([lambda *_: {}, earlier])
    monkeypatch.setattr(intake, "_earlier", lambda *args: next(answers)(*args))
    assert services.job_submit(user, job_fields(), "key").job == winner.job
    assert Job.objects.count() == 1


def test_jobs_of_one_name_of_kind_are_of_one_kind(user: User, node: Node) -> None:
    one, two = (
        services.job_submit(user, job_fields(kind="bert", command=["python", c])).job
        for c in ("a.py", "b.py")
    )
    assert one.kind == two.kind
    assert one.kind.name == "bert"


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.HELD, JobState.PROFILING])
def test_cancelling_a_job_that_holds_nothing_ends_it_at_once(
    user: User, cluster: Cluster, state: JobState
) -> None:
    job = services.job_cancel(a_job_of(user, cluster, state), user)
    assert job.state == JobState.CANCELLED
    assert Job.objects.get(pk=job.pk).completed_at is not None
    assert JobEvent.objects.get(job=job, to_state="cancelled").actor == "ada"


def test_cancelling_a_running_job_waits_for_its_processes(user: User, node: Node) -> None:
    job, assignment = running(user, node)
    assert services.job_cancel(job, user).state == JobState.CANCELLING
    assignment.refresh_from_db()
    assert (assignment.desired, assignment.state) == ("cancel", AssignmentState.RUNNING)
    assert services.job_cancel(job, user).state == JobState.CANCELLING


@pytest.mark.parametrize("state", [JobState.HELD, JobState.QUEUED, JobState.PROFILING])
def test_cancelling_a_job_that_is_measured_waits_for_its_processes(
    user: User, node: Node, state: JobState
) -> None:
    job = a_job_of(user, node.cluster, state)
    run = a_placement(job, node, purpose="profiling", gpus=0)
    assert services.job_cancel(job, user).state == JobState.CANCELLING
    run.refresh_from_db()
    assert run.desired == "cancel"


def test_cancelling_a_job_nobody_has_accepted_ends_it_at_once(user: User, node: Node) -> None:
    job = a_job_of(user, node.cluster, JobState.STARTING)
    assignment = a_placement(job, node, AssignmentState.OFFERED)
    assert services.job_cancel(job, user).state == JobState.CANCELLED
    assignment.refresh_from_db()
    assert assignment.state == AssignmentState.CANCELLED
    assert not assignment.slots.filter(live=True).exists()


def test_cancelling_a_placed_job_whose_assignments_are_gone_ends_it(
    user: User, cluster: Cluster
) -> None:
    assert (
        services.job_cancel(a_job_of(user, cluster, JobState.RUNNING), user).state
        == JobState.CANCELLED
    )


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED])
def test_what_is_over_cannot_be_cancelled(user: User, cluster: Cluster, state: JobState) -> None:
    with pytest.raises(JobConflict, match=f"the job is {state}: it cannot be cancelled"):
        services.job_cancel(a_job_of(user, cluster, state), user)


def test_holding_a_waiting_job_takes_it_out_of_the_queue(user: User, cluster: Cluster) -> None:
    job = services.job_hold(a_job_of(user, cluster), user)
    assert job.state == JobState.HELD
    assert services.job_hold(job, user).state == JobState.HELD


def test_holding_a_running_job_preempts_it_first(user: User, node: Node) -> None:
    job, assignment = running(user, node)
    held = services.job_hold(job, user)
    assignment.refresh_from_db()
    assert (held.state, held.hold_wanted, assignment.desired) == (
        JobState.STOPPING,
        True,
        "preempt",
    )


def test_the_wish_to_hold_can_be_taken_back_while_the_job_stops(user: User, node: Node) -> None:
    job, _ = running(user, node)
    services.job_hold(job, user)
    released = services.job_release(job, user)
    assert (released.state, released.hold_wanted) == (JobState.STOPPING, False)
    assert events(job)[-1] == "hold_taken_back"


def test_a_job_that_is_preempted_anyway_can_be_held(user: User, node: Node) -> None:
    job = a_job_of(user, node.cluster, JobState.STOPPING)
    a_placement(job, node, AssignmentState.STOPPING)
    assert services.job_hold(job, user).hold_wanted


@pytest.mark.parametrize("asked", [{"begin": "+2h"}, {}])
def test_a_release_ends_the_rest_of_a_waiting_job(
    user: User, node: Node, asked: dict[str, str]
) -> None:
    job = services.job_submit(user, job_fields(**asked)).job
    Job.objects.filter(pk=job.pk, retry_at=None).update(
        retry_at=timezone.now() + timedelta(minutes=5), waiting_code="resting"
    )
    RescheduleEvent.objects.all().delete()
    released = services.job_release(job, user)
    assert (released.state, released.retry_at, released.waiting_code) == ("queued", None, "")
    assert events(job)[-1] == "release"
    assert RescheduleEvent.objects.filter(job=job).exists()


def test_only_a_held_job_can_be_released(user: User, cluster: Cluster) -> None:
    with pytest.raises(JobConflict, match="the job is queued: it cannot be released"):
        services.job_release(a_job_of(user, cluster), user)


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_requeueing_gives_all_retries_again_and_keeps_the_checkpoint(
    user: User, cluster: Cluster, state: JobState
) -> None:
    job = a_job_of(user, cluster, state, retries_used=1, failure_reason="oom", checkpoint_steps=40)
    services.job_requeue(job, user)
    job.refresh_from_db()
    assert (job.state, job.retries_used, job.failure_reason, job.completed_at) == (
        JobState.QUEUED,
        0,
        "",
        None,
    )
    assert job.remaining_steps == 60
    assert RescheduleEvent.objects.filter(job=job).exists()


def test_a_completed_job_cannot_be_requeued_but_cloned(user: User, cluster: Cluster) -> None:
    job = a_job_of(user, cluster, JobState.COMPLETED, steps_per_epoch=100)
    with pytest.raises(JobConflict, match="completed: it cannot be requeued"):
        services.job_requeue(job, user)
    clone = services.job_clone(job, user, {"name": "again", "gpus": 2}).job
    assert (clone.cloned_from, clone.name, clone.gpus_max, clone.total_steps) == (
        job,
        "again",
        2,
        100,
    )


def test_a_clone_is_of_the_same_kind_and_description(user: User, node: Node) -> None:
    data = job_fields(
        environment={"A": "1"},
        mounts=["/a:/b"],
        walltime="1h",
        priority=2,
        may_mix=True,
        allowed_types=["V100"],
    )
    job = services.job_submit(user, data).job
    clone = services.job_clone(job, user).job
    assert clone.kind == job.kind
    assert services.job_data(clone) == services.job_data(job)


def test_a_clone_of_another_command_is_of_another_kind_unless_its_kind_was_named(
    user: User, node: Node
) -> None:
    unnamed, named = (
        services.job_submit(user, job_fields(**f)).job for f in ({}, {"kind": "bert"})
    )
    other = {"command": ["python", "other.py"]}
    assert services.job_clone(unnamed, user, other).job.kind != unnamed.kind
    assert services.job_clone(named, user, other).job.kind == named.kind


def test_overriding_steps_in_other_words_replaces_the_original(user: User, node: Node) -> None:
    job = services.job_submit(user, job_fields(steps=None, epochs=3, steps_per_epoch=4)).job
    assert services.job_clone(job, user, {"steps": 7}).job.total_steps == 7


@pytest.mark.parametrize(
    "act",
    [
        services.job_cancel,
        services.job_hold,
        services.job_release,
        services.job_requeue,
        services.job_clone,
    ],
)
def test_a_stranger_can_do_nothing_and_learns_nothing(
    user: User, cluster: Cluster, act: Any
) -> None:
    job = a_job_of(user, cluster)
    with pytest.raises(JobNotFound, match="there is no job"):
        act(job, a_user(team=a_team()))
    job.refresh_from_db()
    assert job.state == JobState.QUEUED


@pytest.mark.parametrize("colleague", [True, False])
def test_maintainers_and_operators_may_act(user: User, cluster: Cluster, colleague: bool) -> None:
    team = user.teams.get() if colleague else None
    other = a_user(team=team, role=TeamRole.MAINTAINER, operator=not colleague)
    assert services.job_cancel(a_job_of(user, cluster), other).state == JobState.CANCELLED


def test_an_action_on_a_job_that_moved_meanwhile_goes_by_its_newest_state(
    user: User, cluster: Cluster
) -> None:
    stale = a_job_of(user, cluster)
    Job.objects.filter(pk=stale.pk).update(state=JobState.COMPLETED)
    with pytest.raises(JobConflict, match="the job is completed"):
        services.job_cancel(stale, user)


def test_kinds_are_found_again_by_what_determines_speed(user: User, node: Node) -> None:
    job = services.job_submit(user, job_fields(command="python train.py --seed 1")).job
    again = services.job_submit(user, job_fields(command="python train.py --seed 2")).job
    assert job.kind == again.kind
    command = ["python", "train.py", "--seed", "3"]
    assert job.kind.digest == digest(runtime="process", command=command)


def test_a_hold_does_not_mark_a_job_that_has_just_stopped(user: User, node: Node) -> None:
    stopping = a_job(node.cluster, state="stopping")
    Job.objects.update(state="queued")
    with pytest.raises(LostRaceError):
        services._wish(stopping, "ada", hold_wanted=True)
    assert not Job.objects.get().hold_wanted


def test_a_job_waits_for_visible_jobs_of_its_cluster_alone(user: User, node: Node) -> None:
    strangers = a_job(node.cluster)
    elsewhere = a_job_of(user, a_cluster())
    for other in (strangers, elsewhere):
        fields = job_fields(cluster=node.cluster.name, dependencies=[str(other.pk)])
        with pytest.raises(JobInvalid) as refused:
            services.job_submit(user, fields)
        (problem,) = refused.value.fields["dependencies"]
        assert problem.startswith("there is no job or array")
