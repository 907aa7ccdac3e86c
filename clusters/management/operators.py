"""Parts of operators' commands: their base class, clusters and nodes by name, and times."""

from argparse import ArgumentTypeError
from datetime import datetime
from math import isfinite
from typing import Any
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from clusters.models import Cluster, Node
from clusters.services.nodes import find_node


def finite(text: str) -> float:
    """Parse an option's finite number."""
    number = float(text)
    if not isfinite(number):
        raise ArgumentTypeError(f"must be a finite number, not {text}")
    return number


def the_cluster(name: str) -> Cluster:
    """Return the cluster of this name. Raises CommandError, which names the known ones."""
    cluster = Cluster.objects.filter(name=name).first()
    if cluster is None:
        names = Cluster.objects.order_by("name").values_list("name", flat=True)
        known = ", ".join(names) or "none yet"
        raise CommandError(f"there is no cluster {name!r} (known: {known})")
    return cluster


def the_node(cluster: Cluster, name: str) -> Node:
    """Return the node with this name or id. Raises CommandError."""
    node = find_node(cluster, name)
    if node is None:
        raise CommandError(f"cluster {cluster} has no node {name!r}; `loadmaster nodes` lists them")
    return node


def moment(option: str, text: str | None, cluster: Cluster) -> datetime:
    """Return the time of an option: ISO 8601, by default in the cluster's zone; now if empty.

    Raises CommandError.
    """
    if not text:
        return timezone.now()
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(
            f"{option}: write a time such as 2026-01-01 or 2026-01-01T06:00, not {text!r}"
        ) from None
    if time.tzinfo is None:
        return time.replace(tzinfo=ZoneInfo(cluster.timezone))
    return time


class OperatorCommand(BaseCommand):
    """Base of operators' commands, which prints a model's validation errors by field."""

    requires_system_checks: tuple[str, ...] = ()

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except ValidationError as error:
            if not hasattr(error, "error_dict"):
                raise CommandError("; ".join(error.messages)) from None
            # One sentence a field, as a command line has no place beside each of them.
            problems = []
            for field, messages in error.message_dict.items():
                problems.append(f"{field}: {' '.join(messages)}")
            raise CommandError("; ".join(problems)) from None
