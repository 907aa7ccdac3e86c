"""What a snapshot says of kinds and of the measurements that are wanted."""

from __future__ import annotations

from collections.abc import Iterable

from clusters.models import Cluster
from policies.snapshot import KindView, ProfileRequest


def kind_views(cluster: Cluster, kinds: Iterable[int]) -> tuple[KindView, ...]:
    """What is known or estimated of these kinds (primary keys) on the cluster's GPU types; `KindView.id` is str(pk)."""
    return ()


def profile_requests(cluster: Cluster) -> tuple[ProfileRequest, ...]:
    """The measurements wanted or under way in the cluster; `job` and `kind` are str of the primary keys."""
    return ()
