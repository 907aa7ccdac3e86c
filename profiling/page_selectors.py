"""What the page of kinds shows, in a constant number of queries."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import Count, Q

from clusters.models import GpuType
from profiling.models import Kind, Profile, ProfileRun

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class KindRow:
    """A kind: its profiles by GPU type in the order of the columns, its jobs, and how many measurements are wanted."""

    kind: Kind
    cells: tuple[tuple[GpuType, tuple[Profile, ...]], ...]
    jobs: int
    wanted: int


def kinds_page(number: object, search: str = "") -> tuple[Page[Any], tuple[GpuType, ...], list[KindRow]]:
    """(page, the columns, the rows): what is known of the speed of each kind on each GPU type."""
    kinds = Kind.objects.annotate(job_count=Count("jobs", distinct=True)).order_by("name", "digest")
    if search:
        kinds = kinds.filter(Q(name__icontains=search) | Q(digest__startswith=search))
    page = Paginator(kinds, PAGE_SIZE).get_page(number)  # type: ignore[arg-type]  # any text will do
    types = tuple(GpuType.objects.order_by("name"))
    shown = list(page.object_list)
    profiles: dict[tuple[int, int], list[Profile]] = defaultdict(list)
    for profile in Profile.objects.filter(kind__in=shown).order_by("gpus", "spread"):
        profiles[profile.kind_id, profile.gpu_type_id].append(profile)
    open_runs = ProfileRun.objects.filter(kind__in=shown, state__in=[ProfileRun.State.WANTED, ProfileRun.State.RUNNING])
    wanted = dict(open_runs.order_by().values_list("kind").annotate(n=Count("pk")))
    return page, types, [_row(kind, types, profiles, wanted) for kind in shown]


def _row(kind: Kind, types: tuple[GpuType, ...], profiles: dict[tuple[int, int], list[Profile]], wanted: dict[int, int]) -> KindRow:
    cells = tuple((t, tuple(profiles.get((kind.pk, t.pk), ()))) for t in types)
    return KindRow(kind, cells, kind.job_count, wanted.get(kind.pk, 0))  # type: ignore[attr-defined]  # annotated
