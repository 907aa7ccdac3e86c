"""One HTML file with everything in it: for each figure its claims, charts, means and remarks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from plotly.offline import get_plotlyjs

from experiments.reproduce.andreas.page import STYLE
from experiments.reproduce.gavel.charts import charts_of
from experiments.reproduce.gavel.model import Experiment

Row = Mapping[str, Any]
SCRIPT = """for (const p of JSON.parse(document.getElementById('charts').textContent))
Plotly.newPlot(p.id,p.traces,{...p.layout,title:{text:p.title,font:{size:14}},margin:{t:40,r:10},
legend:{orientation:'h',y:-0.25}},{displaylogo:false,responsive:true});"""


def page(
    experiments: Sequence[Experiment], found: Mapping[str, Row], about: Mapping[str, Any]
) -> str:
    """The page; `found` by experiment: `points`, `claims`, `remarks`. `about`: scale, seeds,
    machine.
    """
    charts = [chart for e in experiments for chart in charts_of(e, found[e.id]["points"])]
    sections = "".join(_section(e, found[e.id]) for e in experiments)
    data = json.dumps(charts).replace("<", "\\u003c")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Gavel reproduced</title>'
        f"<style>{STYLE}</style></head><body><h1>Gavel"
        f" reproduced</h1>{_intro(about)}{_overview(experiments, found)}{sections}"
        '<script type="application/json"'
        f' id="charts">{data}</script><script>{get_plotlyjs()}</script><script>{SCRIPT}</script>'
        "</body></html>"
    )


def heading(experiment: Experiment) -> str:
    """The figure's name and title."""
    name = f"Figure {experiment.id}: " if experiment.id.isdigit() else ""
    return f"{name}{experiment.title}"


def _intro(about: Mapping[str, Any]) -> str:
    quick = (
        "<p><strong>A quick run: a cluster of a quarter of the size under the same load, short"
        " traces. Its figures show that everything runs and in which direction the policies differ;"
        " they are no reproduction.</strong></p>"
        if about["scale"] == "quick"
        else ""
    )
    return (
        "<p>The evaluation of Gavel (Narayanan et al., OSDI 2020) on 108 simulated GPUs: what the"
        " paper says, what its published program gives, and what comes out here. A ratio to a"
        " baseline that is lower than the paper's may mean that the policy is worse here, or that"
        f" the baseline is better: the means below say which. Seeds: {about['seeds']}."
        f" {escape(about['machine'])}.</p>{quick}"
    )


def _overview(experiments: Sequence[Experiment], found: Mapping[str, Row]) -> str:
    rows = "".join(_claim_row(e.id, claim) for e in experiments for claim in found[e.id]["claims"])
    return f"<h2>All claims</h2><table>{_head('Figure', *CLAIM_HEAD)}{rows}</table>"


TEXTS, LEFT = ("Claim", "Verdict", "not run"), ' style="text-align:left"'
CLAIM_HEAD = ("Claim", "Paper", "Published program", "Ours", "at", "Verdict")


def _claim_row(figure: str, claim: Row) -> str:
    cells = "".join(
        f"<td>{_number(claim[name])}</td>" for name in ("paper", "published", "here", "at")
    )
    link = f'<a href="#{_anchor(figure)}">{escape(figure)}</a>'
    words, verdict = escape(claim["words"]), escape(claim["verdict"])
    return f'<tr><td>{link}</td><td class="t">{words}</td>{cells}<td class="t">{verdict}</td></tr>'


def _section(experiment: Experiment, found: Row) -> str:
    divs = "".join(
        f'<div class="panel" id="{c["id"]}"></div>' for c in charts_of(experiment, found["points"])
    )
    claims = "".join(_claim_row(experiment.id, claim) for claim in found["claims"])
    remarks = "".join(f"<p><strong>{escape(remark)}</strong></p>" for remark in found["remarks"])
    return (
        f'<h2 id="{_anchor(experiment.id)}">{escape(heading(experiment))}</h2><p>{escape(experiment.note)}</p>{remarks}'
        f"<table>{_head('Figure', *CLAIM_HEAD)}{claims}</table>"
        f'<div class="panels">{divs}</div>{_means(experiment, found["points"])}'
    )


def _means(experiment: Experiment, points: Sequence[Row]) -> str:
    metrics = [
        m for m in dict.fromkeys(_metrics(experiment)) if any(m in p["means"] for p in points)
    ]
    rows = "".join(_mean_row(p, metrics, has_x=bool(experiment.x_title)) for p in points)
    x = (experiment.x_title,) if experiment.x_title else ()
    return f"<table>{_head('Series', *x, 'seeds', *metrics, 'not run')}{rows}</table>"


def _metrics(experiment: Experiment) -> list[str]:
    return [
        *(c.metric for c in experiment.charts),
        *(c.metric for c in experiment.claims),
        "shared_gpu_h",
    ]


def _mean_row(point: Row, metrics: Sequence[str], *, has_x: bool) -> str:
    cells = "".join(f"<td>{_with_deviation(point, m)}</td>" for m in metrics)
    errors = escape("; ".join(point["errors"]))
    x = f"<td>{_number(point['x'])}</td>" if has_x else ""
    return (
        f"<tr><td>{escape(point['series'])}</td>{x}<td>{point['seeds']}</td>{cells}<td"
        f' class="t">{errors}</td></tr>'
    )


def _with_deviation(point: Row, metric: str) -> str:
    deviation = point["deviations"].get(metric)
    return _number(point["means"].get(metric)) + (
        "" if deviation is None else f" ± {_number(deviation)}"
    )


def _head(*names: str) -> str:
    return f"<tr>{''.join(f'<th{LEFT if name in TEXTS else str()}>{escape(name)}</th>' for name in names)}</tr>"


def _anchor(figure: str) -> str:
    return f"figure-{figure}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
