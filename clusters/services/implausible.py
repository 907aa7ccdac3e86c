"""Figures of nodes that cannot be: counted by node and name, for its page and the metrics."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import F, Prefetch

from clusters.models import ImplausibleFigure
from clusters.plausible import Dropped

SHOWN = timedelta(days=1)
"""Age up to which a node's page names such a figure."""

RECENT = "recently_implausible"


def note_dropped(found: Mapping[UUID, Dropped], now: datetime) -> None:
    """Add what these nodes reported and was dropped."""
    for node, dropped in found.items():
        for name, (number, value) in dropped.figures.items():
            with transaction.atomic():
                _add(node, name, number, value, now)


def _add(node: UUID, name: str, number: int, value: float, now: datetime) -> None:
    given = {"value": value, "at": now}
    row, _ = ImplausibleFigure.objects.get_or_create(node_id=node, name=name, defaults=given)
    ImplausibleFigure.objects.filter(pk=row.pk).update(count=F("count") + number, **given)


def recent(now: datetime) -> "Prefetch[str]":
    """Prefetch of nodes' figures of the last day, as their attribute RECENT."""
    rows = ImplausibleFigure.objects.filter(at__gte=now - SHOWN).order_by("name")
    return Prefetch("implausible", queryset=rows, to_attr=RECENT)
