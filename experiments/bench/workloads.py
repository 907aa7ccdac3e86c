"""How long a long trace takes to be read: 1,000,000 lines of SWF and of our own CSV.

    python -m experiments.bench.workloads

Prints one JSON line per figure: name, median, goal, ratio (median / goal), unit, and what this
process took at most of memory. Times are of the processor, which on a machine of one's own are
those of the clock.
"""

from __future__ import annotations

import json
import platform
import resource
from collections.abc import Iterator
from time import process_time
from typing import Any

from controlplane.simulation.workloads import load

JOBS = 1_000_000
GOAL_S = 60.0


def main() -> None:
    """Print the figures."""
    for name, spec in specifications():
        started = process_time()
        jobs = len(load(spec, 1).jobs)
        took_s = process_time() - started
        figure = {
            "name": f"read {name}, {jobs:,} jobs",
            "median": took_s,
            "goal": GOAL_S,
            "ratio": took_s / GOAL_S,
            "unit": "s",
        }
        memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            json.dumps({**figure, "memory_gb": memory_gb, "machine": platform.machine()}),
            flush=True,
        )


def specifications() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and specification of each long trace; made when asked for, so that one is in memory at a
    time.
    """
    swf = "".join(
        f"{i} {i * 7} -1 {60 + i % 5000} {1 + i % 8} -1 -1 -1 9000 -1 1 {i % 99} 1 -1 0 -1 -1 -1\n"
        for i in range(JOBS)
    )
    yield "SWF", {"type": "swf", "text": swf, "speeds": {"V100": 1.0}}
    rows = "".join(
        f"j{i},{i * 7},{60 + i % 5000},{1 + i % 8},{i * 7 + 9000}\n" for i in range(JOBS)
    )
    yield (
        "CSV",
        {"type": "csv", "text": f"id,arrival_s,run_s,gpus,due_s\n{rows}", "speeds": {"V100": 1.0}},
    )


if __name__ == "__main__":
    main()
