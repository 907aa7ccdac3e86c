"""Kinds with their speeds, and requested measurements, for a snapshot."""

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
from policies.placement.spread_rates import Links, SpreadEstimate, SpreadRates, links_of
from profiling.estimates import Pool, estimate, leave_one_out
from profiling.exploration import spread_of
from profiling.models import UNFIT, PairRun, Profile, ProfileRun
from profiling.pairs import rows as pairs
from profiling.restarts import Restart
from profiling.runs import OPEN, WAITING, RunState, backs_off

POOL_SIZE = 5000
"""Most measured profiles from which estimates are made: the newest."""

MOST_LEFT_OUT = 200
"""Most measured profiles that show how good estimates are: the newest."""

MOST_NAMED = 5000
"""Most keys that a query names one by one; for more the whole table is read."""

LONGEST_USUAL_S = 600.0
"""Longest time to the first step that is expected of a kind that has shown none."""

Row = TypeVar("Row", bound=Model)


@dataclass(slots=True)
class Known:
    """Stored profiles of one kind: on one node by configuration, and over several nodes (`spread`).

    `unfit`: configurations on which its command cannot run.
    """

    together: dict[Config, Profile] = field(default_factory=dict)
    spread: list[Profile] = field(default_factory=list)
    unfit: set[Config] = field(default_factory=set)

    def number(self, gpu_type: str, gpus: int, spread: bool) -> Profile | None:
        """Return the profile of a configuration; None if there is none."""
        if not spread:
            return self.together.get((gpu_type, gpus))
        for profile in self.spread:
            if profile.gpu_type.name == gpu_type and profile.gpus == gpus:
                return profile
        return None

    @property
    def anchors(self) -> dict[Config, Profile]:
        """Profiles on one node of the best available source, from which others are estimated."""
        for source in Source:
            of_source = {c: p for c, p in self.together.items() if p.source == source}
            if of_source:
                return of_source
        return {}


def kind_views(cluster: Cluster, kinds: Iterable[int]) -> tuple[KindView, ...]:
    """Return known and estimated speeds of these kinds on the cluster's types.

    `KindView.id` is str(pk). If any speed of a kind is known, it has one for every number of GPUs
    up to each type's largest node, except where its command failed. If devices are shared, kinds
    have their pairs.
    """
    # 1. Read the kinds, and what is known of them and of kinds beside which they run.
    chosen = set(kinds)
    rows = list(_among(Kind.objects.order_by("pk"), "pk", sorted(chosen)))
    counts, shared_types, _ = _counts(cluster)
    sharing: list[int] = []
    if shared_types:
        sharing = pairs.sharing_kinds(cluster, chosen)
    pair_rows: list[pairs.PairRow] = []
    if sharing:
        pair_rows = pairs.load_pairs()
    pool = Pool.of({}, {})
    known: dict[int, Known] = {}
    if counts:
        pool = load_pool()
        known = load_known(sorted(chosen | pairs.kinds_of(pair_rows)))

    # 2. Their speeds alone.
    now = timezone.now()
    usual_s = _usual_setup_s()
    views = []
    for kind in rows:
        if kind.pk in chosen:
            of_kind = known.get(kind.pk, Known())
            views.append(_view(kind, of_kind, counts, pool, now, usual_s))
    if not pair_rows:
        return tuple(views)

    # 3. Their pairs.
    types = {*counts, *(row.gpu_type for row in pair_rows)}
    speeds = _speeds_alone(known, types, pool, now)
    pairs_by_kind = pairs.pair_views(sharing, shared_types, pair_rows, speeds, now)
    return tuple(replace(view, pairs=pairs_by_kind.get(int(view.id), ())) for view in views)


def _usual_setup_s() -> float:
    """Return the median of the teams' mean times to the first step; 0 without any.

    It is at most LONGEST_USUAL_S. Each team counts once, whatever the number of its reports.
    """
    kinds = Kind.objects.filter(setup_s__isnull=False).order_by()
    means = [team["mean_s"] for team in kinds.values("team").annotate(mean_s=Avg("setup_s"))]
    return min(LONGEST_USUAL_S, median_low(means)) if means else 0.0


def error_spread() -> float:
    """Return sigma of estimates, by leaving out each of the newest measured profiles; two queries.

    It is that of `profiling.exploration`.
    """
    known, tflops = _newest_measured(MOST_LEFT_OUT)
    results = leave_one_out(known, Pool.of(tflops, known))
    return spread_of(log(result.estimated / result.measured) for result in results)


def restarts(cluster: Cluster, kinds: Collection[int]) -> dict[int, Restart]:
    """Return the restart of each of these kinds; until it is measured, the cluster's figure."""
    rows = _among(Kind.objects.order_by(), "pk", sorted(kinds))
    return {kind.pk: Restart.of(kind, cluster.restart_cost_s) for kind in rows}


def speeds_alone(kinds: Iterable[int], types: Collection[str]) -> pairs.Speeds:
    """Return the speeds of these kinds alone on one GPU of each of these types; four queries."""
    known = load_known(sorted(set(kinds)))
    return _speeds_alone(known, types, load_pool(), timezone.now())


def profile_requests(cluster: Cluster) -> tuple[ProfileRequest, ...]:
    """Return measurements wanted or under way, oldest first; `job` and `kind` are str of the keys.

    A run that no job waits for is as young as the snapshot, as only an old request may take devices
    from production. If a run of a job has just failed, all runs of the job pause.
    """
    now = timezone.now()
    open_runs = ProfileRun.objects.filter(job__cluster=cluster, state__in=OPEN)
    runs = list(open_runs.select_related("gpu_type", "job"))
    pausing = {
        run.job_id for run in runs if run.state == RunState.WANTED and run.ended_at is not None
    }
    requests = []
    for run in runs:
        may_start = run.job.state in WAITING and run.job_id not in pausing
        if run.state == RunState.RUNNING or may_start:
            requests.append(_request(run, now))
    return (*requests, *_pair_requests(cluster, now))


def _request(run: ProfileRun, now: datetime) -> ProfileRequest:
    """Return the request of a run."""
    is_waited_for = run.job.state == JobState.PROFILING
    since = run.created_at if is_waited_for else now
    return ProfileRequest(
        job=str(run.job_id),
        kind=str(run.kind_id),
        gpu_type=run.gpu_type.name,
        gpus=run.gpus,
        steps=run.steps,
        copy=run.copy,
        since_s=since.timestamp(),
    )


def _pair_requests(cluster: Cluster, now: datetime) -> Iterator[ProfileRequest]:
    """Yield two requests, one beside the other, for each pair run that may start or go on."""
    open_runs = PairRun.objects.filter(first_job__cluster=cluster, state__in=OPEN)
    for run in open_runs.select_related("gpu_type", "first_job", "second_job"):
        is_lent = run.first_job.state == run.second_job.state == JobState.QUEUED
        if not is_lent or backs_off(run, cluster.heartbeat_s, now):
            continue
        first = ProfileRequest(
            job=str(run.first_job_id),
            kind=str(run.first_id),
            gpu_type=run.gpu_type.name,
            gpus=1,
            steps=run.first_quota,
            copy=run.first_copy,
            since_s=now.timestamp(),
            beside=str(run.second_job_id),
            beside_copy=run.second_copy,
        )
        yield first
        yield replace(
            first,
            job=first.beside,
            kind=str(run.second_id),
            steps=run.second_quota,
            copy=first.beside_copy,
            beside=first.job,
            beside_copy=first.copy,
        )


def load_pool() -> Pool:
    """Return the pool of the newest measured profiles of all kinds; two queries."""
    known, tflops = _newest_measured(POOL_SIZE)
    return Pool.of(tflops, known)


def _newest_measured(most: int) -> tuple[dict[str, dict[Config, float]], dict[str, float]]:
    """Return the newest measured speeds by kind, and the GPU types' peak TFLOP/s."""
    # Published profiles are copies of teams' own. Speeds of whole runs say little about GPUs.
    measured = Profile.objects.filter(source=Source.MEASURED, spread=False, published=False)
    measured = measured.exclude(kind__reports_steps=False)
    rows = measured.values_list("kind_id", "gpu_type__name", "gpus", "steps_per_s")
    speeds: dict[str, dict[Config, float]] = {}
    for kind, gpu_type, gpus, speed in rows.order_by("-updated_at", "-pk")[:most]:
        speeds.setdefault(str(kind), {})[gpu_type, gpus] = speed
    return speeds, dict(GpuType.objects.values_list("name", "tflops"))


def load_known(kinds: list[int]) -> dict[int, Known]:
    """Return the stored profiles of these kinds, by primary key; two queries."""
    known: dict[int, Known] = {}
    for profile in _among(Profile.objects.select_related("gpu_type"), "kind_id", kinds):
        of_kind = known.setdefault(profile.kind_id, Known())
        if profile.spread:
            of_kind.spread.append(profile)
        else:
            of_kind.together[profile.gpu_type.name, profile.gpus] = profile
    unfit_runs = ProfileRun.objects.filter(UNFIT)
    for run in _among(unfit_runs.select_related("gpu_type"), "kind_id", kinds):
        known.setdefault(run.kind_id, Known()).unfit.add((run.gpu_type.name, run.gpus))
    return known


def throughputs(
    kind: int, known: Known, wanted: Iterable[Config], pool: Pool, now: datetime
) -> list[Throughput]:
    """Return the known or estimated throughput on each wanted configuration of one node.

    They are sorted by type and GPUs. Unfit configurations are left out if the kind is measured.
    """
    # 1. The known speeds, from which the others are estimated.
    anchors = known.anchors
    sources = {profile.source for profile in anchors.values()}
    oldest_s = max((pairs.age_s(profile, now) for profile in anchors.values()), default=0.0)
    if Source.MEASURED in sources:
        wanted = [config for config in wanted if config in anchors or config not in known.unfit]
    known_speeds = {config: profile.steps_per_s for config, profile in anchors.items()}
    derived_source = Source.ASSUMED if Source.ASSUMED in sources else Source.ESTIMATED

    # 2. A kind that has only run over nodes: its speed there is the best known for one node.
    over_nodes_speeds = {}
    for profile in known.spread:
        if profile.source == Source.MEASURED:
            over_nodes_speeds[profile.gpu_type.name, profile.gpus] = profile.steps_per_s
    if Source.ASSUMED in sources and over_nodes_speeds:
        known_speeds = over_nodes_speeds
        anchors = {}
        derived_source = Source.ESTIMATED

    # 3. The estimates are as old as the oldest known speed.
    results = []
    for config, speed in sorted(estimate(str(kind), known_speeds, wanted, pool).items()):
        gpu_type, gpus = config
        anchor = anchors.get(config)
        if anchor is None:
            results.append(Throughput(gpu_type, gpus, speed, derived_source, oldest_s))
        else:
            age_s = pairs.age_s(anchor, now)
            results.append(Throughput(gpu_type, gpus, speed, Source(anchor.source), age_s))
    return results


def every_count(largest: Mapping[str, int]) -> list[Config]:
    """Return every number of GPUs of each type, up to that of the type's largest node."""
    configurations: list[Config] = []
    for gpu_type, most in largest.items():
        configurations += [(gpu_type, gpus) for gpus in range(1, most + 1)]
    return configurations


def _view(
    kind: Kind, known: Known, counts: dict[str, int], pool: Pool, now: datetime, usual_s: float
) -> KindView:
    """Return a kind as policies see it, without pairs.

    `counts`: GPUs of the largest node of each type. `usual_s`: time to the first step until the
    kind has shown its own.
    """
    speeds = throughputs(kind.pk, known, every_count(counts), pool, now)
    speeds += [spread for spread in over_nodes(known, now) if spread.gpu_type in counts]
    return KindView(
        id=str(kind.pk),
        name=str(kind),
        throughputs=tuple(speeds),
        usage=_usage(known, counts, now),
        setup_s=usual_s if kind.setup_s is None else kind.setup_s,
    )


def _usage(known: Known, counts: dict[str, int], now: datetime) -> tuple[ResourceUse, ...]:
    """Return the use of one process by GPU type, from the configuration with the fewest GPUs."""
    usage: dict[str, ResourceUse] = {}
    for (gpu_type, _), profile in sorted(known.together.items()):
        if gpu_type not in counts or gpu_type in usage:
            continue
        if profile.cores is not None and profile.memory_gb is not None:
            usage[gpu_type] = ResourceUse(
                gpu_type,
                profile.cores,
                profile.memory_gb,
                1.0 if profile.gpu_fraction is None else profile.gpu_fraction,
                profile.gpu_w,
                Source(profile.source),
                pairs.age_s(profile, now),
            )
    return tuple(usage.values())


def _speeds_alone(
    known: Mapping[int, Known], types: Collection[str], pool: Pool, now: datetime
) -> pairs.Speeds:
    """Return the speeds of kinds alone on one GPU of each of these types."""
    measured: dict[tuple[str, str], float] = {}
    believed: dict[tuple[str, str], float] = {}
    single_gpus = [(gpu_type, 1) for gpu_type in sorted(types)]
    for kind, of_kind in known.items():
        for throughput in throughputs(kind, of_kind, single_gpus, pool, now):
            believed[str(kind), throughput.gpu_type] = throughput.steps_per_s
            if throughput.source == Source.MEASURED:
                measured[str(kind), throughput.gpu_type] = throughput.steps_per_s
    return pairs.Speeds(measured, believed)


def _counts(cluster: Cluster) -> tuple[dict[str, int], frozenset[str], dict[str, Links]]:
    """Return by GPU type the GPUs of the largest node, the types with slots, and the links."""
    nodes = Node.objects.filter(cluster=cluster, gpu_type__isnull=False)
    nodes = nodes.annotate(size=Count("devices"), slots=Max("devices__slots"))
    counts: dict[str, int] = {}
    shared_types: set[str] = set()
    sizes: list[tuple[str, int, float]] = []
    columns = ("gpu_type__name", "size", "slots", "link_gbps")
    for gpu_type, size, slots, gbps in nodes.values_list(*columns):
        counts[gpu_type] = max(counts.get(gpu_type, 1), size)
        if slots is not None and slots > 1:
            shared_types.add(gpu_type)
        sizes.append((gpu_type, size, gbps))
    return counts, frozenset(shared_types), links_of(sizes)


def links_of_every_node() -> dict[str, Links]:
    """Return the links of the nodes of all clusters, by GPU type."""
    nodes = Node.objects.filter(gpu_type__isnull=False).annotate(size=Count("devices"))
    return links_of(nodes.values_list("gpu_type__name", "size", "link_gbps"))


def wide_counts(kinds: Collection[int], counts: Mapping[str, int]) -> dict[str, set[int]]:
    """Return by kind the numbers of GPUs of its jobs that exceed the largest node of some type.

    `counts`: GPUs of the largest node of each type.
    """
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
    """Return the views with estimated speeds over several nodes, where jobs need that many GPUs.

    `wide`: the result of `wide_counts`. If it is empty, nothing is read.
    """
    if not wide:
        return tuple(views)
    _, _, links = _counts(cluster)
    rates = spread_rates(views, links, load_pool())
    completed = []
    for view in views:
        source = Source.ASSUMED if view.is_assumed else Source.ESTIMATED
        speeds = list(view.throughputs)
        counts = wide.get(view.id, ())
        for gpu_type, gpus, spread in spread_estimates(view, counts, links, rates):
            speeds.append(Throughput(gpu_type, gpus, spread.steps_per_s, source, spread=True))
        completed.append(replace(view, throughputs=tuple(speeds)))
    return tuple(completed)


def spread_estimates(
    view: KindView, counts: Collection[int], links: Mapping[str, Links], rates: SpreadRates
) -> Iterator[tuple[str, int, SpreadEstimate]]:
    """Yield (GPU type, GPUs, estimate) of unknown speeds over several nodes.

    `counts`: numbers of GPUs; those that a node of a type has are left out for the type.
    """
    for gpus in sorted(counts):
        for gpu_type, of_type in links.items():
            is_known = (gpu_type, gpus, True) in view.rates
            if is_known or gpus <= of_type.largest:
                continue
            spread = rates.estimate(view.id, gpu_type, gpus)
            if spread is not None:
                yield gpu_type, gpus, spread


def spread_rates(views: Iterable[KindView], links: Mapping[str, Links], pool: Pool) -> SpreadRates:
    """Return estimates over several nodes from these kinds, and the newest that ran over nodes."""
    measured = Profile.objects.filter(source=Source.MEASURED, spread=True, published=False)
    newest = list(measured.order_by("-updated_at", "-pk").values_list("kind_id")[:POOL_SIZE])
    now = timezone.now()
    known_views = {view.id: view for view in views}
    for kind, known in load_known(sorted({kind for (kind,) in newest})).items():
        if str(kind) in known_views:
            continue
        spread_configs = [(profile.gpu_type.name, profile.gpus) for profile in known.spread]
        speeds = throughputs(kind, known, spread_configs, pool, now) + over_nodes(known, now)
        known_views[str(kind)] = KindView(str(kind), throughputs=tuple(speeds))
    return SpreadRates(known_views.values(), links, pool.tflops)


def over_nodes(known: Known, now: datetime) -> list[Throughput]:
    """Return the stored speeds over several nodes."""
    speeds = []
    for profile in known.spread:
        if profile.steps_per_s > 0:
            speed = Throughput(
                profile.gpu_type.name,
                profile.gpus,
                profile.steps_per_s,
                Source(profile.source),
                pairs.age_s(profile, now),
                spread=True,
            )
            speeds.append(speed)
    return speeds


def _among(rows: QuerySet[Row], field: str, keys: list[int]) -> QuerySet[Row]:
    """Return the rows with these keys; for many keys all rows, as they need not be named then."""
    if len(keys) > MOST_NAMED:
        return rows
    return rows.filter(**{f"{field}__in": keys})
