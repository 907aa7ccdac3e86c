"""Pairs of kinds that share a GPU: database rows, and their view in a snapshot.

Unmeasured pairs are estimated by fingerprints in every round; a snapshot holds the estimated pairs
that are worth sharing.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
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
"""Newest pair profiles that a round reads."""

MOST_SHARING = 100
"""Kinds with the most jobs whose pairs a snapshot holds: pairs grow with their square."""

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
        """Key as used by fingerprints."""
        return str(self.first), str(self.second), self.gpu_type

    @property
    def rates(self) -> Rates:
        """steps/s of the first and of the second."""
        return self.first_steps_per_s, self.second_steps_per_s


_COLUMNS = (
    "first_id", "second_id", "gpu_type__name", "first_steps_per_s", "second_steps_per_s", "source",
    "updated_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Speeds:
    """steps/s of kinds alone on one GPU by (primary key, GPU type): measured, and all known."""

    measured: Alone
    believed: Alone


def load_pairs() -> list[PairRow]:
    """Newest pair profiles; one query."""
    rows = PairProfile.objects.order_by("-updated_at", "-pk").values_list(*_COLUMNS)[:MOST_PAIRS]
    return [PairRow(*row) for row in rows]


def kinds_of(rows: Iterable[PairRow]) -> set[int]:
    return {kind for row in rows for kind in (row.first, row.second)}


def sharing_kinds(cluster: Cluster, kinds: Collection[int]) -> list[int]:
    """Kinds with jobs that may share here, at most MOST_SHARING, most jobs first; one query."""
    jobs = Job.objects.filter(
        cluster=cluster, may_share=True, gpus_min=1, state__in=MAY_SHARE
    ).order_by()
    counted = jobs.values_list("kind_id").annotate(n=Count("pk")).order_by("-n", "kind_id")
    return [kind for kind, _ in counted if kind in kinds][:MOST_SHARING]


def book_of(rows: Iterable[PairRow], measured_alone: Alone, kinds: Iterable[int]) -> Book | None:
    """Fingerprints of these kinds and the references; None while too little is measured."""
    rates = {row.pair: row.rates for row in rows if row.source == Source.MEASURED}
    retained = retained_of(rates, measured_alone)
    references = references_of(retained)
    if len(references) < 2:
        return None
    shown = {*map(str, kinds), *references}
    told = {pair: part for pair, part in retained.items() if shown.issuperset(pair[:2])}
    try:
        return Book.of(told, references)
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
    """Pairs by kind with these kinds on these GPU types, sorted: measured, else estimated."""
    shown = frozenset(kinds)
    here = [row for row in rows if row.gpu_type in types and shown >= {row.first, row.second}]
    known = {row.pair for row in here}
    ages = _ages_s(rows, now)
    told = [views_of_pair(row.pair, row.rates, Source(row.source), age_s(row, now)) for row in here]
    for pair, rates in _estimated(kinds, types, rows, speeds).items():
        if pair not in known:
            oldest_s = max(ages.get(int(kind), 0.0) for kind in pair[:2])
            told.append(views_of_pair(pair, rates, Source.ESTIMATED, oldest_s))
    found: dict[int, list[PairThroughput]] = {kind: [] for kind in kinds}
    for kind, view in chain.from_iterable(told):
        found[int(kind)].append(view)
    for views in found.values():
        views.sort(key=lambda v: (v.gpu_type, int(v.other)))
    return {kind: tuple(views) for kind, views in found.items()}


def _estimated(
    kinds: Iterable[int], types: Collection[str], rows: Sequence[PairRow], speeds: Speeds
) -> dict[Pair, Rates]:
    """Estimated pairs worth sharing, each once, the lesser primary key first."""
    book = book_of(rows, speeds.measured, kinds)
    if book is None:
        return {}
    names, alone = [str(kind) for kind in sorted(kinds)], speeds.believed
    return {
        pair: rates
        for pair, rates in pair_rates(book, names, alone).items()
        if pair[2] in types and worth_sharing(pair, rates, alone)
    }


def _ages_s(rows: Iterable[PairRow], now: datetime) -> dict[int, float]:
    """Age of each kind's oldest measured pair, which is the age of its estimates."""
    found: dict[int, float] = {}
    for row in rows:
        if row.source == Source.MEASURED:
            for kind in (row.first, row.second):
                found[kind] = max(found.get(kind, 0.0), age_s(row, now))
    return found


def age_s(row: PairRow | Profile, now: datetime) -> float:
    return max(0.0, (now - row.updated_at).total_seconds())
