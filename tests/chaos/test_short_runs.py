"""Short forms of `make chaos`: a real system is struck, every invariant is checked and holds."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.chaos.checks import invariants as named
from experiments.chaos.faults.choice import chosen
from experiments.chaos.schedule import CLOCK

ROOT = Path(__file__).parents[2]
PATIENCE_S = 900
LONG_S = 3600
ALL = {value for name, value in vars(named).items() if name.isupper() and isinstance(value, str)}
SHORT = ("--gap", "0.5", "--grace", "3", "--active", "12", "--most", "15", "--steps", "8")
"""Each form of job once, and little grace."""


def chaos(folder: Path, *options: str, postgres: bool = False) -> dict[str, Any]:
    """Run `python -m experiments.chaos` on a database of its own; its result."""
    apart = ("DATABASE_URL", "REDIS_URL", "PYTHONWARNINGS")
    environment = {name: value for name, value in os.environ.items() if name not in apart}
    environment["POSTGRES_SYNC"] = "on"
    server = [str(ROOT / "tests" / "with-postgres")] if postgres else []
    command = [*server, sys.executable, "-m", "experiments.chaos", "--folder", str(folder)]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=LONG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def assert_all_was_checked(result: dict[str, Any], blows: int) -> None:
    """Say once more from its figures what the run's exit code stands for."""
    assert sum(result["struck"].values()) == blows
    found = {one["name"]: one for one in result["invariants"]}
    assert set(found) == ALL
    assert all(one["checked"] > 0 and one["wrong"] == [] for one in found.values())


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
def test_every_fault_once_loses_nothing(tmp_path: Path) -> None:
    parts = set(chosen("", "clock,database", tmp_path / "trial", print))
    options = ("--kills", str(len(parts)), "--jumps", "4", "--seed", "2621", *SHORT)
    result = chaos(tmp_path / "run", *options)
    assert_all_was_checked(result, len(parts) + 4)
    assert set(result["struck"]) == parts | {CLOCK}


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(PATIENCE_S)
def test_every_fault_once_loses_nothing_on_postgresql(tmp_path: Path) -> None:
    parts = set(chosen("", "clock", tmp_path / "trial", print))
    assert "database" in parts, "run with tests/with-postgres"
    options = ("--kills", str(len(parts)), "--jumps", "4", "--seed", "2622", *SHORT)
    result = chaos(tmp_path / "run", *options, postgres=True)
    assert_all_was_checked(result, len(parts) + 4)
    assert set(result["struck"]) == parts | {CLOCK}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(LONG_S)
def test_a_hundred_kills_and_sixty_jumps_lose_nothing(tmp_path: Path) -> None:
    parts = set(chosen("", "clock,database", tmp_path / "trial", print))
    result = chaos(tmp_path / "run", "--kills", "100", "--jumps", "60", "--seed", "2623")
    assert_all_was_checked(result, 160)
    assert set(result["struck"]) >= parts | {CLOCK}


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.nightly
@pytest.mark.timeout(LONG_S)
def test_forty_kills_and_thirty_jumps_lose_nothing_on_postgresql(tmp_path: Path) -> None:
    parts = set(chosen("", "clock", tmp_path / "trial", print))
    options = ("--kills", "40", "--jumps", "30", "--seed", "2624")
    result = chaos(tmp_path / "run", *options, postgres=True)
    assert_all_was_checked(result, 70)
    assert set(result["struck"]) >= parts | {CLOCK, "database"}


@pytest.mark.root
@pytest.mark.nightly
@pytest.mark.timeout(LONG_S)
def test_fifty_partitions_lose_nothing(tmp_path: Path) -> None:
    result = chaos(tmp_path / "run", "--partitions", "50", "--seed", "2625")
    assert_all_was_checked(result, 50)


@pytest.mark.root
@pytest.mark.timeout(PATIENCE_S)
def test_six_partitions_lose_nothing(tmp_path: Path) -> None:
    options = ("--partitions", "6", "--seed", "2", "--short-leases", "--steps", "8")
    assert_all_was_checked(chaos(tmp_path / "run", *options, "--most", "15"), 6)
