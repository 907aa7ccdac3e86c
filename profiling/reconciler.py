"""Periodic reconciliation: lost ends, changed roles, new nodes, jobs that started unknown."""

import logging
from datetime import datetime
from uuid import UUID

from django.db import OperationalError, transaction
from django.db.models import Exists, F, Max, Min, OuterRef, Q, QuerySet, Subquery, Sum

from clusters.events import request_reschedule
from clusters.models import Cluster, Reason
from controlplane.web.storage.watch import THIS_MACHINE, Watch
from jobs.launch_outcome import LONGEST_BACKOFF_S
from jobs.lifecycle import JobState
from jobs.models import Assignment, Job
from loadmaster.protocol import AssignmentState
from policies.contract.snapshot import Purpose, Source
from profiling.measurements import MIN_STEPS
from profiling.models import Measurement, PairMeasurement, Profile, ProfileRun
from profiling.offers import Configuration, Offers, offers
from profiling.pairs.runs import Stop, reconcile_pair_runs
from profiling.runs import OPEN, WAITING, R, lock_kind, settle, silent_launches
from profiling.services import production_measured, profile_run_silent

log = logging.getLogger(__name__)

ALIKE = 3
"""Launches per configuration that a pass reads: the next may be steadier than the first."""

SHARING_AT_ONCE = 50
"""Launches on shared devices that a pass reads."""


def reconcile_profiles(now: datetime, stop: Stop, watch: Watch = THIS_MACHINE) -> None:
    """Find missed work; `stop` requests the end of an assignment that has measured enough."""
    for cluster in Cluster.objects.all():
        for kind_id in sorted(_unsettled(cluster, offers(cluster, now))):
            with transaction.atomic():
                settle(lock_kind(kind_id), cluster, now, background=True)
        for launch in silent_launches(cluster, watch):
            if launch.share >= 1.0:
                profile_run_silent(launch)
                stop(launch)
        _end_rests(cluster, now)
        reconcile_pair_runs(cluster, now, stop, watch)
    for assignment in (*_running_unmeasured(), *_sharing_unmeasured()):
        try:
            production_measured(assignment)
        except OperationalError:  # the database is away, or busy for too long
            raise
        except Exception:  # whatever it is, the others teach something
            log.exception("nothing learnt from assignment %s", assignment.pk)


def _end_rests(cluster: Cluster, now: datetime) -> None:
    """Retry failed profile runs after one, two, four ... heartbeat times."""
    wanted = ProfileRun.objects.filter(job__cluster=cluster, state=R.WANTED)
    resting = wanted.filter(ended_at__isnull=False)
    last = dict(resting.order_by().values_list("job_id").annotate(last=Max("ended_at")))
    runs = ProfileRun.objects.filter(job__in=last).order_by()
    for job_id, count in runs.values_list("job_id").annotate(failures=Sum("failures")):
        backoff_s = min(LONGEST_BACKOFF_S, cluster.heartbeat_s * 2.0 ** min(count - 1, 20))
        if 0.0 <= (now - last[job_id]).total_seconds() < backoff_s:
            continue
        with transaction.atomic():
            if resting.filter(job=job_id, ended_at__lte=last[job_id]).update(ended_at=None):
                request_reschedule(cluster, Reason.PROFILE, job=Job.objects.get(pk=job_id))


def _unsettled(cluster: Cluster, offered: Offers) -> set[int]:
    """Kinds with jobs that wait for profiling, open runs, or configurations still to measure."""
    waiting = Job.objects.filter(cluster=cluster, state__in=WAITING)
    profiled = set(waiting.filter(state=JobState.PROFILING).values_list("kind_id", flat=True))
    opened = ProfileRun.objects.filter(job__cluster=cluster, state__in=OPEN)
    under_way = set(opened.values_list("kind_id", flat=True))
    known, measured = _known(cluster)
    with_speeds = waiting.exclude(batch=True, gpus_max=0).order_by()
    unknown = set(with_speeds.values_list("kind_id", flat=True)) - known
    by_kind = waiting.filter(repeatable=True).order_by().values("kind_id")
    ranges = by_kind.annotate(least=Min("gpus_min"), most=Max("gpus_max"))
    here = {(o.type_id, g) for o in offered.now for g in range(1, o.gpus + 1)}
    more = {
        r["kind_id"]
        for r in ranges
        if any(r["least"] <= c[1] <= r["most"] for c in here - measured.get(r["kind_id"], set()))
    }
    return profiled | under_way | unknown | more


def _known(cluster: Cluster) -> tuple[set[int], dict[int, set[Configuration]]]:
    waiting = Job.objects.filter(cluster=cluster, state__in=WAITING).order_by().values("kind_id")
    rows = Profile.objects.filter(kind_id__in=waiting, spread=False).values_list(
        "kind_id", "gpu_type_id", "gpus", "source"
    )
    known: set[int] = set()
    measured: dict[int, set[Configuration]] = {}
    for kind, gpu_type, gpus, source in rows:
        known.add(kind)
        if source == Source.MEASURED:
            measured.setdefault(kind, set()).add((gpu_type, gpus))
    return known, measured


def _sharing_unmeasured() -> list[Assignment]:
    """Training assignments that share a GPU with no pair measured yet, most steps first."""
    own = PairMeasurement.objects.filter(
        Q(first_assignment=OuterRef("pk")) | Q(second_assignment=OuterRef("pk"))
    )
    running = Assignment.objects.filter(
        state=AssignmentState.RUNNING, purpose=Purpose.TRAINING, rank=0, share__lt=1.0
    )
    telling = running.filter(~Exists(own), steps_done__gte=F("start_steps") + MIN_STEPS)
    most = _most_steps_first(telling).select_related("job__cluster", "node__gpu_type")
    return list(most[:SHARING_AT_ONCE])


def _gpus_of_gang() -> Subquery:
    """GPUs of all ranks of an assignment's launch: a gang's nodes may have different numbers."""
    ranks = Assignment.objects.filter(job=OuterRef("job"), fence=OuterRef("fence"))
    return Subquery(ranks.order_by().values("job").annotate(total=Sum("gpus")).values("total"))


def _most_steps_first(rows: QuerySet[Assignment]) -> QuerySet[Assignment]:
    return rows.order_by(F("start_steps") - F("steps_done"), "pk")


def _running_unmeasured() -> list[Assignment]:
    """Training assignments with most steps of each configuration without a measurement."""
    own = Measurement.objects.filter(assignment=OuterRef("pk"))
    known = Profile.objects.filter(
        kind=OuterRef("job__kind"),
        gpu_type=OuterRef("node__gpu_type"),
        gpus=OuterRef("gpus_of_gang"),
        source=Source.MEASURED,
    )
    known_alone = Q(Exists(known.filter(spread=False)), world_size=1)
    known_spread = Q(Exists(known.filter(spread=True)), world_size__gt=1)
    running = Assignment.objects.filter(
        state=AssignmentState.RUNNING, purpose=Purpose.TRAINING, rank=0, share__gte=1.0, gpus__gt=0
    )
    telling = running.filter(~Exists(own), steps_done__gte=F("start_steps") + MIN_STEPS)
    telling = telling.annotate(gpus_of_gang=_gpus_of_gang())
    telling = telling.exclude(known_alone | known_spread)
    of_configuration: dict[tuple[int, ...], list[UUID]] = {}
    columns = ("pk", "job__kind_id", "node__gpu_type_id", "gpus_of_gang", "world_size")
    for pk, *configuration in _most_steps_first(telling).values_list(*columns):
        of_configuration.setdefault(tuple(configuration), []).append(pk)
    chosen = [pk for alike in of_configuration.values() for pk in alike[:ALIKE]]
    return list(Assignment.objects.filter(pk__in=chosen).select_related("job__cluster", "node"))
