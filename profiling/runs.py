"""Profile runs: requests, ends, and the jobs that wait for them.

`settle` handles one kind in one cluster with the kind's row locked, so that two processes that end
two runs at once cannot both believe the other's still open:

- a waiting, repeatable job has a run for each offered configuration (`offers`) that it can use and
  nobody has measured or is measuring;
- a run that nobody offers any more, or whose job no longer waits, is dropped;
- only a job of mode dedicated waits for open runs; without any it is queued, or FAILED if its own
  command cannot run.

A job that does not wait needs some speed. Where nothing is known it is assumed: by the user's
walltime on the slowest allowed GPUs (declared), else by an hour.
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
    """Write an assumed speed of the job's kind and note it; False without a GPU type."""
    types = GpuType.objects.all()
    if job.allowed_types:
        types = types.filter(name__in=job.allowed_types)
    here = types.filter(nodes__cluster=job.cluster_id)
    slowest = here.order_by("tflops").first() or types.order_by("tflops").first()
    if slowest is None:
        return False
    speed, source = assumed_speed(job.total_steps, job.walltime_s)
    Profile.objects.get_or_create(
        kind_id=job.kind_id, gpu_type=slowest, gpus=job.gpus_min, spread=False,
        defaults={"steps_per_s": speed, "source": source},
    )  # fmt: skip
    message = f"Run time on {slowest.name} unknown (first run)."
    if source is Source.DECLARED:
        message = f"Its walltime counts as its run time on {slowest.name} until a first run."
    note_job(job, "warning", data={"message": message})
    return True


R = ProfileRun.State
OPEN = (R.WANTED, R.RUNNING)
WAITING = (JobState.PROFILING, JobState.QUEUED)

COMMANDS_FAULT = frozenset({ReasonClass.USER, ReasonClass.OOM, ReasonClass.IMAGE})
"""Failures that the job would meet in production as well."""

SILENT = "silent"
"""Class of a run that was given up because its command reports no steps."""

PATIENCE = timedelta(minutes=10)
"""Longest wait of a job for a run without a device, once anything of its kind was measured."""

_LIVE_VALUES = sorted(str(s) for s in LIVE)


@dataclass(slots=True)
class Knowledge:
    """Knowledge of a kind, and its current runs in one cluster."""

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
        """Configurations that need no measurement: measured ones, and ones that failed alone."""
        return self.measured | (self.unfit if self.measured else set())

    def needs(self, run: ProfileRun) -> bool:
        """Return True if the run measures what nobody knows, or repeats an outlier of its own."""
        configuration = run.gpu_type_id, run.gpus
        return configuration not in self.settled or configuration in self.doubted

    @property
    def reports_no_steps(self) -> bool:
        """Return True if another run would be as silent as the last."""
        return not self.measured and any(r.reason_class == SILENT for r in self.given_up)

    def holds(self, job: Job) -> bool:
        """Return True if the job waits for an open run that measures something for it."""
        dedicated = job.profiling_mode is Profiling.DEDICATED
        useful = (r for r in self.open if uses(job, r.gpu_type.name, r.gpus))
        return dedicated and any(not self._is_late(r) for r in useful)

    def _is_late(self, run: ProfileRun) -> bool:
        old = self.now - run.created_at > PATIENCE
        return bool(self.measured) and run.state == R.WANTED and old


def lock_kind(kind_id: int) -> Kind:
    """Lock the kind until the transaction ends; serialises changes of its runs and profiles."""
    return Kind.objects.select_for_update(no_key=True).get(pk=kind_id)


def settle(kind: Kind, cluster: Cluster, now: datetime, *, background: bool = False) -> None:
    """Bring the locked kind's runs and jobs in line; `background`: queued jobs lend commands."""
    offered = offers(cluster, now)
    known = _knowledge(kind, cluster, now)
    _drop(known, offered)
    states = WAITING if background else (JobState.PROFILING,)
    lent = False
    jobs = Job.objects.filter(kind=kind, cluster=cluster, state__in=states)
    for job in jobs.select_related("cluster").order_by("submitted_at"):
        if job.state == JobState.PROFILING:
            _want(known, job, offered)
            if not known.holds(job):
                _go_on(known, job)
        elif not known.anything:
            with suppress(LostRaceError):  # placed, held or cancelled meanwhile: it waits no longer
                _begin(known, job, offered)
        elif not lent:
            lent = _want(known, job, offered)


def begin_all(jobs: Sequence[Job], now: datetime) -> None:
    """Request the runs that jobs of one cluster need, kinds locked in order."""
    if not jobs:
        return
    by_kind = defaultdict[int, list[Job]](list)
    for job in jobs:
        by_kind[job.kind_id].append(job)
    settled = _settled(by_kind, jobs[0].cluster)
    lent = [job for job in jobs if lends(job)]
    if not lent and settled >= by_kind.keys():
        return
    offered = offers(jobs[0].cluster, now)
    nodes = (*offered.now, *offered.back)
    measurable = {job.kind_id for job in lent if reachable(job, nodes)}
    for kind_id in sorted(by_kind.keys() - (settled - measurable)):
        kind = lock_kind(kind_id)
        known = _knowledge(kind, jobs[0].cluster, now)
        if not known.anything and take_published(kind):
            known = _knowledge(kind, jobs[0].cluster, now)
        _drop(known, offered)
        for job in by_kind[kind_id]:
            _begin(known, job, offered)


def _settled(kinds: Iterable[int], cluster: Cluster) -> set[int]:
    known = Profile.objects.filter(kind__in=kinds, spread=False).order_by()
    opened = ProfileRun.objects.filter(kind__in=kinds, job__cluster=cluster, state__in=OPEN)
    settled = set(known.values_list("kind_id", flat=True))
    return settled - set(opened.order_by().values_list("kind_id", flat=True))


def _begin(known: Knowledge, job: Job, offered: Offers) -> None:
    _want(known, job, offered)
    waits = known.holds(job)
    if waits and job.state == JobState.QUEUED:
        move_job(job, JobMove.PROFILE)
    if not waits and not known.anything:
        known.anything = assume(job)


def backs_off(run: PairRun, heartbeat_s: float, now: datetime) -> bool:
    """Return True after a recent failure: retried after one, two, four ... heartbeat times."""
    backoff_s = heartbeat_s * 2.0 ** min(max(run.failures - 1, 0), 8)
    return run.ended_at is not None and now - run.ended_at < timedelta(seconds=backoff_s)


def give_up(run: ProfileRun, reason: str, reason_class: str) -> None:
    run.state, run.reason, run.reason_class = R.GIVEN_UP, reason, reason_class
    run.ended_at = timezone.now()
    run.save()
    if reason_class == SILENT:
        where = f"{run.gpus} x {run.gpu_type.name}"
        note_job(run.job, "warning", data={"message": f"not measured on {where}: {reason}"})


def silent_launches(cluster: Cluster, watch: Watch) -> list[Assignment]:
    """Profiling assignments seen without a new step for `profile_silence_s`."""
    launches = Assignment.objects.filter(
        job__cluster=cluster, purpose=Purpose.PROFILING, state=AssignmentState.RUNNING,
        desired="run",
    )  # fmt: skip
    left = Q(steps_quota=None) | Q(steps_done__lt=F("start_steps") + F("steps_quota"))
    found = list(launches.filter(left).select_related("job__cluster", "node"))
    steps = {f"steps:{launch.pk}": stamp(_stepped(launch)) for launch in found}
    still_s = watch.still_s(steps)
    return [a for a in found if still_s[f"steps:{a.pk}"] > cluster.profile_silence_s]


def _stepped(launch: Assignment) -> datetime:
    """Time of a running launch's newest step, else of its start.

    The last step was so long after the first as the job says: its clock may differ.
    """
    began = launch.running_at or launch.created_at
    points = launch.progress.filter(launch_steps__gt=0).order_by("-launch_steps", "elapsed_s")
    elapsed_s = points.values_list("elapsed_s", flat=True).first()
    return began + timedelta(seconds=(launch.setup_s or 0.0) + elapsed_s if elapsed_s else 0.0)


def _knowledge(kind: Kind, cluster: Cluster, now: datetime) -> Knowledge:
    rows = Profile.objects.filter(kind=kind, spread=False)
    profiles = list(rows.values_list("gpu_type_id", "gpus", "source"))
    runs = list(ProfileRun.objects.filter(kind=kind).select_related("gpu_type", "job__cluster"))
    given_up = [r for r in runs if r.state == R.GIVEN_UP]
    own_fault = (ReasonClass.USER, ReasonClass.OOM)
    unfit = {(r.gpu_type_id, r.gpus) for r in given_up if r.reason_class in own_fault}
    measured = {(t, g) for t, g, source in profiles if source == Source.MEASURED}
    opened = [r for r in runs if r.state in OPEN and r.job.cluster_id == cluster.pk]
    # A run is RUNNING exactly while it has a live assignment, whatever was missed.
    profiling = Assignment.objects.filter(purpose=Purpose.PROFILING, state__in=_LIVE_VALUES)
    launched = profiling.filter(job__in={r.job_id for r in opened})
    live = set(launched.values_list("job_id", "copy"))
    for run in opened:
        state = R.RUNNING if (run.job_id, run.copy) in live else R.WANTED
        if run.state != state:
            ProfileRun.objects.filter(pk=run.pk, state=run.state).update(state=state)
            run.state = state
    seen = doubted(kind, Purpose.PROFILING) if opened else set()
    return Knowledge(kind, cluster, now, measured, bool(profiles), unfit, seen, given_up, opened)


def _drop(known: Knowledge, offered: Offers) -> None:
    hoped_for = offered.now if known.measured else (*offered.now, *offered.back)
    for run in [run for run in known.open if run.state == R.WANTED]:
        configuration = run.gpu_type_id, run.gpus
        needed = run.job.state in WAITING and configuration in reachable(run.job, hoped_for)
        if needed and known.needs(run) and not known.reports_no_steps:
            continue
        if ProfileRun.objects.filter(pk=run.pk, state=R.WANTED).delete()[0]:
            known.open.remove(run)


def _want(known: Knowledge, job: Job, offered: Offers) -> bool:
    own_failures = {(r.gpu_type_id, r.gpus) for r in known.given_up if r.job_id == job.pk}
    under_way = {(r.gpu_type_id, r.gpus) for r in known.open}
    if known.reports_no_steps:
        return False
    missing = sorted(reachable(job, offered.now) - known.settled - own_failures - under_way)
    copy = last_copy(job.pk) if missing else 0
    steps = max(1, min(known.cluster.profiling_steps, job.total_steps))
    for number, (type_id, gpus) in enumerate(missing, copy + 1):
        run, _ = ProfileRun.objects.update_or_create(
            kind=known.kind, job=job, gpu_type_id=type_id, gpus=gpus,
            defaults={"steps": steps, "copy": number, "state": R.WANTED, "failures": 0,
                      "reason": "", "ended_at": None},
        )  # fmt: skip
        known.open.append(run)
    if missing:
        request_reschedule(known.cluster, Reason.PROFILE, job=job)
    return bool(missing)


def last_copy(job: UUID) -> int:
    """Greatest copy number of any profile run of this job, so that none is used twice."""
    copies = (
        (Assignment.objects.filter(job=job, purpose=Purpose.PROFILING), "copy"),
        (ProfileRun.objects.filter(job=job), "copy"),
        (PairRun.objects.filter(first_job=job), "first_copy"),
        (PairRun.objects.filter(second_job=job), "second_copy"),
    )
    return max(rows.aggregate(last=Max(name))["last"] or 0 for rows, name in copies)


def _go_on(known: Knowledge, job: Job) -> None:
    own = [r for r in known.given_up if r.job_id == job.pk]
    fault = next((r for r in own if r.reason_class in COMMANDS_FAULT), None)
    try:
        if fault is not None and not known.measured:
            where = f"{fault.gpus} x {fault.gpu_type.name}"
            reason = f"it failed while being profiled on {where}: {fault.reason}"
            now, data = timezone.now(), {"reason": reason}
            move_job(job, JobMove.FAIL, data=data, failure_reason=reason, completed_at=now)
        else:
            if own and not known.reports_no_steps:
                message = f"not measured everywhere: {own[0].reason}"
                note_job(job, "warning", data={"message": message})
            known.anything = known.anything or assume(job)
            move_job(job, JobMove.PROFILED)
    except LostRaceError:
        return  # cancelled or held meanwhile; whoever did that looks after it
    request_reschedule(known.cluster, Reason.PROFILE, job=job)
