from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    JsonResponse,
    QueryDict,
    StreamingHttpResponse,
)
from django.shortcuts import render
from django.utils import timezone
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_GET

from clusters.models import Cluster
from controlplane.accounting.costs import (
    CostRow,
    Costs,
    csv_of,
    sees_all_costs,
)
from controlplane.accounting.query import (
    BY,
    PERIODS,
    CostQuery,
    CostQueryError,
    asked_of,
    read_query,
)
from controlplane.web.pages.static_files import PLOTLY_NAME

PAGE_SIZE = 100
MOST_JOBS = 10_000
"""Jobs that the pages list; the file has all."""
HOURLY = timedelta(days=3)
"""Longest span that the chart shows by hours; longer ones by days."""
BAR_MS = {"hour": 0.8 * 3_600_000, "day": 0.8 * 86_400_000}
"""Width of a bar; without it, one alone is a fraction of a millisecond wide."""
PARTS = (
    ("measured_kwh", "GPUs, measured", "#2f7f93"),
    ("modelled_kwh", "GPUs, modelled", "#7fb5c2"),
    ("rest_kwh", "rest of the nodes, modelled", "#b9c2cc"),
)


@require_GET
def costs(request: HttpRequest) -> HttpResponse:
    user, asked = cast(User, request.user), asked_of(request.GET)
    cluster = _cluster(asked)
    if cluster is None:
        return render(request, "accounting/costs.html", {"cluster": None})
    query = _query_or_message(request, cluster, asked)
    encoded = QueryDict(mutable=True)
    encoded.update({name: value for name, value in asked.items() if value})
    found = Costs(user, query, MOST_JOBS)
    page = Paginator(found.rows, PAGE_SIZE).get_page(request.GET.get("page"))
    is_cut = query.by == "job" and page.paginator.count == MOST_JOBS
    context = {
        "cluster": cluster, "clusters": list(Cluster.objects.order_by("name")), "asked": asked,
        "periods": PERIODS,
        "dimensions": BY, "by": query.by, "dimension": BY[query.by], "page": page,
        "rows": page.object_list,
        "most_jobs": f"{MOST_JOBS:,}" if is_cut else "",
        "total": found.total, "since": query.since.astimezone(query.zone),
        "until": query.until.astimezone(query.zone),
        "query": encoded.urlencode(), "all_teams": sees_all_costs(user), "plotly": PLOTLY_NAME,
    }  # fmt: skip
    return render(request, "accounting/costs.html", context)


@require_GET
def costs_figure(request: HttpRequest) -> JsonResponse:
    query = _query_or_404(request)
    query = replace(query, by="hour" if query.until - query.since <= HOURLY else "day")
    rows = Costs(cast(User, request.user), query).rows
    return JsonResponse(figure(list(rows), query.by))


@require_GET
def costs_csv(request: HttpRequest) -> StreamingHttpResponse:
    query = _query_or_404(request)
    lines = csv_of(Costs(cast(User, request.user), query).rows, query.cluster.currency)
    name = f"costs-{query.cluster.name}-by-{query.by}-{query.since:%Y%m%d}-{query.until:%Y%m%d}.csv"
    disposition = content_disposition_header(as_attachment=True, filename=name) or "attachment"
    return StreamingHttpResponse(
        lines, content_type="text/csv; charset=utf-8", headers={"Content-Disposition": disposition}
    )


def _cluster(asked: dict[str, str]) -> Cluster | None:
    clusters = Cluster.objects.order_by("name")
    return clusters.filter(name=asked["cluster"]).first() or clusters.first()


def _query_or_message(request: HttpRequest, cluster: Cluster, asked: dict[str, str]) -> CostQuery:
    try:
        return read_query(cluster, asked, timezone.now())
    except CostQueryError as error:
        messages.error(request, f"{error.field}: {error}. Shown instead: the last 7 days by team.")
        return read_query(cluster, {}, timezone.now())


def _query_or_404(request: HttpRequest) -> CostQuery:
    asked = asked_of(request.GET)
    cluster = _cluster(asked)
    if cluster is None:
        raise Http404("there is no cluster")
    try:
        return read_query(cluster, asked, timezone.now())
    except CostQueryError as error:
        raise Http404(f"{error.field}: {error}") from error


def figure(rows: Sequence[CostRow], by: str) -> dict[str, Any]:
    """Plotly's {data, layout}: stacked bars of measured and modelled kWh, and the prediction."""
    at = [row.name for row in rows]
    bars = [
        {
            "type": "bar",
            "name": words,
            "x": at,
            "y": [getattr(row, part) for row in rows],
            "width": BAR_MS[by],
            "marker": {"color": colour},
            "hovertemplate": "%{y:.3~g} kWh",
        }
        for part, words, colour in PARTS
    ]
    marks = {
        "type": "scatter",
        "mode": "markers",
        "name": "predicted",
        "x": at,
        "y": [row.predicted_kwh for row in rows],
        "marker": {
            "symbol": "line-ew-open",
            "size": 16,
            "color": "#b0772e",
            "line": {"width": 3, "color": "#b0772e"},
        },
        "hovertemplate": "%{y:.3~g} kWh",
    }
    layout = {
        "barmode": "stack",
        "bargap": 0.15,
        "height": 300,
        "hovermode": "x unified",
        "showlegend": False,
        "margin": {"l": 65, "r": 15, "t": 10, "b": 40},
        "xaxis": {"type": "date" if by == "hour" else "category"},
        "yaxis": {"rangemode": "tozero", "ticksuffix": " kWh", "automargin": True},
    }
    return {"data": [*bars, marks], "layout": layout}
