"""Report of a run: lines as scenarios end, a table for people, JSON for programs."""

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

Figures = Mapping[str, object]

COLUMNS = ("rate_per_s", "p50_ms", "p95_ms", "p99_ms")
GOALS = {
    "submit to first step": ("p95_ms", 3000.0),
    "200 short jobs, new kind": ("seconds", 25.0),
    "submit to running": ("p99_ms", 2000.0),
    "submissions": ("p99_ms", 500.0),
    "submissions, 50 a call": ("p99_ms", 500.0),
    "heartbeats": ("p99_ms", 250.0),
    "one batch job, submit to running": ("p95_ms", 1000.0),
    "200 batch jobs": ("seconds", 10.0),
    "an array of 900": ("seconds", 45.0),
    "submissions, one after another": ("mean_ms", 10.0),
    "the same on full nodes": ("mean_ms", 10.0),
    "others, beside a flood": ("p99_ms", 250.0),
    "others, beside arrays of 10000": ("p99_ms", 1000.0),
}
"""Scenario -> (figure, its limit); for pages PAGE_GOAL, for submissions also the rate."""

PAGE_GOAL = ("p95_ms", 200.0)
LEAST_RATES = {
    "submissions": ("rate_per_s", 80.0),
    "submissions, 50 a call": ("jobs_per_s", 350.0),
}
"""Scenario -> (figure, the least jobs/s until the last answer)."""


class Report:
    """Prints each scenario's figures as they come, and all of them at the end."""

    def __init__(self, database: str, output: Path | None) -> None:
        self._database, self._output = database, output
        self._lines: list[dict[str, object]] = []
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        """A line for people."""
        print(text, flush=True)

    def scenario(self, name: str, figures: Figures) -> None:
        """Note a scenario, and how busy the machine was."""
        busy = {"load_average": round(os.getloadavg()[0], 1), "cores": os.cpu_count()}
        self._lines.append({"scenario": name, "database": self._database, **figures, **busy})
        shown = ", ".join(f"{key} {value}" for key, value in {**figures, **busy}.items())
        self.say(f"  {name:34} {shown}")

    def end(self) -> None:
        """Print the table and the JSON lines."""
        took_s = time.monotonic() - self._began_s
        self.say(
            f"\n{self._database}, Python {platform.python_version()}, {os.cpu_count()} cores,"
            f" {took_s:.0f} s\n"
        )
        self.say(table(self._lines))
        text = "\n".join(json.dumps(line) for line in self._lines)
        self.say(f"\n{text}")
        if self._output:
            with self._output.open("a") as file:
                file.write(text + "\n")


def table(lines: Sequence[Figures]) -> str:
    """A Markdown row per scenario: rate, percentiles, other figures, goal."""
    rows = [["scenario", "rate/s", "p50 ms", "p95 ms", "p99 ms", "goal", "load", "else"]]
    for line in lines:
        rest = {
            k: v
            for k, v in line.items()
            if k not in (*COLUMNS, "scenario", "database", "load_average", "cores")
        }
        numbers = [str(line.get(column, "")) for column in COLUMNS]
        rows.append(
            [
                str(line["scenario"]),
                *numbers,
                goal(line),
                str(line.get("load_average", "")),
                _short(rest),
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    text = [
        "| "
        + " | ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]])
        + " |"
        for row in rows
    ]
    return "\n".join([text[0], "|" + "---|" * len(rows[0]), *text[1:]])


def goal(line: Figures) -> str:
    """ "yes" or "no" to the goal; empty without one."""
    name = str(line["scenario"])
    what, most = GOALS.get(name, PAGE_GOAL if "queries" in line else ("", 0.0))
    if not what:
        return ""
    reached = _number(line, what) <= most
    if name in LEAST_RATES:
        rate, least = LEAST_RATES[name]
        reached = reached and _number(line, rate) >= least and not line.get("lost")
    return "yes" if reached else "no"


def _number(line: Figures, name: str) -> float:
    value = line.get(name)
    return float(value) if isinstance(value, (int, float)) else float("inf")


def _short(figures: Figures) -> str:
    """name value, ...; of what is nested, the inner ones in brackets."""
    inner = {k: f"({_short(v)})" if isinstance(v, Mapping) else str(v) for k, v in figures.items()}
    return ", ".join(f"{k} {v}" for k, v in inner.items())
