"""Intervals between server and agents: heartbeat, lease, grace and margin.

heartbeat = max(cluster's heartbeat, nodes / HEARTBEATS_PER_S). If the number of nodes stretches it,
the lease is at least four heartbeats. The agent counts a lease from the *sending* of its renewal,
the server from the *receipt*, so the server's lease ends later.
"""

from collections.abc import Iterable
from datetime import datetime

from django.db.models import Count, Q

from clusters.models import Cluster
from clusters.models.nodes import State
from loadmaster.protocol import Intervals

HEARTBEATS_PER_S = 1000.0
"""Most heartbeats per second of a cluster: 10,000 nodes send every 10 s."""

KEEP_LEASE_S = 600.0
"""Shortest lease in seconds of a job with `on_disconnect: keep`."""


def intervals(
    heartbeat_s: float, lease_s: float, grace_s: float, margin_s: float, nodes: int
) -> Intervals:
    """Return the intervals in seconds, stretched if `nodes` would send too many heartbeats."""
    stretched_s = nodes / HEARTBEATS_PER_S
    if stretched_s > heartbeat_s:
        return Intervals(stretched_s, max(lease_s, 4 * stretched_s), grace_s, margin_s)
    return Intervals(heartbeat_s, lease_s, grace_s, margin_s)


def job_lease_s(clock: Intervals, on_disconnect: str) -> float:
    """Return the lease of a job's assignments in seconds."""
    if on_disconnect == "keep":
        return max(clock.lease_s, KEEP_LEASE_S)
    return clock.lease_s


def is_silent(session_expires_at: datetime | None) -> bool:
    """Return True if a node's agent has no session: the reconciler ends those of silent agents."""
    return session_expires_at is None


def after_lease_s(clock: Intervals, promised_grace_s: float | None = None) -> float:
    """Return the seconds from a lease's end until its job counts as ended: grace and margin.

    `promised_grace_s`: the grace that was promised at the launch, which may be longer.
    """
    return max(clock.grace_s, promised_grace_s or 0.0) + clock.margin_s


def intervals_of(cluster: Cluster) -> Intervals:
    """Return the intervals of a cluster, for its nodes that are not lost."""
    nodes = cluster.nodes.exclude(state=State.LOST).count()
    return intervals(cluster.heartbeat_s, cluster.lease_s, cluster.grace_s, cluster.margin_s, nodes)


def intervals_by_cluster(clusters: Iterable[int]) -> dict[int, Intervals]:
    """Return the intervals of clusters by primary key, with one query."""
    live_nodes = Count("nodes", filter=~Q(nodes__state=State.LOST))
    rows = Cluster.objects.filter(pk__in=list(clusters)).annotate(live_nodes=live_nodes).order_by()
    fields = ("pk", "heartbeat_s", "lease_s", "grace_s", "margin_s", "live_nodes")
    by_cluster = {}
    for pk, heartbeat_s, lease_s, grace_s, margin_s, nodes in rows.values_list(*fields):
        by_cluster[pk] = intervals(heartbeat_s, lease_s, grace_s, margin_s, nodes)
    return by_cluster
