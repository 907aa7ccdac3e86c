"""Shared by operators' commands: find clusters and nodes, read times, name bad options."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.utils import timezone

from clusters.models import Cluster, Node


def the_cluster(name: str) -> Cluster:
    """The cluster of that name; CommandError naming the known ones."""
    found = Cluster.objects.filter(name=name).first()
    if found is None:
        known = (
            ", ".join(Cluster.objects.order_by("name").values_list("name", flat=True)) or "none yet"
        )
        raise CommandError(f"there is no cluster {name!r} (known: {known})")
    return found


def the_node(cluster: Cluster, name: str) -> Node:
    """The node of that name or id; CommandError if there is none."""
    found = next(
        (n for n in Node.objects.filter(cluster=cluster) if name in (n.name, str(n.pk))), None
    )
    if found is None:
        raise CommandError(f"cluster {cluster} has no node {name!r}; `loadmaster nodes` lists them")
    return found


def moment(option: str, text: str | None, cluster: Cluster) -> datetime:
    """A time of ISO 8601, in the cluster's zone where it says none; now where it is left out."""
    if not text:
        return timezone.now()
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(
            f"{option}: write a time such as 2026-01-01 or 2026-01-01T06:00, not {text!r}"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=ZoneInfo(cluster.timezone))


def in_words(error: ValidationError) -> CommandError:
    """A model's refusal, by field."""
    if not hasattr(error, "error_dict"):
        return CommandError("; ".join(error.messages))
    return CommandError(
        "; ".join(f"{field}: {' '.join(said)}" for field, said in error.message_dict.items())
    )
