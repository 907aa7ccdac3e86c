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
from profiling.runs import OPEN, R
from profiling.selectors import (
    Known,
    links_of_every_node,
    load_known,
    load_pool,
    over_nodes,
    spread_rates,
    throughputs,
    wide_counts,
)

MOST_SHOWN = 50
"""Newest pairs on the page."""

MOST_COMPARED = 5000
"""Newest measurements that the errors are taken over."""


@dataclass(frozen=True, slots=True)
class PairsTable:
    """Newest measured pairs, and the errors of their earlier estimates."""

    lines: tuple[PairProfile, ...] = ()
    errors: ErrorSummary = field(default_factory=lambda: ErrorSummary.of(()))


NO_PAIRS = PairsTable()


def pairs_table(user: User | AnonymousUser, kinds: Collection[int]) -> PairsTable:
    """Table of visible pairs with one of these kinds, and the errors of all; two queries."""
    seen = visible_kinds(user).order_by().values("pk")
    both = Q(first__in=seen, second__in=seen)
    known = PairProfile.objects.filter(both, source=Source.MEASURED)
    known = known.filter(Q(first__in=kinds) | Q(second__in=kinds))
    newest = known.select_related("first", "second", "gpu_type").order_by("-updated_at", "-pk")
    return PairsTable(tuple(newest[:MOST_SHOWN]), ErrorSummary.of(_errors(both)))


def _errors(visible: Q) -> list[PairError]:
    compared = PairMeasurement.objects.filter(visible, held=False)
    rows = compared.filter(estimated_first_steps_per_s__isnull=False).order_by("-pk").values_list(
        "first_id", "second_id", "gpu_type__name", "estimated_first_steps_per_s",
        "estimated_second_steps_per_s",
        "first_steps_per_s", "second_steps_per_s",
    )  # fmt: skip
    found: list[PairError] = []
    for first, second, gpu_type, own_guess, others_guess, own, others in rows[:MOST_COMPARED]:
        if own_guess is not None and others_guess is not None:
            pair = (str(first), str(second), gpu_type)
            found += errors_of({pair: (own_guess, others_guess)}, {pair: (own, others)})
    return found


KINDS_A_PAGE = 24
"""Each may have a figure for every number of GPUs of every type."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """Figure of a kind, and if measured a leave-one-out estimate with its relative error.

    An assumed speed is nobody's knowledge: None. An estimate over several nodes has its `basis`,
    and its usual error.
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
    def told_source(self) -> str:
        """Source as people read it: what other teams have measured is told apart."""
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
    """Newest measurement of a configuration that waits for a second run, and what is known."""

    gpu_type: str
    gpus: int
    spread: bool
    known_steps_per_s: float
    seen_steps_per_s: float
    at: datetime


@dataclass(frozen=True, slots=True)
class KindRow:
    """Kind with its figures and runs; `error`: their median (None: too few), `jobs`: visible ones.

    `team` is None for a published one. `can_publish`: its team has measured something itself.
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
        own = (p for p in self.profiles if p.source == Source.MEASURED and not p.published)
        return self.team is not None and any(own)


@dataclass(frozen=True, slots=True)
class KindsTable:
    """Content of a page; `error` is the median leave-one-out error, `errors` their number."""

    kinds: tuple[KindRow, ...]
    error: float | None
    errors: int
    pairs: PairsTable = NO_PAIRS


def visible_kinds(user: User | AnonymousUser) -> QuerySet[Kind]:
    """Published kinds and those of the user's teams, for operators all; newest first."""
    kinds = Kind.objects.select_related("team").order_by("-pk")
    if is_operator(user):
        return kinds
    if not user.is_authenticated:
        return kinds.none()
    return kinds.filter(Q(team=None) | Q(team__in=teams_of(user)))


def page_of_kinds(user: User | AnonymousUser, search: str, number: str | None) -> Page[Kind]:
    """Page of visible kinds whose name or digest matches the search, newest first."""
    found = visible_kinds(user)
    if search:
        found = found.filter(Q(name__icontains=search) | Q(digest__startswith=search.lower()))
    return Paginator(found, KINDS_A_PAGE).get_page(number)


def kinds_table(user: User | AnonymousUser, kinds: Iterable[Kind]) -> KindsTable:
    """Content of a page with these kinds, in a constant number of queries."""
    chosen = list(kinds)
    return replace(table_of(user, chosen), pairs=pairs_table(user, [kind.pk for kind in chosen]))


def table_of(user: User | AnonymousUser, kinds: Iterable[Kind]) -> KindsTable:
    chosen = list(kinds)
    keys = [k.pk for k in chosen]
    pool, known, now = load_pool(), load_known(keys), timezone.now()
    wanted, jobs, runs = _configurations(), _job_counts(user, keys), _runs(keys)
    exploring, held = _exploring(keys), _held(keys, known)
    held_out = _held_out(known, pool)
    estimated_over_nodes = _estimated_over_nodes(chosen, known, wanted, pool, now)
    rows = []
    for k in chosen:
        of_kind = known.get(k.pk, Known())
        own = held_out.get(k.pk, {})
        profiles = _profiles(k, of_kind, wanted, pool, now, own)
        profiles += estimated_over_nodes.get(k.pk, ())
        counted, tried = jobs.get(k.pk, (0, 0, "")), tuple(runs.get(k.pk, ()))
        error = median_error(own.values()) if len(own) >= LEAST_SAMPLES else None
        restart_s = None if k.stop_s is None else Restart.of(k, 0.0).cost_s
        row = KindRow(
            k.pk, k.team.name if k.team else None, str(k), k.digest, k.setup_s, *counted, profiles,
            tried, error, restart_s, k.lost_s, k.saves_at_stop, k.reports_steps,
            exploring.get(k.pk, ()), held.get(k.pk, ()),
        )  # fmt: skip
        rows.append(row)
    errors = [e for found in held_out.values() for e in found.values()]
    return KindsTable(tuple(rows), median_error(errors), len(errors))


def _profiles(
    kind: Kind,
    known: Known,
    wanted: list[Config],
    pool: Pool,
    now: datetime,
    errors: Mapping[Config, LeaveOneOut],
) -> tuple[ProfileRow, ...]:
    rows = []
    for t in throughputs(kind.pk, known, sorted({*wanted, *known.anchors}), pool, now):
        own, seen = known.anchors.get((t.gpu_type, t.gpus)), errors.get((t.gpu_type, t.gpus))
        rows.append(
            ProfileRow(
                t.gpu_type, t.gpus, t.spread,
                None if t.source is Source.ASSUMED else t.steps_per_s, str(t.source),
                own.samples if own else 0, t.age_s,
                seen.estimated if seen else None, seen.error if seen else None,
                own is not None and own.published,
            )
        )  # fmt: skip
    for p in known.spread:
        age_s = (now - p.updated_at).total_seconds()
        rows.append(
            ProfileRow(
                p.gpu_type.name, p.gpus, True, p.steps_per_s, p.source, p.samples, age_s,
                published=p.published,
            )
        )  # fmt: skip
    return tuple(rows)


def _estimated_over_nodes(
    kinds: Iterable[Kind],
    known: Mapping[int, Known],
    wanted: list[Config],
    pool: Pool,
    now: datetime,
) -> dict[int, tuple[ProfileRow, ...]]:
    """Return estimated speeds over several nodes, of the numbers of GPUs that jobs wait for."""
    sizes = links_of_every_node()
    largest = {gpu_type: of_type.largest for gpu_type, of_type in sizes.items()}
    wide = wide_counts([kind.pk for kind in kinds], largest) if largest else {}
    if not wide:
        return {}
    views = []
    for kind in kinds:
        of_kind = known.get(kind.pk, Known())
        speeds = throughputs(kind.pk, of_kind, wanted, pool, now)
        views.append(KindView(str(kind.pk), throughputs=(*speeds, *over_nodes(of_kind, now))))
    rates = spread_rates(views, sizes, pool)
    found: dict[int, tuple[ProfileRow, ...]] = {}
    for view in views:
        rows = []
        for gpus in sorted(wide.get(view.id, ())):
            for gpu_type, most in largest.items():
                estimate = rates.estimate(view.id, gpu_type, gpus)
                is_known = (gpu_type, gpus, True) in view.rates
                if estimate is None or is_known or view.is_assumed or gpus <= most:
                    continue
                rows.append(
                    ProfileRow(
                        gpu_type, gpus, True, estimate.steps_per_s, Source.ESTIMATED, 0, 0.0,
                        error=exp(estimate.error) - 1.0, basis=estimate.basis,
                    )
                )  # fmt: skip
        found[int(view.id)] = tuple(rows)
    return found


def _held_out(known: Mapping[int, Known], pool: Pool) -> dict[int, dict[Config, LeaveOneOut]]:
    """Estimates beside teams' own measurements: that of a copy would know the original."""
    measured = {
        str(pk): {
            c: p.steps_per_s
            for c, p in k.together.items()
            if p.source == Source.MEASURED and not p.published
        }
        for pk, k in known.items()
    }
    found: dict[int, dict[Config, LeaveOneOut]] = {}
    for item in leave_one_out(measured, pool):
        found.setdefault(int(item.kind), {})[item.config] = item
    return found


def _configurations() -> list[Config]:
    sizes: dict[str, int] = {}
    nodes = Node.objects.filter(gpu_type__isnull=False).annotate(size=Count("devices"))
    for gpu_type, size in nodes.values_list("gpu_type__name", "size"):
        sizes[gpu_type] = max(sizes.get(gpu_type, 1), size)
    return [(t, g) for t, most in sorted(sizes.items()) for g in range(1, most + 1)]


def _job_counts(user: User | AnonymousUser, keys: list[int]) -> dict[int, tuple[int, int, str]]:
    active = Count("pk", filter=Q(state__in=sorted(ACTIVE)))
    by_kind = visible_jobs(user).filter(kind__in=keys).order_by().values("kind_id")
    rows = by_kind.annotate(jobs=Count("pk"), active=active, example=Max("name"))
    return {r["kind_id"]: (r["jobs"], r["active"], r["example"]) for r in rows}


def _exploring(keys: list[int]) -> dict[int, tuple[str, ...]]:
    """What launches under way of each of these kinds explore."""
    placed = JobEvent.objects.filter(event="place", job__state=JobState.RUNNING)
    told = placed.filter(job__kind__in=keys, data__why__startswith=EXPLORES)
    found: dict[int, tuple[str, ...]] = {}
    for kind, fence, data in told.order_by("pk").values_list("job__kind", "job__fence", "data"):
        if data["fence"] == fence:
            found[kind] = (*found.get(kind, ()), data["why"])
    return found


def _held(keys: list[int], known: Mapping[int, Known]) -> dict[int, tuple[HeldRow, ...]]:
    """Newest waiting measurement of each configuration that has a measured number."""
    rows: dict[tuple[int, str, int, bool], HeldRow] = {}
    for seen in waiting(kind__in=keys).select_related("gpu_type"):
        where = (seen.gpu_type.name, seen.gpus, seen.spread)
        own = known.get(seen.kind_id, Known()).number(*where)
        if own is not None and own.source == Source.MEASURED:
            row = HeldRow(*where, own.steps_per_s, seen.steps_per_s, seen.at)
            rows[seen.kind_id, *where] = row
    found: dict[int, tuple[HeldRow, ...]] = {}
    for (kind, *_), row in rows.items():
        found[kind] = (*found.get(kind, ()), row)
    return found


def _runs(keys: list[int]) -> dict[int, list[RunRow]]:
    """Open and given-up runs; their reasons quote output, for the kind's own team."""
    found: dict[int, list[RunRow]] = {}
    shown = ProfileRun.objects.filter(kind__in=keys, state__in=[*OPEN, R.GIVEN_UP])
    for run in shown.select_related("gpu_type"):
        found.setdefault(run.kind_id, []).append(
            RunRow(run.gpu_type.name, run.gpus, run.state, run.failures, run.reason)
        )
    return found
