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
"""Most nodes that a chart shows."""

LISTED = 100
"""Most differences, and most waiting jobs, that the page lists."""

LEAST_S = 60.0
LONGEST_S = 86_400.0
"""Shortest and longest time from now that a chart shows."""

FIRST_ROWS = 3
"""Rows of choices that are always shown."""

CURRENCY = "currency"
"""Unit of figures in the cluster's currency."""

COMPARED = (
    ("Jobs with GPUs", "running", "", False),
    ("Waiting jobs", "waiting", "", False),
    ("GPUs in use", "gpus", "", False),
    ("IT power", "power_w", "W", False),
    ("Energy cost per hour", "cost_per_h", CURRENCY, False),
    ("Energy cost of jobs with GPUs, to their ends", "energy_cost", CURRENCY, False),
    ("Energy cost of waiting jobs, at least", "energy_cost_waiting", CURRENCY, False),
    ("Lateness of jobs with GPUs", "tardiness_cost", CURRENCY, True),
    ("Lateness of waiting jobs, at least", "tardiness_cost_waiting", CURRENCY, True),
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
    # 1. The form as typed. Without a valid name the first cluster is chosen.
    typed = request.POST if request.method == "POST" else request.GET
    clusters = list(Cluster.objects.order_by("name"))
    by_name = {cluster.name: cluster for cluster in clusters}
    cluster = by_name.get(typed.get("cluster", ""))
    if cluster is None and clusters:
        cluster = clusters[0]
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
    if request.method != "POST" or cluster is None:
        return render(request, "studies/what_if.html", context)

    # 2. A comparison to the end of the queue is a simulation with a page of its own.
    if "until" in request.POST:
        return _to_the_end(request, cluster, context)

    # 3. One decision is made at once.
    status = 200
    is_busy = False
    user = cast(User, request.user)
    try:
        context |= _decision(user, cluster, context["policy"], context["parameters"])
    except WhatIfError as error:
        context["problems"] = {error.field: str(error)}
        status = 422
    except (BusyError, NoAnswerError) as error:
        context["problems"] = {"busy": str(error)}
        status = error.status_code
        is_busy = True
    answer = render(request, "studies/what_if.html", context, status=status)
    if is_busy:
        answer["Retry-After"] = str(RETRY_S)
    return answer


def _to_the_end(request: HttpRequest, cluster: Cluster, context: dict[str, Any]) -> HttpResponse:
    """Queue the simulation and go to its page, or show what is wrong with the choices."""
    user = cast(User, request.user)
    typed = request.POST
    row_numbers: list[int] = []
    try:
        # 1. The choices: four values of time, or those of the form's rows.
        if typed["until"] == "values":
            choices = values_of_time(cluster)
        else:
            by_row = asked_choices(context["rows"])
            row_numbers = list(by_row)
            choices = list(by_row.values())
        simulation = queue_end_create(user, cluster, choices)
    except WhatIfError as error:
        # 2. A problem is of a choice's field, or of the whole. The number of a choice is that of
        #    a row at first, and then its index among the rows that are not empty.
        field_of_choice = re.fullmatch(r"choices\[(\d+)\]\.(\w+)", error.field)
        if field_of_choice is None:
            context["problems"] = {"end": str(error)}
        else:
            number = int(field_of_choice[1])
            row = row_numbers[number] if row_numbers else number
            field = field_of_choice[2].replace("_of_time", "")
            context["rows"] = typed_rows(typed, {(row, field): str(error)})
            context["more_rows"] = row > FIRST_ROWS
        return render(request, "studies/what_if.html", context, status=422)
    except SimulationConflictError as error:
        context["problems"] = {"end": str(error)}
        return render(request, "studies/what_if.html", context, status=409)
    return redirect("simulation", simulation.pk)


@require_POST
def what_if_apply(request: HttpRequest, pk: uuid.UUID, number: int) -> HttpResponse:
    """Make one choice of a what-if the cluster's own (operators)."""
    # 1. The choice, which only an operator may make.
    user = cast(User, request.user)
    simulation = get_simulation(user, pk)
    if not is_operator(user):
        raise PermissionDenied("only operators change clusters")
    results = results_of(simulation) if simulation.is_what_if else None
    choices = (results or {}).get("choices", ())
    if number >= len(choices):
        raise Http404("there is no such choice")

    # 2. The change.
    cluster = get_object_or_404(Cluster, name=simulation.summary["cluster"])
    try:
        changed = apply_choice(cluster, user, choices[number])
    except WhatIfError as error:
        messages.error(request, f"Nothing was changed. {error.field}: {error}.")
    else:
        message = (
            f"{cluster.name}: {', '.join(changed)}."
            if changed
            else "Nothing was changed: the cluster has this choice already."
        )
        messages.success(request, message)
    return redirect("simulation", pk)


def _decision(user: User, cluster: Cluster, policy: str, typed: str) -> dict[str, Any]:
    """Context of the page for the policy's decision; `typed`: its parameters. WhatIfError."""
    try:
        parameters = read_yaml("parameters", as_mapping(typed)) or {}
    except StudyDocumentError as error:
        problem = error.fields["parameters"][0]
        raise WhatIfError(
            "parameters", f"{problem}; write them as name: value, name: value"
        ) from None
    if not isinstance(parameters, dict):
        raise WhatIfError("parameters", "must be parameters by name, such as iterations: 500")
    return what_if(user, cluster, policy, parameters, _shown)


def _shown(answer: WhatIf) -> dict[str, Any]:
    """Context of the page for an answer; made in the nice process."""
    # 1. Both charts end with the last job, within a minute and a day from now.
    nodes = _drawn_nodes(answer)
    now_s = answer.snapshot.now_s
    sides = {
        f"Now, by {answer.current.policy}": answer.current,
        f"By {answer.proposed.policy}": answer.proposed,
    }
    last_s = now_s + LEAST_S
    for side in sides.values():
        for stretch in side.stretches:
            if stretch.to_s is not None:
                last_s = max(last_s, stretch.to_s)
    until_s = min(last_s, now_s + LONGEST_S)
    charts = []
    for title, side in sides.items():
        chart = _figure(side.stretches, answer, nodes, until_s)
        charts.append((title, json.dumps(chart)))

    # 2. The rest of the page.
    return {
        "found": {"at": answer.at, "failure": answer.failure, "policy": answer.proposed.policy},
        "comparisons": _comparisons(answer),
        "differences": answer.differences[:LISTED],
        "more": max(0, len(answer.differences) - LISTED),
        "waiting": answer.waiting[:LISTED],
        "more_waiting": max(0, len(answer.waiting) - LISTED),
        "charts": charts,
        "hidden_nodes": max(0, len(answer.snapshot.nodes) - len(nodes)),
    }


def _comparisons(answer: WhatIf) -> list[Comparison]:
    """Figures of both decisions, side by side."""
    comparisons = []
    for words, name, unit, is_judged in COMPARED:
        now = getattr(answer.current, name)
        then = getattr(answer.proposed, name)
        unit = answer.currency if unit == CURRENCY else unit
        tone = _tone(now, then) if is_judged else ""
        comparisons.append(Comparison(words, _words(now, unit), _words(then, unit), tone))
    return comparisons


def _words(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{quantity(value)} {unit}".strip()


def _tone(now: float | None, then: float | None) -> str:
    """Return "good" if the second figure is less, "bad" if it is more, "" if they are alike."""
    if now is None or then is None or abs(now - then) <= 1e-9 * max(abs(now), abs(then)):
        return ""
    return "good" if then < now else "bad"


def _drawn_nodes(answer: WhatIf) -> Sequence[Any]:
    """Nodes that the charts show, by name; if there are too many, those in use come first."""
    used: set[str] = set()
    for stretch in (*answer.current.stretches, *answer.proposed.stretches):
        used.update(rank.node for rank in stretch.placement.ranks)
    nodes = sorted(answer.snapshot.nodes, key=lambda node: (node.id not in used, node.name))
    return sorted(nodes[:NODES_DRAWN], key=lambda node: node.name)


def _figure(
    stretches: Sequence[Stretch], answer: WhatIf, nodes: Sequence[Any], until_s: float
) -> Mapping[str, Any]:
    """Plotly's chart of a decision: a lane for each device, a bar for each job on it."""
    # 1. The lanes, by ids of node and device.
    lanes = {}
    for node in nodes:
        for index, device in enumerate(node.devices):
            lanes[node.id, device.id] = f"{node.name} · {node.gpu_type} {index}"

    # 2. The bars. Jobs that share a device have rows of its lane.
    now_s = answer.snapshot.now_s
    bars: list[Bar] = []
    drawn_on_lane: Counter[str] = Counter()
    for stretch in stretches:
        placement = stretch.placement
        kind = "running" if placement.purpose is Purpose.TRAINING else "profiling"
        if stretch.to_s is None:
            end_s = until_s
            hover = "its speed there is not known"
        else:
            end_s = min(until_s, stretch.to_s)
            hover = ""
        key = placement.job if placement.job in answer.names else ""
        name = answer.names.get(placement.job, OTHERS)
        for rank in placement.ranks:
            for device in rank.devices:
                lane = lanes.get((rank.node, device))
                if lane is None:
                    continue
                row, rows = row_of(drawn_on_lane[lane], rank.share)
                bars.append(Bar(lane, key, name, now_s, end_s, kind, hover, row, rows))
                drawn_on_lane[lane] += 1
    return figure(bars, list(lanes.values()), now_s, until_s, now_s)
