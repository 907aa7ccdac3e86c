"""Charts of a study's report as Plotly's {data, layout}; deterministic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from controlplane.simulation.report.standalone import ERROR_BARS
from controlplane.simulation.report.summary import LEVELS, PolicySummary, Summary, Timeline
from controlplane.web.pages.gantt import LANE_PX, PALETTE, colour
from policies.contract.snapshot import Floats

HOUR_S = 3600.0
Figure = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its element's id, heading, what to know when reading it, and its figure."""

    id: str
    title: str
    note: str
    figure: Figure


def charts_of(summary: Summary) -> list[Chart]:
    """Every chart but the timelines."""
    seeds = (
        f"mean over {len(summary.study.seeds)} seeds"
        if len(summary.study.seeds) > 1
        else f"seed {summary.study.seeds[0]}"
    )
    error = (
        ", with the 95% confidence interval of the total" if len(summary.study.seeds) > 1 else ""
    )
    first = f"seed {summary.study.seeds[0]}"
    jct, slow = (
        {p.choice.label: _middle(found(p)) for p in summary.policies}
        for found in (_jct_s, _slowdown)
    )
    return [
        Chart("cost", "Cost", f"{seeds}{error}", _costs(summary)),
        Chart(
            "jct",
            "Completion time",
            f"part of the jobs completed within, {seeds}",
            _distribution(jct, "hours", HOUR_S),
        ),
        Chart(
            "slowdown",
            "Bounded slowdown",
            f"part of the jobs below, {seeds}",
            _distribution(slow, "times the best run time"),
        ),
        Chart("gpus", "GPUs in use", first, _in_use(summary)),
    ]


def timelines_of(summary: Summary) -> list[Chart]:
    """Timelines by policy, in the first seed."""
    shown = [(p.choice.label, p.timeline) for p in summary.policies if p.timeline is not None]
    return [
        Chart(f"timeline-{i}", label, _left_out(t), _stays(t)) for i, (label, t) in enumerate(shown)
    ]


def _jct_s(policy: PolicySummary) -> Mapping[int, Floats]:
    return policy.jct_s


def _slowdown(policy: PolicySummary) -> Mapping[int, Floats]:
    return policy.bounded_slowdown


def _middle(by_seed: Mapping[int, Floats]) -> Floats:
    """The seeds' mean, level by level; seeds of which nothing is known (nan) do not count."""
    known = [values for values in by_seed.values() if np.isfinite(values).all()]
    middle: Floats = np.mean(known, axis=0) if known else np.zeros(0)
    return middle


def _costs(summary: Summary) -> Figure:
    labels = [p.choice.label for p in summary.policies]
    means = [p.intervals for p in summary.policies]
    parts = (
        ("energy_cost", "energy", PALETTE[0]),
        ("unfinished_cost", "unfinished jobs, at least", PALETTE[7]),
        ("tardiness_cost", "tardiness", PALETTE[2]),
    )
    data = [
        {
            "type": "bar",
            "name": words,
            "x": labels,
            "y": [_number(m[name].mean) for m in means],
            "marker": {"color": tone},
        }
        for name, words, tone in parts
    ]
    data[-1]["error_y"] = {
        "type": "data",
        "array": [m["total_cost"].half_width or 0.0 for m in means],
        "color": ERROR_BARS,
        "visible": True,
    }
    layout = {
        "barmode": "stack",
        "yaxis": {"title": {"text": summary.study.scenario.currency}, "rangemode": "tozero"},
    }
    return {"data": data, "layout": {**layout, "xaxis": {"type": "category", "automargin": True}}}


def _distribution(by_label: Mapping[str, Floats], unit: str, scale: float = 1.0) -> Figure:
    data = [
        _line(i, label, [_number(v / scale) for v in values.tolist()], LEVELS.tolist())
        for i, (label, values) in enumerate(by_label.items())
    ]
    above = all(values.min() > 0.0 for values in by_label.values() if len(values))
    axis = (
        {"title": {"text": unit}, "type": "log" if above else "linear", "dtick": "D2"}
        if above
        else {"title": {"text": unit}}
    )
    return {
        "data": data,
        "layout": {"xaxis": axis, "yaxis": {"tickformat": ".0%", "range": [0, 1.02]}},
    }


def _in_use(summary: Summary) -> Figure:
    shown = [
        (i, p.choice.label, p.timeline)
        for i, p in enumerate(summary.policies)
        if p.timeline is not None
    ]
    data = []
    for i, label, t in shown:
        parts = [_number(v / max(1, t.gpus)) for v in t.in_use.tolist()]
        data.append(
            {
                **_line(i, label, _hours(t.edges_s[:-1]), parts),
                "line": {"color": _tone(i), "width": 2, "shape": "hv"},
            }
        )
    layout = {
        "xaxis": {"title": {"text": "hours"}},
        "yaxis": {"tickformat": ".0%", "range": [0, 1.02]},
    }
    return {"data": data, "layout": layout}


def _stays(timeline: Timeline) -> Figure:
    lanes, stays = timeline.lanes, timeline.stays
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": [lanes[lane] for lane, _, _, _ in stays],
        "base": [round(from_s / HOUR_S, 6) for _, _, from_s, _ in stays],
        "x": [round((to_s - from_s) / HOUR_S, 6) for _, _, from_s, to_s in stays],
        "text": [escape(job) for _, job, _, _ in stays],
        "textposition": "inside",
        "insidetextanchor": "start",
        "constraintext": "inside",
        "textangle": 0,
        "hovertext": [
            f"<b>{escape(job)}</b><br>{from_s:,.0f} s to {to_s:,.0f} s"
            for _, job, from_s, to_s in stays
        ],
        "hoverinfo": "text+y",
        "marker": {"color": [colour(job) for _, job, _, _ in stays], "line": {"width": 0.5}},
    }
    names = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": list(reversed(lanes)),
        "automargin": True,
    }
    layout = {
        "barmode": "overlay",
        "bargap": 0.25,
        "height": 100 + LANE_PX * max(1, len(lanes)),
        "showlegend": False,
        "hovermode": "closest",
        "uniformtext": {"mode": "hide", "minsize": 9},
        "xaxis": {"title": {"text": "hours"}, "rangemode": "tozero"},
        "yaxis": {**names, "range": [-0.5, len(lanes) - 0.5]},
    }
    return {"data": [bars], "layout": layout}


def _left_out(timeline: Timeline) -> str:
    hidden = [
        f"{count:,} {words}"
        for count, words in (
            (timeline.hidden_lanes, "GPUs"),
            (timeline.hidden_stays, "later stays"),
        )
        if count
    ]
    return f"not shown: {' and '.join(hidden)}" if hidden else ""


def _line(i: int, label: str, x: Sequence[float | None], y: Sequence[float | None]) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label,
        "x": list(x),
        "y": list(y),
        "line": {"color": _tone(i), "width": 2},
    }


def _tone(i: int) -> str:
    return PALETTE[i % len(PALETTE)]


def _hours(times_s: Floats) -> list[float | None]:
    return [round(t / HOUR_S, 6) for t in times_s.tolist()]


def _number(value: float) -> float | None:
    """Six digits are more than any chart shows; JSON has no nan."""
    return float(f"{value:.6g}") if np.isfinite(value) else None
