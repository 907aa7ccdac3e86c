"""Rows of the kinds' page and of REST: figures per kind and pair, and errors of estimates."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import exp

from django.contrib.auth.models import AnonymousUser, User
from django.core.paginator import Page, Paginator
from django.db.models import Count, Max, Q, QuerySet
from django.utils import timezone

from clusters.models import Node
from controlplane.web.operators import is_operator
from controlplane.web.pages.samples import LEAST_SAMPLES
from jobs.lifecycle import ACTIVE, JobState
from jobs.models import JobEvent, Kind
from jobs.selectors import teams_of, visible_jobs
from policies.contract.snapshot import KindView, Source
from policies.placement.amdahl import Config
from profiling.estimates import LeaveOneOut, Pool, leave_one_out, median_error
from profiling.exploration import EXPLORES
from profiling.models import PairMeasurement, PairProfile, ProfileRun
from profiling.outliers import waiting
from profiling.pairs.estimates import ErrorSummary, PairError, errors_of
from profiling.restarts import Restart
from profiling.runs import OPEN, RunState
from profiling.selectors import (
    Known,
    every_count,
    links_of_every_node,
    load_known,
    load_pool,
    over_nodes,
    spread_estimates,
    spread_rates,
    throughputs,
    wide_counts,
)

MOST_SHOWN = 50
"""Most pairs on the page: the newest."""

MOST_COMPARED = 5000
"""Most measurements whose errors are summed up: the newest."""


@dataclass(frozen=True, slots=True)
class PairsTable:
    """Newest measured pairs, and the errors of their earlier estimates."""

    lines: tuple[PairProfile, ...] = ()
    errors: ErrorSummary = field(default_factory=lambda: ErrorSummary.of(()))


NO_PAIRS = PairsTable()


def pairs_table(user: User | AnonymousUser, kinds: Collection[int]) -> PairsTable:
    """Return visible pairs with one of these kinds, and the errors of all visible; two queries."""
    visible = visible_kinds(user).order_by().values("pk")
    both_visible = Q(first__in=visible, second__in=visible)
    measured = PairProfile.objects.filter(both_visible, source=Source.MEASURED)
    measured = measured.filter(Q(first__in=kinds) | Q(second__in=kinds))
    newest = measured.select_related("first", "second", "gpu_type").order_by("-updated_at", "-pk")
    return PairsTable(tuple(newest[:MOST_SHOWN]), ErrorSummary.of(_pair_errors(both_visible)))


def _pair_errors(visible: Q) -> list[PairError]:
    """Return the errors of estimates of the newest measured pairs."""
    measurements = PairMeasurement.objects.filter(visible, held=False).order_by("-pk")
    measurements = measurements.filter(estimated_first_steps_per_s__isnull=False)
    rows = measurements.values_list(
        "first_id",
        "second_id",
        "gpu_type__name",
        "estimated_first_steps_per_s",
        "estimated_second_steps_per_s",
        "first_steps_per_s",
        "second_steps_per_s",
    )
    errors: list[PairError] = []
    for first, second, gpu_type, first_estimate, second_estimate, *measured in rows[:MOST_COMPARED]:
        if first_estimate is not None and second_estimate is not None:
            pair = (str(first), str(second), gpu_type)
            first_speed, second_speed = measured
            errors += errors_of(
                {pair: (first_estimate, second_estimate)}, {pair: (first_speed, second_speed)}
            )
    return errors


KINDS_A_PAGE = 24
"""Kinds on a page: each may have a figure for every number of GPUs of every type."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """Speed of a kind on a configuration; `steps_per_s` is None for an assumed one.

    Measured speeds have the estimate that is made without them, and its relative `error`. Estimates
    over several nodes have their `basis` and usual `error`.
    """

    gpu_type: str
    gpus: int
    spread: bool
    steps_per_s: float | None
    source: str
    samples: int
    age_s: float
    estimated_steps_per_s: float | None = None
    error: float | None = None
    published: bool = False
    basis: str = ""

    @property
    def shown_source(self) -> str:
        """Source on the page: "published" for measurements of other teams."""
        return "published" if self.published else self.source


@dataclass(frozen=True, slots=True)
class RunRow:
    """Measurement that is wanted, under way or given up."""

    gpu_type: str
    gpus: int
    state: str
    failures: int
    reason: str


@dataclass(frozen=True, slots=True)
class HeldRow:
    """Newest outlier of a configuration, which waits for a second run, and the known speed."""

    gpu_type: str
    gpus: int
    spread: bool
    known_steps_per_s: float
    seen_steps_per_s: float
    at: datetime


@dataclass(frozen=True, slots=True)
class KindRow:
    """Kind with its speeds and runs; `error`: median of its estimates' (None: too few).

    `team` is None for a published kind. `jobs` and `active_jobs` count those that the user may see,
    and `example` is the name of one of them. `exploring`: texts of trials under way.
    """

    id: int
    team: str | None
    name: str
    digest: str
    setup_s: float | None
    jobs: int
    active_jobs: int
    example: str
    profiles: tuple[ProfileRow, ...]
    runs: tuple[RunRow, ...]
    error: float | None
    restart_s: float | None = None
    lost_s: float | None = None
    saves_at_stop: bool | None = None
    reports_steps: bool | None = None
    exploring: tuple[str, ...] = ()
    held: tuple[HeldRow, ...] = ()

    @property
    def can_publish(self) -> bool:
        """True if the kind is a team's, which has measured something itself."""
        if self.team is None:
            return False
        return any(p.source == Source.MEASURED and not p.published for p in self.profiles)


@dataclass(frozen=True, slots=True)
class KindsTable:
    """Content of a page; `error` is the median leave-one-out error, `errors` their number."""

    kinds: tuple[KindRow, ...]
    error: float | None
    errors: int
    pairs: PairsTable = NO_PAIRS


def visible_kinds(user: User | AnonymousUser) -> QuerySet[Kind]:
    """Return published kinds and those of the user's teams, newest first; operators see all."""
    kinds = Kind.objects.select_related("team").order_by("-pk")
    if is_operator(user):
        return kinds
    if not user.is_authenticated:
        return kinds.none()
    return kinds.filter(Q(team=None) | Q(team__in=teams_of(user)))


def page_of_kinds(user: User | AnonymousUser, search: str, number: str | None) -> Page[Kind]:
    """Return a page of visible kinds whose name or digest matches the search, newest first."""
    kinds = visible_kinds(user)
    if search:
        kinds = kinds.filter(Q(name__icontains=search) | Q(digest__startswith=search.lower()))
    return Paginator(kinds, KINDS_A_PAGE).get_page(number)


def kinds_table(user: User | AnonymousUser, kinds: Iterable[Kind]) -> KindsTable:
    """Return the figures of these kinds, and their pairs, in a constant number of queries."""
    chosen = list(kinds)
    return replace(table_of(user, chosen), pairs=pairs_table(user, [kind.pk for kind in chosen]))


def table_of(user: User | AnonymousUser, kinds: Iterable[Kind]) -> KindsTable:
    """Return the figures of these kinds, in a constant number of queries."""
    # 1. Read what is known of all of them.
    chosen = list(kinds)
    keys = [kind.pk for kind in chosen]
    now = timezone.now()
    pool = load_pool()
    known = load_known(keys)
    configurations = _configurations()
    job_counts = _job_counts(user, keys)
    runs = _runs(keys)
    exploring = _exploring(keys)
    held = _held(keys, known)
    left_out = _leave_one_out(known, pool)
    over_nodes_rows = _estimated_over_nodes(chosen, known, configurations, pool, now)

    # 2. A row for each of them.
    rows = []
    for kind in chosen:
        estimates = left_out.get(kind.pk, {})
        of_kind = known.get(kind.pk, Known())
        profiles = _profiles(kind, of_kind, configurations, pool, now, estimates)
        profiles += over_nodes_rows.get(kind.pk, ())
        error = None
        if len(estimates) >= LEAST_SAMPLES:
            error = median_error(estimates.values())
        restart_s = None
        if kind.stop_s is not None:
            restart_s = Restart.of(kind, 0.0).cost_s
        jobs, active_jobs, example = job_counts.get(kind.pk, (0, 0, ""))
        row = KindRow(
            id=kind.pk,
            team=kind.team.name if kind.team else None,
            name=str(kind),
            digest=kind.digest,
            setup_s=kind.setup_s,
            jobs=jobs,
            active_jobs=active_jobs,
            example=example,
            profiles=profiles,
            runs=tuple(runs.get(kind.pk, ())),
            error=error,
            restart_s=restart_s,
            lost_s=kind.lost_s,
            saves_at_stop=kind.saves_at_stop,
            reports_steps=kind.reports_steps,
            exploring=exploring.get(kind.pk, ()),
            held=held.get(kind.pk, ()),
        )
        rows.append(row)

    # 3. The error over all of them.
    all_estimates: list[LeaveOneOut] = []
    for estimates in left_out.values():
        all_estimates += estimates.values()
    return KindsTable(tuple(rows), median_error(all_estimates), len(all_estimates))


def _profiles(
    kind: Kind,
    known: Known,
    configurations: list[Config],
    pool: Pool,
    now: datetime,
    left_out: Mapping[Config, LeaveOneOut],
) -> tuple[ProfileRow, ...]:
    """Return the rows of a kind's speeds; `left_out`: estimates made without a measured speed."""
    # 1. On one node: known and estimated speeds.
    rows = []
    wanted = sorted({*configurations, *known.anchors})
    for throughput in throughputs(kind.pk, known, wanted, pool, now):
        config = (throughput.gpu_type, throughput.gpus)
        profile = known.anchors.get(config)
        estimate = left_out.get(config)
        is_assumed = throughput.source is Source.ASSUMED
        row = ProfileRow(
            gpu_type=throughput.gpu_type,
            gpus=throughput.gpus,
            spread=throughput.spread,
            steps_per_s=None if is_assumed else throughput.steps_per_s,
            source=str(throughput.source),
            samples=profile.samples if profile else 0,
            age_s=throughput.age_s,
            estimated_steps_per_s=estimate.estimated if estimate else None,
            error=estimate.error if estimate else None,
            published=profile is not None and profile.published,
        )
        rows.append(row)

    # 2. Over several nodes: known speeds.
    for profile in known.spread:
        row = ProfileRow(
            gpu_type=profile.gpu_type.name,
            gpus=profile.gpus,
            spread=True,
            steps_per_s=profile.steps_per_s,
            source=profile.source,
            samples=profile.samples,
            age_s=(now - profile.updated_at).total_seconds(),
            published=profile.published,
        )
        rows.append(row)
    return tuple(rows)


def _estimated_over_nodes(
    kinds: Iterable[Kind],
    known: Mapping[int, Known],
    configurations: list[Config],
    pool: Pool,
    now: datetime,
) -> dict[int, tuple[ProfileRow, ...]]:
    """Return by kind its estimated speeds over several nodes, of the sizes that jobs need."""
    # 1. The numbers of GPUs of jobs that no node of some type has.
    links = links_of_every_node()
    if not links:
        return {}
    largest = {gpu_type: of_type.largest for gpu_type, of_type in links.items()}
    wide = wide_counts([kind.pk for kind in kinds], largest)
    if not wide:
        return {}

    # 2. The speeds that the estimates are made of.
    views = []
    for kind in kinds:
        of_kind = known.get(kind.pk, Known())
        speeds = throughputs(kind.pk, of_kind, configurations, pool, now)
        views.append(KindView(str(kind.pk), throughputs=(*speeds, *over_nodes(of_kind, now))))
    rates = spread_rates(views, links, pool)

    # 3. The estimates. Nothing is shown that rests on an assumed speed.
    rows_by_kind: dict[int, tuple[ProfileRow, ...]] = {}
    for view in views:
        if view.is_assumed:
            continue
        rows = []
        for gpu_type, gpus, estimate in spread_estimates(view, wide.get(view.id, ()), links, rates):
            row = ProfileRow(
                gpu_type=gpu_type,
                gpus=gpus,
                spread=True,
                steps_per_s=estimate.steps_per_s,
                source=Source.ESTIMATED,
                samples=0,
                age_s=0.0,
                error=exp(estimate.error) - 1.0,
                basis=estimate.basis,
            )
            rows.append(row)
        rows_by_kind[int(view.id)] = tuple(rows)
    return rows_by_kind


def _leave_one_out(known: Mapping[int, Known], pool: Pool) -> dict[int, dict[Config, LeaveOneOut]]:
    """Return by kind the estimates of its team's own measurements, each made without it.

    Published copies are left out, as the pool has the original of each.
    """
    measured: dict[str, dict[Config, float]] = {}
    for kind_id, of_kind in known.items():
        speeds = {}
        for config, profile in of_kind.together.items():
            if profile.source == Source.MEASURED and not profile.published:
                speeds[config] = profile.steps_per_s
        measured[str(kind_id)] = speeds
    by_kind: dict[int, dict[Config, LeaveOneOut]] = {}
    for estimate in leave_one_out(measured, pool):
        by_kind.setdefault(int(estimate.kind), {})[estimate.config] = estimate
    return by_kind


def _configurations() -> list[Config]:
    """Return every number of GPUs of every type, up to the type's largest node."""
    sizes: dict[str, int] = {}
    nodes = Node.objects.filter(gpu_type__isnull=False).annotate(size=Count("devices"))
    for gpu_type, size in nodes.values_list("gpu_type__name", "size"):
        sizes[gpu_type] = max(sizes.get(gpu_type, 1), size)
    return every_count(dict(sorted(sizes.items())))


def _job_counts(user: User | AnonymousUser, keys: list[int]) -> dict[int, tuple[int, int, str]]:
    """Return by kind the number of visible jobs, of active ones, and the name of one job."""
    active = Count("pk", filter=Q(state__in=sorted(ACTIVE)))
    by_kind = visible_jobs(user).filter(kind__in=keys).order_by().values("kind_id")
    counts = by_kind.annotate(jobs=Count("pk"), active=active, example=Max("name"))
    return {row["kind_id"]: (row["jobs"], row["active"], row["example"]) for row in counts}


def _exploring(keys: list[int]) -> dict[int, tuple[str, ...]]:
    """Return by kind the texts of the trials that its running launches carry out."""
    placed = JobEvent.objects.filter(event="place", job__state=JobState.RUNNING)
    trials = placed.filter(job__kind__in=keys, data__why__startswith=EXPLORES).order_by("pk")
    texts: dict[int, tuple[str, ...]] = {}
    for kind_id, fence, data in trials.values_list("job__kind", "job__fence", "data"):
        if data["fence"] == fence:
            texts[kind_id] = (*texts.get(kind_id, ()), data["why"])
    return texts


def _held(keys: list[int], known: Mapping[int, Known]) -> dict[int, tuple[HeldRow, ...]]:
    """Return by kind the newest waiting outlier of each configuration with a measured speed."""
    newest: dict[tuple[int, str, int, bool], HeldRow] = {}
    for outlier in waiting(kind__in=keys).select_related("gpu_type"):
        configuration = (outlier.gpu_type.name, outlier.gpus, outlier.spread)
        profile = known.get(outlier.kind_id, Known()).number(*configuration)
        if profile is not None and profile.source == Source.MEASURED:
            newest[outlier.kind_id, *configuration] = HeldRow(
                *configuration, profile.steps_per_s, outlier.steps_per_s, outlier.at
            )
    by_kind: dict[int, tuple[HeldRow, ...]] = {}
    for (kind_id, *_), row in newest.items():
        by_kind[kind_id] = (*by_kind.get(kind_id, ()), row)
    return by_kind


def _runs(keys: list[int]) -> dict[int, list[RunRow]]:
    """Return by kind its open and given-up runs; their reasons may quote a job's output."""
    by_kind: dict[int, list[RunRow]] = {}
    runs = ProfileRun.objects.filter(kind__in=keys, state__in=[*OPEN, RunState.GIVEN_UP])
    for run in runs.select_related("gpu_type"):
        row = RunRow(run.gpu_type.name, run.gpus, run.state, run.failures, run.reason)
        by_kind.setdefault(run.kind_id, []).append(row)
    return by_kind
