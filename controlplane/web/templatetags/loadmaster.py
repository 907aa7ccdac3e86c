"""Template filters for numbers, times and states; templates need not load them."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.web.pages import formats, samples

register = template.Library()

register.filter("duration", formats.duration)
register.filter("quantity", formats.quantity)
register.filter("count", formats.count)
register.filter("too_few", samples.too_few)

TONES = {
    **dict.fromkeys(("running", "starting", "preparing", "accepted"), "accent dot"),
    **dict.fromkeys(("queued", "profiling", "offered"), "info dot"),
    **dict.fromkeys(("completed", "succeeded", "ready", "applied", "done"), "good dot"),
    **dict.fromkeys(("stopping", "cancelling", "unknown", "preempted"), "warn dot"),
    **dict.fromkeys(("cordoned", "draining", "partial", "kept"), "warn dot"),
    **dict.fromkeys(("failed", "lost", "rejected", "abandoned"), "bad dot"),
    **dict.fromkeys(("held", "cancelled"), "dot"),
    **dict.fromkeys(("migrate", "resize"), "info"),
    "start": "good",
    "preempt": "warn",
}
"""Classes of the badges of states: of jobs, assignments, nodes, rounds and changes."""

WORDS = {"queued": "waiting"}
"""States that people know by another word."""


@register.filter
def state(value: object) -> SafeString:
    """Return the badge of a state."""
    return _badge(str(value))


@lru_cache(maxsize=64)
def _badge(state_name: str) -> SafeString:
    """Return the badge of a state, kept for the next one."""
    words = WORDS.get(state_name, state_name).replace("_", " ")
    return format_html('<span class="badge {}">{}</span>', TONES.get(state_name, ""), words)


REASONS = {
    "submission": "job submitted",
    "completion": "job completed",
    "failure": "job failed",
    "cancellation": "job stopped or changed",
    "node_joined": "node joined",
    "node_lost": "node lost",
    "node_drained": "node drained",
    "profile": "new measurement",
    "tariff": "costs changed",
    "operator": "asked by an operator",
    "periodic": "time passed",
    "leftover": "rest of the round before",
    "stopped": "a stop has ended",
}
"""Reasons of rounds in words."""

DONE = {
    "start": "started",
    "keep": "kept",
    "preempt": "pre-empted",
    "migrate": "migrated",
    "resize": "resized",
    "quotas": "given other cores",
}
"""Changes of jobs in words."""


@register.filter
def reasons(codes: Iterable[object] | None) -> str:
    """Return the reasons of a round in words."""
    return ", ".join(REASONS.get(str(code), str(code).replace("_", " ")) for code in codes or ())


@register.filter
def done(change: object) -> str:
    """Return a change of a job in words."""
    return DONE.get(str(change), str(change).replace("_", " "))


@register.filter
def emulated(value: object) -> SafeString:
    """Return the mark of an emulated device or node; "" for others."""
    mark = (
        '<span class="badge emulated" title="A pacing clock in place of hardware">emulated</span>'
    )
    return SafeString(mark if value else "")


@register.filter
def when(moment: datetime | None) -> SafeString | str:
    """Return a time in UTC: of today the time of day, else date and time; in full in the title."""
    if moment is None:
        return ""
    utc = moment.astimezone(UTC)
    today = utc.date() == timezone.now().date()
    shown = f"{utc:%H:%M:%S}" if today else f"{utc:%Y-%m-%d %H:%M}"
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        utc.isoformat(),
        f"{utc:%Y-%m-%d %H:%M:%S}",
        shown,
    )


@register.filter
def ago(moment: datetime | None) -> str:
    return formats.ago(moment, timezone.now())


@register.filter
def percent(fraction: float) -> str:
    return f"{100 * fraction:.0f}%"


@register.filter
def signed_percent(fraction: float) -> str:
    """Return a difference as a percentage with its sign: +3%, −12%."""
    return f"{100 * fraction:+z.0f}%".replace("-", "−")


@register.filter
def signed_duration(seconds: float) -> str:
    """Return a difference of times with its sign: +5 min, −12 s."""
    return f"{'−' if seconds < 0 else '+'}{formats.duration(abs(seconds))}"


@register.filter
def source_words(source: str) -> str:
    """Return the source of a predicted run time in words: "user, name, kind"."""
    return source.replace("+", ", ").replace("_", " ")


@register.filter
def pretty_json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True, default=str)
