"""Pages of what other policies would do: one decision now, or all to the end of the queue."""

import json
import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from clusters.models import Cluster
from controlplane.studies.documents import StudyDocumentError
from controlplane.studies.pages.forms import as_mapping, offered, read_yaml
from controlplane.studies.pages.selectors import results_of
from controlplane.studies.selectors import get_simulation
from controlplane.studies.services import SimulationConflictError
from controlplane.studies.what_if.comparison import Stretch
from controlplane.studies.what_if.decide import WhatIf, WhatIfError, what_if
from controlplane.studies.what_if.queue_end import (
    MOST_CHOICES,
    apply_choice,
    queue_end_create,
    values_of_time,
)
from controlplane.studies.what_if.queue_end_page import asked_choices, typed_rows
from controlplane.studies.what_if.turns import RETRY_S, BusyError
from controlplane.web.operators import is_operator
from controlplane.web.pages.formats import quantity
from controlplane.web.pages.gantt import Bar, figure, row_of
from controlplane.web.pages.static_files import PLOTLY_NAME
from controlplane.web.rest.errors import NoAnswerError
from jobs.selectors import OTHERS
from policies.contract.snapshot import Purpose

NODES_DRAWN = 24
LISTED = 100
LONGEST_S = 86_400.0
FIRST_ROWS = 3
"""Rows of choices that are always shown."""
LEAST_S = 60.0


CURRENCY = "currency"
COMPARED = (
    ("Jobs with GPUs", "running", "", False),
    ("Jobs that wait", "waiting", "", False),
    ("GPUs in use", "gpus", "", False),
    ("IT power", "power_w", "W", False),
    ("Energy cost per hour", "cost_per_h", CURRENCY, False),
    ("Energy of jobs with GPUs, to their ends", "energy_cost", CURRENCY, False),
    ("Energy of those that wait, at least", "energy_cost_waiting", CURRENCY, False),
    ("Lateness of jobs with GPUs", "tardiness_cost", CURRENCY, True),
    ("Lateness of those that wait, at least", "tardiness_cost_waiting", CURRENCY, True),
)
"""(words, figure, unit, whether less is better) of the rows on the page."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of both decisions in words; `tone` tells whether the other one is better."""

    words: str
    now: str
    then: str
    tone: str = ""


@require_http_methods(["GET", "HEAD", "POST"])
def what_if_page(request: HttpRequest) -> HttpResponse:
    """Choose a policy; then see what it would decide, beside what is the case."""
    clusters = list(Cluster.objects.order_by("name"))
    typed = request.POST if request.method == "POST" else request.GET
    cluster = next(
        (c for c in clusters if c.name == typed.get("cluster")), clusters[0] if clusters else None
    )
    context: dict[str, Any] = {
        "clusters": clusters,
        "cluster": cluster,
        "plotly": PLOTLY_NAME,
        "policies": offered(),
        "rows": typed_rows(typed),
        "most": MOST_CHOICES,
        "policy": typed.get("policy", ""),
        "parameters": typed.get("parameters", ""),
        "problems": {},
    }
    status = 200
    if request.method == "POST" and cluster is not None and "until" in request.POST:
        return _to_the_end(request, cluster, context)
    if request.method == "POST" and cluster is not None:
        user, policy = cast(User, request.user), context["policy"]
        try:
            context |= _asked(user, cluster, policy, context["parameters"])
        except WhatIfError as error:
            context["problems"], status = {error.field: str(error)}, 422
        except (BusyError, NoAnswerError) as error:
            context["problems"], status = {"busy": str(error)}, error.status_code
    answer = render(request, "studies/what_if.html", context, status=status)
    if "busy" in context["problems"]:
        answer["Retry-After"] = str(RETRY_S)
    return answer


def _to_the_end(request: HttpRequest, cluster: Cluster, context: dict[str, Any]) -> HttpResponse:
    """Queue the simulation and go to its page, or show what is wrong with the choices."""
    user, typed, numbers = cast(User, request.user), request.POST, list[int]()
    try:
        if typed["until"] == "values":
            choices = values_of_time(cluster)
        else:
            by_row = asked_choices(context["rows"])
            numbers, choices = list(by_row), list(by_row.values())
        made = queue_end_create(user, cluster, choices)
    except WhatIfError as error:
        place = re.fullmatch(r"choices\[(\d+)\]\.(\w+)", error.field)
        if place is None:
            context["problems"] = {"end": str(error)}
        else:
            number, field = int(place[1]), place[2].replace("_of_time", "")
            row = numbers[number] if numbers else number
            context["rows"] = typed_rows(typed, {(row, field): str(error)})
            context["more_rows"] = row > FIRST_ROWS
        return render(request, "studies/what_if.html", context, status=422)
    except SimulationConflictError as error:
        context["problems"] = {"end": str(error)}
        return render(request, "studies/what_if.html", context, status=409)
    return redirect("simulation", made.pk)


@require_POST
def what_if_apply(request: HttpRequest, pk: uuid.UUID, number: int) -> HttpResponse:
    """Make one choice of a what-if the cluster's own (operators)."""
    user = cast(User, request.user)
    found = get_simulation(user, pk)
    if not is_operator(user):
        raise PermissionDenied("only operators change clusters")
    choices = (results_of(found) or {}).get("choices", ()) if found.is_what_if else ()
    if number >= len(choices):
        raise Http404("there is no such choice")
    cluster = get_object_or_404(Cluster, name=found.summary["cluster"])
    try:
        changed = apply_choice(cluster, user, choices[number])
    except WhatIfError as error:
        messages.error(request, f"Nothing was changed. {error.field}: {error}.")
    else:
        said = f"{cluster.name}: {', '.join(changed)}." if changed else "Nothing was different."
        messages.success(request, said)
    return redirect("simulation", pk)


def _asked(user: User, cluster: Cluster, policy: str, typed: str) -> dict[str, Any]:
    try:
        parameters = read_yaml("parameters", as_mapping(typed)) or {}
    except StudyDocumentError as error:
        raise WhatIfError(
            "parameters", f"{error.fields['parameters'][0]}; write them as name: value, name: value"
        ) from None
    if not isinstance(parameters, dict):
        raise WhatIfError("parameters", "must be parameters by name, such as iterations: 500")
    return what_if(user, cluster, policy, parameters, _shown)


def _shown(found: WhatIf) -> dict[str, Any]:
    nodes, now_s = _drawn(found), found.snapshot.now_s
    sides = {f"Now, by {found.current.policy}": found.current}
    sides[f"By {found.proposed.policy}"] = found.proposed
    ends = [s.to_s for side in sides.values() for s in side.stretches if s.to_s is not None]
    until_s = min(max([now_s + LEAST_S, *ends]), now_s + LONGEST_S)
    charts = {
        title: _figure(side.stretches, found, nodes, until_s) for title, side in sides.items()
    }
    return {
        "found": {"at": found.at, "failure": found.failure, "policy": found.proposed.policy},
        "comparisons": _comparisons(found),
        "differences": found.differences[:LISTED],
        "more": max(0, len(found.differences) - LISTED),
        "waiting": found.waiting[:LISTED],
        "more_waiting": max(0, len(found.waiting) - LISTED),
        "charts": [(title, json.dumps(chart)) for title, chart in charts.items()],
        "hidden_nodes": max(0, len(found.snapshot.nodes) - len(nodes)),
    }


def _comparisons(found: WhatIf) -> list[Comparison]:
    rows = []
    for words, name, unit, is_judged in COMPARED:
        now, then = getattr(found.current, name), getattr(found.proposed, name)
        unit = found.currency if unit == CURRENCY else unit
        tone = _tone(now, then) if is_judged else ""
        rows.append(Comparison(words, _words(now, unit), _words(then, unit), tone))
    return rows


def _words(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{quantity(value)} {unit}".strip()


def _tone(now: float | None, then: float | None) -> str:
    if now is None or then is None or abs(now - then) <= 1e-9 * max(abs(now), abs(then)):
        return ""
    return "good" if then < now else "bad"


def _drawn(found: WhatIf) -> Sequence[Any]:
    stretches = (*found.current.stretches, *found.proposed.stretches)
    used = {rank.node for stretch in stretches for rank in stretch.placement.ranks}
    nodes = sorted(found.snapshot.nodes, key=lambda n: (n.id not in used, n.name))[:NODES_DRAWN]
    return sorted(nodes, key=lambda n: n.name)


def _figure(
    side: Sequence[Stretch], found: WhatIf, nodes: Sequence[Any], until_s: float
) -> Mapping[str, Any]:
    lanes = {
        (n.id, d.id): f"{n.name} · {n.gpu_type} {i}" for n in nodes for i, d in enumerate(n.devices)
    }
    now_s = found.snapshot.now_s
    bars: list[Bar] = []
    drawn: Counter[str] = Counter()
    for stretch in side:
        placement, end_s = stretch.placement, until_s
        kind = "running" if placement.purpose is Purpose.TRAINING else "profiling"
        hover = "its speed there is not known"
        if stretch.to_s is not None:
            end_s, hover = min(until_s, stretch.to_s), ""
        key = placement.job if placement.job in found.names else ""
        name = found.names.get(placement.job, OTHERS)
        for rank in placement.ranks:
            held = [(rank.node, device) for device in rank.devices]
            for lane in [lanes[device] for device in held if device in lanes]:
                place = row_of(drawn[lane], rank.share)
                bars.append(Bar(lane, key, name, now_s, end_s, kind, hover, *place))
                drawn[lane] += 1
    return figure(bars, list(lanes.values()), now_s, until_s, now_s)
