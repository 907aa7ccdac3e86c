"""What the pages' templates say about numbers, times and states. Built in: templates need not load it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane import formats

register = template.Library()

register.filter("duration", formats.duration)
register.filter("quantity", formats.quantity)
register.filter("count", formats.count)

TONES = {
    "running": "accent dot", "starting": "accent dot", "preparing": "accent dot", "accepted": "accent dot", "offered": "info dot",
    "queued": "info dot", "profiling": "info dot", "held": "dot", "stopping": "warn dot", "cancelling": "warn dot", "unknown": "warn dot",
    "completed": "good dot", "succeeded": "good dot", "failed": "bad dot", "lost": "bad dot", "rejected": "bad dot", "cancelled": "dot",
    "preempted": "warn dot", "ready": "good dot", "cordoned": "warn dot", "draining": "warn dot", "applied": "good dot",
    "partial": "warn dot", "kept": "warn dot", "abandoned": "bad dot", "start": "good", "keep": "", "preempt": "warn",
    "migrate": "info", "resize": "info",
}  # fmt: skip

WORDS = {"queued": "waiting"}
"""States whose word for people is another one."""


@register.filter
def state(value: object) -> SafeString:
    """A state as a badge."""
    word = str(value)
    return format_html('<span class="badge {}">{}</span>', TONES.get(word, ""), WORDS.get(word, word).replace("_", " "))


@register.filter
def emulated(value: object) -> SafeString:
    """The mark of what is emulated, or nothing."""
    mark = '<span class="badge emulated" title="A pacing clock in place of hardware">emulated</span>'
    return SafeString(mark if value else "")


@register.filter
def when(moment: datetime | None) -> SafeString | str:
    """A time of day today, date and time otherwise; UTC, with the whole of it in the title."""
    if moment is None:
        return ""
    utc = moment.astimezone(UTC)
    today = utc.date() == timezone.now().date()
    shown = f"{utc:%H:%M:%S}" if today else f"{utc:%Y-%m-%d %H:%M}"
    return format_html('<time datetime="{}" title="{} UTC">{}</time>', utc.isoformat(), f"{utc:%Y-%m-%d %H:%M:%S}", shown)


@register.filter
def ago(moment: datetime | None) -> str:
    """How long ago."""
    return formats.ago(moment, timezone.now())


@register.filter
def pretty_json(value: object) -> str:
    """Indented JSON."""
    return json.dumps(value, indent=2, sort_keys=True, default=str)
