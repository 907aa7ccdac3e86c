"""Generator: Poisson arrivals, lognormal run times, random numbers of GPUs."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from controlplane.simulation.workloads.base import (
    LONGEST_RUN_S,
    STEPS_PER_S,
    Workload,
    WorkloadError,
    jobs_of,
)
from controlplane.simulation.workloads.drafts import LEAST_RUN_S, even_kinds
from controlplane.simulation.workloads.options import Context, Seconds, Trace
from foundation.forms import OBJECT
from policies.contract.snapshot import Ints

SHORTEST_SPAN_S = 1e-3
"""Longest span that counts as one moment, without a load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson(Trace):
    """Options beside those of traces: `gap_s`, the mean gap; `run_s`, the median run time.

    `sigma`: standard deviation of the run time's logarithm; `gpus`: probability of each count,
    {"1": 0.7, "2": 0.2, "4": 0.1}.
    """

    gap_s: Seconds = 60.0
    run_s: Annotated[float, Field(gt=0, le=1e9)] = 1800.0
    sigma: Annotated[float, Field(ge=0, le=10)] = 1.0
    gpus: Annotated[tuple[tuple[str, Seconds], ...], OBJECT] = (("1", 1.0),)


def generate(options: Poisson, context: Context) -> Workload:
    """Jobs by options and seed; `facts`: mean number of GPUs they would keep busy."""
    if options.path or options.text:
        raise WorkloadError("path: a generator reads no file")
    rng, count = context.rng(), 1000 if options.jobs is None else options.jobs
    arrival_s = np.cumsum(rng.exponential(options.gap_s, count)) * options.time_factor
    arrival_s -= arrival_s[0]
    drawn_s = options.run_s * np.exp(options.sigma * rng.standard_normal(count))
    run_s = np.maximum(LEAST_RUN_S, drawn_s)
    if run_s.max() > LONGEST_RUN_S:
        raise WorkloadError(
            f"run_s: with this sigma some jobs would run longer than {LONGEST_RUN_S:g} s"
        )
    jobs = jobs_of(
        [f"J{i + 1}" for i in range(count)],
        ["job"] * count,
        arrival_s=arrival_s,
        remaining_steps=np.rint(run_s * STEPS_PER_S),
        gpus_min=_gpus(options, rng, count),
        due_s=options.due_s(arrival_s, run_s, rng),
        tardiness_weight=options.weights(count, rng),
        walltime_s=run_s,
    )
    gpus = jobs.columns.counts["gpus_min"]
    busy = float((gpus * run_s).sum() / arrival_s[-1]) if arrival_s[-1] > SHORTEST_SPAN_S else None
    facts = {"generator": "poisson", "mean_gpus_busy": busy}
    kinds = even_kinds(jobs, options.speed_of(context.gpu_types))
    return Workload(options.title, jobs, kinds, facts=facts)


def _gpus(options: Poisson, rng: np.random.Generator, count: int) -> Ints:
    """int64[count]: drawn counts of GPUs."""
    try:
        counts = np.array([int(name) for name, _ in options.gpus], dtype=np.int64)
    except (ValueError, OverflowError):
        counts = np.zeros(1, dtype=np.int64)
    likely = np.array([p for _, p in options.gpus])
    if not len(counts) or counts.min() < 1 or not likely.sum() > 0:
        raise WorkloadError('gpus: must give the odds of each count, such as {"1": 0.7, "2": 0.3}')
    return rng.choice(counts, size=count, p=likely / likely.sum())
