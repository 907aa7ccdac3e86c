"""Charts of a study's report as Plotly's {data, layout}; deterministic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.simulation.report.standalone import ERROR_BARS
from controlplane.simulation.report.summary import LEVELS, Summary, Timeline
from controlplane.web.pages.gantt import LANE_PX, PALETTE, colour, plain
from policies.contract.snapshot import Floats

HOUR_S = 3600.0

Figure = dict[str, Any]
"""Figure of Plotly, or a part of one."""

FRACTIONS: Figure = {"tickformat": ".0%", "range": [0, 1.02]}
"""Axis of fractions."""

BARS: Figure = {
    "type": "bar",
    "orientation": "h",
    "textposition": "inside",
    "insidetextanchor": "start",
    "constraintext": "inside",
    "textangle": 0,
    "hoverinfo": "text+y",
}
"""Bars of a timeline."""

LANES: Figure = {"type": "category", "categoryorder": "array", "automargin": True}
"""Axis of a timeline's lanes."""

TIMELINE: Figure = {
    "barmode": "overlay",
    "bargap": 0.25,
    "showlegend": False,
    "hovermode": "closest",
    "uniformtext": {"mode": "hide", "minsize": 9},
    "xaxis": {"title": {"text": "hours"}, "rangemode": "tozero"},
}
"""Layout of a timeline."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Chart: element id, heading, note and figure."""

    id: str
    title: str
    note: str
    figure: Figure


def charts_of(summary: Summary) -> list[Chart]:
    """Return the charts, timelines apart."""
    # 1. Costs.
    seeds = summary.study.seeds
    first_seed = f"seed {seeds[0]}"
    over = first_seed
    cost_note = first_seed
    if len(seeds) > 1:
        over = f"mean over {len(seeds)} seeds"
        cost_note = f"{over}, with the 95% confidence interval of the total"
    charts = [Chart("cost", "Cost", cost_note, _costs(summary))]

    # 2. Distributions of completion times and slowdowns.
    jct_s = {}
    slowdown = {}
    for policy in summary.policies:
        jct_s[policy.choice.label] = _mean_by_level(policy.jct_s)
        slowdown[policy.choice.label] = _mean_by_level(policy.bounded_slowdown)
    jct = _distribution(jct_s, "hours", HOUR_S)
    slowdowns = _distribution(slowdown, "times the best run time")
    jct_note = f"part of the jobs completed within, {over}"
    charts.append(Chart("jct", "Completion time", jct_note, jct))
    slowdown_note = f"part of the jobs below, {over}"
    charts.append(Chart("slowdown", "Bounded slowdown", slowdown_note, slowdowns))

    # 3. GPUs in use over time.
    charts.append(Chart("gpus", "GPUs in use", first_seed, _in_use(summary)))
    return charts


def timelines_of(summary: Summary) -> list[Chart]:
    """Return a timeline for each policy, in the first seed."""
    charts: list[Chart] = []
    for policy in summary.policies:
        timeline = policy.timeline
        if timeline is not None:
            name = f"timeline-{len(charts)}"
            note = _left_out(timeline)
            charts.append(Chart(name, policy.choice.label, note, _stays(timeline)))
    return charts


def _mean_by_level(by_seed: Mapping[int, Floats]) -> Floats:
    """Return the mean of the seeds at each level; seeds without figures (nan) do not count."""
    known = [values for values in by_seed.values() if np.isfinite(values).all()]
    return np.array(np.mean(known, axis=0) if known else ())


def _costs(summary: Summary) -> Figure:
    """Return stacked bars of the parts of each policy's total cost."""
    # 1. A series of bars for each part.
    intervals = [policy.intervals for policy in summary.policies]
    labels = [plain(policy.choice.label) for policy in summary.policies]
    data: list[Figure] = []
    for name, words, bar_colour in (
        ("energy_cost", "energy", PALETTE[0]),
        ("unfinished_cost", "unfinished jobs, at least", PALETTE[7]),
        ("tardiness_cost", "tardiness", PALETTE[2]),
    ):
        bars = {
            "type": "bar",
            "name": words,
            "x": labels,
            "y": [_number(by_name[name].mean) for by_name in intervals],
            "marker": {"color": bar_colour},
        }
        data.append(bars)

    # 2. The interval of the total, on the topmost part.
    halves = [by_name["total_cost"].half_width or 0.0 for by_name in intervals]
    data[-1]["error_y"] = {"type": "data", "array": halves, "color": ERROR_BARS, "visible": True}

    # 3. The axes.
    currency = {"title": {"text": plain(summary.study.scenario.currency)}, "rangemode": "tozero"}
    xaxis = {"type": "category", "automargin": True}
    return {"data": data, "layout": {"barmode": "stack", "yaxis": currency, "xaxis": xaxis}}


def _distribution(by_label: Mapping[str, Floats], unit: str, scale: float = 1.0) -> Figure:
    """Return a line for each policy: the part of its jobs up to each value.

    `by_label`: values at LEVELS, of which `scale` make a `unit`.
    """
    data = []
    for number, (label, values) in enumerate(by_label.items()):
        scaled = [_number(value / scale) for value in values.tolist()]
        data.append(_line(number, label, scaled, LEVELS.tolist()))
    axis: Figure = {"title": {"text": unit}}
    if all(values.min() > 0.0 for values in by_label.values() if len(values)):
        axis |= {"type": "log", "dtick": "D2"}
    return {"data": data, "layout": {"xaxis": axis, "yaxis": FRACTIONS}}


def _in_use(summary: Summary) -> Figure:
    """Return a line for each policy: the part of the GPUs that are in use over time."""
    data = []
    for number, policy in enumerate(summary.policies):
        timeline = policy.timeline
        if timeline is not None:
            gpus = max(1, timeline.gpus)
            parts = [_number(in_use / gpus) for in_use in timeline.in_use.tolist()]
            hours = [_hours(edge_s) for edge_s in timeline.edges_s[:-1].tolist()]
            data.append(_line(number, policy.choice.label, hours, parts, shape="hv"))
    layout = {"xaxis": {"title": {"text": "hours"}}, "yaxis": FRACTIONS}
    return {"data": data, "layout": layout}


def _stays(timeline: Timeline) -> Figure:
    """Return a bar for each stay of a job on a device, in lanes from the top."""
    # 1. The bars, as one list for each of their properties.
    lanes = [plain(lane) for lane in timeline.lanes]
    bars: Figure = {**BARS, "y": [], "base": [], "x": [], "text": [], "hovertext": []}
    colours = []
    for lane, job, from_s, to_s in timeline.stays:
        bars["y"].append(lanes[lane])
        bars["base"].append(_hours(from_s))
        bars["x"].append(_hours(to_s - from_s))
        bars["text"].append(plain(job))
        bars["hovertext"].append(f"<b>{plain(job)}</b><br>{from_s:,.0f} s to {to_s:,.0f} s")
        colours.append(colour(job))
    bars["marker"] = {"color": colours, "line": {"width": 0.5}}

    # 2. The lanes.
    yaxis = {"categoryarray": list(reversed(lanes)), "range": [-0.5, len(lanes) - 0.5], **LANES}
    height = 100 + LANE_PX * max(1, len(lanes))
    return {"data": [bars], "layout": {**TIMELINE, "height": height, "yaxis": yaxis}}


def _left_out(timeline: Timeline) -> str:
    """Return a note about what the timeline leaves out."""
    hidden = []
    if timeline.hidden_lanes:
        hidden.append(f"{timeline.hidden_lanes:,} GPUs")
    if timeline.hidden_stays:
        hidden.append(f"{timeline.hidden_stays:,} later stays")
    return f"not shown: {' and '.join(hidden)}" if hidden else ""


def _line(
    number: int, label: str, x: Sequence[float | None], y: Sequence[float | None], **style: str
) -> Figure:
    """Return a line in the colour of the policy with this number."""
    line = {"color": PALETTE[number % len(PALETTE)], "width": 2, **style}
    return {"type": "scatter", "mode": "lines", "name": plain(label), "x": x, "y": y, "line": line}


def _hours(seconds: float) -> float:
    """Return the hours of some seconds, to 4 ms."""
    return round(seconds / HOUR_S, 6)


def _number(value: float) -> float | None:
    """Round to six digits; None for nan, which JSON lacks."""
    return float(f"{value:.6g}") if np.isfinite(value) else None
