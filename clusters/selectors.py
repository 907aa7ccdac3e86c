"""Intervals of agents' calls, by cluster."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Count, Q

from clusters.intervals import intervals
from clusters.models import Cluster
from clusters.models.nodes import State
from loadmaster.protocol import Intervals


def clock_of(cluster: Cluster) -> Intervals:
    """The intervals of a cluster's agents, by its settings and its number of nodes."""
    return clocks_of([cluster.pk])[cluster.pk]


def clocks_of(clusters: Iterable[int]) -> dict[int, Intervals]:
    """The intervals of clusters, by key."""
    heard = Count("nodes", filter=~Q(nodes__state=State.LOST))
    rows = Cluster.objects.filter(pk__in=list(clusters)).annotate(heard=heard).order_by()
    return {
        pk: intervals(heartbeat_s, lease_s, grace_s, margin_s, nodes)
        for pk, heartbeat_s, lease_s, grace_s, margin_s, nodes in rows.values_list(
            "pk", "heartbeat_s", "lease_s", "grace_s", "margin_s", "heard"
        )
    }
