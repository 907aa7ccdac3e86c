"""How long this machine has seen nodes, leases and offers unchanged.

A heartbeat changes the stamps of its node and of the leases it renews. Wall clocks only choose
which rows to watch: all but those of the last heartbeats. They never decide how long one is silent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Q

from clusters.intervals import KEEP_LEASE_S
from clusters.models import Cluster, Node
from clusters.models.nodes import State
from controlplane.web.storage.watch import Watch, stamp
from jobs.assignment_lifecycle import LIVE
from jobs.models import Assignment
from loadmaster.protocol import AssignmentState, Intervals

# Columns of which one changes with every sign of life; the last is the time of the last sign.
NODE_COLUMNS = ("epoch", "heartbeat_seq", "last_seen_at")
LEASE_COLUMNS = ("epoch", "renewed_by", "renewed_at")
OFFER_COLUMNS = ("created_at",)


def stamp_of(row: Node | Assignment, columns: Iterable[str]) -> str:
    """Return the text that every sign of life of the row changes."""
    return stamp(*(getattr(row, name) for name in columns))


@dataclass(frozen=True, slots=True)
class StillRow:
    """Row whose stamp has not changed for `still_s` seconds.

    `lease_s`: length of the lease that it was last given.
    """

    stamp: str
    still_s: float
    lease_s: float


@dataclass(frozen=True, slots=True)
class Silence:
    """Watched rows by primary key, with the time for which each has been silent."""

    nodes: Mapping[UUID, StillRow] = field(default_factory=dict)
    leases: Mapping[UUID, StillRow] = field(default_factory=dict)
    offers: Mapping[UUID, StillRow] = field(default_factory=dict)


class _WatchedRow(NamedTuple):
    """Stamp of a row, and the length of its lease in seconds."""

    stamp: str
    lease_s: float


def look(cluster: Cluster, intervals: Intervals, now: datetime, watch: Watch) -> Silence:
    """Look at the cluster's rows; `intervals`: those of the cluster."""
    # 1. Choose the rows without a sign of life in the last heartbeats.
    live = Assignment.objects.filter(node__cluster=cluster, state__in=LIVE)
    is_offered = Q(state=AssignmentState.OFFERED)
    present = Node.objects.filter(cluster=cluster).exclude(state=State.LOST)
    nodes = present.filter(_is_quiet("last_seen_at", now, intervals.heartbeat_s))
    leases = live.exclude(is_offered).filter(_is_quiet("renewed_at", now, intervals.heartbeat_s))
    offers = live.filter(is_offered, _is_quiet("created_at", now, intervals.heartbeat_s))

    # 2. Read their stamps and the lengths of their leases. An unknown lease counts as the longest.
    longest_s = max(intervals.lease_s, KEEP_LEASE_S)
    watched_nodes = _with_lease(nodes, NODE_COLUMNS, "session_expires_at", intervals.lease_s)
    watched_leases = _with_lease(leases, LEASE_COLUMNS, "lease_expires_at", longest_s)
    watched_offers = {}
    for pk, *values in offers.values_list("pk", *OFFER_COLUMNS):
        watched_offers[pk] = _WatchedRow(stamp(*values), intervals.lease_s)

    # 3. Ask for how long the stamps have stood still, in one call of the cache.
    stamps: dict[str, str] = {}
    for rows in (watched_nodes, watched_leases, watched_offers):
        for pk, row in rows.items():
            stamps[str(pk)] = row.stamp
    still_s_by_key = watch.still_s(stamps)
    return Silence(
        nodes=_still_rows(watched_nodes, still_s_by_key),
        leases=_still_rows(watched_leases, still_s_by_key),
        offers=_still_rows(watched_offers, still_s_by_key),
    )


def _is_quiet(column: str, now: datetime, quiet_s: float) -> Q:
    """Return the condition of rows whose time is not within the last `quiet_s` seconds.

    Rows without a time are quiet, too: Django's `~Q` keeps SQL's NULL. So are rows whose time is in
    the future, because the clock that wrote it was ahead.
    """
    recent = {f"{column}__gt": now - timedelta(seconds=quiet_s), f"{column}__lte": now}
    return ~Q(**recent)


def _with_lease(
    rows: Any, columns: tuple[str, ...], lease_end: str, default_s: float
) -> dict[UUID, _WatchedRow]:
    """Return the stamp of each row of a query and the length of its lease, by primary key.

    A lease lasts from the time in the last of `columns` to the one in the column `lease_end`. One
    process wrote both together, so that their difference needs no common clock. If one of them is
    unknown, the lease has `default_s` seconds.
    """
    watched: dict[UUID, _WatchedRow] = {}
    for pk, *values, end in rows.values_list("pk", *columns, lease_end):
        begin = values[-1]
        length_s = default_s
        if begin is not None and end is not None:
            length_s = (end - begin).total_seconds()
        watched[pk] = _WatchedRow(stamp(*values), length_s)
    return watched


def _still_rows(
    watched: Mapping[UUID, _WatchedRow], still_s_by_key: Mapping[str, float]
) -> dict[UUID, StillRow]:
    """Return rows with the seconds for which their stamps have stood still."""
    still = {}
    for pk, row in watched.items():
        still[pk] = StillRow(row.stamp, still_s_by_key[str(pk)], row.lease_s)
    return still
