"""`make load` in small: everything starts, every scenario plays, nothing that was acknowledged is
lost.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = {
    "agents": 20, "jobs": 200, "nodes": 5, "seconds": 3, "rate": 20, "single-rate": 20,
    "reads": 1, "starts": 1, "burst": 5, "batch": 20, "array": 50,
    "large-array": 300,
}  # fmt: skip
PATIENCE_S = 900
"""A minute on an idle machine."""


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.slow
def test_a_short_run_plays_every_scenario_and_loses_nothing(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    options = {**SMALL, "database": "sqlite", "output": lines}
    done = subprocess.run(
        [sys.executable, "-m", "experiments.load", *(f"--{k}={v}" for k, v in options.items())],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    figures = {line["scenario"]: line for line in map(json.loads, lines.read_text().splitlines())}
    assert {
        "submit to first step",
        "5 short jobs, new kind",
        "an array of 50",
        "submit to running",
        "submissions",
        "submissions, 50 a call",
        "others, beside arrays of 300",
        "round",
        "heartbeats",
    } <= figures.keys()
    assert figures["submit to running"]["answers"] == {"running": 1}
    assert figures["submissions"]["lost"] == figures["submissions, 50 a call"]["lost"] == 0
    assert figures["submissions"]["answers"]["201"] > 0
    assert figures["others, beside arrays of 300"]["leases_lost"] == 0
    assert {"submit", "hold", "release", "cancel"} <= figures["others, beside arrays of 300"][
        "actions"
    ].keys()
    assert figures["nodes, operator"]["answers"] == {"200": 1}
