"""Implausible figures of nodes: counted by node and name, for its page and the metrics."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import F, Prefetch

from clusters.models import ImplausibleFigure
from clusters.plausible import Dropped

SHOWN_AGE = timedelta(days=1)
"""Age up to which a node's page names such a figure."""

RECENT = "recently_implausible"
"""Attribute of a node with its recent figures."""


def note_dropped(dropped_by_node: Mapping[UUID, Dropped], now: datetime) -> None:
    """Add the figures that were dropped to the counts of their nodes."""
    for node, dropped in dropped_by_node.items():
        for name, (count, value) in dropped.figures.items():
            with transaction.atomic():
                _add(node, name, count, value, now)


def _add(node: UUID, name: str, count: int, value: float, now: datetime) -> None:
    """Count `count` more dropped figures of a name; `value`: the newest of them."""
    newest = {"value": value, "at": now}
    row, _ = ImplausibleFigure.objects.get_or_create(node_id=node, name=name, defaults=newest)
    ImplausibleFigure.objects.filter(pk=row.pk).update(count=F("count") + count, **newest)


def recent(now: datetime) -> "Prefetch[str]":
    """Return a prefetch that puts a node's figures of the last day in its attribute RECENT."""
    rows = ImplausibleFigure.objects.filter(at__gte=now - SHOWN_AGE).order_by("name")
    return Prefetch("implausible", queryset=rows, to_attr=RECENT)
