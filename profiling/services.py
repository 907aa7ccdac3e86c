"""Services of the profiler: requests and ends of profile runs, and speeds by production.

They are called inside the caller's transaction.
"""

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
from profiling.runs import (
    COMMANDS_FAULT,
    OPEN,
    SILENT,
    RunState,
    begin_all,
    give_up,
    lock_kind,
    settle,
)
from profiling.speeds import FIRST_STEPS, WARM_UP_STEPS

log = logging.getLogger(__name__)

RETRIES = 2
"""Failures of a profile run that are forgiven."""

LEAST_STEPS = 3
"""Least steps of a stopped profile run that tell its speed."""

DEVIATION = 0.2
"""Relative deviation of production's speed from the known one that triggers a round."""

REPORT_STEPS = "wrap its loop in loadmaster.training.steps"
"""Remedy for a command that reports no steps."""

_NOBODYS_FAULT = frozenset(
    {ReasonClass.PREEMPT, ReasonClass.LEASE, ReasonClass.OPERATOR, ReasonClass.GANG}
)
"""Classes of ends that are no failures of a run."""


# -- profile runs


def request_profiles(jobs: Sequence[Job]) -> None:
    """Request missing measurements for saved jobs of one cluster, in the caller's transaction.

    A queued job of mode dedicated becomes PROFILING; the unknown kind of another job gets an
    assumed speed. Batch jobs without GPUs have no speed to be measured.
    """
    with_speeds = [job for job in jobs if job.gpus_max or not job.batch]
    with transaction.atomic(savepoint=False):
        begin_all(with_speeds, timezone.now())


def profile_run_started(job: Job, copy: int) -> None:
    """Record that the profile run was placed, in the transaction of its assignment."""
    wanted = ProfileRun.objects.filter(job=job, copy=copy, state=RunState.WANTED)
    wanted.update(state=RunState.RUNNING)


def profile_run_ended(assignment: Assignment) -> None:
    """Process the end of a profiling assignment, in the transaction that ends it. Idempotent.

    A run that has measured the speed is DONE. A failed one is wanted again after a pause, and given
    up after RETRIES. One that was stopped too early is wanted again. If no runs of the kind are
    open any more, its waiting jobs go on.
    """
    # Only rank 0 reports, and only the end of a launch counts.
    has_ended = AssignmentState(assignment.state) in ENDED
    if assignment.purpose != Purpose.PROFILING or assignment.rank != 0 or not has_ended:
        return
    with transaction.atomic():
        kind = lock_kind(assignment.job.kind_id)
        runs = ProfileRun.objects.filter(job=assignment.job_id, copy=assignment.copy)
        run = runs.filter(state__in=OPEN, ended_fence__lt=assignment.fence).first()
        if run is not None:
            run.ended_fence = assignment.fence
            _record_end(kind, run, assignment)
        settle(kind, assignment.job.cluster, timezone.now())


def _record_end(kind: Kind, run: ProfileRun, assignment: Assignment) -> None:
    """Record the speed that a launch has measured, and set the state of its run."""
    # 1. It measured a speed. An outlier is held, and the run repeated to confirm it.
    observation = observe(assignment)
    if observation is not None and _is_enough(observation, run, assignment):
        speed_before, is_held = record(kind, observation, assignment)
        if is_held:
            _note_outlier(observation, speed_before, assignment)
            if not _was_outlier_before(run, assignment):
                _want_again(run)
                return
        run.state = RunState.DONE
        run.ended_at = timezone.now()
        run.reason = ""
        run.save()
        return

    # 2. It measured nothing, by its own fault or not.
    if assignment.state == AssignmentState.SUCCEEDED:
        give_up(run, f"the command ended without reporting progress; {REPORT_STEPS}", SILENT)
    elif assignment.state == AssignmentState.REJECTED or _failed(assignment):
        _count_failure(kind, run, assignment)
    else:
        _want_again(run)


def _is_enough(observation: Observation, run: ProfileRun, assignment: Assignment) -> bool:
    """Return True for a whole run, or for half of one that was stopped from outside."""
    if assignment.state == AssignmentState.SUCCEEDED:
        return True
    is_half = observation.pace.steps >= max(LEAST_STEPS, run.steps // 2)
    return is_half and not _failed(assignment)


def _failed(assignment: Assignment) -> bool:
    """Return True for a launch that failed by itself."""
    is_failed = assignment.state == AssignmentState.FAILED
    return is_failed and assignment.reason_class not in _NOBODYS_FAULT


def _was_outlier_before(run: ProfileRun, assignment: Assignment) -> bool:
    """Return True if an earlier launch of the run was an outlier: a third would tell no more."""
    outliers = Measurement.objects.filter(
        assignment__job=run.job_id,
        assignment__copy=run.copy,
        purpose=Purpose.PROFILING,
        held=True,
    )
    return outliers.exclude(assignment=assignment).exists()


def _count_failure(kind: Kind, run: ProfileRun, assignment: Assignment) -> None:
    """Count the failure of a run; retry it, or give it up with others that would fail alike."""
    # 1. Retry, unless the command has crashed for good elsewhere and was measured nowhere.
    run.failures += 1
    run.reason = _failure_text(assignment)
    run.reason_class = assignment.reason_class
    siblings = ProfileRun.objects.filter(kind=kind, job=run.job_id).exclude(pk=run.pk)
    is_measured = siblings.filter(state=RunState.DONE).exists()
    has_crashed = siblings.filter(state=RunState.GIVEN_UP, reason_class=ReasonClass.USER).exists()
    crashed_again = has_crashed and run.reason_class == ReasonClass.USER and not is_measured
    if run.failures <= RETRIES and not crashed_again:
        run.ended_at = timezone.now()
        _want_again(run)
        return

    # 2. Give up. A fault of the command itself, other than its memory, shows everywhere.
    give_up(run, run.reason, run.reason_class)
    if run.reason_class in COMMANDS_FAULT - {ReasonClass.OOM} and not is_measured:
        siblings.filter(state=RunState.WANTED).update(
            state=RunState.GIVEN_UP,
            reason=f"not tried: on {run.gpus} x {run.gpu_type.name} {run.reason}",
            reason_class=run.reason_class,
            ended_at=timezone.now(),
        )


def _failure_text(assignment: Assignment) -> str:
    """Return the end of a launch in words."""
    if assignment.state == AssignmentState.REJECTED:
        return f"the node refused it: {assignment.reason or 'no reason given'}"
    end = "it failed"
    if assignment.exit_code is not None:
        end = f"exit code {assignment.exit_code}"
    return f"{end}: {assignment.reason}" if assignment.reason else end


def _want_again(run: ProfileRun) -> None:
    """Return a run to the wanted ones, and ask for a round."""
    run.state = RunState.WANTED
    run.save()
    request_reschedule(run.job.cluster, Reason.PROFILE, job=run.job)


def profile_run_silent(assignment: Assignment) -> None:
    """Give up the run of a profiling assignment that has reported no step for too long."""
    silence_s = assignment.job.cluster.profile_silence_s
    with transaction.atomic():
        lock_kind(assignment.job.kind_id)
        runs = ProfileRun.objects.filter(job=assignment.job_id, copy=assignment.copy)
        for run in runs.filter(state__in=OPEN).select_related("gpu_type", "job"):
            steps = assignment.steps_done - assignment.start_steps
            since = f"after its step {steps}" if steps > 0 else "of its start"
            cause = f"no step within {silence_s:g} s {since}"
            remedy = f"{REPORT_STEPS}, or raise the cluster's profile_silence_s"
            give_up(run, f"{cause}; {remedy}", SILENT)


# -- production


def production_measured(assignment: Assignment) -> None:
    """Update a kind's profile by a training assignment's steps since its last measurement.

    Short, noisy or throttled launches are ignored. Launches on shared devices measure pairs. Each
    measurement of a launch needs as many steps as those before it together. An unknown speed, or a
    deviation above DEVIATION, requests a round.
    """
    # 1. Observe a launch that tells something new.
    if not is_training(assignment):
        return
    if assignment.share < 1.0:
        pairs_measured(assignment)
        return
    measured_steps = steps_measured(assignment)
    observation = observe(assignment, measured_steps)
    if observation is None:
        return
    needed_steps = measured_steps or least_steps(assignment.job.kind_id, observation)
    if not is_telling(observation, assignment, needed_steps):
        return

    with transaction.atomic():
        # 2. Record it, unless another process was faster.
        kind = lock_kind(assignment.job.kind_id)
        if steps_measured(assignment) != measured_steps:
            return
        speed_before, is_held = record(kind, observation, assignment)
        if is_held:
            _note_outlier(observation, speed_before, assignment)
            return

        # 3. Request a round if the speed differs from what the last plan knew.
        known = speed_before or assignment.predicted_steps_per_s
        if known is None or abs(observation.pace.steps_per_s / known - 1) > DEVIATION:
            request_reschedule(assignment.job.cluster, Reason.PROFILE, job=assignment.job)


def _note_outlier(
    observation: Observation, known_steps_per_s: float | None, assignment: Assignment
) -> None:
    """Tell the job, once for each launch, that its speed waits for a second run."""
    if not is_first_held(assignment):
        return
    gpu_type = GpuType.objects.get(pk=observation.gpu_type_id)
    configuration = f"{observation.gpus} x {gpu_type.name}"
    speed = f"{observation.pace.steps_per_s:.3g} steps/s on {configuration}"
    speeds = f"{speed}, {known_steps_per_s:.3g} is known"
    message = f"{speeds}: not taken until a second run shows the like"
    note_job(assignment.job, "warning", data={"message": message})


def progress_reported(assignment: Assignment, before: int, now: int) -> None:
    """Learn from a running launch after its first steps, and whenever their number doubles.

    `before`, `now`: steps of the launch by its last and this report.
    """
    first_measurement = WARM_UP_STEPS + FIRST_STEPS
    if now < first_measurement:
        return
    # The numbers from one power of two to the next have as many bits.
    has_doubled = now.bit_length() != before.bit_length()
    if before >= first_measurement and not has_doubled:
        return
    try:
        with transaction.atomic():
            assignments = Assignment.objects.select_related("job__cluster", "node")
            production_measured(assignments.get(pk=assignment.pk))
    except Exception:  # a failure here must not refuse the report
        log.exception("nothing learnt from the progress of assignment %s", assignment.pk)


def launch_ended(assignment: Assignment) -> None:
    """Learn speed, run time and cost of a stop from a training launch that has ended."""
    # 1. The run time. Batch jobs and jobs without GPUs have no speed.
    run_ended(assignment)
    if assignment.job.has_no_speed:
        return

    # 2. The speed, by reported steps.
    production_measured(assignment)

    # 3. The cost of a stop; and without reported steps, the speed of the whole run.
    whole_run = observe_whole_run(assignment)
    was_stopped = is_training(assignment) and is_stopped(assignment)
    if whole_run is None and not was_stopped:
        return
    with transaction.atomic():
        kind = lock_kind(assignment.job.kind_id)
        if was_stopped:
            learn_stop(kind, assignment)
        if whole_run is not None and not kind.reports_steps and not steps_measured(assignment):
            record(kind, whole_run, assignment)


def pairs_measured(assignment: Assignment) -> None:
    """Update the kind's pair speeds from launches that shared its GPU. Idempotent."""
    with transaction.atomic():
        if record_impossible(assignment) is not None:
            request_reschedule(assignment.job.cluster, Reason.PROFILE, job=assignment.job)
    for observation in observe_pairs(assignment):
        with transaction.atomic():
            learnt = record_pair(observation)
            if learnt is not None and learnt.deviates(DEVIATION):
                request_reschedule(assignment.job.cluster, Reason.PROFILE, job=assignment.job)


# -- changes by people


def forget(kind: Kind) -> None:
    """Have a team's kind measured again; its speeds stay as estimates until then.

    Raises KindStateError for a published kind.
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
