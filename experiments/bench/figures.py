"""Figures as JSON lines: name, median, goal, ratio, unit, and the machine that was measured.

Times are of the processor, which on an idle machine are those of the clock.
"""

import json
import os
import platform
import resource
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

Figure = dict[str, Any]


def figure(name: str, value: float, goal: float | None, unit: str, **facts: object) -> Figure:
    """A figure beside its goal; ratio = value / goal, null without a goal."""
    return {
        "name": name,
        "median": round(value, 4),
        "goal": goal,
        "ratio": None if goal is None else round(value / goal, 4),
        "unit": unit,
        **facts,
        "machine": machine(),
    }


def show(figures: Iterable[Figure]) -> None:
    """Print the figures as they are measured."""
    for found in figures:
        print(json.dumps(found), flush=True)


def milliseconds(call: Callable[[], object], times: int) -> float:
    """Median over calls; one more before them warms up."""
    call()
    return median(1000.0 * seconds(call)[0] for _ in range(times))


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """(processor time of a call, its result)."""
    began_s = process_time()
    result = call()
    return process_time() - began_s, result


def peak_mb() -> float:
    """Most memory that this process has taken so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0)


@cache
def machine() -> Figure:
    """Processor, cores and Python of this machine."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    cpu = next(models, platform.processor())
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version()}
