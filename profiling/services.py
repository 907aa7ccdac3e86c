"""Services of the profiler, to be called inside the caller's transaction."""

import logging
from collections.abc import Sequence

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from clusters.events import request_reschedule
from clusters.models import GpuType, Reason
from controlplane.audit import record as audit
from jobs.assignment_lifecycle import ENDED
from jobs.models import Assignment, Job, Kind
from jobs.moves import note_job
from loadmaster.protocol import AssignmentState, ReasonClass
from policies.contract.snapshot import Purpose, Source
from profiling.measurements import (
    Observation,
    is_telling,
    is_training,
    least_steps,
    observe,
    observe_whole_run,
    record,
    steps_measured,
)
from profiling.models import Measurement, PairMeasurement, PairProfile, PairRun, Profile, ProfileRun
from profiling.outliers import is_first_held
from profiling.pairs.measurements import observe_pairs, record_impossible, record_pair
from profiling.publication import KindStateError
from profiling.restarts import is_stopped, learn_stop
from profiling.run_times.history import run_ended
from profiling.runs import COMMANDS_FAULT, OPEN, SILENT, R, begin_all, give_up, lock_kind, settle
from profiling.speeds import FIRST_STEPS, WARM_UP_STEPS

log = logging.getLogger(__name__)

RETRIES = 2
"""Failures of a profile run that are forgiven."""

DEVIATION = 0.2
"""Relative deviation of production's speed that triggers a round."""

REPORT_STEPS = "wrap its loop in loadmaster.training.steps"
"""Remedy for a command that reports no steps."""

_NOBODYS_FAULT = frozenset(
    {ReasonClass.PREEMPT, ReasonClass.LEASE, ReasonClass.OPERATOR, ReasonClass.GANG}
)


def request_profiles(jobs: Sequence[Job]) -> None:
    """Request missing measurements for saved jobs of one cluster, in the caller's transaction.

    A queued job of mode dedicated becomes PROFILING; others of unknown kinds get an assumed speed.
    Batch jobs without GPUs have no speed to be measured.
    """
    with transaction.atomic(savepoint=False):
        begin_all([job for job in jobs if job.gpus_max or not job.batch], timezone.now())


def profile_run_started(job: Job, copy: int) -> None:
    """Record that the profile run was placed, in the transaction of its assignment."""
    ProfileRun.objects.filter(job=job, copy=copy, state=R.WANTED).update(state=R.RUNNING)


def profile_run_ended(assignment: Assignment) -> None:
    """Process the end of a profiling assignment, in the transaction that ends it. Idempotent.

    Measured: the run is DONE. Failed: wanted again after a backoff, given up after RETRIES. Ended
    by nobody's fault: wanted again. Without open runs, the kind's waiting jobs go on.
    """
    ended = AssignmentState(assignment.state) in ENDED
    if assignment.purpose != Purpose.PROFILING or assignment.rank != 0 or not ended:
        return
    with transaction.atomic():
        kind = lock_kind(assignment.job.kind_id)
        run = ProfileRun.objects.filter(
            job=assignment.job_id, copy=assignment.copy, state__in=OPEN,
            ended_fence__lt=assignment.fence
        ).first()  # fmt: skip
        if run is not None:
            run.ended_fence = assignment.fence
            _take_in(kind, run, assignment)
        settle(kind, assignment.job.cluster, timezone.now())


def profile_run_silent(assignment: Assignment) -> None:
    """Give up the run of a profiling assignment that has reported no step for too long."""
    silence_s = assignment.job.cluster.profile_silence_s
    with transaction.atomic():
        lock_kind(assignment.job.kind_id)
        runs = ProfileRun.objects.filter(job=assignment.job_id, copy=assignment.copy)
        for run in runs.filter(state__in=OPEN).select_related("gpu_type", "job"):
            steps = assignment.steps_done - assignment.start_steps
            after = f"after its step {steps}" if steps > 0 else "of its start"
            why = f"no step within {silence_s:g} s {after}"
            remedy = f"{REPORT_STEPS}, or raise the cluster's profile_silence_s"
            give_up(run, f"{why}; {remedy}", SILENT)


def production_measured(assignment: Assignment) -> None:
    """Refine a kind's profile by a training assignment's progress since it last did.

    Short, noisy or throttled launches are ignored; shared devices measure pairs. The next look is
    after as many steps again. A speed that was unknown, or a deviation above DEVIATION, raises a
    PROFILE event.
    """
    if is_training(assignment) and assignment.share < 1.0:
        pairs_measured(assignment)
        return
    done = steps_measured(assignment)
    observation = observe(assignment, done) if is_training(assignment) else None
    if observation is None:
        return
    least = done or least_steps(assignment.job.kind_id, observation)
    if not is_telling(observation, assignment, least):
        return
    with transaction.atomic():
        kind = lock_kind(assignment.job.kind_id)
        if steps_measured(assignment) != done:
            return  # another process was faster
        before, held = record(kind, observation, assignment)
        if held:
            _note_held(observation, before, assignment)
            return
        believed = before or assignment.predicted_steps_per_s
        if believed is None or abs(observation.pace.steps_per_s / believed - 1) > DEVIATION:
            request_reschedule(assignment.job.cluster, Reason.PROFILE, job=assignment.job)


def progress_reported(assignment: Assignment, before: int, now: int) -> None:
    """Learn from a running launch after its first steps, and whenever their number doubles.

    `before`, `now`: steps of the launch. Whatever fails here must not refuse the report.
    """
    first = WARM_UP_STEPS + FIRST_STEPS
    if now < first or (before >= first and now.bit_length() == before.bit_length()):
        return
    try:
        with transaction.atomic():
            rows = Assignment.objects.select_related("job__cluster", "node")
            production_measured(rows.get(pk=assignment.pk))
    except Exception:
        log.exception("nothing learnt from the progress of assignment %s", assignment.pk)


def launch_ended(assignment: Assignment) -> None:
    """Learn speed, run time and cost of a stop from a training launch that has ended.

    Batch jobs and jobs without GPUs have run times, the others speeds.
    """
    run_ended(assignment)
    if assignment.job.has_no_speed:
        return
    production_measured(assignment)
    whole = observe_whole_run(assignment)
    stopped = is_training(assignment) and is_stopped(assignment)
    if whole is None and not stopped:
        return
    with transaction.atomic():
        kind = lock_kind(assignment.job.kind_id)
        if stopped:
            learn_stop(kind, assignment)
        if whole is not None and not kind.reports_steps and not steps_measured(assignment):
            record(kind, whole, assignment)


def pairs_measured(assignment: Assignment) -> None:
    """Update the kind's pair speeds from launches that shared its GPU. Idempotent."""
    with transaction.atomic():
        if record_impossible(assignment) is not None:
            request_reschedule(assignment.job.cluster, Reason.PROFILE, job=assignment.job)
    for seen in observe_pairs(assignment):
        with transaction.atomic():
            learnt = record_pair(seen)
            if learnt is not None and learnt.deviates(DEVIATION):
                request_reschedule(assignment.job.cluster, Reason.PROFILE, job=assignment.job)


def forget(kind: Kind) -> None:
    """Have a team's kind measured again; its figures stay as estimates until then.

    Raises KindStateError for a published one.
    """
    if kind.team_id is None:
        raise KindStateError("it is published, and no job of it is measured; withdraw it instead")
    with transaction.atomic():
        lock_kind(kind.pk)
        Measurement.objects.filter(kind=kind).delete()
        ProfileRun.objects.filter(kind=kind).exclude(state__in=OPEN).delete()
        Profile.objects.filter(kind=kind).update(
            source=Source.ESTIMATED, samples=0, published=False
        )
        in_pair = Q(first=kind) | Q(second=kind)
        PairMeasurement.objects.filter(in_pair).delete()
        PairProfile.objects.filter(in_pair).update(source=Source.ESTIMATED, samples=0)
        PairRun.objects.filter(in_pair).exclude(state__in=OPEN).delete()
        audit.record("kind.forget", kind, team=kind.team)


def _take_in(kind: Kind, run: ProfileRun, assignment: Assignment) -> None:
    observation = observe(assignment)
    if observation is not None and _is_enough(observation, run, assignment):
        before, held = record(kind, observation, assignment)
        if held:
            _note_held(observation, before, assignment)
        if held and not _was_held_before(run, assignment):
            _want_again(run)
            return
        run.state, run.ended_at, run.reason = R.DONE, timezone.now(), ""
        run.save()
    elif assignment.state == AssignmentState.SUCCEEDED:
        give_up(run, f"the command ended without reporting progress; {REPORT_STEPS}", SILENT)
    elif assignment.state == AssignmentState.REJECTED or _failed(assignment):
        _failed_once_more(kind, run, assignment)
    else:
        _want_again(run)


def _was_held_before(run: ProfileRun, assignment: Assignment) -> bool:
    """Return True if an earlier launch of the run was an outlier: a third would tell no more."""
    launches = {"assignment__job": run.job_id, "assignment__copy": run.copy}
    earlier = Measurement.objects.filter(**launches, purpose=Purpose.PROFILING, held=True)
    return earlier.exclude(assignment=assignment).exists()


def _note_held(observation: Observation, known: float | None, assignment: Assignment) -> None:
    """Tell the job, once for each launch, that its speed waits for a second run."""
    if not is_first_held(assignment):
        return
    gpu_type = GpuType.objects.get(pk=observation.gpu_type_id)
    seen = f"{observation.pace.steps_per_s:.3g} steps/s on {observation.gpus} x {gpu_type.name}"
    message = f"{seen}, {known:.3g} is known: not taken until a second run shows the like"
    note_job(assignment.job, "warning", data={"message": message})


def _is_enough(observation: Observation, run: ProfileRun, assignment: Assignment) -> bool:
    """Return True for a whole run, or the better half of one that was stopped from outside."""
    if assignment.state == AssignmentState.SUCCEEDED:
        return True
    return not _failed(assignment) and observation.pace.steps >= max(3, run.steps // 2)


def _failed(assignment: Assignment) -> bool:
    return (
        assignment.state == AssignmentState.FAILED and assignment.reason_class not in _NOBODYS_FAULT
    )


def _failed_once_more(kind: Kind, run: ProfileRun, assignment: Assignment) -> None:
    """Count the failure; a command that crashed for good is not tried elsewhere for long."""
    run.failures += 1
    run.reason, run.reason_class = _wording(assignment), assignment.reason_class
    siblings = ProfileRun.objects.filter(kind=kind, job=run.job_id).exclude(pk=run.pk)
    measured = siblings.filter(state=R.DONE).exists()
    crashes = siblings.filter(state=R.GIVEN_UP, reason_class=ReasonClass.USER).exists()
    crashed_before = crashes and run.reason_class == ReasonClass.USER and not measured
    if run.failures <= RETRIES and not crashed_before:
        run.ended_at = timezone.now()
        _want_again(run)
        return
    give_up(run, run.reason, run.reason_class)
    if run.reason_class in COMMANDS_FAULT - {ReasonClass.OOM} and not measured:
        same = f"not tried: on {run.gpus} x {run.gpu_type.name} {run.reason}"
        siblings.filter(state=R.WANTED).update(
            state=R.GIVEN_UP, reason=same, reason_class=run.reason_class, ended_at=timezone.now()
        )  # fmt: skip


def _want_again(run: ProfileRun) -> None:
    run.state = R.WANTED
    run.save()
    request_reschedule(run.job.cluster, Reason.PROFILE, job=run.job)


def _wording(assignment: Assignment) -> str:
    if assignment.state == AssignmentState.REJECTED:
        return f"the node refused it: {assignment.reason or 'no reason given'}"
    ended = "it failed" if assignment.exit_code is None else f"exit code {assignment.exit_code}"
    return f"{ended}: {assignment.reason}" if assignment.reason else ended
