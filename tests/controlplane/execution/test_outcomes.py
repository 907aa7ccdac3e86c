"""What becomes of jobs when their assignments end."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clusters.models import RescheduleEvent
from controlplane.execution import outcomes
from controlplane.execution.moves import move_assignment
from controlplane.execution.outcomes import assignment_ended, assignment_running, settle_job
from controlplane.execution.services.stops import stop_assignment
from jobs.assignment_lifecycle import AssignmentMove
from jobs.launch_outcome import FRUITLESS_LAUNCHES, LONGEST_BACKOFF_S, End, Past, end_outcome
from jobs.lifecycle import JobMove
from jobs.models import Assignment, Job
from jobs.moves import move_job
from loadmaster.protocol import AssignmentState, ReasonClass, StopReason
from profiling import services as profiling_services
from tests.builders import a_job
from tests.builders_agents import a_node_with_agent, a_running_assignment, an_offer

S, M, R = AssignmentState, AssignmentMove, ReasonClass
pytestmark = pytest.mark.django_db

OK = End(S.SUCCEEDED, exit_code=0)
CRASH = End(S.FAILED, R.USER, exit_code=1)
GPU = End(S.FAILED, R.GPU, "xid 79")
LOST = End(S.LOST, R.LEASE)
STOPPED = End(S.PREEMPTED, R.PREEMPT)
IGNORED = End(S.PREEMPTED, R.NODE)
REJECTED = End(S.REJECTED, "", "unknown feature docker", began=False)
NO_IMAGE = End(S.REJECTED, R.IMAGE, "no such image", began=False)
NOT_PREPARED = End(S.FAILED, R.NODE, "no space left on device", began=False)
LOST_OFFER = End(S.LOST, R.LEASE, began=False)
OVER = End(S.FAILED, R.LIMIT, "it ran for its whole walltime and was ended", 0)
CANCELLED = End(S.CANCELLED, R.OPERATOR, cancelled=True)


@pytest.mark.parametrize(
    ("ends", "more", "move"),
    [
        ([OK], {}, JobMove.COMPLETE),
        ([OK, OK], {}, JobMove.COMPLETE),
        ([OK], {"work_done": False}, JobMove.STOPPED),
        ([OK, STOPPED], {}, JobMove.STOPPED),
        ([CRASH], {}, JobMove.RETRY),
        ([End(S.FAILED, R.OOM)], {}, JobMove.RETRY),
        ([CRASH], {"retries_left": 0}, JobMove.FAIL),
        ([CRASH, STOPPED], {"retries_left": 0}, JobMove.FAIL),
        ([GPU], {"retries_left": 0}, JobMove.STOPPED),
        ([GPU, CRASH], {"retries_left": 0}, JobMove.STOPPED),
        ([LOST], {}, JobMove.STOPPED),
        ([REJECTED], {}, JobMove.STOPPED),
        ([IGNORED], {}, JobMove.STOPPED),
        ([STOPPED], {}, JobMove.STOPPED),
        ([GPU], {"fruitless": FRUITLESS_LAUNCHES}, JobMove.FAIL),
        ([REJECTED], {"fruitless": FRUITLESS_LAUNCHES}, JobMove.STOPPED),
        ([NOT_PREPARED], {"fruitless": FRUITLESS_LAUNCHES}, JobMove.STOPPED),
        ([NOT_PREPARED, GPU], {"fruitless": FRUITLESS_LAUNCHES}, JobMove.FAIL),
        ([NO_IMAGE], {"fruitless": FRUITLESS_LAUNCHES}, JobMove.FAIL),
        ([LOST_OFFER], {"fruitless": FRUITLESS_LAUNCHES}, JobMove.FAIL),
        ([IGNORED], {"fruitless": FRUITLESS_LAUNCHES}, JobMove.FAIL),
        ([STOPPED], {"fruitless": FRUITLESS_LAUNCHES}, JobMove.STOPPED),
        ([OVER], {}, JobMove.FAIL),
        ([OVER, LOST], {}, JobMove.FAIL),
        ([OVER], {"cancelling": True}, JobMove.CANCELLED),
        ([CANCELLED], {}, JobMove.CANCEL),
        ([CANCELLED], {"cancelling": True}, JobMove.CANCELLED),
        ([CRASH], {"cancelling": True}, JobMove.CANCELLED),
        ([LOST], {"cancelling": True}, JobMove.CANCELLED),
        ([OK], {"cancelling": True}, JobMove.COMPLETE),
    ],
)
def test_ends_of_all_ranks_become_one_move(
    ends: list[End], more: dict[str, Any], move: JobMove
) -> None:
    given = {"cancelling": False, "work_done": True, "retries_left": 1, "fruitless": 1, **more}
    past = Past(retries_left=given.pop("retries_left"), fruitless=given.pop("fruitless"))
    assert end_outcome(ends, past, **given).move is move


def _end(
    assignment: Assignment, move: AssignmentMove, reason_class: str = "", **values: Any
) -> Job:
    assignment.refresh_from_db()
    move_assignment(assignment, move, reason_class=reason_class, **values)
    assignment_ended(assignment)
    return Job.objects.get(pk=assignment.job_id)


def test_a_job_whose_work_is_done_is_complete_and_its_attempt_says_so() -> None:
    assignment = a_running_assignment(a_node_with_agent())
    job = _end(assignment, M.SUCCEED, exit_code=0)
    assert job.state == "completed"
    assert job.completed_at is not None
    attempt = job.attempts.get()
    assert (attempt.outcome, attempt.ended_at) == ("completed", job.completed_at)
    assert RescheduleEvent.objects.filter(job=job).latest("id").reason == "completion"


def test_a_crash_uses_a_retry_and_closes_the_attempt_until_none_is_left() -> None:
    node = a_node_with_agent()
    job = a_job(node.cluster, max_retries=1)
    job = _end(a_running_assignment(node, job), M.FAIL, R.USER, exit_code=1)
    assert (job.state, job.retries_used) == ("queued", 1)
    assert job.attempts.get().outcome == "failed"
    job = _end(
        a_running_assignment(node, job), M.FAIL, R.OOM, exit_code=137, reason="killed for memory"
    )
    assert (job.state, job.retries_used) == ("failed", 1)
    assert job.failure_reason.startswith(
        "failed with exit code 137 (oom): killed for memory; it asked for 1 GB of memory"
    )
    assert list(job.attempts.values_list("outcome", flat=True)) == ["failed", "failed"]


def test_a_machines_fault_uses_no_retry_and_keeps_the_attempt_open() -> None:
    node = a_node_with_agent()
    job = _end(a_running_assignment(node, a_job(node.cluster, max_retries=0)), M.FAIL, R.GPU)
    assert (job.state, job.retries_used) == ("queued", 0)
    assert job.attempts.get().ended_at is None


def test_a_job_that_only_meets_broken_machines_fails_in_the_end_with_a_clear_reason() -> None:
    node = a_node_with_agent()
    job = a_job(node.cluster, max_retries=0)
    for _ in range(FRUITLESS_LAUNCHES):
        assert job.state == "queued"
        job = _end(a_running_assignment(node, job), M.FAIL, R.GPU, reason="xid 79")
    assert job.state == "failed"
    assert job.failure_reason.startswith("5 launches in a row ended without progress")
    assert "xid 79" in job.failure_reason


def test_a_job_that_no_agent_can_prepare_waits_longer_and_longer_and_never_fails() -> None:
    node = a_node_with_agent()
    job = a_job(node.cluster, max_retries=0)
    waits_s = []
    for _ in range(4 * FRUITLESS_LAUNCHES):
        ends = an_offer(node, job), M.REJECT, R.NODE
        job = _end(*ends, reason="the run's folder cannot be made: no space left on device")
        assert (job.state, job.failure_reason) == ("queued", "")
        waits_s.append((job.retry_at - timezone.now()).total_seconds() if job.retry_at else 0.0)
    assert waits_s[:4] == pytest.approx([0, 10, 20, 40], abs=1)
    assert waits_s[-1] == pytest.approx(LONGEST_BACKOFF_S, abs=1)
    assert "no space left on device" in job.waiting_detail["why"]


def test_launches_that_no_agent_could_prepare_do_not_count_among_those_that_fell() -> None:
    node = a_node_with_agent()
    job = a_job(node.cluster, max_retries=0)
    for _ in range(FRUITLESS_LAUNCHES - 1):
        job = _end(a_running_assignment(node, job), M.FAIL, R.GPU, reason="xid 79")
        job = _end(an_offer(node, job), M.REJECT, R.NODE)
    assert job.state == "queued"
    assert _end(a_running_assignment(node, job), M.FAIL, R.GPU).state == "failed"


def test_progress_between_troubles_starts_the_count_anew() -> None:
    node = a_node_with_agent()
    job = a_job(node.cluster)
    for number in range(2 * FRUITLESS_LAUNCHES):
        job = _end(
            a_running_assignment(node, job),
            M.FAIL,
            R.NODE,
            steps_done=10 if number == FRUITLESS_LAUNCHES - 2 else 0,
        )
        if job.state == "failed":
            break
    assert number == 2 * FRUITLESS_LAUNCHES - 2


def test_preemptions_neither_count_as_trouble_nor_hide_it() -> None:
    node = a_node_with_agent()
    job = a_job(node.cluster)
    for _ in range(FRUITLESS_LAUNCHES - 1):
        job = _end(a_running_assignment(node, job), M.PREEMPT, R.PREEMPT)
        job = _end(a_running_assignment(node, job), M.FAIL, R.NODE)
    assert job.state == "queued"
    assert _end(a_running_assignment(node, job), M.FAIL, R.NODE).state == "failed"


def test_a_requeued_job_gets_its_chances_again() -> None:
    node = a_node_with_agent()
    job = a_job(node.cluster)
    for _ in range(FRUITLESS_LAUNCHES):
        job = _end(a_running_assignment(node, job), M.FAIL, R.NODE)
    assert job.state == "failed"
    move_job(job, JobMove.REQUEUE)
    assert _end(a_running_assignment(node, job), M.FAIL, R.NODE).state == "queued"


def test_a_preempted_job_waits_again_and_may_go_elsewhere() -> None:
    assignment = a_running_assignment(a_node_with_agent())
    move_job(assignment.job, JobMove.PREEMPT)
    job = _end(assignment, M.PREEMPT, R.PREEMPT)
    assert (job.state, job.retries_used) == ("queued", 0)
    assert RescheduleEvent.objects.filter(job=job).latest("id").reason == "stopped"


def test_trouble_is_no_stop_that_somebody_asked_for() -> None:
    job = _end(an_offer(a_node_with_agent()), M.REJECT, R.NODE)
    assert job.state == "queued"
    assert RescheduleEvent.objects.filter(job=job).latest("id").reason == "leftover"


def test_a_job_to_be_held_is_held_once_it_has_stopped() -> None:
    assignment = a_running_assignment(a_node_with_agent())
    move_job(assignment.job, JobMove.PREEMPT, hold_wanted=True)
    job = _end(assignment, M.PREEMPT, R.PREEMPT)
    assert (job.state, job.hold_wanted) == ("held", False)


def test_a_cancelled_job_is_over_only_when_its_last_assignment_is() -> None:
    node = a_node_with_agent(gpus=2)
    first = a_running_assignment(node, world_size=2)
    second = a_running_assignment(node, first.job, rank=1, world_size=2)
    move_job(first.job, JobMove.CANCEL)
    assert _end(first, M.CANCEL, R.OPERATOR).state == "cancelling"
    second.refresh_from_db()
    assert second.desired == "cancel"
    job = _end(second, M.CANCEL, R.OPERATOR)
    assert (job.state, job.attempts.get().outcome) == ("cancelled", "cancelled")


def test_one_ranks_crash_brings_the_gang_down_and_is_counted_once() -> None:
    node = a_node_with_agent(gpus=3)
    job = a_job(node.cluster, max_retries=5)
    ranks = [a_running_assignment(node, job, world_size=3)]
    ranks += [
        a_running_assignment(node, job, rank=1, world_size=3),
        an_offer(node, job, rank=2, world_size=3),
    ]
    job = _end(ranks[0], M.FAIL, R.USER, exit_code=1)
    states = {a.rank: (a.state, a.desired) for a in Assignment.objects.all()}
    assert states == {0: ("failed", "run"), 1: ("running", "preempt"), 2: ("preempted", "preempt")}
    assert job.state == "running"
    job = _end(ranks[1], M.PREEMPT, R.PREEMPT)
    assert (job.state, job.retries_used) == ("queued", 1)


def _a_gang_of_two() -> tuple[Assignment, Assignment]:
    node = a_node_with_agent(gpus=2)
    first = a_running_assignment(node, a_job(node.cluster, max_retries=5), world_size=2)
    return first, a_running_assignment(node, first.job, rank=1, world_size=2)


@pytest.mark.parametrize("crashed", [0, 1])
def test_the_rank_that_crashed_gives_its_gang_the_reason_whichever_is_heard_first(
    crashed: int,
) -> None:
    ranks = _a_gang_of_two()
    _end(ranks[1 - crashed], M.FAIL, R.GANG, reason=f"rank {crashed} was lost", exit_code=77)
    job = _end(ranks[crashed], M.FAIL, R.USER, reason="no such label", exit_code=1)
    assert (job.state, job.retries_used) == ("queued", 1)
    assert "no such label" in job.attempts.latest("number").reason


def test_a_rank_that_a_node_lost_uses_up_no_retry_of_its_gang() -> None:
    ranks = _a_gang_of_two()
    _end(ranks[0], M.FAIL, R.GANG, reason="rank 1 was lost", exit_code=1)
    job = _end(ranks[1], M.FAIL, R.NODE, reason="the run's guard was killed")
    assert (job.state, job.retries_used) == ("queued", 0)


def test_ranks_that_all_lost_each_other_were_cut_off_and_are_not_tried_for_ever() -> None:
    ranks = _a_gang_of_two()
    for _ in range(4):
        _end(ranks[0], M.FAIL, R.GANG, reason="rank 1 was lost", exit_code=77)
        job = _end(ranks[1], M.FAIL, R.GANG, reason="rank 0 was lost", exit_code=77)
        assert (job.state, job.retries_used) == ("queued", 0)
        Job.objects.update(retry_at=None)
        again = a_running_assignment(ranks[0].node, Job.objects.get(), world_size=2)
        ranks = again, a_running_assignment(again.node, again.job, rank=1, world_size=2)
    _end(ranks[0], M.FAIL, R.GANG, reason="rank 1 was lost", exit_code=77)
    job = _end(ranks[1], M.FAIL, R.GANG, reason="rank 0 was lost", exit_code=77)
    assert (job.state, "without progress" in job.failure_reason) == ("failed", True)


def test_a_gang_of_which_one_rank_was_killed_while_it_was_stopped_is_merely_stopped() -> None:
    ranks = _a_gang_of_two()
    move_job(ranks[0].job, JobMove.PREEMPT)
    _end(ranks[0], M.PREEMPT, R.PREEMPT, exit_code=-9)
    job = _end(ranks[1], M.FAIL, R.GANG, reason="rank 0 was lost", exit_code=77)
    assert (job.state, job.retries_used, job.failure_reason) == ("queued", 0, "")


def test_a_gang_is_complete_when_all_its_ranks_have_succeeded() -> None:
    node = a_node_with_agent(gpus=2)
    first = a_running_assignment(node, world_size=2)
    second = a_running_assignment(node, first.job, rank=1, world_size=2)
    assert _end(first, M.SUCCEED).state == "running"
    second.refresh_from_db()
    assert second.desired == "run"
    assert _end(second, M.SUCCEED).state == "completed"


def test_a_gang_runs_when_all_its_ranks_do() -> None:
    node = a_node_with_agent(gpus=2)
    job = a_job(node.cluster)
    first, second = (an_offer(node, job, rank=rank, world_size=2) for rank in range(2))
    Assignment.objects.filter(pk=first.pk).update(state=S.RUNNING)
    assignment_running(first)
    assert Job.objects.get().state == "starting"
    Assignment.objects.filter(pk=second.pk).update(state=S.RUNNING)
    assignment_running(second)
    job.refresh_from_db()
    assert job.state == "running"
    assert job.started_at is not None


@pytest.mark.parametrize(
    ("steps_done", "state"), [(40, "queued"), (100, "completed"), (0, "completed")]
)
def test_a_launch_with_a_quota_completes_the_job_only_with_its_last_step(
    steps_done: int, state: str
) -> None:
    node = a_node_with_agent()
    assignment = a_running_assignment(node, a_job(node.cluster, total_steps=100), steps_quota=40)
    assert _end(assignment, M.SUCCEED, steps_done=steps_done).state == state


@pytest.mark.parametrize(
    ("steps_done", "state"), [(40, "queued"), (100, "completed"), (0, "completed")]
)
def test_a_job_that_was_asked_to_leave_and_did_so_politely_is_not_taken_for_complete(
    steps_done: int, state: str
) -> None:
    assignment = a_running_assignment(a_node_with_agent())
    move_job(assignment.job, JobMove.PREEMPT)
    stop_assignment(assignment, StopReason.PREEMPT)
    assert _end(assignment, M.SUCCEED, exit_code=0, steps_done=steps_done).state == state


def test_device_seconds_are_received_by_gpu_type_and_the_end_is_billed() -> None:
    node = a_node_with_agent()
    start = timezone.now() - timedelta(seconds=100)
    job = _end(a_running_assignment(node, now=start, gpus=2), M.SUCCEED)
    assert job.received_s["V100"] == pytest.approx(200, rel=0.05)
    bill = Assignment.objects.get()
    assert bill.energy_kwh is not None
    assert bill.energy_kwh > 0
    assert bill.energy_cost is not None


def test_an_end_that_cannot_be_billed_is_an_end_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(assignment: Assignment) -> None:
        raise ZeroDivisionError("a broken tariff")

    monkeypatch.setattr(outcomes, "bill", fail)
    assert _end(a_running_assignment(a_node_with_agent()), M.SUCCEED).state == "completed"


def test_the_end_of_a_profile_run_is_told_to_the_profiler_and_moves_no_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Assignment] = []
    monkeypatch.setattr(profiling_services, "profile_run_ended", told.append)
    node = a_node_with_agent()
    assignment = a_running_assignment(
        node, a_job(node.cluster, state="profiling"), purpose="profiling", copy=1
    )
    job = _end(assignment, M.FAIL, R.USER)
    assert (told, job.state, job.retries_used, job.received_s) == ([assignment], "profiling", 0, {})


def test_a_job_cancelled_while_it_is_measured_is_over_with_its_last_run() -> None:
    node = a_node_with_agent(gpus=2)
    job = a_job(node.cluster, state="profiling")
    first = a_running_assignment(node, job, purpose="profiling", copy=1)
    second = a_running_assignment(node, job, purpose="profiling", copy=2)
    move_job(job, JobMove.CANCEL)
    assert _end(first, M.CANCEL).state == "cancelling"
    assert _end(second, M.CANCEL).state == "cancelled"


def test_cancelling_an_offer_nobody_took_cancels_its_job_at_once() -> None:
    offer = an_offer(a_node_with_agent())
    move_job(offer.job, JobMove.CANCEL)
    stop_assignment(offer, StopReason.CANCEL)
    assert Job.objects.get().state == "cancelled"


def test_a_job_that_is_well_needs_no_mending() -> None:
    assignment = a_running_assignment(a_node_with_agent())
    assert settle_job(assignment.job_id) is False
    assert Job.objects.get().state == "running"


def test_a_job_whose_end_was_missed_is_moved_on_by_what_its_assignments_say() -> None:
    assignment = a_running_assignment(a_node_with_agent())
    move_assignment(assignment, M.SUCCEED)
    assert settle_job(assignment.job_id) is True
    assert Job.objects.get().state == "completed"


def test_an_end_tells_its_exit_code_once() -> None:
    assert (
        End(AssignmentState.FAILED, "oom", "killed", 137).words()
        == "failed with exit code 137 (oom): killed"
    )
    assert (
        End(AssignmentState.FAILED, "user", "the job ended with exit code 1: no data", 1)
        .words()
        .count("exit code")
        == 1
    )


def test_a_job_is_not_queued_again_while_another_launch_of_it_lives() -> None:
    node = a_node_with_agent(gpus=2)
    earlier = a_running_assignment(node)
    job = earlier.job
    job.fence += 1
    job.save(update_fields=["fence"])
    later = a_running_assignment(node, job, rank=1, world_size=2)
    assert _end(earlier, M.PREEMPT, R.PREEMPT).state == "running"
    assert _end(later, M.SUCCEED).state == "completed"


def test_a_cancelled_rank_cancels_the_others_of_its_gang() -> None:
    ranks = _a_gang_of_two()
    stop_assignment(ranks[0], StopReason.CANCEL)
    _end(ranks[0], M.CANCEL, R.OPERATOR)
    ranks[1].refresh_from_db()
    assert ranks[1].desired == "cancel"


def test_an_attempt_that_has_ended_keeps_its_outcome() -> None:
    assignment = a_running_assignment(a_node_with_agent())
    ended_at = timezone.now() - timedelta(hours=1)
    assignment.job.attempts.update(ended_at=ended_at, outcome="failed")
    assert _end(assignment, M.SUCCEED, exit_code=0).state == "completed"
    attempt = assignment.job.attempts.get()
    assert (attempt.outcome, attempt.ended_at) == ("failed", ended_at)


def test_a_job_that_is_launched_again_keeps_its_start() -> None:
    node = a_node_with_agent()
    long_ago = timezone.now() - timedelta(hours=1)
    offer = an_offer(node, a_job(node.cluster, started_at=long_ago))
    Assignment.objects.update(state=S.RUNNING)
    assignment_running(offer)
    job = Job.objects.get()
    assert (job.state, job.started_at) == ("running", long_ago)


def test_an_end_keeps_the_first_start_of_its_job() -> None:
    node = a_node_with_agent()
    long_ago = timezone.now() - timedelta(hours=1)
    job = _end(a_running_assignment(node, a_job(node.cluster, started_at=long_ago)), M.SUCCEED)
    assert job.started_at == long_ago


def test_failed_profile_runs_do_not_count_among_launches_that_fell() -> None:
    node = a_node_with_agent()
    job = a_job(node.cluster, max_retries=0)
    for _ in range(FRUITLESS_LAUNCHES - 1):
        measured = an_offer(node, job, purpose="profiling", copy=1)
        move_assignment(measured, M.REJECT, reason_class=R.GPU)
        job = _end(a_running_assignment(node, job), M.FAIL, R.GPU)
    assert job.state == "queued"
