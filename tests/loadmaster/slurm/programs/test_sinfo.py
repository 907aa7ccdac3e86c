"""Lines of sinfo: nodes in groups, by state and by what else is asked for."""

from typing import Any

import pytest

from loadmaster.slurm.options.reading import ScriptError
from loadmaster.slurm.programs.columns import FormatError
from loadmaster.slurm.programs.sinfo import lines_of, state_of


def node(name: str, **values: Any) -> dict[str, Any]:
    """A free node of eight cores, with these values over it."""
    return {
        "name": name, "cluster": "lab", "address": f"{name}.lab", "state": "ready",
        "is_silent": False, "reason": "", "cores": 8.0, "used_cores": 0.0, "memory_gb": 16.777216,
        "gpus": 0, "used_gpus": 0, "gpu_type": "", "resources": {}, "labels": [], **values,
    }  # fmt: skip


IDLE = [node("n1"), node("n2")]
GPU = {"gpus": 4, "gpu_type": "V100", "labels": ["fast", "rack1"]}
MIXED = [node("n1", used_cores=2.0), node("n2", used_cores=8.0), node("n3"), node("n4")]


def lines(rows: list[dict[str, Any]], **options: str) -> list[str]:
    return lines_of(rows, {name.rstrip("_"): value for name, value in options.items()})


def test_nodes_of_one_state_are_one_line() -> None:
    assert lines(IDLE) == [
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST",
        "lab*         up   infinite      2   idle n[1-2]",
    ]
    assert lines(MIXED, noheader="")[:2] == [
        "lab*         up   infinite      1    mix n1",
        "lab*         up   infinite      1  alloc n2",
    ]


def test_each_node_has_a_line_if_nodes_are_asked_for() -> None:
    assert lines(IDLE, Node="") == [
        "NODELIST   NODES PARTITION STATE",
        "n1             1      lab* idle",
        "n2             1      lab* idle",
    ]


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({}, "idle"),
        ({"used_cores": 1.0}, "mix"),
        ({"used_cores": 8.0}, "alloc"),
        ({"used_gpus": 1}, "mix"),
        ({"state": "cordoned"}, "drain"),
        ({"state": "draining", "used_cores": 1.0}, "drng"),
        ({"state": "lost", "used_cores": 1.0}, "down"),
    ],
)
def test_a_state_has_slurms_word(values: dict[str, Any], word: str) -> None:
    assert state_of(node("n1", **values)) == word


def test_a_node_that_is_not_heard_of_has_a_star() -> None:
    rows = [node("n1", is_silent=True), node("n2", state="lost", is_silent=True)]
    assert lines(rows, format="%t %T %N", noheader="") == ["down* down* n2", "idle* idle* n1"]
    assert lines(rows, format="%N", noheader="", dead="") == ["n[1-2]"]
    assert lines([*rows, node("n3")], format="%N", noheader="", responding="") == ["n3"]


def test_columns_that_are_not_asked_for_part_no_nodes() -> None:
    assert lines(MIXED, format="%D %N", noheader="") == ["4 n[1-4]"]
    assert lines(MIXED, format="%A %F %C", noheader="") == ["2/2 2/2/0/4 10/22/0/32"]
    rows = [node("n1", **GPU), node("n2")]
    assert lines(rows, format="%N %G %f", noheader="") == [
        "n1 gpu:V100:4 fast,rack1",
        "n2 (null) (null)",
    ]


def test_of_different_nodes_the_least_is_named_unless_exactly() -> None:
    rows = [node("n1"), node("n2", cores=16.0)]
    assert lines(rows, format="%c %m", noheader="") == ["8+ 16000"]
    assert lines(rows, format="%c %N", noheader="", exact="") == ["8 n1", "16 n2"]


def test_filters_choose_nodes() -> None:
    assert lines(MIXED, format="%N", noheader="", nodes="n[2-3]") == ["n[2-3]"]
    assert lines(MIXED, format="%N", noheader="", states="idle,mix") == ["n[1,3-4]"]
    assert lines(MIXED, format="%N", noheader="", states="ALLOCATED") == ["n2"]
    assert lines(MIXED, format="%N", partition="other") == ["NODELIST"]
    assert lines(MIXED, states="drain", noheader="") == ["lab*         up   infinite      0    n/a"]
    assert lines(MIXED, states="drain", noheader="", Node="") == []
    with pytest.raises(ScriptError, match="Bad state string: 'busy'; there are alloc, "):
        lines(MIXED, states="idle,busy")
    assert lines(MIXED, format="%N", noheader="", partition="other,lab") == ["n[1-4]"]


def test_reasons_of_nodes_that_take_nothing_new_are_listed() -> None:
    rows = [node("n1", state="cordoned", reason="bad fan"), node("n2")]
    assert lines(rows, list_reasons="") == lines(rows)
    assert lines_of(rows, {"list-reasons": ""})[1].split() == [
        "bad",
        "fan",
        "Unknown",
        "Unknown",
        "n1",
    ]


def test_long_formats_name_columns() -> None:
    assert lines([node("n1", **GPU)], Format="NodeList:4,statelong:.6,Gres") == [
        "NODE STATEGRES",
        "n1    idlegpu:V100:4",
    ]


@pytest.mark.parametrize("options", [{"format": "%y"}, {"Format": "nothing"}])
def test_an_unknown_column_is_named_with_those_that_there_are(options: dict[str, str]) -> None:
    with pytest.raises(FormatError, match=r"sinfo has no .* here; there are"):
        lines_of(IDLE, options)
