"""The timeline's figure: bars become traces of a chart."""

from __future__ import annotations

import json

from controlplane.gantt import OTHERS, PALETTE, Bar, colour, figure


def drawn(*bars: Bar, lanes: tuple[str, ...] = ("a 0", "a 1")) -> dict[str, dict[str, object]]:
    made = figure(bars, lanes, 0.0, 3600.0, 1800.0)
    json.dumps(made)
    return {trace["name"]: trace for trace in made["data"]}


def test_a_bar_lies_where_its_times_are() -> None:
    ran = drawn(Bar("a 0", "job", "resnet", 60.0, 120.5, "ran"))["ran"]
    assert ran["base"] == ["1970-01-01T00:01:00.000"]
    assert ran["x"] == [60_500.0]
    assert ran["y"] == ["a 0"]


def test_every_kind_of_bar_has_its_own_trace() -> None:
    traces = drawn(*(Bar("a 0", "job", "resnet", 0.0, 1.0, kind) for kind in ("ran", "running", "profiling", "planned")))
    assert all(len(trace["x"]) == 1 for trace in traces.values())  # type: ignore[arg-type]  # plain data
    assert traces["planned"]["text"] == [""]


def test_lanes_without_work_stay_on_the_chart_from_top_to_bottom() -> None:
    axis = figure((), ("a 0", "a 1", "b 0"), 0.0, 1.0, 0.5)["layout"]["yaxis"]
    assert axis["categoryarray"] == ["b 0", "a 1", "a 0"]
    assert axis["range"] == [-0.5, 2.5]


def test_a_job_keeps_its_colour_and_another_teams_job_has_none() -> None:
    assert colour("job") == colour("job") in PALETTE
    assert len({colour(str(i)) for i in range(200)}) == len(PALETTE)
    assert colour("") == OTHERS


def test_names_cannot_become_markup() -> None:
    ran = drawn(Bar("a 0", "job", "<b>x</b>", 0.0, 1.0, "ran", "steps <1>"))["ran"]
    assert ran["text"] == ["&lt;b&gt;x&lt;/b&gt;"]
    assert "steps &lt;1&gt;" in str(ran["hovertext"])
