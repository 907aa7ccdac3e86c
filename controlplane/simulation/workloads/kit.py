"""Load like that of KIT ForHLR II, drawn: 1,152 nodes of 20 cores and 21 with 4 GPUs.

Of the log (114,355 jobs) it is published that 66% of the jobs run for less than an hour. All else
is assumed: users by Zipf's law with programs of their own, sizes in powers of two nodes, walltimes
that are asked for in round figures, and arrivals that follow the hours of the day, at a rate that
gives the `load`.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from controlplane.simulation.workloads.base import (
    STEPS_PER_S,
    Workload,
    WorkloadError,
    jobs_of,
)
from controlplane.simulation.workloads.drafts import batch_kinds
from controlplane.simulation.workloads.options import Context, Trace
from policies.contract.snapshot import Bools, Floats, Ints

HOUR_S = 3600.0
DAY_S = 86_400.0
LONGEST_S = 3 * DAY_S
"""Longest run time."""

BELOW_AN_HOUR = 0.66
"""Part of the jobs that run for less than an hour, as published."""

# Nodes without GPUs, and those with GPUs ("fat" in KIT's description).
NODE_CORES = 20
NODE_GB = 60.0
CORES = 1152.0 * NODE_CORES
FAT_CORES = 48.0
FAT_GPUS = 4

USERS = 120
PROGRAMS = 3
"""Programs of each user."""

SIZES = {0: 0.30, 1: 0.30, 2: 0.12, 4: 0.11, 8: 0.09, 16: 0.05, 32: 0.02, 64: 0.01}
"""Probability of each number of nodes; 0: a part of one."""

WITH_GPUS = 0.02
"""Part of the jobs that need GPUs."""

WALLTIMES_H = np.array([0.5, 1, 2, 4, 8, 12, 24, 48, 72])
"""Hours that users ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit(Trace):
    """Options beside those of traces: `load`, the mean fraction of the cores that is asked for."""

    load: Annotated[float, Field(gt=0, le=10)] = 0.85


def generate(options: Kit, context: Context) -> Workload:
    """Draw jobs by the options and the seed."""
    if options.path or options.text:
        raise WorkloadError("path: a generator reads no file; read a log with type swf")

    # 1. Users, programs, and what each job needs.
    rng = context.rng()
    count = 10_000 if options.jobs is None else options.jobs
    user = np.minimum(rng.zipf(1.4, count), USERS)
    program = rng.integers(PROGRAMS, size=count)
    run_s = _run_s(rng, user, program)
    has_gpus = rng.random(count) < WITH_GPUS
    nodes = rng.choice(list(SIZES), size=count, p=list(SIZES.values()))
    demand = _demand(rng, nodes, has_gpus)

    # 2. Arrivals, over as long as the work needs at the wanted load.
    core_s = float((demand["units"] * demand["cores"] * run_s).sum())
    span_s = core_s / (CORES * options.load)
    arrival_s = _arrivals(rng, count, span_s) * options.time_factor

    # 3. The jobs.
    jobs = jobs_of(
        [f"{i + 1}" for i in range(count)],
        [f"application {u}-{p}" for u, p in zip(user.tolist(), program.tolist(), strict=True)],
        arrival_s=arrival_s,
        remaining_steps=np.rint(run_s * STEPS_PER_S),
        user=[f"user {u}" for u in user.tolist()],
        walltime_s=_walltime_s(rng, run_s),
        due_s=options.due_s(arrival_s, run_s, rng),
        tardiness_weight=options.weights(count, rng),
        batch=True,
        preemptible=False,
        **demand,
    )
    facts = {
        "generator": "kit",
        "below_an_hour": float((run_s < HOUR_S).mean()),
        "load_of_the_cores": float(core_s / (CORES * max(arrival_s[-1], 1.0))),
    }
    return Workload(options.title, jobs, batch_kinds(jobs), facts=facts)


def _run_s(rng: np.random.Generator, user: Ints, program: Ints) -> Floats:
    """Draw run times, float64[J]: each program has a usual one below an hour, and one above."""
    shape = (USERS + 1, PROGRAMS)
    short_s = 60.0 * np.exp(rng.normal(1.6, 1.0, shape))
    long_s = HOUR_S * np.exp(rng.normal(1.9, 0.7, shape))
    is_short = rng.random(len(user)) < BELOW_AN_HOUR
    usual_s = np.where(is_short, short_s[user, program], long_s[user, program])
    drawn_s = usual_s * np.exp(rng.normal(0.0, 0.5, len(user)))
    least_s = np.where(is_short, 1.0, HOUR_S)
    most_s = np.where(is_short, HOUR_S - 1.0, LONGEST_S)
    run_s: Floats = np.rint(np.clip(drawn_s, least_s, most_s))
    return run_s


def _demand(rng: np.random.Generator, nodes: Ints, has_gpus: Bools) -> dict[str, Any]:
    """Draw units of each job with cores, memory and GPUs: whole nodes, part of one, or GPUs.

    `nodes`: number of nodes of each job, 0: a part of one.
    """
    part_cores = rng.integers(1, NODE_CORES + 1, size=len(nodes))
    gpus = rng.integers(1, FAT_GPUS + 1, size=len(nodes))
    units = np.where(has_gpus, gpus, np.maximum(nodes, 1))
    cores = np.where(nodes == 0, part_cores, NODE_CORES)
    cores = np.where(has_gpus, FAT_CORES / FAT_GPUS, cores)
    return {
        "units": units.astype(np.int64),
        "cores": cores.astype(np.float64),
        "memory_gb": NODE_GB / NODE_CORES * cores,
        "gpus_min": np.where(has_gpus, gpus, 0),
    }


def _walltime_s(rng: np.random.Generator, run_s: Floats) -> Floats:
    """Draw walltimes, float64[J]: the next usual one above the run time times a factor."""
    wanted_h = run_s * rng.uniform(1.05, 4.0, len(run_s)) / HOUR_S
    place = np.minimum(np.searchsorted(WALLTIMES_H, wanted_h), len(WALLTIMES_H) - 1)
    walltime_s: Floats = WALLTIMES_H[place] * HOUR_S
    return walltime_s


def _arrivals(rng: np.random.Generator, count: int, span_s: float) -> Floats:
    """Draw arrivals over the span, float64[J]: three times as many at 14:00 as at 02:00.

    They are drawn evenly, and moved by the inverse of the rate's integral.
    """
    # 1. The part of the jobs that have arrived by each moment.
    moments_s = np.linspace(0.0, max(span_s, 1.0), 10_001)
    rate = 1.0 + 0.5 * np.cos(2 * np.pi * (moments_s / DAY_S - 14 / 24))
    integral = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) * np.diff(moments_s))])
    arrived = integral / integral[-1]

    # 2. The moments at which the drawn parts have arrived, from the first job on.
    drawn = np.sort(rng.random(count))
    arrival_s = np.rint(np.interp(drawn, arrived, moments_s))
    since_first_s: Floats = arrival_s - arrival_s[0]
    return since_first_s
