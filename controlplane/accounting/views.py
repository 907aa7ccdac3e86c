"""Pages of energy and cost."""

from collections.abc import Mapping, Sequence
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
from controlplane.accounting.costs import CostRow, Costs, csv_of, sees_all_costs
from controlplane.accounting.query import (
    BY,
    PERIODS,
    CostQuery,
    CostQueryError,
    fields_of,
    read_query,
)
from controlplane.web.pages.static_files import PLOTLY_NAME

PAGE_SIZE = 100
"""Rows on a page."""

MOST_JOBS = 10_000
"""Most jobs that the pages list; the CSV file has all."""

LONGEST_HOURLY = timedelta(days=3)
"""Longest span that the chart shows by hours; longer ones are shown by days."""

BAR_WIDTH_MS = {"hour": 0.8 * 3_600_000, "day": 0.8 * 86_400_000}
"""Width of a bar on the axis of time: Plotly draws a single bar a fraction of a millisecond wide.
"""

BAR_PARTS = (
    ("measured_kwh", "GPUs, measured", "#2f7f93"),
    ("modelled_kwh", "GPUs, modelled", "#7fb5c2"),
    ("rest_kwh", "rest of the nodes, modelled", "#b9c2cc"),
)
"""(figure, words, colour) of the parts of a bar, from below."""


@require_GET
def costs(request: HttpRequest) -> HttpResponse:
    """Page of energy and cost, with a table by hour, day, node, team or job."""
    user = cast(User, request.user)
    fields = fields_of(request.GET)
    cluster = _cluster(fields)
    if cluster is None:
        return render(request, "accounting/costs.html", {"cluster": None})

    # 1. The sums. Of the jobs, only the most expensive are listed.
    query = _query_or_message(request, cluster, fields)
    sums = Costs(user, query, MOST_JOBS)
    page = Paginator(sums.rows, PAGE_SIZE).get_page(request.GET.get("page"))
    is_cut = query.by == "job" and page.paginator.count == MOST_JOBS

    # 2. The page. Its links to other pages and the file repeat the query.
    address = QueryDict(mutable=True)
    address.update({name: value for name, value in fields.items() if value})
    context = {
        "cluster": cluster,
        "clusters": list(Cluster.objects.order_by("name")),
        "asked": fields,
        "periods": PERIODS,
        "dimensions": BY,
        "by": query.by,
        "dimension": BY[query.by],
        "page": page,
        "rows": page.object_list,
        "most_jobs": f"{MOST_JOBS:,}" if is_cut else "",
        "total": sums.total,
        "since": query.since.astimezone(query.zone),
        "until": query.until.astimezone(query.zone),
        "query": address.urlencode(),
        "all_teams": sees_all_costs(user),
        "plotly": PLOTLY_NAME,
    }
    return render(request, "accounting/costs.html", context)


@require_GET
def costs_figure(request: HttpRequest) -> JsonResponse:
    """Chart of the query's time as JSON, by hours or days."""
    query = _query_or_404(request)
    by = "day"
    if query.until - query.since <= LONGEST_HOURLY:
        by = "hour"
    rows = Costs(cast(User, request.user), replace(query, by=by)).rows
    return JsonResponse(figure(list(rows), by))


@require_GET
def costs_csv(request: HttpRequest) -> StreamingHttpResponse:
    """Download of all rows as CSV."""
    query = _query_or_404(request)
    rows = Costs(cast(User, request.user), query).rows
    span = f"{query.since:%Y%m%d}-{query.until:%Y%m%d}"
    name = f"costs-{query.cluster.name}-by-{query.by}-{span}.csv"
    disposition = content_disposition_header(as_attachment=True, filename=name) or "attachment"
    return StreamingHttpResponse(
        csv_of(rows, query.cluster.currency),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": disposition},
    )


def _cluster(fields: Mapping[str, str]) -> Cluster | None:
    """Return the cluster that the query names, else the first one; None without clusters."""
    clusters = Cluster.objects.order_by("name")
    return clusters.filter(name=fields["cluster"]).first() or clusters.first()


def _query_or_message(
    request: HttpRequest, cluster: Cluster, fields: Mapping[str, str]
) -> CostQuery:
    """Return the query of these fields; if one is wrong, show a message and return the default."""
    try:
        return read_query(cluster, fields, timezone.now())
    except CostQueryError as error:
        messages.error(request, f"{error.field}: {error}. Shown instead: the last 7 days by team.")
        return read_query(cluster, {}, timezone.now())


def _query_or_404(request: HttpRequest) -> CostQuery:
    """Return the query of an address. Raises Http404 for a wrong one, or without clusters."""
    fields = fields_of(request.GET)
    cluster = _cluster(fields)
    if cluster is None:
        raise Http404("there is no cluster")
    try:
        return read_query(cluster, fields, timezone.now())
    except CostQueryError as error:
        raise Http404(f"{error.field}: {error}") from error


def figure(rows: Sequence[CostRow], by: str) -> dict[str, Any]:
    """Return Plotly's {data, layout}: stacked bars of kWh, and marks of the prediction.

    `by`: "hour" or "day".
    """
    times = [row.name for row in rows]
    bars = []
    for figure_name, words, colour in BAR_PARTS:
        bar = {
            "type": "bar",
            "name": words,
            "x": times,
            "y": [getattr(row, figure_name) for row in rows],
            "width": BAR_WIDTH_MS[by],
            "marker": {"color": colour},
            "hovertemplate": "%{y:.3~g} kWh",
        }
        bars.append(bar)
    predictions = {
        "type": "scatter",
        "mode": "markers",
        "name": "predicted",
        "x": times,
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
    return {"data": [*bars, predictions], "layout": layout}
