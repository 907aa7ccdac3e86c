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

NODE_COLUMNS = ("epoch", "heartbeat_seq", "last_seen_at")
LEASE_COLUMNS = ("epoch", "renewed_by", "renewed_at")
OFFER_COLUMNS = ("created_at",)


def stamp_of(row: Node | Assignment, columns: Iterable[str]) -> str:
    """Text that every sign of life of the row changes."""
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
    live = Assignment.objects.filter(node__cluster=cluster, state__in=LIVE)
    offered, quiet = Q(state=AssignmentState.OFFERED), clock.heartbeat_s
    known = Node.objects.filter(cluster=cluster).exclude(state=State.LOST)
    nodes = known.filter(_beyond("last_seen_at", now, quiet))
    leases = live.exclude(offered).filter(_beyond("renewed_at", now, quiet))
    offers = live.filter(offered, _beyond("created_at", now, quiet))
    longest_s = max(clock.lease_s, KEEP_LEASE_S)
    found = [
        _read(nodes, NODE_COLUMNS, "session_expires_at", clock.lease_s),
        _read(leases, LEASE_COLUMNS, "lease_expires_at", longest_s),
        _read(offers, OFFER_COLUMNS, None, clock.lease_s),
    ]
    still = watch.still_s({str(pk): text for rows in found for pk, (text, _) in rows.items()})
    return Silence(
        *({pk: Still(text, still[str(pk)], s) for pk, (text, s) in rows.items()} for rows in found)
    )


def _beyond(column: str, now: datetime, quiet_s: float) -> Q:
    """Rows whose instant is not of the last seconds: of before, of a clock ahead, or unknown."""
    recent = {f"{column}__gt": now - timedelta(seconds=quiet_s), f"{column}__lte": now}
    return ~Q(**recent)


def _read(
    rows: Any, columns: tuple[str, ...], ends: str | None, default_s: float
) -> dict[UUID, tuple[str, float]]:
    """(stamp, length of the lease) by key; one process wrote both ends of a lease."""
    read = rows.values_list("pk", *columns, *((ends,) if ends else ()))
    return {
        pk: (
            stamp(*values[: len(columns)]),
            _length_s(values[len(columns) - 1], values[-1], default_s) if ends else default_s,
        )
        for pk, *values in read
    }


def _length_s(begin: datetime | None, end: datetime | None, default_s: float) -> float:
    return default_s if begin is None or end is None else (end - begin).total_seconds()
