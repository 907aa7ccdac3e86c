"""Charts of an experiment, as Plotly has them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.reproduce.gavel.model import Chart, Experiment

Point = Mapping[str, Any]
COLOURS = ("31,119,180", "255,127,14", "44,160,44")
"""Colours of a timeline's entities."""


def charts_of(experiment: Experiment, points: Sequence[Point]) -> list[dict[str, Any]]:
    """{"id", "title", "traces", "layout"} of each chart that has something to show."""
    made = [_chart(experiment, i, chart, points) for i, chart in enumerate(experiment.charts)]
    return [chart for chart in made if chart["traces"]]


def _chart(
    experiment: Experiment, number: int, chart: Chart, points: Sequence[Point]
) -> dict[str, Any]:
    draw = _DRAWN[chart.kind]
    return {
        "id": f"chart-{experiment.id}-{number}",
        "title": chart.title,
        **draw(experiment, chart, points),
    }


def _lines(experiment: Experiment, chart: Chart, points: Sequence[Point]) -> dict[str, Any]:
    y = {"type": "log"} if chart.log else {"rangemode": "tozero"}
    if len(experiment.specs) == 1:
        of = [p for p in points if chart.metric in p["means"]]
        bars = {
            "type": "bar",
            "x": [p["series"] for p in of],
            "y": [p["means"][chart.metric] for p in of],
        }
        return {"traces": [bars] if of else [], "layout": {"yaxis": y}}
    traces = [_line(series.label, chart.metric, points) for series in experiment.series]
    x = {"title": {"text": experiment.x_title}, **({"type": "log"} if chart.log else {})}
    return {"traces": [t for t in traces if t["x"]], "layout": {"xaxis": x, "yaxis": y}}


def _line(label: str, metric: str, points: Sequence[Point]) -> dict[str, Any]:
    of = sorted(
        (p for p in points if p["series"] == label and metric in p["means"]),
        key=lambda p: float(p["x"]),
    )
    trace: dict[str, Any] = {
        "x": [p["x"] for p in of],
        "y": [p["means"][metric] for p in of],
        "name": label,
        "mode": "lines+markers",
    }
    if of and all(metric in p["deviations"] for p in of):
        trace["error_y"] = {
            "type": "data",
            "array": [p["deviations"][metric] for p in of],
            "thickness": 1,
        }
    return trace


def _quantiles(experiment: Experiment, chart: Chart, points: Sequence[Point]) -> dict[str, Any]:
    last = max(experiment.specs)
    known = [p for p in points if p["x"] == last and chart.metric in p["lists"]]
    traces: list[dict[str, Any]] = [
        {
            "x": p["lists"][chart.metric],
            "y": np.linspace(0.0, 1.0, len(p["lists"][chart.metric])).tolist(),
            "name": p["series"],
        }
        for p in known
    ]
    return {
        "traces": traces,
        "layout": {"xaxis": {"type": "log"}, "yaxis": {"rangemode": "tozero"}},
    }


def _shares(experiment: Experiment, chart: Chart, points: Sequence[Point]) -> dict[str, Any]:
    """Bands of the jobs' parts of the total, stacked, those of an entity in one colour."""
    of = next(
        (p["lists"] for p in points if p["series"] == "aware" and "parts" in p["lists"]), None
    )
    if of is None:
        return {"traces": [], "layout": {}}
    parts = np.array(of["parts"], dtype=np.float64)
    fractions = parts / np.maximum(parts.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    every = int(next(iter(experiment.specs.values()))["every"])
    traces = [
        _band(i, fractions[:, i].tolist(), int(entity), every)
        for i, entity in enumerate(of["entity"])
    ]
    return {
        "traces": traces,
        "layout": {"xaxis": {"title": {"text": "time step"}}, "showlegend": False},
    }


def _band(job: int, parts: Sequence[float], entity: int, every: int) -> dict[str, Any]:
    x = [step * every for step in range(len(parts))]
    fill, line = (
        f"rgba({COLOURS[entity]},{0.4 + 0.1 * (job % 6)})",
        {"width": 0.5, "color": "white", "shape": "hv"},
    )
    name = f"job {job + 1}, entity {entity}"
    return {
        "x": x,
        "y": list(parts),
        "name": name,
        "stackgroup": "all",
        "fillcolor": fill,
        "line": line,
        "mode": "lines",
    }


def _totals(experiment: Experiment, chart: Chart, points: Sequence[Point]) -> dict[str, Any]:
    every = int(next(iter(experiment.specs.values()))["every"])
    known = [(p["series"], p["lists"]["totals"]) for p in points if "totals" in p["lists"]]
    traces = [
        {"x": [i * every for i in range(len(t))], "y": t, "name": name, "line": {"shape": "hv"}}
        for name, t in known
    ]
    return {
        "traces": traces,
        "layout": {"xaxis": {"title": {"text": "time step"}}, "yaxis": {"rangemode": "tozero"}},
    }


_DRAWN = {"lines": _lines, "quantiles": _quantiles, "shares": _shares, "totals": _totals}
