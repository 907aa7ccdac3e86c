"""Counters of rounds for /metrics, kept in the cache by the reconciler: old rows are deleted.

Each cluster's round number marks how far counting has come; an emptied cache begins anew.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from django.core.cache import cache
from django.db.models import Q
from redis.exceptions import RedisError

from clusters.models import Cluster
from controlplane.loop.models import Round
from controlplane.web.storage.mutex import mutex
from controlplane.web.storage.watch import leave_sign

log = logging.getLogger(__name__)

KEY = "loadmaster.metrics.rounds.4"
"""Key of the counts in the cache; its number grows with their form."""

RECONCILE_KEY = "loadmaster.reconcile"
"""Key of the sign that the reconciler leaves at each pass."""

LONG_COUNT_S = 30
"""Longest time in seconds of one count, while which no other process counts."""

AT_ONCE = 1000
"""Most rounds that one call counts."""

BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(slots=True)
class DurationHistogram:
    """Histogram: `counts` by bucket, not cumulative, the last unbounded; sum in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    def observe(self, took_s: float) -> None:
        """Add an observation."""
        self.counts[bisect_left(BUCKETS_S, took_s)] += 1
        self.total_s += took_s

    def buckets(self) -> list[tuple[str, int]]:
        """Return (upper end, observations up to it), as in Prometheus."""
        upper_ends = [*map(str, BUCKETS_S), "+Inf"]
        observations = 0
        buckets = []
        for upper_end, count in zip(upper_ends, self.counts, strict=True):
            observations += count
            buckets.append((upper_end, observations))
        return buckets


@dataclass(slots=True)
class RoundCounts:
    """Counts so far by cluster name; `marks`: each cluster's last counted round."""

    marks: dict[int, int] = field(default_factory=dict)
    statuses: dict[tuple[str, str], int] = field(default_factory=dict)
    reasons: dict[tuple[str, str], int] = field(default_factory=dict)
    round_seconds: dict[str, DurationHistogram] = field(default_factory=dict)
    solver_seconds: dict[str, DurationHistogram] = field(default_factory=dict)

    @classmethod
    def from_plain(cls, plain: Any) -> RoundCounts | None:
        """Return the counts as `plain` gave them; None if there are none."""
        if not plain:
            return None
        return cls(
            marks=dict(plain["marks"]),
            statuses=_pair_counts(plain["statuses"]),
            reasons=_pair_counts(plain["reasons"]),
            round_seconds=_histograms(plain["round_seconds"]),
            solver_seconds=_histograms(plain["solver_seconds"]),
        )

    def plain(self) -> dict[str, Any]:
        """Return the counts as plain data, for the cache."""
        return {
            "marks": list(self.marks.items()),
            "statuses": [[*pair, n] for pair, n in self.statuses.items()],
            "reasons": [[*pair, n] for pair, n in self.reasons.items()],
            "round_seconds": {c: [h.counts, h.total_s] for c, h in self.round_seconds.items()},
            "solver_seconds": {c: [h.counts, h.total_s] for c, h in self.solver_seconds.items()},
        }

    def count(self, row: dict[str, Any]) -> None:
        """Count an ended round, a row of `_ended`."""
        cluster = row["cluster__name"]
        self.marks[row["cluster"]] = row["number"]
        self.statuses[cluster, row["status"]] = self.statuses.get((cluster, row["status"]), 0) + 1
        for reason in row["reasons"]:
            self.reasons[cluster, reason] = self.reasons.get((cluster, reason), 0) + 1
        if row["ended_at"] is not None:
            took_s = (row["ended_at"] - row["started_at"]).total_seconds()
            self.round_seconds.setdefault(cluster, DurationHistogram()).observe(max(0.0, took_s))
        if row["solve_s"] is not None:
            self.solver_seconds.setdefault(cluster, DurationHistogram()).observe(row["solve_s"])


def _pair_counts(rows: Any) -> dict[tuple[str, str], int]:
    """Return counts by (cluster, status) or (cluster, reason), from plain data."""
    return {(cluster, word): count for cluster, word, count in rows}


def _histograms(by_cluster: Any) -> dict[str, DurationHistogram]:
    """Return histograms by cluster name, from plain data."""
    return {name: DurationHistogram(*fields) for name, fields in by_cluster.items()}


def note_reconciled() -> None:
    """Count rounds ended since the reconciler's last pass; cache failures are ignored."""
    try:
        leave_sign(RECONCILE_KEY)
        with mutex("count-rounds", LONG_COUNT_S) as is_free:
            if is_free:
                count_rounds()
    except RedisError as error:
        log.warning("the rounds are not counted: %s", error)


def count_rounds() -> None:
    """Count the rounds that have ended since the last call, at most AT_ONCE of them."""
    # 1. The counts so far. Without any, counting begins after the newest rounds.
    counts = RoundCounts.from_plain(cache.get(KEY))
    newest = dict(Cluster.objects.order_by().values_list("pk", "round_number"))
    if counts is None:
        cache.set(KEY, RoundCounts(marks=newest).plain(), None)
        return

    # 2. Count in the clusters with newer rounds.
    marks: dict[int, int] = {}
    for pk, newest_number in newest.items():
        mark = counts.marks.get(pk, 0)
        if newest_number > mark:
            marks[pk] = mark
    for row in _ended(marks):
        counts.count(row)
    if marks:
        cache.set(KEY, counts.plain(), None)


def _ended(marks: dict[int, int]) -> list[dict[str, Any]]:
    """Return the ended rounds after each cluster's mark, up to its first that still runs."""
    if not marks:
        return []
    is_after = Q()
    for pk, number in marks.items():
        is_after |= Q(cluster=pk, number__gt=number)
    columns = ("cluster", "cluster__name", "number", "status", "reasons", "started_at", "ended_at")
    rounds = Round.objects.filter(is_after).order_by("number").values(*columns, "solve_s")
    ended: list[dict[str, Any]] = []
    clusters_with_running: set[int] = set()
    for row in rounds[:AT_ONCE]:
        if row["status"] == Round.Status.RUNNING:
            clusters_with_running.add(row["cluster"])
        elif row["cluster"] not in clusters_with_running:
            ended.append(row)
    return ended
