"""Silence: nodes, leases and offers that this machine has watched stand still, and for how long.

A heartbeat changes the stamps of its node and of the leases it renews. Wall times select which rows
are worth watching and never decide: rows of the last heartbeats are left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
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
class Still:
    """Stamp of a row that has stood still for `still_s`; `lease_s` as it was last given."""

    stamp: str
    still_s: float
    lease_s: float


@dataclass(frozen=True, slots=True)
class Silence:
    """Rows that have stood still, by primary key."""

    nodes: Mapping[UUID, Still] = field(default_factory=dict)
    leases: Mapping[UUID, Still] = field(default_factory=dict)
    offers: Mapping[UUID, Still] = field(default_factory=dict)


def look(cluster: Cluster, clock: Intervals, now: datetime, watch: Watch) -> Silence:
    """Look at the cluster's rows; one call of the cache for all of them."""
    # 1. Rows without a sign of life in the last heartbeats.
    live = Assignment.objects.filter(node__cluster=cluster, state__in=LIVE)
    is_offered = Q(state=AssignmentState.OFFERED)
    present = Node.objects.filter(cluster=cluster).exclude(state=State.LOST)
    nodes = present.filter(_is_quiet("last_seen_at", now, clock.heartbeat_s))
    leases = live.exclude(is_offered).filter(_is_quiet("renewed_at", now, clock.heartbeat_s))
    offers = live.filter(is_offered, _is_quiet("created_at", now, clock.heartbeat_s))

    # 2. Their stamps and lengths of lease, and for how long the stamps have stood still.
    longest_s = max(clock.lease_s, KEEP_LEASE_S)
    of_nodes = _with_lease(nodes, NODE_COLUMNS, "session_expires_at", clock.lease_s)
    of_leases = _with_lease(leases, LEASE_COLUMNS, "lease_expires_at", longest_s)
    of_offers = {}
    for pk, *values in offers.values_list("pk", *OFFER_COLUMNS):
        of_offers[pk] = stamp(*values), clock.lease_s
    stamps: dict[str, str] = {}
    for rows in (of_nodes, of_leases, of_offers):
        stamps.update({str(pk): text for pk, (text, _) in rows.items()})
    still_s = watch.still_s(stamps)

    def still(rows: Mapping[UUID, tuple[str, float]]) -> dict[UUID, Still]:
        return {pk: Still(text, still_s[str(pk)], lease_s) for pk, (text, lease_s) in rows.items()}

    return Silence(still(of_nodes), still(of_leases), still(of_offers))


def _is_quiet(column: str, now: datetime, quiet_s: float) -> Q:
    """Return the condition of rows whose time is not of the last `quiet_s` seconds.

    It is before, unknown, or of a clock that was ahead.
    """
    recent = {f"{column}__gt": now - timedelta(seconds=quiet_s), f"{column}__lte": now}
    return ~Q(**recent)


def _with_lease(
    rows: Any, columns: tuple[str, ...], lease_end: str, default_s: float
) -> dict[UUID, tuple[str, float]]:
    """Return (stamp, length of the lease in seconds) of each row by its key.

    A lease lasts from the last of the `columns` to the column `lease_end`, which one process wrote
    together; `default_s` if one of them is unknown.
    """
    stamp_and_length: dict[UUID, tuple[str, float]] = {}
    for pk, *values, end in rows.values_list("pk", *columns, lease_end):
        begin = values[-1]
        length_s = default_s
        if begin is not None and end is not None:
            length_s = (end - begin).total_seconds()
        stamp_and_length[pk] = stamp(*values), length_s
    return stamp_and_length
