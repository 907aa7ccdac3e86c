"""Page of kinds: a table with a column for each GPU type."""

from dataclasses import dataclass
from typing import cast
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.paginator import Page
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from clusters.models import GpuType
from controlplane.web.operators import is_operator
from jobs.models import Kind
from profiling.pages.rows import (
    KindRow,
    KindsTable,
    ProfileRow,
    RunRow,
    kinds_table,
    page_of_kinds,
)
from profiling.publication import KindStateError, publish, withdraw
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
    user: User, search: str = "", number: str | None = None
) -> tuple[KindsTable, tuple[GpuType, ...], list[KindLine], Page[Kind]]:
    """Return (kinds and pairs, columns, rows whose name or digest match the search, the page)."""
    page = page_of_kinds(user, search, number)
    table = kinds_table(user, page.object_list)
    told = {p.gpu_type for k in table.kinds for p in k.profiles}
    told |= {run.gpu_type for k in table.kinds for run in k.runs}
    types = tuple(GpuType.objects.filter(name__in=told).order_by("name"))
    return table, types, [KindLine(k, tuple(_cell(k, t) for t in types)) for k in table.kinds], page


def _cell(kind: KindRow, gpu_type: GpuType) -> Cell:
    profiles = tuple(p for p in kind.profiles if p.gpu_type == gpu_type.name)
    return Cell(gpu_type, profiles, tuple(r for r in kind.runs if r.gpu_type == gpu_type.name))


@require_GET
def kinds(request: HttpRequest) -> HttpResponse:
    search = request.GET.get("search", "").replace("\0", "").strip()[:100]
    user = cast(User, request.user)
    table, types, lines, page = kinds_page(user, search, request.GET.get("page"))
    errors = run_time_errors(user)
    by = (("Source", errors.by_source), ("User", errors.by_user))
    context = {"table": table, "types": types, "lines": lines, "search": search, "page": page}
    context |= {"query": urlencode({"search": search}) if search else ""}
    context |= {"run_times": errors.total, "run_times_by": by}
    return render(request, "profiling/kinds.html", context)


@require_POST
def kind_action(request: HttpRequest, pk: int, action: str) -> HttpResponse:
    user = cast(User, request.user)
    if not is_operator(user):
        raise PermissionDenied("only operators publish kinds")
    kind = get_object_or_404(Kind, pk=pk)
    try:
        if action == "publish":
            publish(kind)
            messages.success(request, f"All teams now use what is measured of {kind}.")
        elif action == "withdraw":
            withdraw(kind)
            messages.success(request, f"{kind} is no longer published.")
        else:
            raise Http404(f"there is no action {action}")
    except KindStateError as error:
        messages.error(request, f"Nothing was changed: {error}.")
    return redirect("kinds")
