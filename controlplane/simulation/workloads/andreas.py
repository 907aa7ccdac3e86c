"""Generator of ANDREAS' evaluation (Filippini et al., V-B); docs/workloads.md states the model.

Rates: lambda = N * G / t1, high = lambda / tuning, low = high / 4. Times on more GPUs than were
measured: T(g) = T(1) * (1 - p + p / g), p = 2 * (1 - T(2) / T(1)).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from controlplane.simulation.workloads.base import Workload, jobs_of
from controlplane.simulation.workloads.options import Context, JobCount, Tuning
from policies.contract.snapshot import Floats, KindView, Source, Throughput

SECONDS_PER_EPOCH: Mapping[str, Mapping[tuple[str, int], float]] = {
    "LSTM-big": {("V100", 1): 43.0842, ("V100", 2): 30.5512, ("T4", 1): 110.7112},
    "LSTM-small": {("V100", 1): 43.0261, ("V100", 2): 30.5871, ("T4", 1): 110.6581},
    "EfficientNet": {("V100", 1): 51.6221, ("V100", 2): 41.2372, ("T4", 1): 88.9881},
    "ConvNet": {("V100", 1): 20.5382, ("V100", 2): 17.8042, ("T4", 1): 41.2582},
}
"""Seconds measured by the authors on ARMIDA; batch sizes 8192, EfficientNet 4096."""

TEMPLATES = (
    ("LSTM-big", 120), ("LSTM-big", 160), ("LSTM-big", 320), ("LSTM-small", 120),
    ("LSTM-small", 160), ("LSTM-small", 320),
    ("EfficientNet", 120), ("EfficientNet", 160), ("ConvNet", 160), ("ConvNet", 320),
)  # fmt: skip
"""Application and epochs of a job."""

WEIGHTS = tuple(np.linspace(0.00025371, 0.00044399, 5).tolist())
"""EUR/s late of priorities 1 to 5."""

CLUSTER = 10
"""Jobs that arrive at one rate before it changes."""

STEPS_PER_EPOCH = 1000
"""Steps are whole and a stop loses the current one, so they are short, as in the paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Andreas:
    """Options: `nodes` N; `scenario` 1 (2 V100 or 1 T4) or 2 (4 or 2); `jobs` (10 N); `tuning`."""

    type: str = "andreas"
    nodes: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    scenario: Annotated[int, Field(ge=1, le=2)] = 1
    jobs: JobCount | None = None
    tuning: Tuning = 2.5
    name: str = ""


def most_gpus(scenario: int) -> Mapping[str, int]:
    return {"V100": 2 * scenario, "T4": scenario}


def kinds(scenario: int) -> tuple[KindView, ...]:
    """Applications, known on every configuration of the scenario's nodes."""
    return tuple(
        KindView(name, name, tuple(_throughput(name, *c) for c in configurations(scenario)))
        for name in SECONDS_PER_EPOCH
    )


def configurations(scenario: int) -> list[tuple[str, int]]:
    """(GPU type, GPUs) that a job can have on a node."""
    return [(t, g) for t, most in most_gpus(scenario).items() for g in range(1, most + 1)]


def seconds_per_epoch(application: str, gpu_type: str, gpus: int) -> float:
    """Measured seconds, or on more GPUs by Amdahl's law."""
    measured = SECONDS_PER_EPOCH[application]
    if (gpu_type, gpus) in measured:
        return measured[gpu_type, gpus]
    parallel = 2.0 * (1.0 - measured["V100", 2] / measured["V100", 1])
    return measured[gpu_type, 1] * (1.0 - parallel + parallel / gpus)


def generate(options: Andreas, context: Context) -> Workload:
    """Jobs by the options and the seed; `facts` states the load they make."""
    rng, scenario = context.rng(), options.scenario
    count = 10 * options.nodes if options.jobs is None else options.jobs
    drawn = rng.integers(len(TEMPLATES), size=count)
    times_s, alone_s = _times_s(configurations(scenario)), _times_s([("V100", 1), ("T4", 1)])
    least_s, most_s = times_s.min(axis=1)[drawn], times_s.max(axis=1)[drawn]
    shortest_s = alone_s.min(axis=1)[drawn]
    # 1 in clusters of ten jobs at the high rate, 4 in those at the low one
    slower = np.where(np.arange(count) // CLUSTER % 2 == 0, 1, 4)
    gap_s = shortest_s / (options.nodes * most_gpus(scenario)["V100"]) * options.tuning * slower
    arrival_s = np.cumsum(rng.exponential(gap_s)) if count else np.zeros(0)
    arrival_s -= arrival_s[0] if count else 0.0
    priority = rng.integers(len(WEIGHTS), size=count)
    jobs = jobs_of(
        [f"J{i + 1}" for i in range(count)],
        [TEMPLATES[i][0] for i in drawn.tolist()],
        arrival_s=arrival_s,
        remaining_steps=np.array([epochs for _, epochs in TEMPLATES])[drawn] * STEPS_PER_EPOCH,
        gpus_min=1,
        gpus_max=max(most_gpus(scenario).values()),
        due_s=arrival_s + rng.uniform(least_s, most_s),
        tardiness_weight=np.array(WEIGHTS)[priority],
        priority=priority + 1,
    )
    title = options.name or f"ANDREAS {scenario}, N={options.nodes}, tuning {options.tuning:g}"
    return Workload(title, jobs, kinds(scenario), facts=_facts(options, arrival_s, shortest_s))


def _throughput(name: str, gpu_type: str, gpus: int) -> Throughput:
    is_measured = (gpu_type, gpus) in SECONDS_PER_EPOCH[name]
    source = Source.MEASURED if is_measured else Source.ESTIMATED
    rate = STEPS_PER_EPOCH / seconds_per_epoch(name, gpu_type, gpus)
    return Throughput(gpu_type, gpus, rate, source)


def _times_s(on: list[tuple[str, int]]) -> Floats:
    """float64[templates, configurations]: run times."""
    return np.array(
        [[epochs * seconds_per_epoch(name, t, g) for t, g in on] for name, epochs in TEMPLATES]
    )


def _facts(options: Andreas, arrival_s: Floats, shortest_s: Floats) -> dict[str, Any]:
    of_v100, of_t4 = most_gpus(options.scenario).values()
    gpus = (options.nodes - options.nodes // 2) * of_v100 + options.nodes // 2 * of_t4
    span_s = float(arrival_s[-1]) if len(arrival_s) else 0.0
    load = float(shortest_s.sum()) / (gpus * span_s) if span_s else None
    facts = {"generator": "andreas", "tuning": options.tuning, "load": load}
    return {**facts, "gpus": gpus, "last_arrival_s": span_s}
