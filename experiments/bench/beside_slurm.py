"""`make bench-slurm`: the same jobs through a real Slurm and through Loadmaster, in turn.

Both have two nodes of eight cores on this machine. Slurm is measured as it is installed and with
its scheduler tuned for short jobs; Loadmaster by `make load SCENARIOS=batch`. Prints JSON lines:
medians of each figure, and Loadmaster's ratio to the tuned Slurm. Needs tests/with-slurm.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from experiments.bench.figures import figure, show

SYSTEMS = {
    "slurm": "bf_interval=30",
    "tuned slurm": "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1",
}
"""Each measured Slurm and its SchedulerParameters; 30 s is Slurm's own default interval."""

JOBS = 200
ELEMENTS = 900
PATIENCE_S = 600.0
"""Longest time in which Slurm may empty its queue."""

POLL_S = 0.1

GOALS = {"jobs": 0.8, "array": 0.8, "submission": 1.0}
"""Figure -> the largest ratio of Loadmaster to the tuned Slurm."""

UNITS = {"jobs": "s", "array": "s", "submission": "ms"}
NAMES = {
    "jobs": f"{JOBS} jobs of true, all done",
    "array": f"array of {ELEMENTS}, all done",
    "submission": "one submission, median",
}

Figures = dict[str, float]
"""Figure of GOALS -> its value in seconds or milliseconds."""


class BenchError(Exception):
    """A system that did not finish its jobs; the message says which."""


def slurm(parameters: str) -> Figures:
    """Measure Slurm with these SchedulerParameters."""
    _configure(parameters)
    submit = ["sbatch", "--ntasks=1", "--mem=10", "--output=/dev/null", "--wrap=true"]

    # 1. Jobs that are submitted one after another; each sbatch is timed.
    began_s = time.monotonic()
    took_ms: list[float] = []
    for _ in range(JOBS):
        call_s = time.monotonic()
        subprocess.run(submit, check=True, capture_output=True)
        took_ms.append(1000.0 * (time.monotonic() - call_s))
    jobs_s = _until_empty(began_s)

    # 2. An array.
    began_s = time.monotonic()
    subprocess.run([*submit, f"--array=0-{ELEMENTS - 1}"], check=True, capture_output=True)
    array_s = _until_empty(began_s)
    return {"jobs": jobs_s, "array": array_s, "submission": median(took_ms)}


def _configure(parameters: str) -> None:
    """Write the parameters into slurm.conf, and make the controller read it."""
    path = Path(os.environ["SLURM_CONF"])
    line = f"SchedulerParameters={parameters}"
    path.write_text(re.sub(r"^SchedulerParameters=.*$", line, path.read_text(), flags=re.MULTILINE))
    subprocess.run(["scontrol", "reconfigure"], check=True)


def _until_empty(began_s: float) -> float:
    """Wait until Slurm's queue is empty; return the seconds since `began_s`."""
    while subprocess.run(["squeue", "-h"], check=True, capture_output=True).stdout:
        if time.monotonic() - began_s > PATIENCE_S:
            raise BenchError(f"Slurm still has jobs after {PATIENCE_S:.0f} s")
        time.sleep(POLL_S)
    return time.monotonic() - began_s


def loadmaster() -> Figures:
    """Measure Loadmaster on SQLite, started anew for it."""
    command = [sys.executable, "-m", "experiments.load", "--database", "sqlite"]
    command += ["--scenarios", "batch", "--batch", str(JOBS), "--array", str(ELEMENTS)]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "figures"
        subprocess.run([*command, "--output", str(output)], check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in output.read_text().splitlines()]
    of_scenario = {line["scenario"]: line for line in lines}
    jobs = of_scenario[f"{JOBS} batch jobs"]
    array = of_scenario[f"an array of {ELEMENTS}"]
    if jobs["completed"] != JOBS or array["completed"] != ELEMENTS:
        raise BenchError("Loadmaster did not complete all jobs")
    return {
        "jobs": jobs["seconds"],
        "array": array["seconds"],
        "submission": of_scenario["submissions, one after another"]["p50_ms"],
    }


def figures(turns: int) -> Iterator[dict[str, object]]:
    """Measure each system once in each turn, and compare the medians over all turns."""
    runs: dict[str, list[Figures]] = {name: [] for name in (*SYSTEMS, "loadmaster")}
    for _ in range(turns):
        for name, parameters in SYSTEMS.items():
            runs[name].append(slurm(parameters))
        runs["loadmaster"].append(loadmaster())
    for key, goal in GOALS.items():
        medians = {name: median(run[key] for run in found) for name, found in runs.items()}
        ours = medians["loadmaster"]
        ratio = ours / medians["tuned slurm"]
        yield figure(
            f"beside Slurm: {NAMES[key]}, ratio to tuned Slurm",
            ratio,
            goal,
            "1",
            **{f"{name} ({UNITS[key]})": round(value, 1) for name, value in medians.items()},
        )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.beside_slurm")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each system")
    show(figures(parser.parse_args().turns))


if __name__ == "__main__":
    main()
