"""The chart of energy over time as the data of a Plotly figure. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controlplane.accounting.costs import CostRow

PARTS = (
    ("measured_kwh", "GPUs, measured", "#2f7f93"),
    ("modelled_kwh", "GPUs, modelled", "#7fb5c2"),
    ("rest_kwh", "rest of the nodes, modelled", "#b9c2cc"),
)


def figure(rows: Sequence[CostRow], by: str) -> dict[str, Any]:
    """Plotly's {data, layout}: stacked bars of measured and modelled kWh, and the prediction."""
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
    marks = {
        "type": "scatter",
        "mode": "markers",
        "name": "predicted",
        "x": at,
        "y": [row.predicted_kwh for row in rows],
        "marker": {
            "symbol": "line-ew-open",
            "size": 16,
            "color": "#b0772e",
            "line": {"width": 3, "color": "#b0772e"},
        },
        "hovertemplate": "%{y:.3~g} kWh",
    }
    layout = {
        "barmode": "stack",
        "bargap": 0.15,
        "height": 300,
        "hovermode": "x unified",
        "showlegend": False,
        "margin": {"l": 65, "r": 15, "t": 10, "b": 40},
        "xaxis": {"type": "date" if by == "hour" else "category"},
        "yaxis": {"rangemode": "tozero", "ticksuffix": " kWh"},
    }
    return {"data": [*bars, marks], "layout": layout}
