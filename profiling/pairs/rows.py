"""Pairs of kinds that share a GPU: database rows, and their view in a snapshot.

In every round, unmeasured pairs are estimated by fingerprints; a snapshot holds measured pairs, and
those estimated ones that are worth sharing.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db.models import Count

from clusters.models import Cluster
from jobs.lifecycle import JobState
from jobs.models import Job
from policies.contract.snapshot import PairThroughput, Source
from profiling.models import PairProfile, Profile
from profiling.pairs.completion import CompletionError
from profiling.pairs.estimates import Rates, pair_rates, views_of_pair, worth_sharing
from profiling.pairs.fingerprints import Alone, Book, Pair, references_of, retained_of

log = logging.getLogger(__name__)

MOST_PAIRS = 20_000
"""Most pair profiles that a round reads: the newest."""

MOST_SHARING = 100
"""Most kinds whose pairs a snapshot holds, as pairs grow with their square."""

MAY_SHARE = (JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.STOPPING)
"""States in which a job may be placed beside another."""


class PairRow(NamedTuple):
    """Pair profile; kinds by primary key."""

    first: int
    second: int
    gpu_type: str
    first_steps_per_s: float
    second_steps_per_s: float
    source: str
    updated_at: datetime

    @property
    def pair(self) -> Pair:
        """Key of the pair in fingerprints."""
        return str(self.first), str(self.second), self.gpu_type

    @property
    def rates(self) -> Rates:
        """steps/s of the first and of the second."""
        return self.first_steps_per_s, self.second_steps_per_s


_COLUMNS = (
    "first_id",
    "second_id",
    "gpu_type__name",
    "first_steps_per_s",
    "second_steps_per_s",
    "source",
    "updated_at",
)


@dataclass(frozen=True, slots=True)
class Speeds:
    """steps/s of kinds alone on one GPU, by (primary key, GPU type).

    `believed`: measured, declared and estimated ones.
    """

    measured: Alone
    believed: Alone


def load_pairs() -> list[PairRow]:
    """Return the newest pair profiles; one query."""
    rows = PairProfile.objects.order_by("-updated_at", "-pk").values_list(*_COLUMNS)[:MOST_PAIRS]
    return [PairRow(*row) for row in rows]


def kinds_of(rows: Iterable[PairRow]) -> set[int]:
    """Return all kinds of these pairs."""
    kinds: set[int] = set()
    for row in rows:
        kinds.update((row.first, row.second))
    return kinds


def sharing_kinds(cluster: Cluster, kinds: Collection[int]) -> list[int]:
    """Return those of the kinds with jobs here that may share, most jobs first; one query.

    At most MOST_SHARING are returned.
    """
    jobs = Job.objects.filter(cluster=cluster, may_share=True, gpus_min=1, state__in=MAY_SHARE)
    by_kind = jobs.order_by().values_list("kind_id").annotate(count=Count("pk"))
    most_first = by_kind.order_by("-count", "kind_id")
    return [kind_id for kind_id, _ in most_first if kind_id in kinds][:MOST_SHARING]


def book_of(rows: Iterable[PairRow], measured_alone: Alone, kinds: Iterable[int]) -> Book | None:
    """Return fingerprints of these kinds and the references; None if too little is measured."""
    rates = {row.pair: row.rates for row in rows if row.source == Source.MEASURED}
    retained = retained_of(rates, measured_alone)
    references = references_of(retained)
    if len(references) < 2:
        return None
    chosen = {*map(str, kinds), *references}
    among_chosen = {}
    for (first, second, gpu_type), fraction in retained.items():
        if first in chosen and second in chosen:
            among_chosen[first, second, gpu_type] = fraction
    try:
        return Book.of(among_chosen, references)
    except CompletionError as error:
        log.warning("pairs of kinds are not estimated: %s", error)
        return None


def pair_views(
    kinds: Sequence[int],
    types: Collection[str],
    rows: Sequence[PairRow],
    speeds: Speeds,
    now: datetime,
) -> dict[int, tuple[PairThroughput, ...]]:
    """Return by kind its pairs with these kinds on these GPU types, measured or estimated.

    They are sorted by type and the other kind.
    """
    # 1. The stored pairs.
    views: list[tuple[str, PairThroughput]] = []
    stored = set()
    chosen = frozenset(kinds)
    for row in rows:
        if row.gpu_type in types and row.first in chosen and row.second in chosen:
            stored.add(row.pair)
            views += views_of_pair(row.pair, row.rates, Source(row.source), age_s(row, now))

    # 2. Estimates of the others, as old as what they are made of.
    ages_s = _ages_s(rows, now)
    for pair, rates in _estimated(kinds, types, rows, speeds).items():
        if pair in stored:
            continue
        first, second, _ = pair
        oldest_s = max(ages_s.get(int(first), 0.0), ages_s.get(int(second), 0.0))
        views += views_of_pair(pair, rates, Source.ESTIMATED, oldest_s)

    # 3. By kind.
    by_kind: dict[int, list[PairThroughput]] = {kind: [] for kind in kinds}
    for kind, view in views:
        by_kind[int(kind)].append(view)
    for of_kind in by_kind.values():
        of_kind.sort(key=lambda view: (view.gpu_type, int(view.other)))
    return {kind: tuple(of_kind) for kind, of_kind in by_kind.items()}


def _estimated(
    kinds: Iterable[int], types: Collection[str], rows: Sequence[PairRow], speeds: Speeds
) -> dict[Pair, Rates]:
    """Return estimated pairs that are worth sharing, each once, the lesser primary key first."""
    book = book_of(rows, speeds.measured, kinds)
    if book is None:
        return {}
    names = [str(kind) for kind in sorted(kinds)]
    worthwhile = {}
    for pair, rates in pair_rates(book, names, speeds.believed).items():
        _, _, gpu_type = pair
        if gpu_type in types and worth_sharing(pair, rates, speeds.believed):
            worthwhile[pair] = rates
    return worthwhile


def _ages_s(rows: Iterable[PairRow], now: datetime) -> dict[int, float]:
    """Return the age in seconds of each kind's oldest measured pair."""
    ages_s: dict[int, float] = {}
    for row in rows:
        if row.source == Source.MEASURED:
            for kind in (row.first, row.second):
                ages_s[kind] = max(ages_s.get(kind, 0.0), age_s(row, now))
    return ages_s


def age_s(row: PairRow | Profile, now: datetime) -> float:
    """Return the seconds since a row was updated."""
    return max(0.0, (now - row.updated_at).total_seconds())
