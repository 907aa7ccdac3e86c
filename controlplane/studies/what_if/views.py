"""The page of what another policy would decide now."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from clusters.models import Cluster
from controlplane.loop.pages.selectors import OTHERS
from controlplane.studies.documents import DocumentError
from controlplane.studies.pages.forms import as_mapping, offered, read_yaml
from controlplane.studies.what_if.decide import BusyError, Side, WhatIf, WhatIfError, what_if
from controlplane.web.pages.formats import quantity
from controlplane.web.pages.gantt import Bar, figure, row_of
from controlplane.web.pages.static_files import PLOTLY_NAME
from policies.contract.plan import Placement
from policies.contract.snapshot import Purpose

NODES_DRAWN = 24
LISTED = 100
LONGEST_S = 86_400.0
LEAST_S = 60.0


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
        "clusters": clusters, "cluster": cluster, "plotly": PLOTLY_NAME,
        "policies": offered(),
        "policy": typed.get("policy", ""), "parameters": typed.get("parameters", ""),
        "problems": {},
    }  # fmt: skip
    status = 200
    if request.method == "POST" and cluster is not None:
        try:
            found = _asked(
                cast(User, request.user), cluster, context["policy"], context["parameters"]
            )
            context |= _shown(found)
        except WhatIfError as error:
            context["problems"], status = {error.field: str(error)}, 422
        except BusyError as error:
            context["problems"], status = {"busy": str(error)}, 503
    return render(request, "studies/what_if.html", context, status=status)


def _asked(user: User, cluster: Cluster, policy: str, typed: str) -> WhatIf:
    try:
        parameters = read_yaml("parameters", as_mapping(typed)) or {}
    except DocumentError as error:
        raise WhatIfError(
            "parameters", f"{error.fields['parameters'][0]}; write them as name: value, name: value"
        ) from None
    if not isinstance(parameters, dict):
        raise WhatIfError("parameters", "must be parameters by name, such as iterations: 500")
    return what_if(user, cluster, policy, parameters)


def _shown(found: WhatIf) -> dict[str, Any]:
    nodes = _drawn(found)
    until_s = _until_s(found)
    sides = {
        f"Now, by {found.current.policy}": found.now,
        f"By {found.proposed.policy}": found.then,
    }
    return {
        "found": found, "comparisons": _comparisons(found),
        "differences": found.differences[:LISTED],
        "more": max(0, len(found.differences) - LISTED), "waiting": found.waiting[:LISTED],
        "more_waiting": max(0, len(found.waiting) - LISTED),
        "charts": [
            (title, json.dumps(_figure(side, found, nodes, until_s)))
            for title, side in sides.items()
        ],
        "hidden_nodes": max(0, len(found.snapshot.nodes) - len(nodes)),
    }  # fmt: skip


def _comparisons(found: WhatIf) -> list[Comparison]:
    now, then, currency = found.current, found.proposed, found.currency
    rows: list[tuple[str, float | None, float | None, str, bool]] = [
        ("Jobs with GPUs", now.running, then.running, "", False),
        ("Jobs that wait", now.waiting, then.waiting, "", False),
        ("GPUs in use", now.gpus, then.gpus, "", False),
        ("IT power", now.power_w, then.power_w, "W", False),
        ("Energy cost per hour", now.cost_per_h, then.cost_per_h, currency, False),
        (
            "Energy of jobs with GPUs, to their ends",
            now.energy_cost,
            then.energy_cost,
            currency,
            False,
        ),
        (
            "Energy of those that wait, at least",
            now.energy_cost_waiting,
            then.energy_cost_waiting,
            currency,
            False,
        ),
        ("Their lateness", now.tardiness_cost, then.tardiness_cost, currency, True),
        (
            "Lateness of those that wait, at least",
            now.tardiness_cost_waiting,
            then.tardiness_cost_waiting,
            currency,
            True,
        ),
    ]
    return [
        Comparison(words, _words(a, unit), _words(b, unit), _tone(a, b) if judged else "")
        for words, a, b, unit, judged in rows
    ]


def _words(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{quantity(value)} {unit}".strip()


def _tone(now: float | None, then: float | None) -> str:
    if now is None or then is None or abs(now - then) <= 1e-9 * max(abs(now), abs(then)):
        return ""
    return "good" if then < now else "bad"


def _drawn(found: WhatIf) -> Sequence[Any]:
    """Nodes for the charts: those on which something differs first, then by name."""
    moved = {
        seat.node
        for side in (found.now, found.then)
        for s in side.stretches
        for seat in s.placement.ranks
    }
    nodes = sorted(found.snapshot.nodes, key=lambda n: (n.id not in moved, n.name))[:NODES_DRAWN]
    return sorted(nodes, key=lambda n: n.name)


def _until_s(found: WhatIf) -> float:
    ends = [
        s.to_s for side in (found.now, found.then) for s in side.stretches if s.to_s is not None
    ]
    now_s = found.snapshot.now_s
    return min(max([now_s + LEAST_S, *ends]), now_s + LONGEST_S)


def _figure(side: Side, found: WhatIf, nodes: Sequence[Any], until_s: float) -> Mapping[str, Any]:
    lanes = {
        (n.id, d.id): f"{n.name} · {n.gpu_type} {i}" for n in nodes for i, d in enumerate(n.devices)
    }
    now_s = found.snapshot.now_s
    bars: list[Bar] = []
    seated: Counter[str] = Counter()
    for stretch in side.stretches:
        job = stretch.placement.job
        kind = "running" if stretch.placement.purpose is Purpose.TRAINING else "profiling"
        end_s = min(until_s, stretch.to_s if stretch.to_s is not None else until_s)
        hover = "" if stretch.to_s is not None else "its speed there is not known"
        key, name = job if job in found.names else "", found.names.get(job, OTHERS)
        for lane, share in _places(stretch.placement, lanes):
            bars.append(
                Bar(lane, key, name, now_s, end_s, kind, hover, *row_of(seated[lane], share))
            )
            seated[lane] += 1
    return figure(bars, list(lanes.values()), now_s, until_s, now_s)


def _places(placement: Placement, lanes: Mapping[tuple[str, str], str]) -> list[tuple[str, float]]:
    """The lanes of its GPUs that are drawn, and what part of each it has."""
    held = [(seat.node, device, seat.share) for seat in placement.ranks for device in seat.devices]
    return [(lanes[node, device], share) for node, device, share in held if (node, device) in lanes]
