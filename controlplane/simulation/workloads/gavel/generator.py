"""Workloads of Gavel's evaluation (Narayanan et al., section 7.1), drawn; see docs/workloads.md.

Every aspect has random numbers of its own: the same jobs, with weights or due dates or without.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from controlplane.simulation.workloads.base import MOST_WEIGHT, Workload, WorkloadError, jobs_of
from controlplane.simulation.workloads.gavel.tables import tables_of
from controlplane.simulation.workloads.options import (
    Context,
    Factor,
    JobCount,
    Seconds,
    Weight,
    drawn,
    one_of,
)
from policies.contract.snapshot import Floats, Ints, KindView

CONTINUOUS = ("continuous-single", "continuous-multiple")
STATIC = ("static-single", "static-multiple")
MODES = (*CONTINUOUS, *STATIC)

LONG = 0.2
"""Fraction of jobs whose duration is drawn from `LONG_EXPONENTS`."""

SHORT_EXPONENTS = (1.5, 3.0)
LONG_EXPONENTS = (3.0, 4.0)
"""Limits of the exponent x of a duration of 10^x minutes, which is uniform between them."""

MINUTE_S = 60.0

GPUS = (1, 2, 4, 8)
GPUS_LIKELY = (0.7, 0.1, 0.15, 0.05)
"""Probability of each number of GPUs.

The paper's "25% two to four" are 10% two and 15% four in the published program.
"""

GAP_S = 900.0
"""Mean gap of continuous arrivals unless given."""

SHORTEST_SPAN_S = 1e-3
"""With all arrivals within this time, the number of busy GPUs says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelGenerator:
    """Options; `gap_s`: mean gap of continuous arrivals (900 s unless given).

    The kinds are Gavel's tables (`throughputs`, their path, or `tables`, their text) or `kinds` in
    a snapshot's form. `slos`: each job draws one, its due date in durations.
    """

    type: str
    mode: str = CONTINUOUS[0]
    jobs: JobCount = 1000
    gap_s: Seconds | None = None
    throughputs: str = ""
    tables: str = ""
    kinds: tuple[KindView, ...] = ()
    reference: str = "V100"
    pairs: bool = True
    heavy: Annotated[float, Field(ge=0, le=1)] = 0.0
    heavy_weight: Annotated[float, Field(gt=0, le=MOST_WEIGHT)] = 5.0
    slos: tuple[Factor, ...] = ()
    tardiness_weight: tuple[Weight, ...] = ()
    name: str = ""


def generate(options: GavelGenerator, context: Context) -> Workload:
    """Draw rigid jobs by options and seed; `facts`: mean number of reference GPUs kept busy."""
    one_of("mode", options.mode, MODES)
    kinds = _kinds(options)
    count = options.jobs

    # 1. Random numbers of each aspect.
    seeds = np.random.SeedSequence(context.seed).spawn(7)
    (
        gpus_rng,
        kind_rng,
        duration_rng,
        arrival_rng,
        weight_rng,
        slo_rng,
        tardiness_rng,
    ) = (np.random.default_rng(seed) for seed in seeds)

    # 2. The jobs' columns. A duration is that on the reference GPUs.
    gpus = _gpus(options, gpus_rng)
    chosen_kinds, rates = _chosen(options, kinds, gpus, kind_rng)
    duration_s = durations_s(count, duration_rng)
    arrival_s = _arrival_s(options, arrival_rng)
    is_heavy = weight_rng.random(count) < options.heavy
    slos: Floats | float = np.inf
    if options.slos:
        slos = slo_rng.choice(np.array(options.slos), size=count)
    tardiness_weight: Floats | float = 0.0
    if options.tardiness_weight:
        tardiness_weight = drawn(options.tardiness_weight, count, tardiness_rng)
    jobs = jobs_of(
        [f"J{number + 1}" for number in range(count)],
        [kinds[kind].id for kind in chosen_kinds.tolist()],
        arrival_s=arrival_s,
        gpus_min=gpus,
        remaining_steps=np.maximum(1.0, np.rint(duration_s * rates)),
        due_s=arrival_s + slos * duration_s,
        weight=np.where(is_heavy, options.heavy_weight, 1.0),
        tardiness_weight=tardiness_weight,
        may_share=options.pairs,
    )

    # 3. The load that they make.
    span_s = float(arrival_s[-1])
    mean_gpus_busy = None
    if span_s > SHORTEST_SPAN_S:
        mean_gpus_busy = float((gpus * duration_s).sum() / span_s)
    facts = {
        "generator": "gavel",
        "mode": options.mode,
        "reference": options.reference,
        "mean_gpus_busy": mean_gpus_busy,
    }
    used_kinds = tuple(kinds[kind] for kind in np.unique(chosen_kinds).tolist())
    return Workload(options.name or f"Gavel {options.mode}", jobs, used_kinds, facts=facts)


def durations_s(count: int, rng: np.random.Generator) -> Floats:
    """float64[count] of Gavel's durations on the reference GPU: 32 min to 7 days."""
    is_long = rng.random(count) < LONG
    long = drawn(LONG_EXPONENTS, count, rng)
    short = drawn(SHORT_EXPONENTS, count, rng)
    exponents = np.where(is_long, long, short)
    seconds: Floats = MINUTE_S * 10.0**exponents
    return seconds


def _kinds(options: GavelGenerator) -> tuple[KindView, ...]:
    """Kinds by name that are known on a GPU of the reference type."""
    if options.kinds and (options.throughputs or options.tables):
        raise WorkloadError("kinds: give either Gavel's throughput tables or kinds, not both")
    if not (options.kinds or options.throughputs or options.tables):
        raise WorkloadError(
            "throughputs: give Gavel's throughput tables (their path, or their text as `tables`),"
            " or `kinds`"
        )
    kinds = options.kinds
    if not kinds:
        tables = tables_of(options.throughputs, options.tables)
        kinds = tuple(tables.kind(name, pairs=True) for name in tables.job_types)
    if len({kind.id for kind in kinds}) < len(kinds):
        raise WorkloadError("kinds: two have the same id")

    usable = []
    gpu_types: set[str] = set()
    for kind in kinds:
        gpu_types.update(throughput.gpu_type for throughput in kind.throughputs)
        if any(_rate(kind, options.reference, gpus) for gpus in GPUS):
            usable.append(kind)
    if not usable:
        types = ", ".join(sorted(gpu_types)) or "none"
        raise WorkloadError(
            f"reference: no kind is known on GPUs of type {options.reference}; known are: {types}"
        )
    usable.sort(key=lambda kind: kind.id)
    if not options.pairs:
        usable = [replace(kind, pairs=()) for kind in usable]
    return tuple(usable)


def _rate(kind: KindView, gpu_type: str, gpus: int) -> float:
    """steps/s of a kind together on one node; 0 if unknown."""
    for throughput in kind.throughputs:
        is_asked = (throughput.gpu_type, throughput.gpus) == (gpu_type, gpus)
        if is_asked and not throughput.spread:
            return throughput.steps_per_s
    return 0.0


def _gpus(options: GavelGenerator, rng: np.random.Generator) -> Ints:
    """int64[jobs]: GPUs of each."""
    if options.mode.endswith("-single"):
        return np.ones(options.jobs, dtype=np.int64)
    return rng.choice(np.array(GPUS, dtype=np.int64), size=options.jobs, p=GPUS_LIKELY)


def _chosen(
    options: GavelGenerator, kinds: tuple[KindView, ...], gpus: Ints, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """int64[jobs] kinds, uniform among those known on so many GPUs; float64[jobs] steps/s."""
    size = len(gpus)
    lots = rng.random(size)
    chosen = np.zeros(size, dtype=np.int64)
    rates = np.zeros(size)
    for count in np.unique(gpus).tolist():
        rate_of_kind = np.array([_rate(kind, options.reference, count) for kind in kinds])
        known = np.flatnonzero(rate_of_kind > 0.0)
        if not len(known):
            raise WorkloadError(
                f"mode: {options.mode} has jobs on {count} GPUs, and no kind is known on {count} of"
                f" type {options.reference}"
            )
        rows = gpus == count
        chosen[rows] = known[(lots[rows] * len(known)).astype(np.int64)]
        rates[rows] = rate_of_kind[chosen[rows]]
    return chosen, rates


def _arrival_s(options: GavelGenerator, rng: np.random.Generator) -> Floats:
    """float64[jobs]: the first at 0."""
    if options.mode in STATIC:
        if options.gap_s is not None:
            raise WorkloadError(
                f"gap_s: the jobs of {options.mode} are all there at the start; leave gap_s out"
            )
        return np.zeros(options.jobs)
    gap_s = GAP_S if options.gap_s is None else options.gap_s
    arrival_s = np.cumsum(rng.exponential(gap_s, options.jobs))
    shifted: Floats = arrival_s - arrival_s[0]
    return shifted
