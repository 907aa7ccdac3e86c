"""A job's history in sentences. Pure: events in, words out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs.models import JobEvent

SENTENCES: Mapping[str, str] = {
    "submitted": "Submitted",
    "hold": "Put on hold",
    "release": "Released into the queue",
    "release_to_profile": "Released, to be measured first",
    "profile": "Its kind is measured first",
    "profiled": "Measuring is over; back to the queue",
    "place": "Placed",
    "run": "Runs",
    "preempt": "Asked to save a checkpoint and stop",
    "stopped": "Stopped and back in the queue",
    "retry": "Failed, and is tried again",
    "complete": "Completed",
    "fail": "Failed",
    "cancel": "Asked to stop for good",
    "cancelled": "Cancelled",
    "requeue": "Given another chance",
    "hold_wanted": "To be held once it has stopped",
    "hold_taken_back": "No longer to be held",
    "migrated": "Migrated",
    "checkpoint": "Saved a checkpoint",
}

TOLD = (
    "reason",
    "why",
    "message",
    "reason_class",
    "node",
    "nodes",
    "gpu_type",
    "from",
    "to",
    "steps",
    "fence",
    "round",
    "warnings",
)
"""What an event may carry that people want to read, in this order."""


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """When, what, the particulars, and who did it (empty: Loadmaster itself)."""

    at: datetime
    text: str
    particulars: str
    actor: str


def history_line(event: JobEvent) -> HistoryLine:
    """The event in words."""
    text = SENTENCES.get(event.event, event.event.replace("_", " ").capitalize())
    data = event.data if isinstance(event.data, dict) else {}
    told = [_told(name, data[name]) for name in TOLD if data.get(name) not in (None, "", [], {})]
    return HistoryLine(event.at, text, " · ".join(told), event.actor)


def _told(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = ", ".join(str(v) for v in value)
    plain = name in ("reason", "why", "message", "warnings")
    return f"{value}" if plain else f"{name.replace('_', ' ')} {value}"
