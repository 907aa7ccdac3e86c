"""The timeline's figure: bars become traces of a chart."""

import json
from typing import Any

import pytest

from controlplane.web.pages.gantt import BAR_HEIGHT, OTHERS, PALETTE, Bar, colour, figure, row_of


def drawn(*bars: Bar, lanes: tuple[str, ...] = ("a 0", "a 1")) -> dict[str, dict[str, Any]]:
    made = figure(bars, lanes, 0.0, 3600.0, 1800.0)
    json.dumps(made)
    return {trace["name"]: trace for trace in made["data"]}


def test_a_bar_lies_where_its_times_are() -> None:
    ran = drawn(Bar("a 0", "job", "resnet", 60.0, 120.5, "ran"))["ran"]
    assert ran["base"] == ["1970-01-01T00:01:00.000"]
    assert ran["x"] == [60_500.0]
    assert ran["y"] == ["a 0"]


def test_every_kind_of_bar_has_its_own_trace() -> None:
    traces = drawn(
        *(
            Bar("a 0", "job", "resnet", 0.0, 1.0, kind)
            for kind in ("ran", "running", "profiling", "planned", "coming")
        )
    )
    assert all(len(trace["x"]) == 1 for trace in traces.values())
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
    link = "<a href='//x.example'>v</a> 0"
    axis = figure((), (link,), 0.0, 1.0, 0.5)["layout"]["yaxis"]
    assert axis["ticktext"] == ["&lt;a href='//x.example'&gt;v&lt;/a&gt; 0"]
    ran = drawn(Bar("a 0", "job", "<b>x</b>", 0.0, 1.0, "ran", "steps <1>"))["ran"]
    assert ran["text"] == ["&lt;b&gt;x&lt;/b&gt;"]
    assert "steps &lt;1&gt;" in str(ran["hovertext"])


def test_jobs_that_share_a_gpu_lie_under_each_other_in_its_lane() -> None:
    pair = [
        Bar("a 0", str(slot), "j", 0.0, 9.0, "running", "", *row_of(slot, 0.5)) for slot in (0, 1)
    ]
    trace = drawn(*pair, Bar("a 1", "alone", "k", 0.0, 9.0, "running", "", *row_of(0, 1.0)))[
        "running"
    ]
    spans = [(at, at + width) for at, width in zip(trace["offset"], trace["width"], strict=True)]
    (_, top), (_, middle), (left, right) = spans
    assert top == pytest.approx(BAR_HEIGHT / 2, abs=0.05)
    assert middle < spans[0][0]
    assert min(at for at, _ in spans) >= -BAR_HEIGHT / 2 - 1e-9
    assert (left, right) == (pytest.approx(-BAR_HEIGHT / 2), pytest.approx(BAR_HEIGHT / 2))


@pytest.mark.parametrize(
    ("slot", "share", "place"),
    [(0, 1.0, (0, 1)), (1, 0.5, (1, 2)), (2, 0.5, (2, 3)), (0, 0.25, (0, 4)), (0, 0.0, (0, 1))],
)
def test_a_lane_has_a_row_for_every_job_that_may_be_on_it(
    slot: int, share: float, place: tuple[int, int]
) -> None:
    assert row_of(slot, share) == place


def test_long_names_of_nodes_are_cut_in_the_middle_and_stay_whole_under_the_pointer() -> None:
    lane = f"{'a-node-with-a-long-name' * 3}.example · V100 3"
    made = figure([Bar(lane, "job", "j", 0.0, 9.0, "ran")], (lane, "b · V100 0"), 0.0, 9.0, 5.0)
    label, short = made["layout"]["yaxis"]["ticktext"]
    assert len(label) <= 40
    assert (label[:6], label[-9:], short) == ("a-node", " · V100 3", "b · V100 0")
    assert lane in made["data"][0]["hovertext"][0]
