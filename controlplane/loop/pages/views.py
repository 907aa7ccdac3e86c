"""Pages of the loop: timeline and rounds."""

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
"""Past that the timeline shows: words and seconds, by the name in the address."""

DEFAULT_SPAN = "1h"
LONGEST_SPAN = "7d"


@require_GET
def gantt(request: HttpRequest) -> HttpResponse:
    """Page of the timeline. Without a span in the address it shows all of the last day's past."""
    # 1. Cluster and span.
    cluster, span = _cluster_and_span(request)
    if cluster and "span" not in request.GET:
        span = _span_of_past(past_s(cluster))

    # 2. The page, which fetches the chart's data by the same query.
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
    """Data of the timeline's chart, of which three quarters are past and one is future."""
    cluster, span = _cluster_and_span(request)
    if cluster is None:
        raise Http404("there is no cluster")
    now = timezone.now()
    _, past_seconds = SPANS[span]
    past = timedelta(seconds=past_seconds)
    since = now - past
    horizon = now + past / 3
    nodes = list(page_of_lanes(request.GET.get("page"), cluster).object_list)
    bars, lanes = gantt_bars(cast(User, request.user), cluster, nodes, since, horizon)
    return JsonResponse(
        figure(bars, lanes, since.timestamp(), horizon.timestamp(), now.timestamp())
    )


def _cluster_and_span(request: HttpRequest) -> tuple[Cluster | None, str]:
    """Return the cluster and the span of the address.

    An unknown cluster is replaced by the first one by name (None if there is none), an unknown span
    by DEFAULT_SPAN.
    """
    clusters = Cluster.objects.order_by("name")
    named = clusters.filter(name=request.GET.get("cluster", "")).first()
    span = request.GET.get("span", DEFAULT_SPAN)
    if span not in SPANS:
        span = DEFAULT_SPAN
    return named or clusters.first(), span


def _span_of_past(least_s: float) -> str:
    """Return the shortest span of at least so many seconds, or else the longest one."""
    for name, (_, seconds) in SPANS.items():
        if seconds >= least_s:
            return name
    return LONGEST_SPAN


@require_GET
def rounds(request: HttpRequest) -> HttpResponse:
    """Page of rounds, with the scores of forecasts and the clusters whose policy is broken."""
    page, rows = rounds_page(request.GET.get("page"))
    clusters = list(Cluster.objects.order_by("name"))

    # Forecasts are scored for all jobs of a cluster, and for its batch jobs alone.
    scores = []
    for cluster in clusters:
        of_all = score_of(cluster.pk)
        of_batch = score_of(cluster.pk, batch=True)
        if of_all is not None:
            scores.append((cluster.name, of_all))
        if of_batch is not None:
            scores.append((f"{cluster.name}, batch jobs", of_batch))
    context = {
        "page": page,
        "rows": rows,
        "query": "",
        "scores": scores,
        "broken": [cluster for cluster in clusters if cluster.broken_policy],
    }
    return page_or_part(request, "loop/rounds.html", "loop/_rounds.html", context)


@require_GET
def round_(request: HttpRequest, pk: int) -> HttpResponse:
    """Page of one round."""
    page = round_page(cast(User, request.user), pk)
    if page is None:
        raise Http404(f"there is no round {pk}")
    return render(request, "loop/round.html", {"page": page, "round": page.row.round})


@require_GET
def round_snapshot(request: HttpRequest, pk: int) -> JsonResponse:
    """File of a round's snapshot for operators; `python -m policies solve` reads it."""
    name_and_snapshot = None
    if is_operator(cast(User, request.user)):
        name_and_snapshot = snapshot_file(pk)
    if name_and_snapshot is None:
        raise Http404(f"there is no snapshot of round {pk} that you may read")
    name, snapshot = name_and_snapshot
    return JsonResponse(snapshot, headers={"Content-Disposition": f'attachment; filename="{name}"'})
