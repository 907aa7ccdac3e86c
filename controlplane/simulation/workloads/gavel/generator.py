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

SHORT_EXPONENTS, LONG_EXPONENTS = (1.5, 3.0), (3.0, 4.0)
MINUTE_S = 60.0
GPUS, GPUS_LIKELY = (1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05)
"""The paper's "25% two to four" are 10% two and 15% four in the published program."""

GAP_S = 900.0
SHORTEST_SPAN_S = 1e-3


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
    """Rigid jobs by options and seed; `facts`: mean number of reference GPUs kept busy."""
    one_of("mode", options.mode, MODES)
    kinds, count = _kinds(options), options.jobs
    of_gpus, of_kind, of_time, of_arrival, of_weight, of_slo, of_tardiness = (
        np.random.default_rng(seed) for seed in np.random.SeedSequence(context.seed).spawn(7)
    )
    gpus = _gpus(options, of_gpus)
    chosen, rates = _chosen(options, kinds, gpus, of_kind)
    duration_s, arrival_s = durations_s(count, of_time), _arrival_s(options, of_arrival)
    slos = of_slo.choice(np.array(options.slos), size=count) if options.slos else np.inf
    late = drawn(options.tardiness_weight, count, of_tardiness) if options.tardiness_weight else 0.0
    jobs = jobs_of(
        [f"J{i + 1}" for i in range(count)],
        [kinds[k].id for k in chosen.tolist()],
        arrival_s=arrival_s,
        gpus_min=gpus,
        remaining_steps=np.maximum(1.0, np.rint(duration_s * rates)),
        due_s=arrival_s + slos * duration_s,
        weight=np.where(of_weight.random(count) < options.heavy, options.heavy_weight, 1.0),
        tardiness_weight=late,
        may_share=options.pairs,
    )
    span_s = float(arrival_s[-1])
    busy = float((gpus * duration_s).sum() / span_s) if span_s > SHORTEST_SPAN_S else None
    drawn_as = {"mode": options.mode, "reference": options.reference}
    facts = {"generator": "gavel", **drawn_as, "mean_gpus_busy": busy}
    used = tuple(kinds[k] for k in np.unique(chosen).tolist())
    return Workload(options.name or f"Gavel {options.mode}", jobs, used, facts=facts)


def durations_s(count: int, rng: np.random.Generator) -> Floats:
    """float64[count] of Gavel's durations on the reference GPU: 32 min to 7 days."""
    is_long = rng.random(count) < LONG
    long, short = (drawn(limits, count, rng) for limits in (LONG_EXPONENTS, SHORT_EXPONENTS))
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
    found = options.kinds
    if not found:
        tables = tables_of(options.throughputs, options.tables)
        found = tuple(tables.kind(name, pairs=True) for name in tables.job_types)
    if len({k.id for k in found}) < len(found):
        raise WorkloadError("kinds: two have the same id")
    usable = [k for k in found if any(_rate(k, options.reference, g) for g in GPUS)]
    if not usable:
        types = ", ".join(sorted({t.gpu_type for k in found for t in k.throughputs})) or "none"
        raise WorkloadError(
            f"reference: no kind is known on GPUs of type {options.reference}; known are: {types}"
        )
    usable.sort(key=lambda k: k.id)
    return tuple(usable if options.pairs else (replace(k, pairs=()) for k in usable))


def _rate(kind: KindView, gpu_type: str, gpus: int) -> float:
    """steps/s of a kind together on one node; 0 if unknown."""
    known = (
        t.steps_per_s
        for t in kind.throughputs
        if (t.gpu_type, t.gpus, t.spread) == (gpu_type, gpus, False)
    )
    return next(known, 0.0)


def _gpus(options: GavelGenerator, rng: np.random.Generator) -> Ints:
    """int64[jobs]: GPUs of each."""
    if options.mode.endswith("-single"):
        return np.ones(options.jobs, dtype=np.int64)
    return rng.choice(np.array(GPUS, dtype=np.int64), size=options.jobs, p=GPUS_LIKELY)


def _chosen(
    options: GavelGenerator, kinds: tuple[KindView, ...], gpus: Ints, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """int64[jobs] kinds, uniform among those known on so many GPUs; float64[jobs] steps/s."""
    lots, size = rng.random(len(gpus)), len(gpus)
    chosen, rates = np.zeros(size, dtype=np.int64), np.zeros(size)
    for count in np.unique(gpus).tolist():
        of_kind = [_rate(kind, options.reference, count) for kind in kinds]
        known = np.flatnonzero(np.array(of_kind) > 0.0)
        if not len(known):
            raise WorkloadError(
                f"mode: {options.mode} has jobs on {count} GPUs, and no kind is known on {count} of"
                f" type {options.reference}"
            )
        at = gpus == count
        chosen[at] = known[(lots[at] * len(known)).astype(np.int64)]
        rates[at] = np.array(of_kind)[chosen[at]]
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
