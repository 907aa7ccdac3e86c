"""Actions on jobs: submit, cancel, hold, release, requeue, clone. Safe to repeat and to race."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from clusters.events import request_reschedule
from clusters.models import Reason
from controlplane.audit.record import record_values
from jobs import kinds
from jobs.assignment_lifecycle import LIVE
from jobs.dependencies import in_job_file
from jobs.lifecycle import IllegalJobMoveError, JobMove, JobState, check_move
from jobs.models import Dependency, Job
from jobs.moves import LostRaceError, move_job, note_job, note_jobs
from jobs.roles import check_change
from jobs.selectors import get_job
from jobs.signals import stop_wanted
from jobs.submission.quotas import check_requeue
from jobs.submission.refusals import JobConflict
from jobs.submission.seats import SEATS
from jobs.submission.submit import (
    Asked,
    Submission,
    begin_all,
    begin_rest,
    submit_all,
)
from jobs.submission.validation import JobInvalid
from loadmaster.protocol import StopReason


def job_submit(
    user: User, data: object, idempotency_key: str | None = None, *, cloned_from: Job | None = None
) -> Submission:
    """Submit a job; the same user with the same key and body gets the same job again.

    Raises JobInvalid with messages by field, IdempotencyConflict for a key used with another body.
    """
    answer = submit_all([Asked(user, data, idempotency_key, cloned_from)])[0]
    if isinstance(answer, Submission):
        return answer
    raise answer


def begin(job: Job, reason: Reason) -> Job:
    """Request a measurement for an unknown kind, and a round."""
    begin_all([job], reason)
    job.refresh_from_db(fields=["state"])
    return job


_DESCRIBED = (
    "name", "runtime", "image", "command", "environment", "mounts", "epochs", "steps_per_epoch",
    "gpus_min", "gpus_max", "allowed_types", "cores", "memory_gb", "tardiness_weight", "priority",
    "weight", "max_retries", "checkpoint_place", "may_mix", "may_share", "labels", "on_disconnect",
    "profiling", "repeatable", "resources", "exclusive", "preemptible", "on_walltime",
    "script", "folder", "output", "error_output", "signal",
)  # fmt: skip  # a long list of names
STEPS = ("epochs", "steps_per_epoch")


def job_data(job: Job, dependencies: Iterable[Dependency] | None = None) -> dict[str, Any]:
    """Job as it could be submitted again, without ids, states and progress."""
    others = job.dependency_links.all() if dependencies is None else dependencies
    times = {"due": job.due_at, "deadline": job.deadline_at, "begin": job.begin_at}
    described = [name for name in _DESCRIBED if not (job.batch and name in STEPS)]
    spread = [name for name in SEATS if job.units > 1 and getattr(job, name)]
    data: dict[str, Any] = {
        **{name: getattr(job, name) for name in (*described, *spread)},
        "cluster": job.cluster.name,
        "team": job.team.name,
        "walltime": job.walltime_s,
        # A generated name does not go into a clone.
        "kind": job.kind.name if job.kind.name and _named(job.kind.name) == job.kind.digest else "",
        "dependencies": in_job_file(others),
        **{name: moment.isoformat() for name, moment in times.items() if moment},
    }
    return {name: value for name, value in data.items() if value not in (None, "", [], {})}


@functools.lru_cache(maxsize=1000)
def _named(name: str) -> str:
    return kinds.digest(name)


RACES = 5
NO_REASON: Mapping[str, Any] = {"waiting_code": "", "waiting_detail": {}}
P = ParamSpec("P")
Action = Callable[Concatenate[Job, User, P], Job]


def _action(verb: str) -> Callable[[Action[P]], Action[P]]:
    """Find a job that the user may see and change, act in one transaction, retry lost races.

    The action raises RoleRefused where the user may see the job but not change it.
    """

    def wrap(act: Action[P]) -> Action[P]:
        @functools.wraps(act)
        def run(job: Job, user: User, /, *args: P.args, **kwargs: P.kwargs) -> Job:
            for _ in range(RACES):
                try:
                    with transaction.atomic():
                        # The job's row is locked before its assignments', as agents' calls do
                        # (jobs.moves).
                        Job.objects.select_for_update(no_key=True).filter(pk=job.pk).exists()
                        fresh = get_job(user, job.pk)
                        check_change(user, fresh)
                        before, was = fresh.state, _audited(fresh)
                        done = act(fresh, user, *args, **kwargs)
                        name = f"job.{act.__name__.removeprefix('job_')}"
                        record_values(name, done, _audited(done), was, team=done.team, by=user)
                        return done
                except LostRaceError:
                    continue
                except IllegalJobMoveError:
                    raise JobConflict(f"the job is {before}: it cannot be {verb}") from None
            raise JobConflict("the job changes too fast just now; try again")

        return run

    return wrap


def _audited(job: Job) -> dict[str, Any]:
    return {"state": job.state, "hold_wanted": job.hold_wanted, "retry_at": job.retry_at}


@_action("cancelled")
def job_cancel(job: Job, user: User) -> Job:
    """Cancel the job: CANCELLED at once if it holds nothing, else CANCELLING until it ends."""
    if job.state in (JobState.CANCELLING, JobState.CANCELLED):
        return job
    actor = user.get_username()
    waits = job.state in (JobState.HELD, JobState.QUEUED, JobState.PROFILING) and not _holds(job)
    move = JobMove.CANCELLED if waits else JobMove.CANCEL
    move_job(job, move, actor=actor, **(cancelled(job) if waits else {"hold_wanted": False}))
    stop_wanted.send(Job, job=job, reason=StopReason.CANCEL, actor=actor)
    job.refresh_from_db(fields=["state"])
    if job.state == JobState.CANCELLING and not _holds(job):
        move_job(job, JobMove.CANCELLED, actor=actor, **cancelled(job))
    request_reschedule(job.cluster, Reason.CANCELLATION, job=job)
    return job


@_action("held")
def job_hold(job: Job, user: User) -> Job:
    """Hold the job. A running job saves a checkpoint, stops, and is held when queued again."""
    actor = user.get_username()
    if job.state == JobState.HELD or (job.hold_wanted and job.state == JobState.STOPPING):
        return job
    if job.state == JobState.STOPPING:
        return _wish(job, actor, hold_wanted=True)
    if job.state in (JobState.STARTING, JobState.RUNNING):
        move_job(job, JobMove.PREEMPT, actor=actor, data={"why": "hold"}, hold_wanted=True)
    else:
        move_job(job, JobMove.HOLD, actor=actor, **held(job))
    stop_wanted.send(Job, job=job, reason=StopReason.PREEMPT, actor=actor)
    request_reschedule(job.cluster, Reason.OPERATOR, job=job)
    job.refresh_from_db(fields=["state", "hold_wanted"])
    return job


@_action("released")
def job_release(job: Job, user: User) -> Job:
    """Queue a held job again (profiled first if its kind is unknown), or withdraw the hold.

    A waiting job that rests may start at once.
    """
    actor = user.get_username()
    if job.state == JobState.STOPPING and job.hold_wanted:
        return _wish(job, actor, hold_wanted=False)
    if end_rests(Job.objects.filter(pk=job.pk), actor):
        job.refresh_from_db(fields=["retry_at", "waiting_code", "waiting_detail"])
    else:
        move_job(job, JobMove.RELEASE, actor=actor, **released(job))
    return begin(job, Reason.SUBMISSION)


@_action("requeued")
def job_requeue(job: Job, user: User) -> Job:
    """Queue a failed or cancelled job from its last checkpoint, with all its retries."""
    check_move(JobState(job.state), JobMove.REQUEUE)
    check_requeue(job)
    move_job(job, JobMove.REQUEUE, actor=user.get_username(), **requeued(job))
    return begin(job, Reason.SUBMISSION)


def job_clone(
    job: Job, user: User, overrides: object = None, idempotency_key: str | None = None
) -> Submission:
    """Submit the job's description with some fields replaced (null: default); see `job_submit`."""
    source = get_job(user, job.pk)
    replaced = overrides or {}
    if not isinstance(replaced, dict):
        raise JobInvalid({"job": ["overrides must be an object with the fields of a job"]})
    return job_submit(
        user, _merged(job_data(source), replaced), idempotency_key, cloned_from=source
    )


def _merged(data: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Description with overrides; another form of an overridden field is dropped."""
    dropped = set(overrides)
    if "gpus" in overrides:
        dropped |= {"gpus_min", "gpus_max"}
    if "steps" in overrides:
        dropped |= {"epochs", "steps_per_epoch"}
    if overrides.get("runtime") == "process":
        dropped.add("image")
    if overrides.get("image"):
        dropped.add("runtime")
    return {**{name: value for name, value in data.items() if name not in dropped}, **overrides}


def _wish(job: Job, actor: str, *, hold_wanted: bool) -> Job:
    if not Job.objects.filter(pk=job.pk, state=JobState.STOPPING).update(hold_wanted=hold_wanted):
        raise LostRaceError(f"job {job.pk} is no longer stopping")
    job.hold_wanted = hold_wanted
    note_job(job, "hold_wanted" if hold_wanted else "hold_taken_back", actor=actor)
    return job


def _holds(job: Job) -> bool:
    return job.assignments.filter(state__in=LIVE).exists()


def cancelled(job: Job) -> dict[str, Any]:
    """Values of a job that is cancelled at once."""
    return {"completed_at": timezone.now(), "hold_wanted": False, **NO_REASON}


def held(job: Job) -> dict[str, Any]:
    """Values of a waiting job that is held."""
    return {**NO_REASON}


def released(job: Job) -> dict[str, Any]:
    """Values of a held job that is released: it may have to rest until it begins."""
    rests = begin_rest(job, timezone.now())
    return {"hold_wanted": False, "retry_at": None, **NO_REASON, **rests}


def requeued(job: Job) -> dict[str, Any]:
    """Values of a failed or cancelled job that is queued again."""
    return {
        "retries_used": 0,
        "failure_reason": "",
        "completed_at": None,
        "hold_wanted": False,
        "retry_at": None,
    }


def resting(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Those of these jobs that rest in the queue until a time."""
    return jobs.filter(state=JobState.QUEUED, retry_at__isnull=False)


def end_rests(jobs: QuerySet[Job], actor: str) -> list[Job]:
    """Let those of these jobs that rest in the queue start at once; return them."""
    rows = resting(jobs).order_by("pk").select_related("cluster", "team")
    rested = list(rows.select_for_update(of=("self",), no_key=True))
    resting(jobs).update(retry_at=None, **NO_REASON)
    note_jobs(rested, JobMove.RELEASE, actor=actor)
    return rested
