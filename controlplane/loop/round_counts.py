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
RECONCILE_KEY = "loadmaster.reconcile"
LONG_COUNT_S = 30
AT_ONCE = 1000
BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(slots=True)
class DurationHistogram:
    """Histogram: `counts` by bucket, not cumulative, the last unbounded; sum in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    def observe(self, took_s: float) -> None:
        self.counts[bisect_left(BUCKETS_S, took_s)] += 1
        self.total_s += took_s

    def buckets(self) -> list[tuple[str, int]]:
        """(upper end, observations up to it), as in Prometheus."""
        below, rows = 0, []
        for end, number in zip([*map(str, BUCKETS_S), "+Inf"], self.counts, strict=True):
            below += number
            rows.append((end, below))
        return rows


@dataclass(slots=True)
class RoundCounts:
    """Counts so far by cluster name; `marks`: each cluster's last counted round."""

    marks: dict[int, int] = field(default_factory=dict)
    statuses: dict[tuple[str, str], int] = field(default_factory=dict)
    reasons: dict[tuple[str, str], int] = field(default_factory=dict)
    round_seconds: dict[str, DurationHistogram] = field(default_factory=dict)
    solver_seconds: dict[str, DurationHistogram] = field(default_factory=dict)

    @classmethod
    def known(cls, plain: Any) -> RoundCounts | None:
        """Counts as `plain` gave them; None if there are none."""
        if not plain:
            return None
        statuses, reasons = (
            {(a, b): n for a, b, n in plain[name]} for name in ("statuses", "reasons")
        )
        rounds, solvers = (
            {cluster: DurationHistogram(*of) for cluster, of in plain[name].items()}
            for name in ("round_seconds", "solver_seconds")
        )
        return cls(dict(plain["marks"]), statuses, reasons, rounds, solvers)

    def plain(self) -> dict[str, Any]:
        """Counts as plain data, for the cache."""
        return {
            "marks": list(self.marks.items()),
            "statuses": [[*pair, n] for pair, n in self.statuses.items()],
            "reasons": [[*pair, n] for pair, n in self.reasons.items()],
            "round_seconds": {c: [h.counts, h.total_s] for c, h in self.round_seconds.items()},
            "solver_seconds": {c: [h.counts, h.total_s] for c, h in self.solver_seconds.items()},
        }

    def count(self, row: dict[str, Any]) -> None:
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
    known = RoundCounts.known(cache.get(KEY))
    newest = dict(Cluster.objects.order_by().values_list("pk", "round_number"))
    if known is None:
        cache.set(KEY, RoundCounts(marks=newest).plain(), None)
        return
    marks = {pk: known.marks.get(pk, 0) for pk in newest}
    due = {pk: mark for pk, mark in marks.items() if newest[pk] > mark}
    for row in _ended(due):
        known.count(row)
    if due:
        cache.set(KEY, known.plain(), None)


def _ended(due: dict[int, int]) -> list[dict[str, Any]]:
    """Ended rounds after those numbers, up to each cluster's first that still runs."""
    if not due:
        return []
    after = Q()
    for pk, number in due.items():
        after |= Q(cluster=pk, number__gt=number)
    columns = ("cluster", "cluster__name", "number", "status", "reasons", "started_at", "ended_at")
    rows, running = [], set()
    found = Round.objects.filter(after).order_by("number").values(*columns, "solve_s")
    for row in found[:AT_ONCE]:
        if row["status"] == Round.Status.RUNNING:
            running.add(row["cluster"])
        elif row["cluster"] not in running:
            rows.append(row)
    return rows
