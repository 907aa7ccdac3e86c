"""Periodic reconciliation of profiling: it finds what a lost event would have started.

Such are ends of runs, changed roles of nodes, new nodes, and jobs that started unmeasured.
"""

import logging
from collections import Counter
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
from profiling.runs import OPEN, WAITING, RunState, lock_kind, settle, silent_launches
from profiling.services import production_measured, profile_run_silent

log = logging.getLogger(__name__)

LAUNCHES_PER_CONFIGURATION = 3
"""Most launches per configuration that a pass reads: one may be steadier than another."""

SHARING_AT_ONCE = 50
"""Most launches on shared devices that a pass reads."""


def reconcile_profiles(now: datetime, stop: Stop, watch: Watch = THIS_MACHINE) -> None:
    """Find missed work; `stop` requests the end of an assignment that need not run on."""
    # 1. Profile runs and pair runs of each cluster.
    for cluster in Cluster.objects.all():
        for kind_id in sorted(_unsettled_kinds(cluster, offers(cluster, now))):
            with transaction.atomic():
                settle(lock_kind(kind_id), cluster, now, background=True)
        for launch in silent_launches(cluster, watch):
            if launch.share >= 1.0:
                profile_run_silent(launch)
                stop(launch)
        _end_pauses(cluster, now)
        reconcile_pair_runs(cluster, now, stop, watch)

    # 2. Production that runs on configurations that nobody has measured.
    for assignment in (*_running_unmeasured(), *_sharing_unmeasured()):
        try:
            production_measured(assignment)
        except OperationalError:  # the database is away, or busy for too long
            raise
        except Exception:  # the other assignments are read all the same
            log.exception("nothing learnt from assignment %s", assignment.pk)


def _end_pauses(cluster: Cluster, now: datetime) -> None:
    """Retry failed profile runs after one, two, four ... heartbeat times."""
    pausing = ProfileRun.objects.filter(
        job__cluster=cluster, state=RunState.WANTED, ended_at__isnull=False
    )
    last_end = dict(pausing.order_by().values_list("job_id").annotate(last=Max("ended_at")))
    runs = ProfileRun.objects.filter(job__in=last_end).order_by()
    for job_id, failures in runs.values_list("job_id").annotate(failures=Sum("failures")):
        pause_s = min(LONGEST_BACKOFF_S, cluster.heartbeat_s * 2.0 ** min(failures - 1, 20))
        if 0.0 <= (now - last_end[job_id]).total_seconds() < pause_s:
            continue
        with transaction.atomic():
            if pausing.filter(job=job_id, ended_at__lte=last_end[job_id]).update(ended_at=None):
                request_reschedule(cluster, Reason.PROFILE, job=Job.objects.get(pk=job_id))


def _unsettled_kinds(cluster: Cluster, offered: Offers) -> set[int]:
    """Return the kinds for which `settle` may have something to do."""
    # 1. Kinds with jobs that wait for profiling, or with open runs.
    waiting = Job.objects.filter(cluster=cluster, state__in=WAITING)
    profiled = waiting.filter(state=JobState.PROFILING).values_list("kind_id", flat=True)
    open_runs = ProfileRun.objects.filter(job__cluster=cluster, state__in=OPEN)
    kinds = {*profiled, *open_runs.values_list("kind_id", flat=True)}

    # 2. Kinds of waiting jobs without any speed.
    known, measured = _known_configurations(cluster)
    with_speeds = waiting.exclude(batch=True, gpus_max=0).order_by()
    kinds.update(set(with_speeds.values_list("kind_id", flat=True)) - known)

    # 3. Kinds of which a node here can measure another configuration.
    measurable: set[Configuration] = set()
    for offer in offered.now:
        measurable.update((offer.type_id, gpus) for gpus in range(1, offer.gpus + 1))
    by_kind = waiting.filter(repeatable=True).order_by().values_list("kind_id")
    for kind, fewest, most in by_kind.annotate(fewest=Min("gpus_min"), most=Max("gpus_max")):
        unmeasured = measurable - measured.get(kind, set())
        if any(fewest <= gpus <= most for _, gpus in unmeasured):
            kinds.add(kind)
    return kinds


def _known_configurations(cluster: Cluster) -> tuple[set[int], dict[int, set[Configuration]]]:
    """Return the kinds of waiting jobs that have speeds, and their measured configurations."""
    waiting = Job.objects.filter(cluster=cluster, state__in=WAITING).order_by().values("kind_id")
    profiles = Profile.objects.filter(kind_id__in=waiting, spread=False)
    known: set[int] = set()
    measured: dict[int, set[Configuration]] = {}
    columns = ("kind_id", "gpu_type_id", "gpus", "source")
    for kind, gpu_type, gpus, source in profiles.values_list(*columns):
        known.add(kind)
        if source == Source.MEASURED:
            measured.setdefault(kind, set()).add((gpu_type, gpus))
    return known, measured


def _sharing_unmeasured() -> list[Assignment]:
    """Return training assignments that share a GPU and measured no pair yet, most steps first."""
    own = PairMeasurement.objects.filter(
        Q(first_assignment=OuterRef("pk")) | Q(second_assignment=OuterRef("pk"))
    )
    running = Assignment.objects.filter(
        state=AssignmentState.RUNNING, purpose=Purpose.TRAINING, rank=0, share__lt=1.0
    )
    telling = running.filter(~Exists(own), steps_done__gte=F("start_steps") + MIN_STEPS)
    assignments = _most_steps_first(telling).select_related("job__cluster", "node__gpu_type")
    return list(assignments[:SHARING_AT_ONCE])


def _gpus_of_gang() -> Subquery:
    """Return the GPUs of all ranks of an assignment's launch, whose numbers may differ."""
    ranks = Assignment.objects.filter(job=OuterRef("job"), fence=OuterRef("fence"))
    return Subquery(ranks.order_by().values("job").annotate(total=Sum("gpus")).values("total"))


def _most_steps_first(assignments: QuerySet[Assignment]) -> QuerySet[Assignment]:
    """Return the assignments in the order of their launches' steps."""
    return assignments.order_by(F("start_steps") - F("steps_done"), "pk")


def _running_unmeasured() -> list[Assignment]:
    """Return training assignments on configurations that nobody has measured.

    Of each configuration, those with the most steps are returned.
    """
    # 1. Assignments with enough steps on such configurations.
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

    # 2. Some of each configuration.
    counts: Counter[tuple[int, ...]] = Counter()
    chosen: list[UUID] = []
    columns = ("pk", "job__kind_id", "node__gpu_type_id", "gpus_of_gang", "world_size")
    for pk, *configuration in _most_steps_first(telling).values_list(*columns):
        counts[tuple(configuration)] += 1
        if counts[tuple(configuration)] <= LAUNCHES_PER_CONFIGURATION:
            chosen.append(pk)
    return list(Assignment.objects.filter(pk__in=chosen).select_related("job__cluster", "node"))
