"""Hadar's decisions: time of the whole call, and payoff against the exact choice.

`python -m experiments.bench.hadar.decisions`. Jobs are of the paper's five models, with Gavel's
speeds if its tables are there, else made up; they all wait. Gangs have one, two, four or eight
GPUs, and a third of them may mix types.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial
from math import inf
from pathlib import Path

import numpy as np

from experiments.bench.figures import Figure, figure, milliseconds, show
from policies.contract.snapshot import (
    DeviceView,
    JobColumns,
    Jobs,
    JobView,
    KindView,
    NodeView,
    PriceInterval,
    Snapshot,
    Source,
    Throughput,
)
from policies.hadar.hadar import Hadar
from policies.hadar.offers import free_gpus, offers_of
from policies.hadar.selection import Market, exact_selection, greedy_selection
from policies.host.registry import make
from policies.placement.plan_builder import PlanBuilder

TYPES = ("V100", "P100", "K80")
GPUS = 4
MODELS = (
    "ResNet-50 (batch size 64)",
    "ResNet-18 (batch size 64)",
    "LM (batch size 20)",
    "CycleGAN",
    "Transformer (batch size 64)",
)
"""Models of the paper's workload."""
TABLES = "gavel/simulation_throughputs.json"
DATA = Path(os.environ.get("LOADMASTER_DATA", "../shared/data"))

DECISIONS: tuple[tuple[int, int, dict[str, int], float], ...] = (
    (128, 60, {}, 20.0),
    (2048, 60, {}, 300.0),
    (2048, 600, {}, 400.0),
    (2048, 1536, {}, 800.0),
)
"""Jobs, GPUs, parameters, and the goal in milliseconds."""

GAPS = (
    (30, 24), (60, 24), (120, 48), (480, 60), (120, 96), (480, 96),
)  # fmt: skip
"""Jobs and GPUs of the instances on which the greedy form is measured."""

SEEDS = 10


def a_snapshot(jobs: int, gpus: int, seed: int, kinds: tuple[KindView, ...]) -> Snapshot:
    """Return a cluster of three types whose jobs all wait, a third of the gangs may mix types."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(jobs):
        kind = kinds[int(rng.integers(len(kinds)))]
        of_gang = int(rng.choice([1, 2, 4, 8], p=[0.7, 0.1, 0.15, 0.05]))
        speed = max(kind.rates.get((name, 1, False), 0.0) for name in TYPES)
        steps = float(rng.lognormal(np.log(3600.0), 1.5)) * speed
        rows.append(
            JobView(
                f"j{i}", kind.id, float(-rng.uniform(0.0, 86_400.0)), steps, of_gang, of_gang,
                total_steps=steps, may_mix=bool(rng.random() < 0.3),
            )
        )  # fmt: skip
    devices = tuple(DeviceView(f"gpu{d}", 16.0) for d in range(GPUS))
    watts = (100.0, 200.0, 300.0, 400.0, 500.0)
    nodes = []
    for i in range(gpus // GPUS):
        name = f"n{i}"
        nodes.append(NodeView(name, name, TYPES[i % len(TYPES)], devices, watts))
    energy = (PriceInterval(0.0, inf, 0.1, 1.0),)
    return Snapshot(
        "bench", 0.0, 360.0, seed, tuple(nodes), kinds, Jobs(JobColumns.of(rows)), energy=energy
    )


def kinds_of(data: Path) -> tuple[KindView, ...]:
    """Return the models with the speeds of Gavel's tables, or made-up ones."""
    path = data / TABLES
    if path.exists():
        from controlplane.simulation.workloads.gavel.tables import tables_of

        tables = tables_of(str(path), "")
        return tuple([tables.kind(name, pairs=False) for name in MODELS])
    rng = np.random.default_rng(0)
    kinds = []
    for name in MODELS:
        known = []
        speeds = rng.lognormal(1.0, 1.5) * np.sort(rng.uniform(1.0, 10.0, 3))[::-1]
        for gpu_type, speed in zip(TYPES, speeds.tolist(), strict=True):
            for gpus in (1, 2, 4, 8):
                for spread in (False, True):
                    rate = speed * gpus**0.8 * (0.6 if spread else 1.0)
                    known.append(Throughput(gpu_type, gpus, rate, Source.MEASURED, spread=spread))
        kinds.append(KindView(name, throughputs=tuple(known)))
    return tuple(kinds)


def a_market(jobs: int, gpus: int, seed: int, kinds: tuple[KindView, ...]) -> Market:
    """Return the market of such a cluster, with the policy's own utility."""
    plan = PlanBuilder(a_snapshot(jobs, gpus, seed, kinds), never_touch=False, keep_wide=False)
    shipped = Hadar()
    offers = offers_of(plan, shipped.utility, shipped.eta, shipped.keep)
    return offers.market(free_gpus(plan))[0]


def figures(data: Path) -> Iterator[Figure]:
    """Yield the times of decisions, then what the greedy form loses."""
    kinds = kinds_of(data)
    for jobs, gpus, parameters, goal_ms in DECISIONS:
        policy = make("hadar", parameters)
        snapshot = a_snapshot(jobs, gpus, 1, kinds)
        took_ms = milliseconds(partial(policy, snapshot), 5)
        form = policy(snapshot).message.partition(":")[0]
        name = f"hadar, whole decision, {jobs} jobs, {gpus} GPUs ({form})"
        yield figure(name, took_ms, goal_ms, "ms")

    ratios: list[float] = []
    for jobs, gpus in GAPS:
        of_size: list[float] = []
        for seed in range(SEEDS):
            market = a_market(jobs, gpus, seed, kinds)
            of_size.append(greedy_selection(market).payoff / exact_selection(market).payoff)
        ratios += of_size
        name = f"hadar, greedy payoff over exact, {jobs} jobs, {gpus} GPUs"
        yield figure(name, 100.0 * float(np.mean(of_size)), None, "%", worst=min(of_size))
    yield figure("hadar, greedy payoff over exact, mean", 100.0 * float(np.mean(ratios)), 98.0, "%")
    yield figure("hadar, greedy payoff over exact, worst", 100.0 * min(ratios), 93.0, "%")


def main(arguments: list[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Hadar's decisions")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with gavel/")
    show(figures(parser.parse_args(arguments).data))


if __name__ == "__main__":
    main()
