"""Base of operators' commands, clusters and nodes by name, and times."""

from argparse import ArgumentTypeError
from datetime import datetime
from math import isfinite
from typing import Any
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from clusters.models import Cluster, Node


def finite(text: str) -> float:
    """Parse an option's finite number."""
    number = float(text)
    if not isfinite(number):
        raise ArgumentTypeError(f"must be a finite number, not {text}")
    return number


def the_cluster(name: str) -> Cluster:
    """Cluster by name; CommandError naming the known ones."""
    found = Cluster.objects.filter(name=name).first()
    if found is None:
        names = Cluster.objects.order_by("name").values_list("name", flat=True)
        raise CommandError(
            f"there is no cluster {name!r} (known: {', '.join(names) or 'none yet'})"
        )
    return found


def the_node(cluster: Cluster, name: str) -> Node:
    """Node by name or id; CommandError if there is none."""
    nodes = Node.objects.filter(cluster=cluster)
    found = next((n for n in nodes if name in (n.name, str(n.pk))), None)
    if found is None:
        raise CommandError(f"cluster {cluster} has no node {name!r}; `loadmaster nodes` lists them")
    return found


def moment(option: str, text: str | None, cluster: Cluster) -> datetime:
    """Parse ISO 8601, by default in the cluster's zone; now if omitted."""
    if not text:
        return timezone.now()
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(
            f"{option}: write a time such as 2026-01-01 or 2026-01-01T06:00, not {text!r}"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=ZoneInfo(cluster.timezone))


class OperatorCommand(BaseCommand):
    """Operators' command; prints a model's validation errors by field."""

    requires_system_checks: tuple[str, ...] = ()

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except ValidationError as error:
            if not hasattr(error, "error_dict"):
                raise CommandError("; ".join(error.messages)) from None
            fields = error.message_dict.items()
            said = "; ".join(f"{field}: {' '.join(messages)}" for field, messages in fields)
            raise CommandError(said) from None
