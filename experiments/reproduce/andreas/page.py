"""The page of the reproduction: figures 2 and 3 by load, the paper's claims and tables."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from controlplane.simulation.report.standalone import ERROR_BARS, chart_section, standalone_page
from experiments.reproduce.andreas.armida import told
from experiments.reproduce.andreas.grid import POLICIES, TUNINGS

Row = Mapping[str, Any]

PANELS = (
    ("energy_cost", "Energy cost (EUR)"),
    ("total_cost", "Total cost: energy and tardiness (EUR)"),
    ("makespan_s", "Time until all jobs are done (s)"),
    ("mean_ms", "Mean time of a call (ms)"),
)
COLOURS = ("#8f9bac", "#0072b2", "#56b4e9", "#e69f00", "#d55e00", "#cc79a7", "#009e73")
"""Colours of the policies, Okabe and Ito's: distinct for the colour-blind, on any ground."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down")


def page(results: Mapping[str, Any], timings: Sequence[Row]) -> str:
    """The page. Times of calls are this machine's and not in `results`."""
    parts = [_part(*figure, timings) for figure in _figures(results["summary"])]
    figures = {name: {"figure": figure} for _, charts in parts for name, figure in charts.items()}
    head = f'<header><h1>ANDREAS reproduced</h1><p class="lead">{_intro(results)}</p></header>'
    claims, validation = _claims(results["claims"]), _validation(results.get("validation"))
    sections = "".join(section for section, _ in parts)
    return standalone_page("ANDREAS reproduced", head + claims + validation + sections, figures)


def _figures(summary: Sequence[Row]) -> list[tuple[int, float, list[Row]]]:
    keys = sorted({(e["scenario"], e["tuning"]) for e in summary}, key=lambda k: (k[0], -k[1]))
    return [(s, t, [e for e in summary if (e["scenario"], e["tuning"]) == (s, t)]) for s, t in keys]


def _part(
    scenario: int, tuning: float, of: Sequence[Row], timings: Sequence[Row]
) -> tuple[str, dict[str, Any]]:
    """(HTML, figures by name) of one load: its panels and its table."""
    loads = [e["load"] for e in of if e["load"] is not None]
    note = f" ({TUNINGS[tuning]})" if tuning in TUNINGS else ""
    head = (
        f"<h2>{escape(f'Scenario {scenario}, tuning {tuning:g}{note}')}</h2>"
        "<p>Load: each job alone on one GPU of its fastest type would keep"
        f" {sum(loads) / len(loads):.0%} of the GPUs busy.</p>"
    )
    here = [t for t in timings if (t["scenario"], t["tuning"]) == (scenario, tuning)]
    names = {name: f"s{scenario}-t{tuning:g}-{name}".replace(".", "_") for name, _ in PANELS}
    panels = "".join(chart_section(names[name], title) for name, title in PANELS)
    figures = {names[name]: _figure(here if name == "mean_ms" else of, name) for name, _ in PANELS}
    return f'{head}<div class="charts">{panels}</div><section>{_table(of)}</section>', figures


def _figure(rows: Sequence[Row], name: str) -> dict[str, Any]:
    """Lines over N, from 0 on; bars where there is one N."""
    known = sorted((r for r in rows if r[name] is not None), key=lambda r: float(r["nodes"]))
    nodes = sorted({r["nodes"] for r in known})
    y = {"rangemode": "tozero"}
    if len(nodes) < 2:
        x: dict[str, Any] = {"type": "category", "automargin": True}
        return {"data": [_bars(known, name)], "layout": {"xaxis": x, "yaxis": y}}
    x = {"title": {"text": "nodes N"}, "tickvals": nodes, "range": [0, 1.05 * nodes[-1]]}
    policies = dict.fromkeys(r["policy"] for r in known)
    lines = [
        _line(policy, [r for r in known if r["policy"] == policy], name) for policy in policies
    ]
    legend = {"orientation": "h", "y": -0.35}
    return {"data": lines, "layout": {"xaxis": x, "yaxis": y, "legend": legend}}


def _bars(of: Sequence[Row], name: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "x": [r["policy"] for r in of],
        "y": [r[name] for r in of],
        "marker": {"color": [_look(r["policy"])[0] for r in of]},
        **_errors(of, name),
    }


def _line(policy: str, of: Sequence[Row], name: str) -> dict[str, Any]:
    colour, symbol = _look(policy)
    return {
        "x": [r["nodes"] for r in of],
        "y": [r[name] for r in of],
        "name": policy,
        "mode": "lines+markers",
        "line": {"color": colour},
        "marker": {"symbol": symbol, "size": 8},
        **_errors(of, name),
    }


def _errors(of: Sequence[Row], name: str) -> dict[str, Any]:
    halves = [r["total_cost_95"] for r in of] if name == "total_cost" else [None]
    bars = {"type": "data", "array": halves, "color": ERROR_BARS}
    return {} if None in halves else {"error_y": bars}


def _look(policy: str) -> tuple[str, str]:
    """Colour and symbol of a policy, the same in every chart."""
    number = list(POLICIES).index(policy)
    return COLOURS[number], SYMBOLS[number]


HEADINGS = (
    "Policy",
    "N",
    "energy",
    "tardiness",
    "total",
    "± 95%",
    "below mean of baselines",
    "published program",
    "below best",
    "late jobs",
    "GPUs busy",
    "hours",
)


def _table(of: Sequence[Row]) -> str:
    rows = "".join(_row(e) for e in sorted(of, key=lambda e: float(e["nodes"])))
    return table(HEADINGS, rows)


def _row(e: Row) -> str:
    half = "" if e["total_cost_95"] is None else f"{e['total_cost_95']:.2f}"
    return row(
        escape(e["policy"]),
        f"{e['nodes']}",
        f"{e['energy_cost']:.2f}",
        f"{e['tardiness_cost']:.2f}",
        f"{e['total_cost']:.2f}",
        half,
        _percent(e["saving_on_mean"]),
        e["published"],
        _percent(e["saving_on_best"]),
        f"{e['jobs_late']:.1f}",
        _percent(e["gpus_busy"]),
        f"{e['makespan_s'] / 3600:.1f}",
    )


def table(headings: Sequence[str], rows: str) -> str:
    """A table that scrolls where it is too wide."""
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in headings)
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def row(first: str, *cells: str) -> str:
    """A row whose first cell names it; all of it is HTML."""
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{c}</td>" for c in cells)}</tr>'


def words(text: str) -> str:
    """A cell of words, which wrap."""
    return f'<div class="words">{escape(text)}</div>'


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}".replace("-", "−")


def _intro(results: Mapping[str, Any]) -> str:
    grid = results["grid"]
    nodes = ", ".join(map(str, grid["nodes"])) or "none"
    return (
        f"Means over {grid['seeds']} seeds; N = {nodes}, {grid['jobs_per_node']} N jobs; calls"
        " every 300 s and on events. Scenario 1: half the nodes with 2 V100, half with 1 T4;"
        " scenario 2: 4 and 2, times on more GPUs than were measured by Amdahl's law. The load"
        " decides everything: it is stated with each figure. ± 95%: Student's t."
    )


def _claims(claims: Sequence[Row]) -> str:
    rows = "".join(
        row(
            escape(c["claim"]),
            escape(c["policy"]),
            number(c["paper"]),
            c.get("published", ""),
            number(c["here"]),
        )
        for c in claims
    )
    headings = ("Claim", "Policy", "Paper", "Published program", "Here")
    return f"<section><h2>The paper's claims</h2>{table(headings, rows)}</section>"


def _validation(found: Row | None) -> str:
    if found is None:
        return ""
    lines = escape("\n".join(told(found)))
    return f"<section><h2>Validation on ARMIDA (Table V)</h2><pre>{lines}</pre></section>"


def number(value: float | None) -> str:
    """Four digits that count, or whole numbers of more; empty for nothing."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
