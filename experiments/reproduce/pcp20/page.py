"""The page: tables 1 and 2, figures 4 to 7, ratios of quality, and the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from controlplane.simulation.report.standalone import ERROR_BARS, chart_section, standalone_page
from experiments.reproduce.andreas.page import number, row, table
from experiments.reproduce.pcp20.claims import NOTES
from experiments.reproduce.pcp20.instances import modelled
from experiments.reproduce.pcp20.scenarios import FIFO, LJF, PBS, SJF

Row = Mapping[str, Any]
TITLE = "PCP'20 reproduced"
LEFT_OUT = tuple(of.name for of in (FIFO, SJF, LJF))
CHARTS = (
    "Figures 4 and 5: bars are means, lines one standard deviation, cut off at 0. PBS: the waits in"
    " the log. FIFO, SJF and LJF are in the tables only: beside them nothing else could be seen."
)


def page(results: Row, timed: Sequence[Row], instances: Sequence[Row], times: Row) -> str:
    """The whole page; `timed` and `times` are this machine's."""
    settings = {row["setting"]: results["titles"][row["setting"]] for row in results["rows"]}
    figures: dict[str, Any] = {}
    parts = [_head(results), _times_table(timed)]
    for setting, title in settings.items():
        of = [row for row in results["rows"] if row["setting"] == setting]
        for name in ("wait_s", "slowdown"):
            figures[f"{setting}-{name}"] = {"figure": _bars(of, name)}
        sections = "".join(
            chart_section(f"{setting}-{name}", f"{title}: mean {words}")
            for name, words in (("wait_s", "wait (s)"), ("slowdown", "slowdown"))
        )
        parts.append(
            f'<div class="charts">{sections}</div>'
            f"<section>{_means(of)}{_widths(of)}{_used(of)}</section>"
        )
    parts += [_instances(results["instances"], times), _claims(results)]
    if known := modelled(instances):
        figures |= {
            "variables": {"figure": _scatter(known, _variables)},
            "times": {"figure": _scatter(known, _times)},
        }
    return standalone_page(TITLE, "".join(parts), figures)


def _head(results: Row) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in NOTES)
    quick = (
        "<p><strong>A quick run on a few jobs: it shows that everything runs.</strong></p>"
        if results["scale"] == "quick"
        else ""
    )
    absent = "".join(f"<li>{escape(line)}</li>" for line in results["not_run"])
    told = f"<li>{escape(CHARTS)}</li>"
    return f"<header><h1>{TITLE}</h1></header>{quick}<ul>{notes}{told}{absent}</ul>"


def _times_table(timed: Sequence[Row]) -> str:
    head = (
        "Table",
        "Dispatcher",
        "Mean ms (paper)",
        "ours, CPU",
        "Total s (paper)",
        "ours, CPU",
        "Mean over HCP'19 (paper)",
        "ours",
        "Total over HCP'19 (paper)",
        "ours",
    )
    names = (
        "paper_ms",
        "here_ms",
        "paper_total_s",
        "here_total_s",
        "paper_ratio",
        "here_ratio",
        "paper_total_ratio",
        "here_total_ratio",
    )
    rows = "".join(
        row(escape(of["table"]), escape(of["label"]), *(number(of[name]) for name in names))
        for of in timed
    )
    return f"<section><h2>Tables 1 and 2: times</h2>{table(head, rows)}</section>"


def _means(of: Sequence[Row]) -> str:
    head = (
        "Dispatcher",
        "Wait (s)",
        "± one deviation",
        "longest",
        "Slowdown",
        "± one deviation",
        "Bounded slowdown",
        "Decisions",
        "Killed",
        "Fits nowhere",
    )
    return table(head, "".join(_mean(one) for one in of))


def _mean(of: Row) -> str:
    cells = (
        of["wait_s"]["mean"],
        of["wait_s"]["deviation"],
        of["wait_s"]["most"],
        of["slowdown"]["mean"],
        of["slowdown"]["deviation"],
        of["bounded_slowdown"]["mean"],
        of["decisions"],
        of["killed"],
        of["never_placed"],
    )
    return row(escape(of["label"]), *(number(cell) for cell in cells))


def _widths(of: Sequence[Row]) -> str:
    """Waits by width: the share of the cluster that a job takes."""
    head = ("Dispatcher", "Share of the cluster", "Jobs", "Wait (s)", "longest", "by area")
    rows = ""
    for one in of:
        for width, waits in one["by_width"].items():
            values = (waits["jobs"], waits["mean_s"], waits["longest_s"], waits["by_area_s"])
            cells = [number(value) for value in values]
            rows += row(escape(one["label"]), escape(width), *cells)
    return table(head, rows)


def _used(of: Sequence[Row]) -> str:
    """Part of each resource in use."""
    names = sorted({name for one in of for name in one["used"]})
    rows = "".join(
        row(escape(one["label"]), *(number(one["used"].get(name)) for name in names)) for one in of
    )
    return table(("In use", *names), rows)


def _bars(of: Sequence[Row], name: str) -> dict[str, Any]:
    """Means with one standard deviation; the log's own PBS first, where it is known.

    Without FIFO, SJF and LJF: their means are so great that no other bar could be seen.
    """
    log = of[0]["log"].get("wait_in_the_log_s" if name == "wait_s" else "slowdown_in_the_log")
    known = [(PBS, log)] if log and log["mean"] is not None else []
    shown = [row for row in of if not row["label"].startswith(LEFT_OUT)]
    bars = [*known, *((row["label"], row[name]) for row in shown if row[name]["mean"] is not None)]
    trace = {
        "type": "bar",
        "x": [label for label, _ in bars],
        "y": [spread["mean"] for _, spread in bars],
        "error_y": {
            "type": "data",
            "color": ERROR_BARS,
            "symmetric": False,
            "array": [spread["deviation"] for _, spread in bars],
            "arrayminus": [min(spread["deviation"], spread["mean"]) for _, spread in bars],
        },
    }
    axes = {"xaxis": {"automargin": True}, "yaxis": {"rangemode": "tozero"}}
    return {"data": [trace], "layout": axes}


def _scatter(known: Sequence[Row], ratio: Any) -> dict[str, Any]:
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": source,
            "x": [row["variables"]["pcp19"] for row in of],
            "y": [ratio(row) for row in of],
        }
        for source in sorted({row["source"] for row in known})
        if (of := [r for r in known if r["source"] == source and r["variables"]["pcp19"]])
    ]
    axes = {
        "xaxis": {"type": "log", "title": {"text": "Variables of PCP'19"}},
        "yaxis": {"type": "log", "title": {"text": "PCP'20 over PCP'19"}},
    }
    return {"data": traces, "layout": axes}


def _variables(row: Row) -> float:
    return float(row["variables"]["pcp20"] / row["variables"]["pcp19"])


def _times(row: Row) -> float:
    decisions = row["decisions"]
    return float(decisions["pcp20"]["cpu_s"] / max(1e-6, decisions["pcp19"]["cpu_s"]))


def _instances(found: Row, times: Row) -> str:
    if not found["modelled"]:
        return "<section><h2>Figures 6 and 7</h2><p>No instance had a model.</p></section>"
    lines = (
        ("Variables, PCP'20 over PCP'19 by the formulas (paper: below 0.1)", found["variables"]),
        ("The same, PCP'19 with every unit on every node", found["variables_on_every_node"]),
        ("CPU time, PCP'20 over PCP'19 (paper: 0.01 to 1 on almost all)", times),
        ("Sum of slowdowns, PCP'20 over PCP'19 (paper: 1 on most)", found["quality"]),
    )
    rows = "".join(
        row(escape(what), *(number(of[name]) for name in ("n", "least", "median", "most")))
        for what, of in lines
    )
    charts = chart_section("variables", "Figure 6: ratio of variables") + chart_section(
        "times", "Figure 7: ratio of times"
    )
    told = (
        f"<p>{found['modelled']} of {found['instances']} instances had a model; PCP'19 had no"
        f" answer on {found['without_answer_of_pcp19']}.</p>"
    )
    head = ("Ratio", "Instances", "Least", "Median", "Most")
    return f'<div class="charts">{charts}</div><section>{told}{table(head, rows)}</section>'


def _claims(results: Row) -> str:
    """A line for each simulation, a column for each claim."""
    claims = list(dict.fromkeys(of["claim"] for of in results["claims"]))
    found = {(of["setting"], of["label"], of["claim"]): of["here"] for of in results["claims"]}
    rows = "".join(
        row(
            escape(f"{results['titles'][setting]}: {label}"),
            *(number(found.get((setting, label, claim))) for claim in claims),
        )
        for setting, label in dict.fromkeys((setting, label) for setting, label, _ in found)
    )
    head = ("Means over others' means", *(claim for claim in claims))
    return f"<section><h2>Ratios of quality</h2>{table(head, rows)}</section>"
