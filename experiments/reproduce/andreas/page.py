"""One HTML file with everything in it: the four panels of figures 2 and 3 by load, the paper's
claims beside ours, and tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from plotly.offline import get_plotlyjs

from experiments.reproduce.andreas.armida import told
from experiments.reproduce.andreas.grid import TUNINGS

Row = Mapping[str, Any]

PANELS = (
    ("energy_cost", "Energy cost (EUR)"),
    ("total_cost", "Total cost: energy and tardiness (EUR)"),
    ("makespan_s", "Time until all jobs are done (s)"),
    ("mean_ms", "Mean time of a call (ms)"),
)
STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#1b1f24}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .7rem;border-bottom:1px solid #d5d9de;text-align:right}
td:first-child,th:first-child,td.t{text-align:left}.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(30rem,1fr));gap:1rem}
.panel{height:22rem}.worse{color:#a40000}"""
SCRIPT = """for (const p of JSON.parse(document.getElementById('panels').textContent))
Plotly.newPlot(p.id,p.traces,{title:{text:p.title,font:{size:14}},xaxis:{title:{text:'nodes N'}},
yaxis:{rangemode:'tozero'},margin:{t:40,r:10},legend:{orientation:'h',y:-0.25}},{displaylogo:false,responsive:true});"""


def page(results: Mapping[str, Any], timings: Sequence[Row]) -> str:
    """The page. Times of calls are this machine's and not in `results`."""
    charts = [
        chart for figure in _figures(results["summary"]) for chart in _charts(*figure, timings)
    ]
    sections = "".join(
        _section(scenario, tuning, of) for scenario, tuning, of in _figures(results["summary"])
    )
    data = json.dumps(charts).replace("<", "\\u003c")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>ANDREAS'
        " reproduced</title>"
        f"<style>{STYLE}</style></head><body><h1>ANDREAS"
        f" reproduced</h1>{_intro(results)}{_claims(results['claims'])}"
        f"{_validation(results.get('validation'))}{sections}"
        '<script type="application/json"'
        f' id="panels">{data}</script><script>{get_plotlyjs()}</script><script>{SCRIPT}</script>'
        "</body></html>"
    )


def _figures(summary: Sequence[Row]) -> list[tuple[int, float, list[Row]]]:
    keys = sorted({(e["scenario"], e["tuning"]) for e in summary}, key=lambda k: (k[0], -k[1]))
    return [(s, t, [e for e in summary if (e["scenario"], e["tuning"]) == (s, t)]) for s, t in keys]


def _charts(
    scenario: int, tuning: float, of: Sequence[Row], timings: Sequence[Row]
) -> list[dict[str, Any]]:
    here = [t for t in timings if (t["scenario"], t["tuning"]) == (scenario, tuning)]
    charts = []
    for name, title in PANELS:
        rows = here if name == "mean_ms" else of
        charts.append(
            {"id": _id(scenario, tuning, name), "title": title, "traces": _traces(rows, name)}
        )
    return charts


def _traces(rows: Sequence[Row], name: str) -> list[dict[str, Any]]:
    traces = []
    for policy in dict.fromkeys(r["policy"] for r in rows):
        points = sorted(
            (r["nodes"], r[name], r.get("total_cost_95"))
            for r in rows
            if r["policy"] == policy and r[name] is not None
        )
        trace = {
            "x": [p[0] for p in points],
            "y": [p[1] for p in points],
            "name": policy,
            "mode": "lines+markers",
        }
        if name == "total_cost" and all(p[2] is not None for p in points):
            trace["error_y"] = {"type": "data", "array": [p[2] for p in points], "thickness": 1}
        traces.append(trace)
    return traces


def _id(scenario: int, tuning: float, name: str) -> str:
    return f"s{scenario}-t{tuning:g}-{name}".replace(".", "_")


def _section(scenario: int, tuning: float, of: Sequence[Row]) -> str:
    loads = [e["load"] for e in of if e["load"] is not None]
    told = TUNINGS.get(tuning, "")
    title = f"Scenario {scenario}, tuning {tuning:g}" + (f" ({told})" if told else "")
    load = (
        "<p>Load: each job alone on one GPU of its fastest type would keep"
        f" {sum(loads) / len(loads):.0%} of the GPUs busy.</p>"
    )
    divs = "".join(
        f'<div class="panel" id="{_id(scenario, tuning, name)}"></div>' for name, _ in PANELS
    )
    return f'<h2>{escape(title)}</h2>{load}<div class="panels">{divs}</div>{_table(of)}'


def _table(of: Sequence[Row]) -> str:
    head = (
        "Policy",
        "N",
        "energy",
        "tardiness",
        "total",
        "± 95%",
        "below mean of baselines",
        "below best",
        "late jobs",
        "GPUs busy",
        "hours",
    )
    rows = "".join(_row(e) for e in sorted(of, key=lambda e: e["nodes"]))
    return f"<table><tr>{''.join(f'<th>{h}</th>' for h in head)}</tr>{rows}</table>"


def _row(e: Row) -> str:
    cells = (
        f"{e['nodes']}", f"{e['energy_cost']:.2f}", f"{e['tardiness_cost']:.2f}",
        f"{e['total_cost']:.2f}",
        "" if e["total_cost_95"] is None else f"{e['total_cost_95']:.2f}",
        _percent(e["saving_on_mean"]),
        _percent(e["saving_on_best"]),
        f"{e['jobs_late']:.1f}", _percent(e["gpus_busy"]), f"{e['makespan_s'] / 3600:.1f}",
    )  # fmt: skip
    return (
        f'<tr><td class="t">{escape(e["policy"])}</td>'
        + "".join(f"<td>{c}</td>" for c in cells)
        + "</tr>"
    )


def _percent(value: float | None) -> str:
    return (
        "" if value is None else f'<span class="{"worse" if value < 0 else ""}">{value:.1%}</span>'
    )


def _intro(results: Mapping[str, Any]) -> str:
    grid = results["grid"]
    nodes = ", ".join(map(str, grid["nodes"]))
    return (
        f"<p>Means over {grid['seeds']} seeds; N = {nodes}, {grid['jobs_per_node']} N jobs; calls"
        " every 300 s and on events. Scenario 1: half the nodes with 2 V100, half with 1 T4;"
        " scenario 2: 4 and 2, times on more GPUs than were measured by Amdahl's law. The load"
        " decides everything: it is stated with each figure.</p>"
    )


def _claims(claims: Sequence[Row]) -> str:
    rows = "".join(
        f'<tr><td>{escape(c["claim"])}</td><td class="t">{escape(c["policy"])}</td>'
        f"<td>{_number(c['paper'])}</td><td>{_number(c['here'])}</td></tr>"
        for c in claims
    )
    return (
        "<h2>The paper's"
        f" claims</h2><table><tr><th>Claim</th><th>Policy</th><th>Paper</th><th>Here</th></tr>{rows}</table>"
    )


def _validation(found: Row | None) -> str:
    if found is None:
        return ""
    return f"<h2>Validation on ARMIDA (Table V)</h2><pre>{escape(chr(10).join(told(found)))}</pre>"


def _number(value: float) -> str:
    return f"{value:.4g}"
