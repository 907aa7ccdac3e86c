"""One HTML file with everything in it: for each figure its claims, charts, means and remarks."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from controlplane.simulation.report.standalone import chart_section, standalone_page
from experiments.reproduce.andreas.page import number, row, table, words
from experiments.reproduce.gavel.model import Experiment
from experiments.reproduce.gavel.report.charts import charts_of

Row = Mapping[str, Any]


def page(
    experiments: Sequence[Experiment], found: Mapping[str, Row], about: Mapping[str, Any]
) -> str:
    """The page; `found` by experiment: `points`, `claims`, `remarks`; `about`: scale, seeds."""
    charts = [chart for e in experiments for chart in charts_of(e, found[e.id]["points"])]
    sections = "".join(_section(e, found[e.id]) for e in experiments)
    head = f"<header><h1>Gavel reproduced</h1>{_intro(about)}</header>"
    figures = {c["id"]: {"figure": {"data": c["traces"], "layout": c["layout"]}} for c in charts}
    main = f"{head}{_overview(experiments, found)}{sections}"
    return standalone_page("Gavel reproduced", main, figures)


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


CLAIM_HEAD = ("Claim", "Paper", "Published program", "Ours", "at", "Verdict")


def _overview(experiments: Sequence[Experiment], found: Mapping[str, Row]) -> str:
    rows = "".join(_claim_row(e.id, claim) for e in experiments for claim in found[e.id]["claims"])
    return f"<section><h2>All claims</h2>{table(('Figure', *CLAIM_HEAD), rows)}</section>"


def _claim_row(figure: str, claim: Row) -> str:
    link = f'<a href="#{_anchor(figure)}">{escape(figure)}</a>'
    cells = (number(claim[name]) for name in ("paper", "published", "here", "at"))
    return row(link, words(claim["words"]), *cells, words(claim["verdict"]))


def _section(experiment: Experiment, found: Row) -> str:
    charts = charts_of(experiment, found["points"])
    divs = "".join(chart_section(c["id"], c["title"]) for c in charts)
    claims = "".join(_claim_row(experiment.id, claim) for claim in found["claims"])
    remarks = "".join(f"<p><strong>{escape(remark)}</strong></p>" for remark in found["remarks"])
    return (
        f'<h2 id="{_anchor(experiment.id)}">{escape(heading(experiment))}</h2>'
        f"<p>{escape(experiment.note)}</p>{remarks}"
        f"<section>{table(('Figure', *CLAIM_HEAD), claims)}</section>"
        f'<div class="charts">{divs}</div>'
        f"<section>{_means(experiment, found['points'])}</section>"
    )


def _means(experiment: Experiment, points: Sequence[Row]) -> str:
    metrics = [
        m for m in dict.fromkeys(_metrics(experiment)) if any(m in p["means"] for p in points)
    ]
    rows = "".join(_mean_row(p, metrics, has_x=bool(experiment.x_title)) for p in points)
    x = (experiment.x_title,) if experiment.x_title else ()
    return table(("Series", *x, "seeds", *metrics, "not run"), rows)


def _metrics(experiment: Experiment) -> list[str]:
    return [
        *(c.metric for c in experiment.charts),
        *(c.metric for c in experiment.claims),
        "shared_gpu_h",
    ]


def _mean_row(point: Row, metrics: Sequence[str], *, has_x: bool) -> str:
    x = [number(point["x"])] if has_x else []
    means = [_with_deviation(point, m) for m in metrics]
    errors = words("; ".join(point["errors"]))
    return row(escape(point["series"]), *x, str(point["seeds"]), *means, errors)


def _with_deviation(point: Row, metric: str) -> str:
    deviation = point["deviations"].get(metric)
    half = "" if deviation is None else f" ± {number(deviation)}"
    return number(point["means"].get(metric)) + half


def _anchor(figure: str) -> str:
    return f"figure-{figure}"
