"""How long the Randomized Greedy takes: the kernel against its goals, and the whole policy beside
it.

    python -m experiments.bench.policies

Prints one JSON line per figure: name, median, goal, ratio (median / goal; both null where there is
no goal), unit, machine. Times are of the processor, which on a machine of one's own are those of
the clock. Clusters as in ANDREAS' simulations: half the nodes with two V100, half with one T4, ten
jobs a node, an overload in which most wait.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from policies.andreas.kernels.greedy import search
from policies.andreas.randomized_greedy import RandomizedGreedy
from policies.contract.snapshot import (
    DeviceView,
    EnergyStep,
    JobColumns,
    Jobs,
    JobView,
    KindView,
    NodeView,
    Snapshot,
    Source,
    Throughput,
)
from policies.placement.problem import build

GOALS_MS = ((10, 100, 2.0), (100, 1000, 25.0), (1000, 10000, 300.0))
"""(nodes, jobs, milliseconds) of 1000 iterations on one core after warm-up."""

ITERATIONS = 1000
POWER_W = {"V100": (360.0, 170.0), "T4": (330.0, 70.0)}
EPOCH_S = {
    "LSTM-big": (43.0842, 30.5512, 110.7112),
    "LSTM-small": (43.0261, 30.5871, 110.6581),
    "EfficientNet": (51.6221, 41.2372, 88.9881),
    "ConvNet": (20.5382, 17.8042, 41.2582),
}
"""Seconds per epoch on one V100, two V100, one T4, as the authors measured them."""


def a_cluster(nodes: int, jobs: int, seed: int = 0) -> Snapshot:
    """Nodes, kinds and jobs as in ANDREAS' first scenario; due dates from hopeless to
    comfortable.
    """
    rng = np.random.default_rng(seed)
    kinds = tuple(_kind(name, *times) for name, times in EPOCH_S.items())
    epochs, due = rng.choice([120, 160, 320], jobs), rng.uniform(1.0, 6.0, jobs)
    names = rng.choice(list(EPOCH_S), jobs)
    weights = rng.uniform(0.00025371, 0.00044399, jobs)
    rows = [
        _job(i, str(names[i]), float(epochs[i]), float(due[i]), float(weights[i]))
        for i in range(jobs)
    ]
    views = tuple(_node(i, "V100" if i % 2 == 0 else "T4") for i in range(nodes))
    energy = (EnergyStep(0.0, inf, 0.172, 1.33),)
    return Snapshot(
        "bench", 10_000.0, 300.0, seed, views, kinds, Jobs(JobColumns.of(rows)), energy=energy
    )


def _kind(name: str, v100: float, two_v100: float, t4: float) -> KindView:
    known = (("V100", 1, v100), ("V100", 2, two_v100), ("T4", 1, t4))
    return KindView(
        name, throughputs=tuple(Throughput(t, g, 1.0 / s, Source.MEASURED) for t, g, s in known)
    )


def _job(i: int, kind: str, epochs: float, due: float, weight: float) -> JobView:
    due_s = 5000.0 + i + due * epochs * EPOCH_S[kind][0]
    return JobView(
        f"j{i}",
        kind,
        float(i),
        epochs,
        1,
        2,
        due_s=due_s,
        tardiness_weight=weight,
        total_steps=epochs,
    )


def _node(i: int, gpu_type: str) -> NodeView:
    gpus = 2 if gpu_type == "V100" else 1
    idle_w, gpu_w = POWER_W[gpu_type]
    devices = tuple(DeviceView(f"gpu{d}", 16.0) for d in range(gpus))
    return NodeView(
        f"n{i}", f"n{i}", gpu_type, devices, tuple(idle_w + gpu_w * g for g in range(gpus + 1))
    )


def milliseconds(call: Callable[[], Any], times: int) -> float:
    """Median over calls; one more before them warms up."""
    call()
    return median(_timed(call) for _ in range(times))


def _timed(call: Callable[[], Any]) -> float:
    start = process_time()
    call()
    return (process_time() - start) * 1000.0


def lines(times: int = 7) -> Iterator[dict[str, Any]]:
    """The figures, smallest cluster first."""
    for nodes, jobs, goal_ms in GOALS_MS:
        snapshot, size = a_cluster(nodes, jobs), f"N={nodes},J={jobs}"
        yield _line(
            f"randomized_greedy kernel, {size}", milliseconds(kernel_call(snapshot), times), goal_ms
        )
        whole = partial(RandomizedGreedy(iterations=ITERATIONS), snapshot)
        yield _line(f"randomized_greedy whole policy, {size}", milliseconds(whole, times), None)


def kernel_call(snapshot: Snapshot) -> Callable[[], Any]:
    """The kernel alone, in the default mode, its data ready."""
    return partial(
        search, **RandomizedGreedy(iterations=ITERATIONS).search_arguments(build(snapshot))
    )


def _line(name: str, value_ms: float, goal_ms: float | None) -> dict[str, Any]:
    ratio = None if goal_ms is None else round(value_ms / goal_ms, 4)
    return {
        "name": name,
        "median": round(value_ms, 3),
        "goal": goal_ms,
        "ratio": ratio,
        "unit": "ms",
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"cpu": _cpu_model(), "cores": os.cpu_count(), "python": platform.python_version()}


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    found = (
        line.partition(":")[2].strip()
        for line in cpuinfo.read_text().splitlines()
        if line.startswith("model name")
    )
    return next(found, platform.processor()) if cpuinfo.exists() else platform.processor()


def main() -> None:
    """Print the lines as they are measured."""
    for line in lines():
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
