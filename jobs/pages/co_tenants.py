"""With whom a job shares a GPU, as far as the reader may know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from uuid import UUID

from django.contrib.auth.models import User

from jobs.models import Assignment, AssignmentSlot
from jobs.selectors import OTHERS, seen_by

Names = Mapping[UUID, tuple[str, ...]]
"""By assignment the jobs that hold a part of its GPUs now."""


def co_tenants(user: User, assignments: Iterable[Assignment]) -> Names:
    """Jobs that share a GPU with these assignments; no query if none shares, else two or three."""
    parts = [a.pk for a in assignments if a.share < 1.0]
    if not parts:
        return {}
    live = AssignmentSlot.objects.filter(live=True)
    own = list(live.filter(assignment__in=parts).values_list("assignment", "device"))
    columns = ("device", "assignment", "assignment__job", "assignment__job__name")
    held = list(
        live.filter(device__in={device for _, device in own})
        .order_by("device", "slot")
        .values_list(*columns)
    )
    seen = seen_by(user, {job for _, _, job, _ in held})
    on_device: dict[int, list[tuple[UUID, str]]] = defaultdict(list)
    for device, assignment, job, name in held:
        on_device[device].append((assignment, name if job in seen else OTHERS))
    found: dict[UUID, dict[UUID, str]] = defaultdict(dict)
    for mine, device in own:
        found[mine].update((pk, name) for pk, name in on_device[device] if pk != mine)
    return {mine: tuple(names.values()) for mine, names in found.items()}
