"""Short forms of `make chaos`: a real system is struck, and nothing is lost, doubled or run twice
at once.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 900


def chaos(folder: Path, *options: str, before: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run `python -m chaos` on a database of its own; its result."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "REDIS_URL", "PYTHONWARNINGS")
    }
    command = [
        *before,
        sys.executable,
        "-m",
        "experiments.chaos",
        "--folder",
        str(folder),
        *options,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def holds(result: dict[str, Any], blows: int) -> bool:
    """Everything that the run's exit code stands for, said once more from its figures."""
    assert sum(result["struck"].values()) == blows
    assert set(result["states"]) == {"completed"}
    assert result["launches"] >= result["jobs"] == sum(result["states"].values()) > 0
    limited = result["limited"]
    assert (set(limited["states"]), limited["wrong"]) == ({"failed"}, [])
    assert limited["ended_at_walltime"] >= limited["jobs"] > 0
    batch = result["batch"]
    assert (set(batch["states"]), batch["wrong"]) == ({"completed"}, [])
    assert batch["launches"] >= sum(batch["states"].values()) > 1
    return (result["lost"], result["overlaps"], result["held_twice"], result["doubled"]) == (
        [],
        [],
        [],
        0,
    )


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.slow
def test_eight_kills_lose_nothing(tmp_path: Path) -> None:
    options = (
        "--kills",
        "8",
        "--seed",
        "3",
        "--gap",
        "1",
        "--active",
        "4",
        "--most",
        "4",
        "--steps",
        "10",
    )
    assert holds(chaos(tmp_path / "run", *options), 8)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(PATIENCE_S)
def test_forty_kills_lose_nothing_on_sqlite(tmp_path: Path) -> None:
    result = chaos(tmp_path / "run", "--kills", "40", "--seed", "5", "--gap", "1")
    assert holds(result, 40)
    assert set(result["struck"]) >= {"agent", "worker", "beat", "web", "broker"}


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(PATIENCE_S)
def test_forty_kills_lose_nothing_on_postgresql(tmp_path: Path) -> None:
    server = (str(ROOT / "tests" / "with-postgres"),)
    assert holds(
        chaos(tmp_path / "run", "--kills", "40", "--seed", "6", "--gap", "1", before=server), 40
    )


@pytest.mark.root
@pytest.mark.timeout(PATIENCE_S)
def test_six_partitions_lose_nothing(tmp_path: Path) -> None:
    options = (
        "--partitions",
        "6",
        "--seed",
        "2",
        "--short-leases",
        "--active",
        "4",
        "--steps",
        "15",
    )
    assert holds(chaos(tmp_path / "run", *options), 6)
