"""Profile runs: requests, ends, and the jobs that wait for them.

`settle` handles one kind in one cluster with the kind's row locked: if two processes end two runs
at the same time, neither takes the other's run for open.

- A waiting, repeatable job gets a run for each offered configuration (`offers`) that it can use and
  that is neither measured nor being measured.
- A run is dropped if no node offers its configuration any more, or its job no longer waits.
- Only jobs of mode dedicated wait for open runs. Without open runs such a job is queued, or FAILED
  if its own command cannot run.

A job that does not wait needs some speed. An unknown one is assumed on the slowest allowed GPUs:
from the user's walltime (declared), else from a run time of an hour.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import F, Max, Q
from django.utils import timezone

from clusters.events import request_reschedule
from clusters.models import Cluster, GpuType, Reason
from clusters.models.clusters import Profiling
from controlplane.web.storage.watch import Watch, stamp
from jobs.assignment_lifecycle import LIVE
from jobs.lifecycle import JobMove, JobState
from jobs.models import Assignment, Job, Kind
from jobs.moves import LostRaceError, move_job, note_job
from loadmaster.protocol import AssignmentState, ReasonClass
from policies.contract.snapshot import Purpose, Source
from profiling.models import PairRun, Profile, ProfileRun
from profiling.offers import Configuration, Offers, lends, offers, reachable, uses
from profiling.outliers import doubted
from profiling.publication import take_published
from profiling.speeds import assumed_speed


def assume(job: Job) -> bool:
    """Write an assumed speed of the job's kind, and tell the job; False without a GPU type."""
    # 1. The slowest type that the job allows, of this cluster if it has one.
    types = GpuType.objects.all()
    if job.allowed_types:
        types = types.filter(name__in=job.allowed_types)
    types_here = types.filter(nodes__cluster=job.cluster_id)
    slowest = types_here.order_by("tflops").first() or types.order_by("tflops").first()
    if slowest is None:
        return False

    # 2. The speed there.
    speed, source = assumed_speed(job.total_steps, job.walltime_s)
    Profile.objects.get_or_create(
        kind_id=job.kind_id,
        gpu_type=slowest,
        gpus=job.gpus_min,
        spread=False,
        defaults={"steps_per_s": speed, "source": source},
    )
    message = f"Run time on {slowest.name} unknown (first run)."
    if source is Source.DECLARED:
        message = f"Its walltime counts as its run time on {slowest.name} until a first run."
    note_job(job, "warning", data={"message": message})
    return True


RunState = ProfileRun.State
"""States of a run."""

OPEN = (RunState.WANTED, RunState.RUNNING)
"""States of a run that is not over."""

WAITING = (JobState.PROFILING, JobState.QUEUED)
"""States of a job before its launch."""

COMMANDS_FAULT = frozenset({ReasonClass.USER, ReasonClass.OOM, ReasonClass.IMAGE})
"""Failures that the job would meet in production as well."""

SILENT = "silent"
"""Class of a run that was given up because its command reports no steps."""

PATIENCE = timedelta(minutes=10)
"""Longest wait of a job for a run that gets no device, once its kind has a measured speed."""

_LIVE_VALUES = sorted(str(state) for state in LIVE)


@dataclass(slots=True)
class Knowledge:
    """Knowledge of a kind, and its current runs in one cluster.

    `anything`: False if the kind has no speed at all. `unfit`: configurations on which its command
    cannot run. `doubted`: those for which an outlier waits.
    """

    kind: Kind
    cluster: Cluster
    now: datetime
    measured: set[Configuration]
    anything: bool
    unfit: set[Configuration]
    doubted: set[Configuration]
    given_up: list[ProfileRun]
    open: list[ProfileRun]

    @property
    def settled(self) -> set[Configuration]:
        """Configurations that need no measurement: measured and, beside these, unfit ones."""
        if not self.measured:
            return set()
        return self.measured | self.unfit

    def needs(self, run: ProfileRun) -> bool:
        """Return True if the run measures an unknown speed, or repeats an outlier."""
        configuration = run.gpu_type_id, run.gpus
        return configuration not in self.settled or configuration in self.doubted

    @property
    def reports_no_steps(self) -> bool:
        """True if a run was given up as silent, so that another would be silent too."""
        return not self.measured and any(run.reason_class == SILENT for run in self.given_up)

    def holds(self, job: Job) -> bool:
        """Return True if the job waits for an open run that measures something for it."""
        if job.profiling_mode is not Profiling.DEDICATED:
            return False
        for run in self.open:
            if uses(job, run.gpu_type.name, run.gpus) and not self._is_late(run):
                return True
        return False

    def _is_late(self, run: ProfileRun) -> bool:
        """Return True if the run has got no device for too long, and another speed is known."""
        is_old = self.now - run.created_at > PATIENCE
        return bool(self.measured) and run.state == RunState.WANTED and is_old


def lock_kind(kind_id: int) -> Kind:
    """Lock the kind until the transaction ends; serialises changes of its runs and profiles."""
    return Kind.objects.select_for_update(no_key=True).get(pk=kind_id)


def settle(kind: Kind, cluster: Cluster, now: datetime, *, background: bool = False) -> None:
    """Bring the runs and waiting jobs of a locked kind up to date.

    `background`: queued jobs lend their commands for missing measurements too.
    """
    offered = offers(cluster, now)
    known = _knowledge(kind, cluster, now)
    _drop_unneeded(known, offered)
    states = WAITING if background else (JobState.PROFILING,)
    has_lender = False
    jobs = Job.objects.filter(kind=kind, cluster=cluster, state__in=states)
    for job in jobs.select_related("cluster").order_by("submitted_at"):
        if job.state == JobState.PROFILING:
            _request_missing(known, job, offered)
            if not known.holds(job):
                _end_profiling(known, job)
        elif not known.anything:
            with suppress(LostRaceError):  # placed, held or cancelled meanwhile: it waits no longer
                _begin(known, job, offered)
        elif not has_lender:
            has_lender = _request_missing(known, job, offered)


def begin_all(jobs: Sequence[Job], now: datetime) -> None:
    """Request the runs that jobs of one cluster need, kinds locked in order."""
    if not jobs:
        return

    # 1. Most kinds have speeds and no open runs; if no job lends its command, they need nothing.
    cluster = jobs[0].cluster
    jobs_by_kind = defaultdict[int, list[Job]](list)
    for job in jobs:
        jobs_by_kind[job.kind_id].append(job)
    settled = _settled_kinds(jobs_by_kind, cluster)
    lenders = [job for job in jobs if lends(job)]
    if not lenders and settled >= jobs_by_kind.keys():
        return

    # 2. The others, and those that a node can measure.
    offered = offers(cluster, now)
    nodes = (*offered.now, *offered.back)
    measurable = {job.kind_id for job in lenders if reachable(job, nodes)}
    for kind_id in sorted(jobs_by_kind.keys() - (settled - measurable)):
        kind = lock_kind(kind_id)
        known = _knowledge(kind, cluster, now)
        if not known.anything and take_published(kind):
            known = _knowledge(kind, cluster, now)
        _drop_unneeded(known, offered)
        for job in jobs_by_kind[kind_id]:
            _begin(known, job, offered)


def _settled_kinds(kinds: Iterable[int], cluster: Cluster) -> set[int]:
    """Return those of the kinds that have a speed, and no open run in the cluster."""
    profiles = Profile.objects.filter(kind__in=kinds, spread=False).order_by()
    with_speed = set(profiles.values_list("kind_id", flat=True))
    open_runs = ProfileRun.objects.filter(kind__in=kinds, job__cluster=cluster, state__in=OPEN)
    return with_speed - set(open_runs.order_by().values_list("kind_id", flat=True))


def _begin(known: Knowledge, job: Job, offered: Offers) -> None:
    """Request runs for a new job; let it wait for them, or assume a speed if none is known."""
    _request_missing(known, job, offered)
    waits = known.holds(job)
    if waits and job.state == JobState.QUEUED:
        move_job(job, JobMove.PROFILE)
    if not waits and not known.anything:
        known.anything = assume(job)


def backs_off(run: PairRun, heartbeat_s: float, now: datetime) -> bool:
    """Return True soon after a failure: a run pauses for one, two, four ... heartbeat times."""
    pause_s = heartbeat_s * 2.0 ** min(max(run.failures - 1, 0), 8)
    return run.ended_at is not None and now - run.ended_at < timedelta(seconds=pause_s)


def give_up(run: ProfileRun, reason: str, reason_class: str) -> None:
    """Give up a run; its job is told if the run was silent."""
    run.state = RunState.GIVEN_UP
    run.reason = reason
    run.reason_class = reason_class
    run.ended_at = timezone.now()
    run.save()
    if reason_class == SILENT:
        message = f"not measured on {run.gpus} x {run.gpu_type.name}: {reason}"
        note_job(run.job, "warning", data={"message": message})


def silent_launches(cluster: Cluster, watch: Watch) -> list[Assignment]:
    """Return profiling assignments without a new step for `profile_silence_s`.

    `watch` measures for how long, whatever the clocks say.
    """
    # 1. Launches that have steps left to do.
    launches = Assignment.objects.filter(
        job__cluster=cluster,
        purpose=Purpose.PROFILING,
        state=AssignmentState.RUNNING,
        desired="run",
    )
    has_steps_left = Q(steps_quota=None) | Q(steps_done__lt=F("start_steps") + F("steps_quota"))
    running = list(launches.filter(has_steps_left).select_related("job__cluster", "node"))

    # 2. Those whose last step stays the same.
    last_steps = {f"steps:{launch.pk}": stamp(_last_step_at(launch)) for launch in running}
    still_s = watch.still_s(last_steps)
    silence_s = cluster.profile_silence_s
    return [launch for launch in running if still_s[f"steps:{launch.pk}"] > silence_s]


def _last_step_at(launch: Assignment) -> datetime:
    """Return the time of a running launch's last step; without steps, that of its start.

    The job's clock may differ, so only the time between its steps is taken from its reports.
    """
    began = launch.running_at or launch.created_at
    points = launch.progress.filter(launch_steps__gt=0).order_by("-launch_steps", "elapsed_s")
    elapsed_s = points.values_list("elapsed_s", flat=True).first()
    if not elapsed_s:
        return began
    return began + timedelta(seconds=(launch.setup_s or 0.0) + elapsed_s)


def _knowledge(kind: Kind, cluster: Cluster, now: datetime) -> Knowledge:
    """Read the knowledge of a kind, and correct the states of its open runs."""
    # 1. Its speeds.
    rows = Profile.objects.filter(kind=kind, spread=False)
    profiles = list(rows.values_list("gpu_type_id", "gpus", "source"))
    measured = {(type_id, gpus) for type_id, gpus, source in profiles if source == Source.MEASURED}

    # 2. Its runs that were given up, in all clusters.
    runs = list(ProfileRun.objects.filter(kind=kind).select_related("gpu_type", "job__cluster"))
    given_up = [run for run in runs if run.state == RunState.GIVEN_UP]
    unfit = set()
    for run in given_up:
        if run.reason_class in (ReasonClass.USER, ReasonClass.OOM):
            unfit.add((run.gpu_type_id, run.gpus))

    # 3. Its open runs in this one. A run is RUNNING while it has a live assignment, even if the
    #    start or the end of that was missed.
    open_runs = [run for run in runs if run.state in OPEN and run.job.cluster_id == cluster.pk]
    profiling = Assignment.objects.filter(purpose=Purpose.PROFILING, state__in=_LIVE_VALUES)
    launches = profiling.filter(job__in={run.job_id for run in open_runs})
    live = set(launches.values_list("job_id", "copy"))
    for run in open_runs:
        state = RunState.RUNNING if (run.job_id, run.copy) in live else RunState.WANTED
        if run.state != state:
            ProfileRun.objects.filter(pk=run.pk, state=run.state).update(state=state)
            run.state = state

    return Knowledge(
        kind=kind,
        cluster=cluster,
        now=now,
        measured=measured,
        anything=bool(profiles),
        unfit=unfit,
        doubted=doubted(kind, Purpose.PROFILING) if open_runs else set(),
        given_up=given_up,
        open=open_runs,
    )


def _drop_unneeded(known: Knowledge, offered: Offers) -> None:
    """Delete wanted runs that no node offers, whose job waits no longer, or that teach nothing."""
    nodes = offered.now
    if not known.measured:
        nodes = (*offered.now, *offered.back)  # the first speed is worth waiting for a node
    for run in [run for run in known.open if run.state == RunState.WANTED]:
        configuration = run.gpu_type_id, run.gpus
        is_possible = run.job.state in WAITING and configuration in reachable(run.job, nodes)
        if is_possible and known.needs(run) and not known.reports_no_steps:
            continue
        deleted, _ = ProfileRun.objects.filter(pk=run.pk, state=RunState.WANTED).delete()
        if deleted:
            known.open.remove(run)


def _request_missing(known: Knowledge, job: Job, offered: Offers) -> bool:
    """Request runs with the job's command for unknown configurations; True if there are any."""
    # 1. The configurations that nobody measures and on which the command has not failed.
    if known.reports_no_steps:
        return False
    own_failures = {(r.gpu_type_id, r.gpus) for r in known.given_up if r.job_id == job.pk}
    under_way = {(run.gpu_type_id, run.gpus) for run in known.open}
    missing = sorted(reachable(job, offered.now) - known.settled - own_failures - under_way)
    if not missing:
        return False

    # 2. A run for each.
    steps = max(1, min(known.cluster.profiling_steps, job.total_steps))
    for copy, (type_id, gpus) in enumerate(missing, last_copy(job.pk) + 1):
        run, _ = ProfileRun.objects.update_or_create(
            kind=known.kind,
            job=job,
            gpu_type_id=type_id,
            gpus=gpus,
            defaults={
                "steps": steps,
                "copy": copy,
                "state": RunState.WANTED,
                "failures": 0,
                "reason": "",
                "ended_at": None,
            },
        )
        known.open.append(run)
    request_reschedule(known.cluster, Reason.PROFILE, job=job)
    return True


def last_copy(job: UUID) -> int:
    """Return the greatest copy number of any run of this job, so that none is used twice."""
    copies = (
        (Assignment.objects.filter(job=job, purpose=Purpose.PROFILING), "copy"),
        (ProfileRun.objects.filter(job=job), "copy"),
        (PairRun.objects.filter(first_job=job), "first_copy"),
        (PairRun.objects.filter(second_job=job), "second_copy"),
    )
    return max(rows.aggregate(last=Max(field))["last"] or 0 for rows, field in copies)


def _end_profiling(known: Knowledge, job: Job) -> None:
    """Queue a job that waits for no run any more, or fail it if its own command cannot run."""
    own_runs = [run for run in known.given_up if run.job_id == job.pk]
    faulty_runs = [run for run in own_runs if run.reason_class in COMMANDS_FAULT]
    try:
        if faulty_runs and not known.measured:
            run = faulty_runs[0]
            configuration = f"{run.gpus} x {run.gpu_type.name}"
            reason = f"it failed while being profiled on {configuration}: {run.reason}"
            move_job(
                job,
                JobMove.FAIL,
                data={"reason": reason},
                failure_reason=reason,
                completed_at=timezone.now(),
            )
        else:
            if own_runs and not known.reports_no_steps:
                message = f"not measured everywhere: {own_runs[0].reason}"
                note_job(job, "warning", data={"message": message})
            known.anything = known.anything or assume(job)
            move_job(job, JobMove.PROFILED)
    except LostRaceError:
        return  # cancelled or held meanwhile, which asks for its own round
    request_reschedule(known.cluster, Reason.PROFILE, job=job)
