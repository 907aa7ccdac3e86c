"""The table of a run, and which goals count as reached."""

import json
from pathlib import Path

import pytest

from experiments.load.report import Report, goal, table

BULK = "submissions, 50 a call"


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        ({"scenario": "heartbeats", "p99_ms": 250.0}, "yes"),
        ({"scenario": "heartbeats", "p99_ms": 250.1}, "no"),
        ({"scenario": "heartbeats"}, "no"),
        ({"scenario": "submissions", "p99_ms": 400.0, "rate_per_s": 80.0, "lost": 0}, "yes"),
        ({"scenario": "submissions", "p99_ms": 400.0, "rate_per_s": 79.9, "lost": 0}, "no"),
        ({"scenario": "submissions", "p99_ms": 400.0, "rate_per_s": 500.0, "lost": 1}, "no"),
        ({"scenario": BULK, "p99_ms": 400.0, "rate_per_s": 7.3, "jobs_per_s": 365.0}, "yes"),
        ({"scenario": BULK, "p99_ms": 400.0, "rate_per_s": 6.0, "jobs_per_s": 300.0}, "no"),
        ({"scenario": "queue, member", "p95_ms": 201.0, "queries": 9}, "no"),
        ({"scenario": "round", "seconds": 3.0}, ""),
    ],
)
def test_a_goal_is_reached_or_not(line: dict[str, object], reached: str) -> None:
    assert goal(line) == reached


def test_the_table_has_a_row_a_scenario_with_all_that_was_found() -> None:
    rows = table(
        [
            {"scenario": "round", "seconds": 3.0, "parts": {"web": {"cpu": 0.5}}},
            {"scenario": "nodes", "p95_ms": 9},
        ]
    ).splitlines()
    assert len(rows) == 4
    assert rows[2].endswith("| seconds 3.0, parts (web (cpu 0.5)) |")
    assert [cell.strip() for cell in rows[3].split("|")][1:5] == ["nodes", "", "", "9"]


def test_what_is_printed_last_are_json_lines_with_how_busy_the_machine_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report("sqlite", tmp_path / "lines.jsonl")
    report.scenario("round", {"seconds": 3.0})
    report.end()
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (line["scenario"], line["database"], line["seconds"]) == ("round", "sqlite", 3.0)
    assert line["load_average"] >= 0
    assert json.loads((tmp_path / "lines.jsonl").read_text()) == line
