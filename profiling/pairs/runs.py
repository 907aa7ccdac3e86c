"""Pair runs: the choice of pairs to measure side by side, and the course of such a run.

A kind that may share a GPU is measured beside PARTNERS others on each GPU type: those that
`next_partners` ranks best or, with too few references, those with the most jobs. Queued, repeatable
jobs lend their commands without waiting: when one starts, the run ends. A run is two placements on
one device (ADR 0003, 0019) until both have done its steps, or either ends. Only the reconciler
looks after pair runs.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
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
from profiling.runs import OPEN, RunState, last_copy, lock_kind, silent_launches
from profiling.selectors import speeds_alone

PARTNERS = 3
"""Partners measured per kind and GPU type: three give a median error of 7% on Gavel's kinds."""

AT_ONCE = 8
"""Most open pair runs per cluster: many new kinds must not keep production from its GPUs."""

KINDS_A_PASS = 16
"""Most (kind, GPU type) for which one pass seeks partners, so that its cost is bounded."""

CANDIDATES = 3 * PARTNERS
"""Partners that are ranked, as some may have no job here."""

RETRIES = 2
"""Failures of a run that are forgiven."""

MOST_STEPS = 2_000_000_000
"""Largest quota that the database holds."""

LONGEST = timedelta(seconds=120)
"""Longest pair run. Its quota is the number of steps that the kind does alone in this time."""

LENDING = frozenset({JobState.QUEUED})
"""States of jobs that lend their command: never beside the real run."""

Stop = Callable[[Assignment], object]
"""Function that requests an assignment's end."""

PairKey = tuple[int, int, int]
"""Primary keys of the first kind, the second and the GPU type."""

KindOnType = tuple[int, int]
"""Primary keys of a kind and a GPU type."""


def reconcile_pair_runs(cluster: Cluster, now: datetime, stop: Stop, watch: Watch) -> None:
    """Follow the open pair runs of a cluster, and request missing ones."""
    # 1. A cluster without open runs and shared GPUs needs nothing.
    runs = PairRun.objects.filter(first_job__cluster=cluster, state__in=OPEN)
    open_runs = list(runs.select_related("first_job", "second_job"))
    sharing = [offer for offer in offers(cluster, now).now if offer.slots > 1]
    if not open_runs and not sharing:
        return

    # 2. Each run by itself. A launch that was silent from its start ends its run.
    silent = set()
    for launch in silent_launches(cluster, watch):
        if launch.steps_done <= launch.start_steps:
            silent.add(launch.pk)
    for run in open_runs:
        with transaction.atomic():
            _follow(run, now, stop, silent)

    # 3. New runs.
    _request_missing(cluster, now, sharing)


def _follow(run: PairRun, now: datetime, stop: Stop, silent: Collection[UUID]) -> None:
    """Take the next step with an open run, by the states of its jobs and launches.

    `silent`: launches that report no steps.
    """
    # 1. Before its launches. It is dropped once a job no longer lends its command.
    first, second = [_launch(job, copy) for job, copy in run.launches]
    is_lent = run.first_job.state in LENDING and run.second_job.state in LENDING
    if first is None and second is None:
        if not is_lent:
            run.delete()
        return

    # 2. Measured, or not to be measured. After an end, any number of steps is enough.
    launches = [launch for launch in (first, second) if launch is not None]
    live = [launch for launch in launches if launch.state in LIVE]
    enough = run.steps if len(live) == 2 else 1
    if first is not None and second is not None and _is_measured(first, second, enough):
        _close(run, RunState.DONE, "", now)
        _stop_all(live, stop)
    elif any(launch.pk in silent for launch in live):
        _close(run, RunState.GIVEN_UP, "one of the two commands reports no steps", now)
        _stop_all(live, stop)

    # 3. Under way, or to be stopped: one has ended, a job starts, or it takes too long.
    elif len(live) == 2 and is_lent and not _is_late(launches, now):
        PairRun.objects.filter(pk=run.pk, state=RunState.WANTED).update(state=RunState.RUNNING)
    elif live:
        _stop_all(live, stop)

    # 4. Both have ended unmeasured. If a job has started it is no failure: others may lend.
    elif is_lent:
        _failed_once_more(run, launches, now)
    else:
        run.delete()


def _launch(job: UUID, copy: int) -> Assignment | None:
    """Return the newest launch of a run's copy of a job."""
    launches = Assignment.objects.filter(job=job, copy=copy, purpose=Purpose.PROFILING)
    return launches.select_related("job", "node__gpu_type").order_by("-fence").first()


def _is_measured(first: Assignment, second: Assignment, enough: int) -> bool:
    """Return True if two launches have measured the pair; record what they show.

    `enough`: steps of both.
    """
    # 1. Proof that the two do not fit, or an earlier measurement.
    for launch in (first, second):
        if launch.state not in LIVE:
            record_impossible(launch)
    one_way = Q(first_assignment=first, second_assignment=second)
    other_way = Q(first_assignment=second, second_assignment=first)
    if PairMeasurement.objects.filter(one_way | other_way, held=False).exists():
        return True

    # 2. A measurement of now.
    observation = observe_pair(first, second)
    if observation is None or min(observation.steps) < enough:
        return False
    if record_pair(observation) is None:
        return False
    request_reschedule(first.job.cluster, Reason.PROFILE, job=first.job)
    return True


def _is_late(launches: Iterable[Assignment], now: datetime) -> bool:
    """Return True if all launches have run for longer than LONGEST."""
    begins = [launch.running_at for launch in launches]
    return all(begin is not None and now - begin > LONGEST for begin in begins)


def _stop_all(live: Iterable[Assignment], stop: Stop) -> None:
    """Request the end of these launches, once."""
    for assignment in live:
        if assignment.desired == "run":
            stop(assignment)


def _failed_once_more(run: PairRun, launches: Iterable[Assignment], now: datetime) -> None:
    """Retry with new copies after both ended without a measurement, or give up."""
    reasons = [launch.reason for launch in launches if launch.reason]
    reasons.append("too few steps side by side, or a speed far off")
    run.failures += 1
    if run.failures > RETRIES:
        _close(run, RunState.GIVEN_UP, reasons[0], now)
        return
    run.state = RunState.WANTED
    run.reason = reasons[0]
    run.ended_at = now
    run.first_copy = last_copy(run.first_job_id) + 1
    run.second_copy = last_copy(run.second_job_id) + 1
    run.save()
    request_reschedule(run.first_job.cluster, Reason.PROFILE, job=run.first_job)


def _close(run: PairRun, state: ProfileRun.State, reason: str, now: datetime) -> None:
    """End a run in this state."""
    run.state = state
    run.reason = reason
    run.ended_at = now
    run.save()


def _request_missing(cluster: Cluster, now: datetime, sharing: Sequence[Offer]) -> None:
    """Request pair runs for kinds with too few partners; `sharing`: nodes with shared GPUs."""
    # 1. The kinds, and the pairs of them that are measured, under way or given up.
    free = AT_ONCE - PairRun.objects.filter(first_job__cluster=cluster, state__in=OPEN).count()
    if free <= 0 or not sharing:
        return
    profiled = set(Profile.objects.order_by().values_list("kind_id", flat=True).distinct())
    kinds = pairs.sharing_kinds(cluster, profiled)
    with_kinds = Q(first__in=kinds) | Q(second__in=kinds)
    measured = PairProfile.objects.filter(with_kinds, source=Source.MEASURED)
    runs = PairRun.objects.filter(with_kinds, state__in=[*OPEN, RunState.GIVEN_UP])
    columns = ("first_id", "second_id", "gpu_type_id")
    known = {*measured.values_list(*columns), *runs.values_list(*columns)}

    # 2. Kinds with too few partners, some of them in each pass.
    type_names = {offer.type_id: offer.type_name for offer in sharing}
    counts = _partner_counts(kinds, type_names, known)
    counts = _some_of(counts, int(now.timestamp()))
    if not counts:
        return

    # 3. Their possible partners, the best first.
    book = _book(kinds)
    partners: dict[KindOnType, list[int]] = {}
    for kind, type_id in counts:
        best: list[int] = []
        if book is not None:
            for partner in next_partners(book, str(kind), [type_names[type_id]], CANDIDATES):
                if int(partner.reference) in kinds:
                    best.append(int(partner.reference))
        others = [other for other in kinds if other not in best]
        partners[kind, type_id] = best + others

    # 4. The pairs for which two jobs lend their commands.
    lenders = _lenders(cluster, kinds)
    missing = _missing_pairs(counts, partners, known, lenders, sharing)
    for key, jobs in list(missing.items())[:free]:
        _request(cluster, key, jobs)


def _partner_counts(
    kinds: Sequence[int], types: Iterable[int], known: Collection[PairKey]
) -> dict[KindOnType, int]:
    """Return the numbers of known partners, of kinds with too few that could have another."""
    all_counts: Counter[KindOnType] = Counter()
    for first, second, type_id in known:
        all_counts.update((kind, type_id) for kind in {first, second})
    counts = {}
    for kind in kinds:
        for type_id in types:
            count = all_counts[kind, type_id]
            if count < PARTNERS and any(_key(kind, k, type_id) not in known for k in kinds):
                counts[kind, type_id] = count
    return counts


def _some_of(counts: Mapping[KindOnType, int], turn: int) -> dict[KindOnType, int]:
    """Return at most KINDS_A_PASS of the counts; each `turn` begins at another place."""
    keys = sorted(counts)
    begin = 0
    if len(keys) > KINDS_A_PASS:
        begin = turn % len(keys)
    rotated = keys[begin:] + keys[:begin]
    return {key: counts[key] for key in rotated[:KINDS_A_PASS]}


def _key(kind: int, other: int, type_id: int) -> PairKey:
    """Return the key of a pair of kinds."""
    return min(kind, other), max(kind, other), type_id


def _lenders(cluster: Cluster, kinds: Iterable[int]) -> dict[int, list[Job]]:
    """Return by kind the two oldest jobs that lend their commands to pair runs."""
    jobs = Job.objects.filter(
        cluster=cluster, may_share=True, gpus_min=1, repeatable=True, state__in=LENDING
    )
    oldest_first = jobs.order_by("submitted_at", "pk").select_related("cluster")
    return {kind: list(oldest_first.filter(kind=kind)[:2]) for kind in kinds}


def _missing_pairs(
    counts: Mapping[KindOnType, int],
    partners: Mapping[KindOnType, Sequence[int]],
    known: Collection[PairKey],
    lenders: Mapping[int, Sequence[Job]],
    sharing: Sequence[Offer],
) -> dict[PairKey, tuple[Job, Job]]:
    """Return pairs to measure, each with a job of its first kind and one of its second.

    Every kind gets partners until it has PARTNERS, or none is left.
    """
    missing: dict[PairKey, tuple[Job, Job]] = {}
    new_counts = Counter(counts)
    for kind, type_id in counts:
        on_type = [offer for offer in sharing if offer.type_id == type_id]
        for other in partners[kind, type_id]:
            if new_counts[kind, type_id] >= PARTNERS:
                break
            key = _key(kind, other, type_id)
            if key in known or key in missing:
                continue
            jobs = _jobs_that_fit(lenders[kind], lenders[other], on_type)
            if jobs is None:
                continue
            own_job, other_job = jobs
            missing[key] = (own_job, other_job) if kind <= other else (other_job, own_job)
            new_counts.update((k, type_id) for k in {kind, other})
    return missing


def _book(kinds: Iterable[int]) -> Book | None:
    """Return the fingerprints of these kinds; None if too little is measured."""
    rows = pairs.load_pairs()
    if not rows:
        return None
    speeds = speeds_alone(pairs.kinds_of(rows) | set(kinds), {row.gpu_type for row in rows})
    return pairs.book_of(rows, speeds.measured, kinds)


def _jobs_that_fit(
    first_jobs: Iterable[Job], second_jobs: Sequence[Job], offers_of_type: Sequence[Offer]
) -> tuple[Job, Job] | None:
    """Return a job of each list that fit on one node together; None without such jobs."""
    for first in first_jobs:
        for second in second_jobs:
            if first.pk == second.pk:
                continue
            if any(_fit_together(first, second, offer) for offer in offers_of_type):
                return first, second
    return None


def _fit_together(first: Job, second: Job, offer: Offer) -> bool:
    """Return True if dedicated runs of both jobs fit on the node of an offer."""
    fit_cores = first.cores + second.cores <= offer.cores
    fit_memory = first.memory_gb + second.memory_gb <= offer.memory_gb
    return fit_cores and fit_memory and fits(first, offer) and fits(second, offer)


def _request(cluster: Cluster, key: PairKey, jobs: tuple[Job, Job]) -> None:
    """Request a run of a pair with these jobs' commands."""
    first, second, type_id = key
    first_job, second_job = jobs
    first_quota = _quota(cluster, first_job, type_id)
    second_quota = _quota(cluster, second_job, type_id)
    with transaction.atomic():
        for kind in sorted({first, second}):
            lock_kind(kind)
        PairRun.objects.update_or_create(
            first_id=first,
            second_id=second,
            gpu_type_id=type_id,
            defaults={
                "first_job": first_job,
                "second_job": second_job,
                "first_copy": last_copy(first_job.pk) + 1,
                "second_copy": last_copy(second_job.pk) + 1,
                "first_quota": first_quota,
                "second_quota": second_quota,
                "steps": cluster.profiling_steps,
                "state": RunState.WANTED,
                "failures": 0,
                "reason": "",
                "ended_at": None,
            },
        )
        request_reschedule(cluster, Reason.PROFILE, job=first_job)


def _quota(cluster: Cluster, job: Job, type_id: int) -> int:
    """Return the steps that the job's kind does alone in the longest pair run."""
    known = Profile.objects.filter(kind=job.kind_id, spread=False)
    profiles = known.filter(gpu_type=type_id, gpus=1) or known
    fastest = profiles.aggregate(fastest=Max("steps_per_s"))["fastest"] or 0.0
    steps = min(ceil(fastest * LONGEST.total_seconds()), MOST_STEPS)
    return max(cluster.profiling_steps, steps)
