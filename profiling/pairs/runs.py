"""Pair runs: choice of the pairs measured side by side, and the end of such a run.

A kind that may share a GPU is measured beside PARTNERS others on each GPU type, from
`next_partners` or, with too few references, those with the most jobs. Queued, repeatable jobs lend
their commands without waiting: where one starts, the run ends. A run is two placements on one
device (ADR 0003, 0019) until both have done its steps, or either ends. Only the reconciler looks
after pair runs.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from math import ceil
from uuid import UUID

from django.db import transaction
from django.db.models import Max, Q

from clusters.events import request_reschedule
from clusters.models import Cluster, Reason
from controlplane.web.storage.watch import Watch
from jobs.assignment_lifecycle import LIVE
from jobs.lifecycle import JobState
from jobs.models import Assignment, Job
from policies.contract.snapshot import Purpose, Source
from profiling.models import PairMeasurement, PairProfile, PairRun, Profile, ProfileRun
from profiling.offers import Offer, fits, offers
from profiling.pairs import rows as pairs
from profiling.pairs.estimates import next_partners
from profiling.pairs.fingerprints import Book
from profiling.pairs.measurements import observe_pair, record_impossible, record_pair
from profiling.runs import OPEN, R, last_copy, lock_kind, silent_launches
from profiling.selectors import speeds_alone

PARTNERS = 3
"""Partners measured per kind and GPU type: three give a median error of 7% on Gavel's kinds."""

AT_ONCE = 8
"""Open pair runs per cluster: many new kinds must not keep production from its GPUs."""

A_LOOK = 16
"""Kinds per GPU type for which one pass seeks partners, so that its cost is bounded."""

CHOICES = 3 * PARTNERS
"""Partners that are ranked, as some may have no job here."""

RETRIES = 2
MOST_STEPS = 2_000_000_000

LONGEST = timedelta(seconds=120)
"""Longest pair run; its quota is the steps that the kind does alone in it."""

LENDING = frozenset({JobState.QUEUED})
"""States of jobs that lend their command: never beside the real run."""

Stop = Callable[[Assignment], object]
"""Request for an assignment's end."""

PairKey = tuple[int, int, int]
"""Primary keys of the first kind, the second and the GPU type."""


def reconcile_pair_runs(cluster: Cluster, now: datetime, stop: Stop, watch: Watch) -> None:
    """Record finished pair runs, drop those that no node can measure, request missing ones."""
    runs = PairRun.objects.filter(first_job__cluster=cluster, state__in=OPEN)
    opened = list(runs.select_related("first_job", "second_job"))
    silent = {a.pk for a in silent_launches(cluster, watch) if a.steps_done <= a.start_steps}
    sharing = [offer for offer in offers(cluster, now).now if offer.slots > 1]
    if not opened and not sharing:
        return
    for run in opened:
        with transaction.atomic():
            _follow(run, now, stop, silent)
    _want(cluster, now, sharing)


def _follow(run: PairRun, now: datetime, stop: Stop, silent: Collection[UUID]) -> None:
    launches = [_launch(job, copy) for job, copy in run.launches]
    live = [a for a in launches if a is not None and a.state in LIVE]
    lent = {run.first_job.state, run.second_job.state} <= LENDING
    if not any(launches):
        if not lent:
            run.delete()
    elif _is_measured(run, launches, enough=run.steps if len(live) == len(launches) else 1):
        _close(run, R.DONE, "", now)
        _stop_all(live, stop)
    elif any(a.pk in silent for a in live):
        _close(run, R.GIVEN_UP, "one of the two commands reports no steps", now)
        _stop_all(live, stop)
    elif len(live) == len(launches) and lent and not _is_late(launches, now):
        PairRun.objects.filter(pk=run.pk, state=R.WANTED).update(state=R.RUNNING)
    elif live:  # the other has ended, a job starts, or it takes too long
        _stop_all(live, stop)
    elif lent:
        _failed_once_more(run, launches, now)
    else:  # nobody's fault: other jobs may lend their commands
        run.delete()


def _launch(job: UUID, copy: int) -> Assignment | None:
    of_run = Assignment.objects.filter(job=job, copy=copy, purpose=Purpose.PROFILING)
    return of_run.select_related("job", "node__gpu_type").order_by("-fence").first()


def _is_measured(run: PairRun, launches: Sequence[Assignment | None], *, enough: int) -> bool:
    """Return True if these launches, or earlier ones, measured the pair; record it."""
    if None in launches:
        return False
    first, second = (a for a in launches if a is not None)
    for ended in (a for a in (first, second) if a.state not in LIVE):
        record_impossible(ended)
    one_way = Q(first_assignment=first, second_assignment=second)
    other_way = Q(first_assignment=second, second_assignment=first)
    if PairMeasurement.objects.filter(one_way | other_way, held=False).exists():
        return True
    seen = observe_pair(first, second)
    if seen is None or min(seen.steps) < enough:
        return False
    if record_pair(seen) is None:
        return False
    request_reschedule(first.job.cluster, Reason.PROFILE, job=first.job)
    return True


def _is_late(launches: Iterable[Assignment | None], now: datetime) -> bool:
    began = [a.running_at for a in launches if a is not None]
    return all(at is not None and now - at > LONGEST for at in began)


def _stop_all(live: Iterable[Assignment], stop: Stop) -> None:
    for assignment in live:
        if assignment.desired == "run":
            stop(assignment)


def _failed_once_more(run: PairRun, launches: Iterable[Assignment | None], now: datetime) -> None:
    """Retry with new copies after both ended without a measurement, or give up."""
    reasons = (a.reason for a in launches if a is not None and a.reason)
    reason = next(reasons, "too few steps side by side, or a speed far off")
    run.failures += 1
    if run.failures > RETRIES:
        _close(run, R.GIVEN_UP, reason, now)
        return
    run.state, run.reason, run.ended_at = R.WANTED, reason, now
    run.first_copy = last_copy(run.first_job_id) + 1
    run.second_copy = last_copy(run.second_job_id) + 1
    run.save()
    request_reschedule(run.first_job.cluster, Reason.PROFILE, job=run.first_job)


def _close(run: PairRun, state: ProfileRun.State, reason: str, now: datetime) -> None:
    run.state, run.reason, run.ended_at = state, reason, now
    run.save()


def _want(cluster: Cluster, now: datetime, sharing: Sequence[Offer]) -> None:
    free = AT_ONCE - PairRun.objects.filter(first_job__cluster=cluster, state__in=OPEN).count()
    if free <= 0 or not sharing:
        return
    profiled = set(Profile.objects.order_by().values_list("kind_id", flat=True).distinct())
    kinds = pairs.sharing_kinds(cluster, profiled)
    columns = ("first_id", "second_id", "gpu_type_id")
    concerned = Q(first__in=kinds) | Q(second__in=kinds)
    measured = PairProfile.objects.filter(concerned, source=Source.MEASURED).values_list(*columns)
    runs = PairRun.objects.filter(concerned, state__in=[*OPEN, R.GIVEN_UP]).values_list(*columns)
    known = set(chain(measured, runs))
    wanting = _wanting(kinds, {offer.type_id for offer in sharing}, known)
    wanting = _part_of(wanting, int(now.timestamp()))
    if not wanting:
        return
    book, names = _book(kinds), {offer.type_id: offer.type_name for offer in sharing}
    partners: dict[tuple[int, int], list[int]] = {}
    for kind, type_id in wanting:
        best = next_partners(book, str(kind), [names[type_id]], CHOICES) if book is not None else ()
        told = [int(partner.reference) for partner in best if int(partner.reference) in kinds]
        partners[kind, type_id] = [*told, *(other for other in kinds if other not in told)]
    missing = _missing(wanting, partners, known, _lenders(cluster, kinds), sharing)
    for key, jobs in list(missing.items())[:free]:
        _ask(cluster, key, jobs)


def _wanting(
    kinds: Sequence[int], types: Iterable[int], known: Collection[PairKey]
) -> dict[tuple[int, int], int]:
    """Missing numbers of partners by (kind, GPU type)."""
    told = Counter((kind, type_id) for first, second, type_id in known for kind in {first, second})
    return {
        (kind, type_id): told[kind, type_id]
        for kind in kinds
        for type_id in types
        if told[kind, type_id] < PARTNERS
        and any(_key(kind, other, type_id) not in known for other in kinds)
    }


def _part_of(wanting: Mapping[tuple[int, int], int], turn: int) -> dict[tuple[int, int], int]:
    keys = sorted(wanting)
    begin = turn % len(keys) if len(keys) > A_LOOK else 0
    return {key: wanting[key] for key in [*keys[begin:], *keys[:begin]][:A_LOOK]}


def _key(kind: int, other: int, type_id: int) -> PairKey:
    return min(kind, other), max(kind, other), type_id


def _lenders(cluster: Cluster, kinds: Iterable[int]) -> dict[int, list[Job]]:
    jobs = Job.objects.filter(
        cluster=cluster, may_share=True, gpus_min=1, repeatable=True, state__in=LENDING
    ).order_by("submitted_at", "pk")
    jobs = jobs.select_related("cluster")
    return {kind: list(jobs.filter(kind=kind)[:2]) for kind in kinds}


def _missing(
    wanting: Mapping[tuple[int, int], int],
    partners: Mapping[tuple[int, int], Sequence[int]],
    known: Collection[PairKey],
    lenders: Mapping[int, Sequence[Job]],
    sharing: Sequence[Offer],
) -> dict[PairKey, tuple[Job, Job]]:
    found: dict[PairKey, tuple[Job, Job]] = {}
    told = Counter(wanting)
    for kind, type_id in wanting:
        here = [offer for offer in sharing if offer.type_id == type_id]
        for other in partners[kind, type_id]:
            key, jobs = _key(kind, other, type_id), _jobs_of(lenders[kind], lenders[other], here)
            if told[kind, type_id] >= PARTNERS or jobs is None or key in known or key in found:
                continue
            found[key] = jobs if jobs[0].kind_id == key[0] else (jobs[1], jobs[0])
            told.update((k, type_id) for k in {kind, other})
    return found


def _book(kinds: Iterable[int]) -> Book | None:
    rows = pairs.load_pairs()
    if not rows:
        return None
    speeds = speeds_alone(pairs.kinds_of(rows) | set(kinds), {row.gpu_type for row in rows})
    return pairs.book_of(rows, speeds.measured, kinds)


def _jobs_of(
    first: Iterable[Job], second: Sequence[Job], here: Sequence[Offer]
) -> tuple[Job, Job] | None:
    for one in first:
        for two in second:
            if one.pk != two.pk and any(_fit_together(one, two, offer) for offer in here):
                return one, two
    return None


def _fit_together(one: Job, two: Job, offer: Offer) -> bool:
    cores, memory_gb = one.cores + two.cores, one.memory_gb + two.memory_gb
    both = cores <= offer.cores and memory_gb <= offer.memory_gb
    return both and fits(one, offer) and fits(two, offer)


def _ask(cluster: Cluster, key: PairKey, jobs: tuple[Job, Job]) -> None:
    first, second, type_id = key
    quotas = [_quota(cluster, job, type_id) for job in jobs]
    with transaction.atomic():
        for kind in sorted({first, second}):
            lock_kind(kind)
        PairRun.objects.update_or_create(
            first_id=first, second_id=second, gpu_type_id=type_id,
            defaults={
                "first_job": jobs[0], "second_job": jobs[1],
                "first_copy": last_copy(jobs[0].pk) + 1,
                "second_copy": last_copy(jobs[1].pk) + 1, "first_quota": quotas[0],
                "second_quota": quotas[1],
                "steps": cluster.profiling_steps, "state": R.WANTED, "failures": 0, "reason": "",
                "ended_at": None,
            },
        )  # fmt: skip
        request_reschedule(cluster, Reason.PROFILE, job=jobs[0])


def _quota(cluster: Cluster, job: Job, type_id: int) -> int:
    """Steps of the job's kind alone in the longest pair run, at its fastest known speed."""
    known = Profile.objects.filter(kind=job.kind_id, spread=False)
    rows = known.filter(gpu_type=type_id, gpus=1) or known
    fastest = rows.aggregate(most=Max("steps_per_s"))["most"] or 0.0
    return max(cluster.profiling_steps, min(ceil(fastest * LONGEST.total_seconds()), MOST_STEPS))
