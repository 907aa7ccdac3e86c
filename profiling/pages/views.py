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
    """Speeds of a kind on a GPU type, and its open and given-up runs."""

    gpu_type: GpuType
    profiles: tuple[ProfileRow, ...]
    runs: tuple[RunRow, ...]


@dataclass(frozen=True, slots=True)
class KindLine:
    """Line of the table: a kind, with a cell for each GPU type."""

    kind: KindRow
    cells: tuple[Cell, ...]

    @property
    def measuring(self) -> bool:
        """True if a measurement of the kind is wanted or under way."""
        return any(run.state != "given_up" for cell in self.cells for run in cell.runs)


def kinds_page(
    user: User, search: str = "", number: str | None = None
) -> tuple[KindsTable, tuple[GpuType, ...], list[KindLine], Page[Kind]]:
    """Return (kinds and pairs, columns, rows whose name or digest match the search, the page)."""
    # 1. The kinds of the page, and a column for each GPU type that one of them has figures of.
    page = page_of_kinds(user, search, number)
    table = kinds_table(user, page.object_list)
    type_names: set[str] = set()
    for kind in table.kinds:
        type_names.update(profile.gpu_type for profile in kind.profiles)
        type_names.update(run.gpu_type for run in kind.runs)
    types = tuple(GpuType.objects.filter(name__in=type_names).order_by("name"))

    # 2. A line for each kind.
    lines = []
    for kind in table.kinds:
        cells = [_cell(kind, gpu_type) for gpu_type in types]
        lines.append(KindLine(kind, tuple(cells)))
    return table, types, lines, page


def _cell(kind: KindRow, gpu_type: GpuType) -> Cell:
    """Return the cell of a kind in the column of a GPU type."""
    profiles = [profile for profile in kind.profiles if profile.gpu_type == gpu_type.name]
    runs = [run for run in kind.runs if run.gpu_type == gpu_type.name]
    return Cell(gpu_type, tuple(profiles), tuple(runs))


@require_GET
def kinds(request: HttpRequest) -> HttpResponse:
    """Page of kinds, pairs, and errors of predicted run times."""
    search = request.GET.get("search", "").replace("\0", "").strip()[:100]
    user = cast(User, request.user)
    table, types, lines, page = kinds_page(user, search, request.GET.get("page"))
    errors = run_time_errors(user)
    context = {
        "table": table,
        "types": types,
        "lines": lines,
        "search": search,
        "page": page,
        "query": urlencode({"search": search}) if search else "",
        "run_times": errors.total,
        "run_times_by": (("Source", errors.by_source), ("User", errors.by_user)),
    }
    return render(request, "profiling/kinds.html", context)


@require_POST
def kind_action(request: HttpRequest, pk: int, action: str) -> HttpResponse:
    """Publish or withdraw a kind (operators)."""
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
