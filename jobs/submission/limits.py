"""Inventory for validation: clusters, teams, GPU types and node seats, each read once."""

from __future__ import annotations

from collections.abc import Mapping

from django.contrib.auth.models import AnonymousUser, User

from clusters.models import Cluster, GpuType
from jobs.kinds import kinds_for
from jobs.models import Kind, Team
from jobs.selectors import teams_of
from jobs.submission.feasibility import Seat, seats_of


class Limits:
    """Reads on demand and remembers; make a new one when the newest state matters."""

    def __init__(self) -> None:
        self._clusters: dict[str, Cluster] | None = None
        self._types: list[str] | None = None
        self._seats: dict[int, list[Seat]] = {}
        self._teams: dict[int | None, dict[str, Team]] = {}
        self._kinds: dict[str, Kind] = {}

    def clusters(self) -> dict[str, Cluster]:
        """All clusters by name, in that order."""
        if self._clusters is None:
            self._clusters = {c.name: c for c in Cluster.objects.order_by("name")}
        return self._clusters

    def gpu_types(self) -> list[str]:
        """The names of all GPU types, in order."""
        if self._types is None:
            self._types = list(GpuType.objects.order_by("name").values_list("name", flat=True))
        return self._types

    def seats(self, cluster: Cluster) -> list[Seat]:
        """What the cluster's nodes have for jobs when they are empty, equal nodes once."""
        if cluster.pk not in self._seats:
            self._seats[cluster.pk] = seats_of(cluster)
        return self._seats[cluster.pk]

    def kinds(self, names: Mapping[str, str]) -> Mapping[str, Kind]:
        """The kinds of these digests, created if new; `names` are those the users gave, or ""."""
        if new := {digest: name for digest, name in names.items() if digest not in self._kinds}:
            self._kinds |= kinds_for(new)
        return self._kinds

    def teams(self, user: User | AnonymousUser) -> dict[str, Team]:
        """The teams the user may submit to, by name."""
        if user.pk not in self._teams:
            self._teams[user.pk] = {t.name: t for t in teams_of(user)}
        return self._teams[user.pk]
