"""The chart of energy over time as the data of a Plotly figure. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusters.costs import CostRow

PARTS = (
    ("measured_kwh", "GPUs, measured", "#2f7f93"),
    ("modelled_kwh", "GPUs, modelled", "#7fb5c2"),
    ("rest_kwh", "rest of the nodes, modelled", "#b9c2cc"),
)


def figure(rows: Sequence[CostRow], by: str) -> dict[str, Any]:
    """Plotly's {data, layout}: a stacked bar an hour or day of measured and modelled kWh, and a line of what was predicted."""
    at = [row.name for row in rows]
    bars = [
        {
            "type": "bar",
            "name": words,
            "x": at,
            "y": [getattr(row, part) for row in rows],
            "marker": {"color": colour},
            "hovertemplate": "%{y:.3~g} kWh",
        }
        for part, words, colour in PARTS
    ]
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "predicted",
        "x": at,
        "y": [row.predicted_kwh for row in rows],
        "line": {"color": "#b0772e", "width": 2, "shape": "hvh"},
        "marker": {"size": 5},
        "hovertemplate": "%{y:.3~g} kWh",
    }
    layout = {
        "barmode": "stack",
        "bargap": 0.15,
        "height": 300,
        "hovermode": "x unified",
        "margin": {"l": 50, "r": 15, "t": 10, "b": 40},
        "legend": {"orientation": "h", "y": 1.12},
        "xaxis": {"type": "date" if by == "hour" else "category"},
        "yaxis": {"title": {"text": "kWh (IT)"}, "rangemode": "tozero"},
    }
    return {"data": [*bars, line], "layout": layout}
