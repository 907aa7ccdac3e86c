"""Time to read a million lines: `python -m experiments.bench.simulation.workloads`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from controlplane.simulation.workloads import load
from experiments.bench.figures import Figure, figure, peak_mb, seconds, show

JOBS = 1_000_000
GOAL_S = 60.0


def figures() -> Iterator[Figure]:
    """A figure for each format."""
    for name, spec in specifications():
        took_s, workload = seconds(partial(load, spec, 1))
        words = f"read {name}, {len(workload.jobs):,} jobs"
        yield figure(words, took_s, GOAL_S, "s", peak_mb=peak_mb())


def specifications() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and specification of each long trace, one in memory at a time."""
    swf = "".join(
        f"{i} {i * 7} -1 {60 + i % 5000} {1 + i % 8} -1 -1 -1 9000 -1 1 {i % 99} 1 -1 0 -1 -1 -1\n"
        for i in range(JOBS)
    )
    yield "SWF", {"type": "swf", "text": swf, "speeds": {"V100": 1.0}}
    rows = "".join(
        f"j{i},{i * 7},{60 + i % 5000},{1 + i % 8},{i * 7 + 9000}\n" for i in range(JOBS)
    )
    text = f"id,arrival_s,run_s,gpus,due_s\n{rows}"
    yield "CSV", {"type": "csv", "text": text, "speeds": {"V100": 1.0}}


if __name__ == "__main__":
    show(figures())
