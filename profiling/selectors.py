"""Kinds and requested measurements for a snapshot."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import log
from statistics import median_low
from typing import TypeVar

from django.db.models import Avg, Count, Max, Model, QuerySet
from django.utils import timezone

from clusters.models import Cluster, GpuType, Node
from jobs.lifecycle import JobState
from jobs.models import UNFINISHED, Job, Kind
from policies.contract.snapshot import KindView, ProfileRequest, ResourceUse, Source, Throughput
from policies.placement.amdahl import Config
from policies.placement.spread_rates import Links, SpreadRates, links_of
from profiling.estimates import Pool, estimate, leave_one_out
from profiling.exploration import spread_of
from profiling.models import UNFIT, PairRun, Profile, ProfileRun
from profiling.pairs import rows as pairs
from profiling.restarts import Restart
from profiling.runs import OPEN, WAITING, R, backs_off

POOL_SIZE = 5000
"""Newest measured profiles from which estimates are made."""

MOST_LEFT_OUT = 200
"""Newest measured profiles that show how good estimates are."""

MOST_NAMED = 5000
"""Most keys that a query names one by one; for more the whole table is read."""

LONGEST_USUAL_S = 600.0
"""Longest time to the first step that is expected of a kind that has shown none."""

Row = TypeVar("Row", bound=Model)


@dataclass(slots=True)
class Known:
    """Stored profiles of one kind: consolidated by configuration, spread, and impossible ones."""

    together: dict[Config, Profile] = field(default_factory=dict)
    spread: list[Profile] = field(default_factory=list)
    unfit: set[Config] = field(default_factory=set)

    def number(self, gpu_type: str, gpus: int, spread: bool) -> Profile | None:
        """Profile of a configuration; None if there is none."""
        if not spread:
            return self.together.get((gpu_type, gpus))
        there = (p for p in self.spread if (p.gpu_type.name, p.gpus) == (gpu_type, gpus))
        return next(there, None)

    @property
    def anchors(self) -> dict[Config, Profile]:
        """Profiles of the best available source."""
        for source in Source:
            found = {c: p for c, p in self.together.items() if p.source == source}
            if found:
                return found
        return {}


def kind_views(cluster: Cluster, kinds: Iterable[int]) -> tuple[KindView, ...]:
    """Known and estimated speeds of these kinds on the cluster's types; `KindView.id` is str(pk).

    Every count up to each type's largest node has a number where any is known, except where the
    command failed. Where devices are shared, kinds have their pairs.
    """
    wanted = sorted(set(kinds))
    rows = list(_among(Kind.objects.order_by("pk"), "pk", wanted))
    chosen = set(wanted)
    counts, shared, _ = _counts(cluster)
    sharing = pairs.sharing_kinds(cluster, chosen) if shared else []
    pair_rows = pairs.load_pairs() if sharing else []
    pool, now = load_pool() if counts else Pool.of({}, {}), timezone.now()
    known = load_known(sorted(chosen | pairs.kinds_of(pair_rows))) if counts else {}
    usual_s = _usual_setup_s()
    views = [
        _view(kind, known.get(kind.pk, Known()), counts, pool, now, usual_s)
        for kind in rows
        if kind.pk in chosen
    ]
    if not pair_rows:
        return tuple(views)
    speeds = _speeds(known, {*counts, *(row.gpu_type for row in pair_rows)}, pool, now)
    of_kind = pairs.pair_views(sharing, shared, pair_rows, speeds, now)
    return tuple(replace(view, pairs=of_kind.get(int(view.id), ())) for view in views)


def _usual_setup_s() -> float:
    """Median of the teams' mean times to the first step, at most LONGEST_USUAL_S; 0 without any.

    A team counts once, so that its reports move what others expect as one team among them.
    """
    kinds = Kind.objects.filter(setup_s__isnull=False).order_by()
    means = [team["mean_s"] for team in kinds.values("team").annotate(mean_s=Avg("setup_s"))]
    return min(LONGEST_USUAL_S, median_low(means)) if means else 0.0


def error_spread() -> float:
    """Spread of estimates, by leaving out each of the newest measured profiles; two queries."""
    known, tflops = _newest_measured(MOST_LEFT_OUT)
    errors = leave_one_out(known, Pool.of(tflops, known))
    return spread_of(log(e.estimated / e.measured) for e in errors)


def restarts(cluster: Cluster, kinds: Collection[int]) -> dict[int, Restart]:
    """Restart of each of these kinds, by primary key; the cluster's figure until measured."""
    rows = _among(Kind.objects.order_by(), "pk", sorted(kinds))
    return {kind.pk: Restart.of(kind, cluster.restart_cost_s) for kind in rows}


def speeds_alone(kinds: Iterable[int], types: Collection[str]) -> pairs.Speeds:
    """Speeds of these kinds alone on one GPU of each of these types; four queries."""
    return _speeds(load_known(sorted(set(kinds))), types, load_pool(), timezone.now())


def profile_requests(cluster: Cluster) -> tuple[ProfileRequest, ...]:
    """Measurements wanted or under way, oldest first; `job` and `kind` are str of the keys.

    A run that no job waits for is as young as the snapshot: only an old request may take devices
    from production. A job one of whose runs has just failed backs off.
    """
    now = timezone.now()
    opened = ProfileRun.objects.filter(job__cluster=cluster, state__in=OPEN)
    runs = list(opened.select_related("gpu_type", "job"))
    backing_off = {r.job_id for r in runs if r.state == R.WANTED and r.ended_at is not None}
    alone = [
        _request(r, now)
        for r in runs
        if r.state == R.RUNNING or (r.job.state in WAITING and r.job_id not in backing_off)
    ]
    return (*alone, *_pair_requests(cluster, now))


def _request(run: ProfileRun, now: datetime) -> ProfileRequest:
    since = run.created_at if run.job.state == JobState.PROFILING else now
    job, kind, gpu_type = str(run.job_id), str(run.kind_id), run.gpu_type.name
    return ProfileRequest(job, kind, gpu_type, run.gpus, run.steps, run.copy, since.timestamp())


def _pair_requests(cluster: Cluster, now: datetime) -> Iterator[ProfileRequest]:
    opened = PairRun.objects.filter(first_job__cluster=cluster, state__in=OPEN)
    for run in opened.select_related("gpu_type", "first_job", "second_job"):
        lent = run.first_job.state == run.second_job.state == JobState.QUEUED
        if not lent or backs_off(run, cluster.heartbeat_s, now):
            continue
        gpu_type, now_s = run.gpu_type.name, now.timestamp()
        one = str(run.first_job_id), run.first_copy
        two = str(run.second_job_id), run.second_copy
        for (job, copy), beside, kind, steps in (
            (one, two, run.first_id, run.first_quota),
            (two, one, run.second_id, run.second_quota),
        ):
            yield ProfileRequest(job, str(kind), gpu_type, 1, steps, copy, now_s, *beside)


def load_pool() -> Pool:
    """Evidence of all kinds from the newest measured profiles; two queries."""
    known, tflops = _newest_measured(POOL_SIZE)
    return Pool.of(tflops, known)


def _newest_measured(most: int) -> tuple[dict[str, dict[Config, float]], dict[str, float]]:
    """Newest measured profiles by kind, and the GPU types' peak TFLOP/s."""
    known: dict[str, dict[Config, float]] = {}
    # A published number is a copy: its team's own counts.
    measured = Profile.objects.filter(source=Source.MEASURED, spread=False, published=False)
    measured = measured.exclude(kind__reports_steps=False)  # run times say little of GPUs
    rows = measured.values_list("kind_id", "gpu_type__name", "gpus", "steps_per_s")
    for kind, gpu_type, gpus, speed in rows.order_by("-updated_at", "-pk")[:most]:
        known.setdefault(str(kind), {})[gpu_type, gpus] = speed
    return known, dict(GpuType.objects.values_list("name", "tflops"))


def load_known(kinds: list[int]) -> dict[int, Known]:
    """Stored profiles of these kinds, by primary key; two queries."""
    found: dict[int, Known] = {}
    for profile in _among(Profile.objects.select_related("gpu_type"), "kind_id", kinds):
        known = found.setdefault(profile.kind_id, Known())
        if profile.spread:
            known.spread.append(profile)
        else:
            known.together[profile.gpu_type.name, profile.gpus] = profile
    failed = ProfileRun.objects.filter(UNFIT)
    for run in _among(failed.select_related("gpu_type"), "kind_id", kinds):
        found.setdefault(run.kind_id, Known()).unfit.add((run.gpu_type.name, run.gpus))
    return found


def throughputs(
    kind: int, known: Known, wanted: Iterable[Config], pool: Pool, now: datetime
) -> list[Throughput]:
    """Throughput per wanted configuration, known or estimated; sorted by type and GPUs."""
    anchors = known.anchors
    oldest_s = max((pairs.age_s(p, now) for p in anchors.values()), default=0.0)
    measured = any(p.source == Source.MEASURED for p in anchors.values())
    wanted = [c for c in wanted if c in anchors or not (measured and c in known.unfit)]
    shown = {c: p.steps_per_s for c, p in anchors.items()}
    assumed = any(p.source == Source.ASSUMED for p in anchors.values())
    shown_over_nodes = {
        (p.gpu_type.name, p.gpus): p.steps_per_s
        for p in known.spread
        if p.source == Source.MEASURED
    }
    if assumed and shown_over_nodes:
        # It has run over nodes only: what it showed there is the best that is known of one node.
        shown = shown_over_nodes
        anchors = {}
        assumed = False
    speeds = estimate(str(kind), shown, wanted, pool)
    derived = Source.ASSUMED if assumed else Source.ESTIMATED
    found = []
    for (gpu_type, gpus), speed in sorted(speeds.items()):
        own = anchors.get((gpu_type, gpus))
        source = Source(own.source) if own else derived
        age_s = pairs.age_s(own, now) if own else oldest_s
        found.append(Throughput(gpu_type, gpus, speed, source, age_s))
    return found


def _view(
    kind: Kind, known: Known, counts: dict[str, int], pool: Pool, now: datetime, usual_s: float
) -> KindView:
    wanted = [(t, g) for t, most in counts.items() for g in range(1, most + 1)]
    speeds = throughputs(kind.pk, known, wanted, pool, now)
    speeds += [spread for spread in over_nodes(known, now) if spread.gpu_type in counts]
    setup_s, usage = usual_s if kind.setup_s is None else kind.setup_s, _usage(known, counts, now)
    return KindView(str(kind.pk), str(kind), tuple(speeds), usage=usage, setup_s=setup_s)


def _usage(known: Known, counts: dict[str, int], now: datetime) -> tuple[ResourceUse, ...]:
    """Use of one process by GPU type, from the measured configuration with the fewest GPUs."""
    found: dict[str, ResourceUse] = {}
    for (gpu_type, _), p in sorted(known.together.items()):
        if gpu_type not in counts or gpu_type in found:
            continue
        if p.cores is not None and p.memory_gb is not None:
            fraction = 1.0 if p.gpu_fraction is None else p.gpu_fraction
            found[gpu_type] = ResourceUse(
                gpu_type,
                p.cores,
                p.memory_gb,
                fraction,
                p.gpu_w,
                Source(p.source),
                pairs.age_s(p, now),
            )
    return tuple(found.values())


def _speeds(
    known: Mapping[int, Known], types: Collection[str], pool: Pool, now: datetime
) -> pairs.Speeds:
    measured: dict[tuple[str, str], float] = {}
    believed: dict[tuple[str, str], float] = {}
    for kind, of in known.items():
        for t in throughputs(kind, of, [(gpu_type, 1) for gpu_type in sorted(types)], pool, now):
            believed[str(kind), t.gpu_type] = t.steps_per_s
            if t.source == Source.MEASURED:
                measured[str(kind), t.gpu_type] = t.steps_per_s
    return pairs.Speeds(measured, believed)


def _counts(cluster: Cluster) -> tuple[dict[str, int], frozenset[str], dict[str, Links]]:
    """Return by GPU type the GPUs of the largest node, the types with slots, and the links."""
    nodes = Node.objects.filter(cluster=cluster, gpu_type__isnull=False).annotate(
        size=Count("devices"), slots=Max("devices__slots")
    )
    counts: dict[str, int] = {}
    shared: set[str] = set()
    sizes: list[tuple[str, int, float]] = []
    for gpu_type, size, slots, gbps in nodes.values_list(
        "gpu_type__name", "size", "slots", "link_gbps"
    ):
        counts[gpu_type] = max(counts.get(gpu_type, 1), size)
        shared |= {gpu_type} if (slots or 1) > 1 else set()
        sizes.append((gpu_type, size, gbps))
    return counts, frozenset(shared), links_of(sizes)


def links_of_every_node() -> dict[str, Links]:
    """Return the links by GPU type of the nodes of all clusters."""
    nodes = Node.objects.filter(gpu_type__isnull=False).annotate(size=Count("devices"))
    return links_of(nodes.values_list("gpu_type__name", "size", "link_gbps"))


def wide_counts(kinds: Collection[int], counts: Mapping[str, int]) -> dict[str, set[int]]:
    """Return by kind the GPUs of its jobs that are more than some type's largest node has."""
    jobs = Job.objects.filter(UNFINISHED, batch=False, gpus_min__gt=min(counts.values()))
    rows = _among(jobs.order_by(), "kind_id", sorted(kinds)).values_list("kind_id", "gpus_min")
    wide: dict[str, set[int]] = {}
    for kind, gpus in rows.distinct():
        if kind in kinds:
            wide.setdefault(str(kind), set()).add(gpus)
    return wide


def with_spread_estimates(
    cluster: Cluster, views: Sequence[KindView], wide: Mapping[str, Collection[int]]
) -> tuple[KindView, ...]:
    """Return the views with estimated speeds of these numbers of GPUs over several nodes.

    `wide`: by kind, the GPUs of jobs that no node of some type has. Without any, nothing is read.
    """
    if not wide:
        return tuple(views)
    _, _, links = _counts(cluster)
    rates = spread_rates(views, links, load_pool())
    completed = []
    for view in views:
        estimates = []
        for gpus in sorted(wide.get(view.id, ())):
            for gpu_type, of_type in links.items():
                is_known = (gpu_type, gpus, True) in view.rates
                estimate = rates.estimate(view.id, gpu_type, gpus)
                if estimate is None or is_known or gpus <= of_type.largest:
                    continue
                source = Source.ASSUMED if view.is_assumed else Source.ESTIMATED
                speed = estimate.steps_per_s
                estimates.append(Throughput(gpu_type, gpus, speed, source, spread=True))
        completed.append(replace(view, throughputs=(*view.throughputs, *estimates)))
    return tuple(completed)


def spread_rates(views: Iterable[KindView], links: Mapping[str, Links], pool: Pool) -> SpreadRates:
    """Return estimates over several nodes from these kinds, and the newest that ran over nodes."""
    measured = Profile.objects.filter(source=Source.MEASURED, spread=True, published=False)
    newest = list(measured.order_by("-updated_at", "-pk").values_list("kind_id")[:POOL_SIZE])
    now = timezone.now()
    known_views = {view.id: view for view in views}
    for kind, known in load_known(sorted({kind for (kind,) in newest})).items():
        if str(kind) not in known_views:
            wanted = [(p.gpu_type.name, p.gpus) for p in known.spread]
            known_views[str(kind)] = KindView(
                str(kind),
                throughputs=(
                    *throughputs(kind, known, wanted, pool, now),
                    *over_nodes(known, now),
                ),
            )
    return SpreadRates(known_views.values(), links, pool.tflops)


def over_nodes(known: Known, now: datetime) -> list[Throughput]:
    """Return the stored speeds over several nodes."""
    return [
        Throughput(
            p.gpu_type.name, p.gpus, p.steps_per_s, Source(p.source), pairs.age_s(p, now), True
        )
        for p in known.spread
        if p.steps_per_s > 0
    ]


def _among(rows: QuerySet[Row], name: str, keys: list[int]) -> QuerySet[Row]:
    return rows.filter(**{f"{name}__in": keys}) if len(keys) <= MOST_NAMED else rows
