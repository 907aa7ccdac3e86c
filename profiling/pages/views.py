"""Page of kinds: a table with a column for each GPU type."""

from dataclasses import dataclass, replace
from typing import cast

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from clusters.models import GpuType
from profiling.pages.rows import KindRow, KindsTable, ProfileRow, RunRow, kinds_table
from profiling.run_times.rows import run_time_errors


@dataclass(frozen=True, slots=True)
class Cell:
    """Figures of a kind on a GPU type, and measurements wanted or given up."""

    gpu_type: GpuType
    profiles: tuple[ProfileRow, ...]
    runs: tuple[RunRow, ...]


@dataclass(frozen=True, slots=True)
class KindLine:
    """Row of the table."""

    kind: KindRow
    cells: tuple[Cell, ...]

    @property
    def measuring(self) -> bool:
        return any(run.state != "given_up" for cell in self.cells for run in cell.runs)


def kinds_page(
    user: User, search: str = ""
) -> tuple[KindsTable, tuple[GpuType, ...], list[KindLine]]:
    """Return (kinds and pairs, columns, rows whose name or digest match the search)."""
    table = kinds_table(user)
    fitting = [
        k for k in table.kinds if search.lower() in k.name.lower() or k.digest.startswith(search)
    ]
    told = {p.gpu_type for k in table.kinds for p in k.profiles}
    told |= {run.gpu_type for k in table.kinds for run in k.runs}
    types = tuple(GpuType.objects.filter(name__in=told).order_by("name"))
    ids = {kind.id for kind in fitting}
    pairs = tuple(p for p in table.pairs.lines if p.first_id in ids or p.second_id in ids)
    shown = replace(table, pairs=replace(table.pairs, lines=pairs))
    return shown, types, [KindLine(k, tuple(_cell(k, t) for t in types)) for k in fitting]


def _cell(kind: KindRow, gpu_type: GpuType) -> Cell:
    profiles = tuple(p for p in kind.profiles if p.gpu_type == gpu_type.name)
    return Cell(gpu_type, profiles, tuple(r for r in kind.runs if r.gpu_type == gpu_type.name))


@require_GET
def kinds(request: HttpRequest) -> HttpResponse:
    search = request.GET.get("search", "").strip()[:100]
    table, types, lines = kinds_page(cast(User, request.user), search)
    errors = run_time_errors(cast(User, request.user))
    by = (("Source", errors.by_source), ("User", errors.by_user))
    context = {"table": table, "types": types, "lines": lines, "search": search}
    context |= {"run_times": errors.total, "run_times_by": by}
    return render(request, "profiling/kinds.html", context)
