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
    "progress_lost": "Progress lost",
    "profile_run": "Placed to measure its kind",
    "warning": "Note",
}

TOLD: Mapping[str, str] = {
    "reason": "{}", "why": "{}", "message": "{}", "warnings": "{}", "gpus": "GPUs: {}",
    "steps": "at step {}", "fence": "launch {}",
    "round": "by round {}",
}  # fmt: skip
"""Fields of an event that people read, in this order; places are shown with placements."""

BY_ITSELF = frozenset({"", "round"})
"""Actors who are nobody."""


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
    told = [
        words.format(_plain(data[name]))
        for name, words in TOLD.items()
        if data.get(name) not in (None, "", [], {})
    ]
    return HistoryLine(
        event.at, text, " · ".join(told), "" if event.actor in BY_ITSELF else event.actor
    )


def _plain(value: Any) -> str:
    return ", ".join(str(v) for v in value) if isinstance(value, (list, tuple)) else str(value)
