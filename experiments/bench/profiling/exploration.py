"""Energy of exploration and profile runs: `python -m experiments.bench.profiling.exploration`.

Computed by the live rule for eight kinds on four GPU types, 25 jobs of half an hour each. A kind's
first job runs on a V100; every type has a free GPU, and each job takes the one shown as cheapest.
Speeds deviate from the data sheets. Profile runs (`profiling: dedicated`) start, and do 20 steps,
once for each kind and type. Exploring costs the dearer steps of the exploring launches, and a
restart where the job moves on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

import numpy as np

from experiments.bench.figures import Figure, figure, show
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
from profiling.estimates import Pool, estimate, leave_one_out
from profiling.exploration import MEASURED_STEPS, explored, spread_of

GOAL = 0.1
SEEDS = 24
KINDS, JOBS, RUN_S = 8, 25, 1800.0
PROFILING_STEPS = 20
LEAST_RUNS = 10.0
"""Least run over the cost of a restart: a cluster's default."""

FIRST = "V100"
TFLOPS = {"K80": 4.0, "P100": 9.5, "T4": 8.0, "V100": 14.0}
WATTS = {"K80": 150.0, "P100": 250.0, "T4": 70.0, "V100": 300.0}
BASE_W = 100.0
DRAW_WH = {t: (BASE_W + w) / 3600.0 for t, w in WATTS.items()}
"""Energy of a second of a node with one GPU in use."""

Rates = dict[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """A step's seconds on a V100, a restart's, and sigma of the speeds' deviations."""

    step_s: float
    restart_s: float
    deviation: float = 0.3


@dataclass(slots=True)
class Spent:
    """Energy in Wh. `work`: of the jobs' steps, those that explore included."""

    profile_runs: float = 0.0
    exploring: float = 0.0
    work: float = 0.0


CASES = (Case(1.0, 4.0), Case(1.0, 10.0), Case(0.25, 4.0), Case(0.25, 10.0))


def spent(case: Case, seed: int, *, explores: bool = True) -> Spent:
    """Energy of all jobs, a job of each kind at a time."""
    rng, found = np.random.default_rng(seed), Spent()
    truth = {str(k): _draw(case, rng) for k in range(KINDS)}
    for rates in truth.values():
        each = (DRAW_WH[t] * (PROFILING_STEPS / s + case.restart_s) for t, s in rates.items())
        found.profile_runs += sum(each)
    known: dict[str, Rates] = {kind: {FIRST: rates[FIRST]} for kind, rates in truth.items()}
    for turn in range(JOBS):
        for kind, rates in truth.items():
            jobs = _jobs(case, kind, JOBS - turn)
            _run(case, kind, rates, known, jobs if explores else [], found)
    return found


def _draw(case: Case, rng: np.random.Generator) -> Rates:
    fastest = TFLOPS[FIRST] * case.step_s
    return {t: of / fastest * exp(rng.normal(0.0, case.deviation)) for t, of in TFLOPS.items()}


def _run(
    case: Case,
    kind: str,
    rates: Rates,
    known: dict[str, Rates],
    jobs: list[JobView],
    found: Spent,
) -> None:
    """Run the kind's next job where it is shown as cheapest, and learn its speed there."""
    snapshot = _snapshot(_shown(kind, known), jobs)
    after = explored(snapshot, {job.id for job in jobs}, _sigma(known))
    shown = after.kinds[-1].rates
    chosen = min(TFLOPS, key=lambda t: DRAW_WH[t] / shown[t, 1, False])
    best = min((chosen, *known[kind]), key=lambda t: DRAW_WH[t] / rates[t])
    known[kind][chosen] = rates[chosen]
    dearer = DRAW_WH[chosen] / rates[chosen] - DRAW_WH[best] / rates[best]
    steps = RUN_S / case.step_s
    if after is not snapshot and dearer > 0.0:
        steps_there = max(MEASURED_STEPS, LEAST_RUNS * case.restart_s * rates[chosen])
        extra = dearer * steps_there + case.restart_s * DRAW_WH[best]
        found.exploring += extra
        found.work += DRAW_WH[best] / rates[best] * steps + extra
    else:
        found.work += DRAW_WH[chosen] / rates[chosen] * steps


def _shown(kind: str, known: Mapping[str, Rates]) -> KindView:
    """Speeds of a kind, measured or estimated."""
    speeds = estimate(kind, _by_config(known)[kind], [(t, 1) for t in TFLOPS], _pool(known))
    of = known[kind]
    throughputs = (
        Throughput(t, 1, s, Source.MEASURED if t in of else Source.ESTIMATED)
        for (t, _), s in speeds.items()
    )
    return KindView(kind, kind, tuple(throughputs))


def _sigma(known: Mapping[str, Rates]) -> float:
    errors = leave_one_out(_by_config(known), _pool(known))
    return spread_of(log(e.estimated / e.measured) for e in errors)


def _pool(known: Mapping[str, Rates]) -> Pool:
    return Pool.of(TFLOPS, _by_config(known))


def _by_config(known: Mapping[str, Rates]) -> dict[str, dict[tuple[str, int], float]]:
    return {kind: {(t, 1): speed for t, speed in of.items()} for kind, of in known.items()}


def _jobs(case: Case, kind: str, count: int) -> list[JobView]:
    steps, least_s = RUN_S / case.step_s, LEAST_RUNS * case.restart_s
    return [
        JobView(f"j{n}", kind, float(n), steps, restart_cost_s=case.restart_s, min_run_s=least_s)
        for n in range(count)
    ]


def _snapshot(kind: KindView, jobs: list[JobView]) -> Snapshot:
    prices = (PriceInterval(0.0, 1e9, 0.3, 1.0),)
    nodes = tuple(
        NodeView(t, t, t, (DeviceView("0", 16.0),), (BASE_W, BASE_W + w)) for t, w in WATTS.items()
    )
    return Snapshot("c", 0.0, 60.0, 1, nodes, (kind,), Jobs(JobColumns.of(jobs)), energy=prices)


def figures(cases: tuple[Case, ...] = CASES, seeds: int = SEEDS) -> Iterator[Figure]:
    """Exploring over profile runs, and the work with exploring over that without."""
    for case in cases:
        found = [spent(case, seed) for seed in range(seeds)]
        without = fmean(spent(case, seed, explores=False).work for seed in range(seeds))
        exploring, runs = fmean(s.exploring for s in found), fmean(s.profile_runs for s in found)
        name = f"energy of exploring, steps of {case.step_s:g} s, restarts of {case.restart_s:g} s"
        facts = {"profile_runs_wh": round(runs, 2), "exploring_wh": round(exploring, 2)}
        work = round(fmean(s.work for s in found) / without, 4)
        yield figure(name, exploring / runs, GOAL, "", **facts, work=work, seeds=seeds)


if __name__ == "__main__":
    show(figures())
