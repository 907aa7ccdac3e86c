"""Effects of assignments' starts and ends on jobs, in the transaction of the assignment."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from clusters.events import request_reschedule
from clusters.models import Reason
from controlplane.accounting.ledger import bill
from controlplane.execution.moves import move_assignment, request_stop
from controlplane.execution.seats import deciding, ends_launch, is_held
from controlplane.web.logs.structured import bound
from jobs.assignment_lifecycle import ENDED as ENDED_ASSIGNMENTS
from jobs.assignment_lifecycle import LIVE, AssignmentMove
from jobs.dependencies import impossible, why_never
from jobs.launch_outcome import End, EndOutcome, Past, end_outcome, trouble_of
from jobs.lifecycle import PLACED, JobMove, JobState
from jobs.models import Assignment, Attempt, Job
from jobs.moves import move_job
from jobs.wording.reasons import RESTING
from loadmaster.protocol import AssignmentState, ReasonClass, StopReason
from profiling import services as profiling_services

log = logging.getLogger(__name__)

TRAINING = "training"
REMEMBERED_LAUNCHES = 64

OUTCOMES = {
    JobMove.COMPLETE: "completed",
    JobMove.FAIL: "failed",
    JobMove.RETRY: "failed",
    JobMove.CANCELLED: "cancelled",
}
"""Outcomes of attempts; other moves leave them open."""

WAITING_STATES = (JobState.QUEUED, JobState.PROFILING)
"""States in which a job may fail without a launch: its deadline, or an end it waited for."""

REASONS = {
    JobMove.COMPLETE: Reason.COMPLETION,
    JobMove.FAIL: Reason.FAILURE,
    JobMove.RETRY: Reason.FAILURE,
    JobMove.STOPPED: Reason.STOPPED,
    JobMove.CANCELLED: Reason.CANCELLATION,
}


def assignment_running(assignment: Assignment, now: datetime | None = None) -> None:
    """Move the job to running once all ranks of its launch run.

    The assignment is from `lock_assignment`, in the same transaction.
    """
    job = assignment.job
    if assignment.purpose != TRAINING or job.state != JobState.STARTING:
        return
    gang = Assignment.objects.filter(job=job, fence=assignment.fence)
    if not gang.exclude(state=AssignmentState.RUNNING).exists():
        move_job(job, JobMove.RUN, started_at=job.started_at or now or timezone.now())


def assignment_ended(assignment: Assignment, now: datetime | None = None) -> None:
    """Settle an ended assignment, stop its gang if need be, move the job after its last rank.

    The assignment is from `lock_assignment`, in the same transaction.
    """
    now = now or timezone.now()
    with bound(job=assignment.job_id, assignment=assignment.pk, node=assignment.node_id):
        job = assignment.job
        gang = _gang(job, assignment.fence, assignment)
        _settle(job, assignment)
        if ends_launch(assignment, job):
            _stop_others(job, assignment, gang, now)
        if assignment.purpose == TRAINING:
            _decide(job, gang, now)
        else:
            profiling_services.profile_run_ended(assignment)
            request_reschedule(job.cluster, Reason.LEFTOVER, job=job)
            job.refresh_from_db(fields=["state"])  # the end of a profile run may have moved it
        _finish_cancelling(job, now)


def end_assignment(
    assignment: Assignment,
    move: AssignmentMove,
    blame: ReasonClass,
    reason: str,
    now: datetime,
    **values: Any,
) -> None:
    """End an assignment without its agent, with all that follows for its job."""
    values |= {"reason_class": blame, "reason": reason, "ended_at": now}
    move_assignment(assignment, move, **values)
    assignment_ended(assignment, now)


def settle_job(job_id: UUID, now: datetime | None = None) -> bool:
    """Move a job whose state expects a live assignment but has none; True if it moved."""
    now = now or timezone.now()
    with bound(job=job_id), transaction.atomic():
        job = _locked(job_id)
        live = job.assignments.filter(state__in=LIVE)
        if job.state not in PLACED | {JobState.CANCELLING} or live.exists():
            return False
        newest = job.assignments.filter(purpose=TRAINING).order_by("-fence").first()
        if newest is not None and job.state in PLACED:
            _decide(job, _gang(job, newest.fence), now)
        elif job.state in PLACED:
            _move(job, EndOutcome(JobMove.STOPPED), None, now)
        _finish_cancelling(job, now)
    return True


def _locked(job_id: UUID) -> Job:
    locked = Job.objects.select_for_update(of=("self",), no_key=True)
    return locked.select_related("cluster").get(pk=job_id)


def _gang(job: Job, fence: int, *known: Assignment) -> list[Assignment]:
    """Return the ranks of a launch in order; those known are not read again."""
    if all(member.world_size == 1 and member.purpose == TRAINING for member in known) and known:
        return list(known)
    ranks = Assignment.objects.filter(job=job, fence=fence)
    read = list(ranks.exclude(pk__in=[member.pk for member in known]))
    for member in read:
        member.job = job
    return sorted([*known, *read], key=lambda member: (member.rank, member.pk))


def _settle(job: Job, assignment: Assignment) -> None:
    used_gpus = assignment.purpose == TRAINING and assignment.gpus
    if used_gpus and assignment.running_at and assignment.ended_at:
        devices: float = assignment.slots.aggregate(total=Sum("share"))["total"] or 0.0
        seconds = devices * (assignment.ended_at - assignment.running_at).total_seconds()
        gpu_type = assignment.node.type_name
        received = {**job.received_s, gpu_type: job.received_s.get(gpu_type, 0.0) + seconds}
        Job.objects.filter(pk=job.pk).update(received_s=received)
        job.received_s = received
    try:
        with transaction.atomic():
            bill(assignment)
            if assignment.purpose == TRAINING and not is_held(assignment):
                profiling_services.launch_ended(assignment)
    except Exception:
        # An end is a fact: whatever keeps it from being billed or learned from must not keep it
        # from being known. The savepoint is rolled back, the bill can be recomputed from the rows.
        log.exception("assignment %s ended but could not be billed", assignment.pk)


def _stop_others(
    job: Job, assignment: Assignment, gang: Sequence[Assignment], now: datetime
) -> None:
    cancel = job.state == JobState.CANCELLING or assignment.desired == StopReason.CANCEL
    for member in gang:
        if member.pk != assignment.pk and request_stop(
            member, StopReason.CANCEL if cancel else StopReason.PREEMPT, "gang", now
        ):
            _settle(job, member)


def _decide(job: Job, gang: Sequence[Assignment], now: datetime) -> None:
    """Move the job by the ends of its launch, once no rank of this or another launch lives."""
    living = job.assignments.filter(purpose=TRAINING, state__in=LIVE)
    if job.state not in PLACED | {JobState.CANCELLING} or living.exists():
        return
    decisive = deciding(job, gang)
    ends = [_end(member, job) for member in decisive]
    retries = Past(job.retries_used, job.max_retries - job.retries_used)
    outcome = end_outcome(
        ends,
        _with_troubles(retries, job, gang[0]) if trouble_of(ends) else retries,
        cancelling=job.state == JobState.CANCELLING,
        work_done=all(_work_done(job, member) for member in decisive),
    )
    _move(job, outcome, gang[0], now, started_at=_started_at(gang))


def _started_at(gang: Sequence[Assignment]) -> datetime | None:
    """Return when the last rank began to run; None if one never did."""
    began = [member.running_at for member in gang]
    return None if None in began else max(filter(None, began))


def _end(assignment: Assignment, job: Job) -> End:
    return End(
        state=AssignmentState(assignment.state),
        reason_class=assignment.reason_class,
        reason=assignment.reason,
        exit_code=assignment.exit_code,
        cancelled=assignment.desired == StopReason.CANCEL,
        began=assignment.running_at is not None,
        memory_gb=job.memory_gb * assignment.units,
    )


def _work_done(job: Job, assignment: Assignment) -> bool:
    """Return True if the job is done; a launch that may end early must have done all steps."""
    reported = assignment.steps_done > assignment.start_steps
    may_leave_early = assignment.steps_quota is not None or assignment.desired != "run"
    return not may_leave_early or not reported or assignment.steps_done >= job.total_steps


def _with_troubles(past: Past, job: Job, newest: Assignment) -> Past:
    """Add the attempt's last launches that failed without progress; pre-emptions do not count."""
    rows = job.assignments.filter(
        purpose=TRAINING, attempt=newest.attempt, state__in=ENDED_ASSIGNMENTS
    ).select_related("node")
    troubles, without_image = Counter[bool](), dict[str, None]()
    for _, launch in groupby(
        rows.order_by("-fence", "rank")[:REMEMBERED_LAUNCHES], key=lambda row: row.fence
    ):
        ranks = deciding(job, list(launch))
        if any(rank.steps_done > rank.start_steps for rank in ranks):
            break
        if trouble := trouble_of([_end(rank, job) for rank in ranks]):
            troubles[trouble.unprepared] += 1
        without_image |= {
            rank.node.name: None for rank in ranks if rank.reason_class == ReasonClass.IMAGE
        }
    return replace(
        past,
        fruitless=troubles[False],
        unprepared=troubles[True],
        without_image=tuple(reversed(without_image)),
    )


def _move(
    job: Job,
    outcome: EndOutcome,
    assignment: Assignment | None,
    now: datetime,
    *,
    started_at: datetime | None = None,
) -> None:
    """Write the outcome: job state, attempt's end, rescheduling event, pending hold.

    `started_at` is of a launch whose start nobody reported before its end.
    """
    move = outcome.move
    if move is JobMove.CANCEL:
        move_job(job, JobMove.CANCEL)
        move = JobMove.CANCELLED
    data: dict[str, Any] = {"reason": outcome.reason} if outcome.reason else {}
    if assignment is not None:
        data |= {"fence": assignment.fence, "assignment": str(assignment.pk)}
    values = _values(job, move, outcome, now)
    if job.started_at is None and started_at is not None:
        values["started_at"] = started_at
    move_job(job, move, data=data, **values)
    if move in OUTCOMES and assignment is not None and assignment.attempt_id is not None:
        Attempt.objects.filter(pk=assignment.attempt_id, ended_at=None).update(
            ended_at=now,
            outcome=OUTCOMES[move],
            reason_class=outcome.reason_class,
            reason=outcome.reason,
        )
    if job.state == JobState.QUEUED and job.hold_wanted:
        move_job(job, JobMove.HOLD, hold_wanted=False)
    # A launch that failed was not stopped by request: decide anew.
    failed = move is JobMove.STOPPED and outcome.reason
    request_reschedule(job.cluster, Reason.LEFTOVER if failed else REASONS[move], job=job)


def _values(job: Job, move: JobMove, outcome: EndOutcome, now: datetime) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if move is JobMove.RETRY:
        values["retries_used"] = job.retries_used + 1
    if move in (JobMove.RETRY, JobMove.STOPPED) and (
        backoff_s := outcome.backoff_s(job.cluster.heartbeat_s)
    ):
        retry_at = now + timedelta(seconds=backoff_s)
        detail = {"why": outcome.reason, "retry_s": round(retry_at.timestamp())}
        values |= {"retry_at": retry_at, "waiting_code": RESTING, "waiting_detail": detail}
    if move is JobMove.FAIL:
        values["failure_reason"] = outcome.reason
    if move in (JobMove.COMPLETE, JobMove.FAIL, JobMove.CANCELLED):
        values |= {"completed_at": now, "hold_wanted": False}
        values |= {"waiting_code": "", "waiting_detail": {}}
    return values


def fail_overdue(pk: UUID, now: datetime) -> bool:
    """Fail a job that nothing holds and whose deadline passed while it waited."""
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=pk)
        if job.state not in WAITING_STATES or job.deadline_at is None or job.deadline_at > now:
            return False
        reason = "its deadline passed before it could run to its end"
        _move(job, EndOutcome(JobMove.FAIL, ReasonClass.LIMIT, reason), None, now)
    return True


def fail_never_ready(pk: UUID, now: datetime) -> bool:
    """Fail a job that nothing holds and that waits for an end that can no longer come."""
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=pk)
        never = job.dependency_links.filter(impossible()).select_related("on", "on_array").first()
        if job.state not in WAITING_STATES or never is None:
            return False
        outcome = EndOutcome(JobMove.FAIL, ReasonClass.USER, why_never(never))
        _move(job, outcome, None, now)
    return True


def _finish_cancelling(job: Job, now: datetime) -> None:
    """End a cancelled job when no node holds anything of it."""
    if job.state == JobState.CANCELLING and not job.assignments.filter(state__in=LIVE).exists():
        newest = job.assignments.filter(purpose=TRAINING).order_by("-fence").first()
        _move(job, EndOutcome(JobMove.CANCELLED), newest, now)
