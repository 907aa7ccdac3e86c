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
    ("LSTM-big", 120),
    ("LSTM-big", 160),
    ("LSTM-big", 320),
    ("LSTM-small", 120),
    ("LSTM-small", 160),
    ("LSTM-small", 320),
    ("EfficientNet", 120),
    ("EfficientNet", 160),
    ("ConvNet", 160),
    ("ConvNet", 320),
)
"""Application and epochs of jobs, each equally likely."""

WEIGHTS = tuple(np.linspace(0.00025371, 0.00044399, 5).tolist())
"""EUR/s late of priorities 1 to 5."""

JOBS_AT_ONE_RATE = 10
"""Jobs that arrive at one rate before it changes."""

LOW_RATE_FACTOR = 4
"""High rate over low rate."""

STEPS_PER_EPOCH = 1000
"""A stop loses the current step, so steps are short, as in the paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Andreas:
    """Options of the generator.

    `nodes`: N of the rates. `scenario`: 1 for nodes of two V100 or one T4, 2 for four or two.
    `jobs`: number of jobs, 10 N if None. `tuning`: divisor of the rates.
    """

    type: str = "andreas"
    nodes: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    scenario: Annotated[int, Field(ge=1, le=2)] = 1
    jobs: JobCount | None = None
    tuning: Tuning = 2.5
    name: str = ""


def most_gpus(scenario: int) -> Mapping[str, int]:
    """Return the GPUs of a node by GPU type."""
    return {"V100": 2 * scenario, "T4": scenario}


def kinds(scenario: int) -> tuple[KindView, ...]:
    """Return the applications, known on every configuration of the scenario's nodes."""
    views = []
    for name in SECONDS_PER_EPOCH:
        throughputs = []
        for gpu_type, gpus in configurations(scenario):
            throughputs.append(_throughput(name, gpu_type, gpus))
        views.append(KindView(name, name, tuple(throughputs)))
    return tuple(views)


def configurations(scenario: int) -> list[tuple[str, int]]:
    """Return each (GPU type, GPUs) that a job can have on a node."""
    pairs = []
    for gpu_type, most in most_gpus(scenario).items():
        pairs += [(gpu_type, gpus) for gpus in range(1, most + 1)]
    return pairs


def seconds_per_epoch(application: str, gpu_type: str, gpus: int) -> float:
    """Return measured seconds; on more GPUs than were measured by Amdahl's law."""
    measured = SECONDS_PER_EPOCH[application]
    if (gpu_type, gpus) in measured:
        return measured[gpu_type, gpus]
    parallel_part = 2.0 * (1.0 - measured["V100", 2] / measured["V100", 1])
    return measured[gpu_type, 1] * (1.0 - parallel_part + parallel_part / gpus)


def generate(options: Andreas, context: Context) -> Workload:
    """Draw jobs by the options and the seed; `facts` of the workload states their load."""
    # 1. Templates, and run times by them: on all configurations, and on one GPU.
    rng = context.rng()
    scenario = options.scenario
    count = 10 * options.nodes if options.jobs is None else options.jobs
    template = rng.integers(len(TEMPLATES), size=count)
    run_times_s = _run_times_s(configurations(scenario))
    least_s = run_times_s.min(axis=1)[template]
    most_s = run_times_s.max(axis=1)[template]
    on_one_gpu_s = _run_times_s([("V100", 1), ("T4", 1)]).min(axis=1)[template]

    # 2. Arrivals: ten jobs at the high rate, ten at the low one, and so on.
    is_fast = np.arange(count) // JOBS_AT_ONE_RATE % 2 == 0
    slower = np.where(is_fast, 1, LOW_RATE_FACTOR)
    fast_gpus = options.nodes * most_gpus(scenario)["V100"]
    gap_s = on_one_gpu_s / fast_gpus * options.tuning * slower
    arrival_s = np.zeros(0)
    if count:
        arrival_s = np.cumsum(rng.exponential(gap_s))
        arrival_s -= arrival_s[0]

    # 3. Priorities, due dates and weights.
    priority = rng.integers(len(WEIGHTS), size=count)
    jobs = jobs_of(
        [f"J{i + 1}" for i in range(count)],
        [TEMPLATES[i][0] for i in template.tolist()],
        arrival_s=arrival_s,
        remaining_steps=np.array([epochs for _, epochs in TEMPLATES])[template] * STEPS_PER_EPOCH,
        gpus_min=1,
        gpus_max=max(most_gpus(scenario).values()),
        due_s=arrival_s + rng.uniform(least_s, most_s),
        tardiness_weight=np.array(WEIGHTS)[priority],
        priority=priority + 1,
    )
    title = options.name or f"ANDREAS {scenario}, N={options.nodes}, tuning {options.tuning:g}"
    return Workload(title, jobs, kinds(scenario), facts=_facts(options, arrival_s, on_one_gpu_s))


def _throughput(name: str, gpu_type: str, gpus: int) -> Throughput:
    """Return the steps per second of an application on a configuration."""
    is_measured = (gpu_type, gpus) in SECONDS_PER_EPOCH[name]
    source = Source.MEASURED if is_measured else Source.ESTIMATED
    rate = STEPS_PER_EPOCH / seconds_per_epoch(name, gpu_type, gpus)
    return Throughput(gpu_type, gpus, rate, source)


def _run_times_s(on: list[tuple[str, int]]) -> Floats:
    """Return float64[templates, configurations]: run times on these configurations."""
    rows = []
    for name, epochs in TEMPLATES:
        row = [epochs * seconds_per_epoch(name, gpu_type, gpus) for gpu_type, gpus in on]
        rows.append(row)
    return np.array(rows)


def _facts(options: Andreas, arrival_s: Floats, on_one_gpu_s: Floats) -> dict[str, Any]:
    """Return the facts. Half of the nodes, rounded down, have T4.

    `load`: run times on one GPU each over the time that all GPUs have until the last arrival.
    """
    gpus_of_node = most_gpus(options.scenario)
    t4_nodes = options.nodes // 2
    v100_nodes = options.nodes - t4_nodes
    gpus = v100_nodes * gpus_of_node["V100"] + t4_nodes * gpus_of_node["T4"]
    span_s = float(arrival_s[-1]) if len(arrival_s) else 0.0
    load = float(on_one_gpu_s.sum()) / (gpus * span_s) if span_s else None
    return {
        "generator": "andreas",
        "tuning": options.tuning,
        "load": load,
        "gpus": gpus,
        "last_arrival_s": span_s,
    }
