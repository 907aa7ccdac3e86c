from datetime import timedelta
from typing import cast

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from clusters.models import Cluster, Device
from controlplane.loop.pages.idle import idle_in_words
from controlplane.loop.pages.selectors import round_page, rounds_page, snapshot_file
from controlplane.loop.pages.timeline import gantt_bars, page_of_lanes, past_s
from controlplane.web.operators import is_operator
from controlplane.web.pages.gantt import figure
from controlplane.web.pages.parts import page_or_part
from controlplane.web.pages.static_files import PLOTLY_NAME
from jobs.forecasts.storage import score_of

SPANS = {
    "15m": ("Last 15 minutes", 900),
    "1h": ("Last hour", 3_600),
    "6h": ("Last 6 hours", 21_600),
    "24h": ("Last 24 hours", 86_400),
    "7d": ("Last 7 days", 604_800),
}
"""Spans of the timeline: words and seconds."""


@require_GET
def gantt(request: HttpRequest) -> HttpResponse:
    cluster, span = _asked(request)
    if cluster and "span" not in request.GET:
        past = past_s(cluster)
        span = next((name for name, (_, seconds) in SPANS.items() if seconds >= past), "7d")
    query = QueryDict(mutable=True)
    query.update({"cluster": cluster.name if cluster else "", "span": span})
    context = {
        "cluster": cluster,
        "clusters": list(Cluster.objects.order_by("name")),
        "span": span,
        "spans": {name: words for name, (words, _) in SPANS.items()},
        "query": query.urlencode(),
        "plotly": PLOTLY_NAME,
        "page": page_of_lanes(request.GET.get("page"), cluster),
        "has_devices": bool(cluster and Device.objects.filter(node__cluster=cluster).exists()),
    }
    if cluster:
        context["idle"] = idle_in_words(cast(User, request.user), cluster, timezone.now())
    return render(request, "loop/gantt.html", context)


@require_GET
def gantt_figure(request: HttpRequest) -> JsonResponse:
    """Data of the chart, ahead by a quarter of the past span or to the last expected end."""
    cluster, span = _asked(request)
    if cluster is None:
        raise Http404("there is no cluster")
    now, back = timezone.now(), timedelta(seconds=SPANS[span][1])
    since, horizon = now - back, now + back / 3
    nodes = list(page_of_lanes(request.GET.get("page"), cluster).object_list)
    bars, lanes = gantt_bars(cast(User, request.user), cluster, nodes, since, horizon)
    return JsonResponse(
        figure(bars, lanes, since.timestamp(), horizon.timestamp(), now.timestamp())
    )


def _asked(request: HttpRequest) -> tuple[Cluster | None, str]:
    name, span = request.GET.get("cluster", ""), request.GET.get("span", "1h")
    clusters = Cluster.objects.order_by("name")
    cluster = clusters.filter(name=name).first() or clusters.first()
    return cluster, span if span in SPANS else "1h"


@require_GET
def rounds(request: HttpRequest) -> HttpResponse:
    page, rows = rounds_page(request.GET.get("page"))
    clusters = list(Cluster.objects.order_by("name"))
    scores = [
        (f"{c.name}{sort}", score_of(c.pk, **jobs))
        for c in clusters
        for sort, jobs in (("", {}), (", batch jobs", {"batch": True}))
    ]
    shown = [(name, score) for name, score in scores if score is not None]
    context = {
        "page": page,
        "rows": rows,
        "query": "",
        "scores": shown,
        "broken": [cluster for cluster in clusters if cluster.broken_policy],
    }
    return page_or_part(request, "loop/rounds.html", "loop/_rounds.html", context)


@require_GET
def round_(request: HttpRequest, pk: int) -> HttpResponse:
    page = round_page(cast(User, request.user), pk)
    if page is None:
        raise Http404(f"there is no round {pk}")
    return render(request, "loop/round.html", {"page": page, "round": page.row.round})


@require_GET
def round_snapshot(request: HttpRequest, pk: int) -> JsonResponse:
    """Operators' file of the round's snapshot, readable by `python -m policies solve`."""
    found = snapshot_file(pk) if is_operator(cast(User, request.user)) else None
    if found is None:
        raise Http404(f"there is no snapshot of round {pk} that you may read")
    name, snapshot = found
    return JsonResponse(snapshot, headers={"Content-Disposition": f'attachment; filename="{name}"'})
