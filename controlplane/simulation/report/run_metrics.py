"""Figures of a run, and their means and intervals over seeds. Pure; times are virtual seconds.

    jct_s = completion - arrival        slowdown = jct_s / fastest_s
    wait_s = first start - arrival      bounded_slowdown = max(1, jct_s / max(10 s, fastest_s))
    utilisation = mean GPUs in use from first arrival to last completion / all GPUs (Hadar's GRU)
    part_of_rounds_changed = rounds that stopped, moved or resized a job / rounds (Hadar, IV-B)

Averages over jobs are of those that ran to their end: completed, or killed at their walltime (whose
shortest run is the walltime). Jobs that are not over are counted (`unfinished`); the total cost
charges the least that they would still cost, and only policies that leave the fewest can be best.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan, sqrt
from typing import Literal

import numpy as np

from controlplane.simulation.world.job_table import JobEnd
from controlplane.simulation.world.outcome import Outcome, Utilisation
from policies.contract.snapshot import Floats
from profiling.pairs.estimates import ErrorSummary

SHORTEST_S = 10.0
"""Shortest run time that counts in the bounded slowdown (Feitelson's bound)."""

CONFIDENCE = 0.95
NO_ERRORS = ErrorSummary.of(())
ERROR_PARTS = {"mean": "mean", "p50": "median", "p90": "p90", "most": "worst"}
"""Fields of an ErrorSummary by the last word of their metrics."""

RUN_TIME_ERRORS = {
    "run_time_error_mean_s": "mean_s",
    "run_time_error_absolute_s": "absolute_s",
    "run_time_error_median_s": "median_s",
    "run_times_too_short": "too_short",
}
"""Fields of an ErrorRow by metric."""

Better = Literal["less", "more", ""]

PART = "part"
"""Unit of fractions."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Figure of a run: name in files, words and unit in reports, and better direction."""

    name: str
    words: str
    unit: str = ""
    better: Better = ""
    always: bool = True
    """True to show it also where no run has it."""


METRICS = (
    Metric("total_cost", "Total cost", "{currency}", "less"),
    Metric("energy_cost", "Energy cost", "{currency}", "less"),
    Metric("tardiness_cost", "Tardiness cost", "{currency}", "less"),
    Metric("unfinished_cost", "Least cost of unfinished jobs", "{currency}", "less"),
    Metric("energy_kwh", "Energy (IT)", "kWh", "less"),
    Metric("emissions_kg", "Emissions", "kg CO2", "less"),
    Metric("jct_mean_s", "Completion time, mean", "s", "less"),
    Metric("jct_p50_s", "Completion time, median", "s", "less"),
    Metric("jct_p90_s", "Completion time, 90%", "s", "less"),
    Metric("jct_p99_s", "Completion time, 99%", "s", "less"),
    Metric("wait_mean_s", "Wait before the first start, mean", "s", "less"),
    Metric("wait_max_s", "Wait before the first start, longest", "s", "less"),
    Metric("makespan_s", "Makespan", "s", "less"),
    Metric("slowdown_mean", "Slowdown, mean", "", "less"),
    Metric("bounded_slowdown_mean", "Bounded slowdown, mean", "", "less"),
    Metric("bounded_slowdown_p99", "Bounded slowdown, 99%", "", "less"),
    Metric("utilisation", "GPUs in use", "", "more"),
    Metric("utilisation_p10", "GPUs in use, 10% of the time at most", PART, "more"),
    Metric("utilisation_p50", "GPUs in use, half the time at most", PART, "more"),
    Metric("utilisation_p90", "GPUs in use, 90% of the time at most", PART, "more"),
    Metric("used_cores", "Cores in use", "", "more", always=False),
    Metric("used_memory_gb", "Memory in use", "", "more", always=False),
    Metric("late", "Jobs late", "", "less"),
    Metric("tardiness_mean_s", "Tardiness of late jobs, mean", "s", "less"),
    Metric("completed", "Jobs completed"),
    Metric("killed", "Jobs killed at their walltime"),
    Metric("failed", "Jobs ended by deadline or dependency"),
    Metric("unfinished", "Jobs never completed", "", "less"),
    Metric("rounds", "Rounds"),
    Metric("part_of_rounds_changed", "Rounds that stopped, moved or resized a running job", PART),
    Metric("launches", "Launches"),
    Metric("preemptions", "Pre-emptions"),
    Metric("migrations", "Migrations"),
    Metric("failures", "Failed launches"),
    Metric("pair_error_mean", "Error of estimated pairs, mean", PART, always=False),
    Metric("pair_error_p50", "Error of estimated pairs, median", PART, always=False),
    Metric("pair_error_p90", "Error of estimated pairs, 90%", PART, always=False),
    Metric("pair_error_most", "Error of estimated pairs, worst", PART, always=False),
    Metric("pair_ran_error_mean", "Error of estimated pairs that ran, mean", PART, always=False),
    Metric("pair_ran_error_p50", "Error of estimated pairs that ran, median", PART, always=False),
    Metric("pair_ran_error_p90", "Error of estimated pairs that ran, 90%", PART, always=False),
    Metric("pairs_measured", "Measurements of pairs", always=False),
    Metric("run_time_error_mean_s", "Predicted minus actual run time, mean", "s", always=False),
    Metric("run_time_error_absolute_s", "Absolute run time error, mean", "s", "less", always=False),
    Metric("run_time_error_median_s", "Absolute run time error, median", "s", "less", always=False),
    Metric("run_times_too_short", "Jobs that ran longer than predicted", PART, always=False),
)
"""Figures of a run, in the order of reports; `metrics_in` adds those of named resources."""

USED = "used_"


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean of `n` values and half width of the 95% interval (Student's t; None for one)."""

    mean: float
    half_width: float | None
    n: int


def metrics_of(outcome: Outcome) -> dict[str, float]:
    """METRICS of a run by name, and named resources in use; nan: nothing to average."""
    done = outcome.ran
    tardiness_s = outcome.tardiness_s[done]
    slowdown, bounded = slowdowns(outcome)
    p50, p90, p99 = quantiles(outcome.jct_s[done], (0.5, 0.9, 0.99))
    gru_p10, gru_p50, gru_p90 = utilisation_quantiles(outcome, (0.1, 0.5, 0.9))
    waits_s = (outcome.first_start_s - outcome.arrival_s)[done]
    used = {f"{USED}{name}": part for name, part in outcome.used.items()}
    costs = ("total_cost", "energy_cost", "tardiness_cost", "unfinished_cost")
    own = (*costs, "energy_kwh", "emissions_kg", "makespan_s")
    sums = ("launches", "preemptions", "migrations", "failures")
    pairs = outcome.pair_estimates
    every, ran = (NO_ERRORS, NO_ERRORS) if pairs is None else (pairs.all, pairs.ran)
    run_times = outcome.run_time_errors.total
    errors = {
        f"{name}_{part}": getattr(summary, of)
        for name, summary in (("pair_error", every), ("pair_ran_error", ran))
        for part, of in ERROR_PARTS.items()
    }
    found = {
        **{name: getattr(outcome, name) for name in own},
        "jct_mean_s": mean(outcome.jct_s[done]),
        "jct_p50_s": p50,
        "jct_p90_s": p90,
        "jct_p99_s": p99,
        "wait_mean_s": mean(waits_s),
        "wait_max_s": float(waits_s.max()) if len(waits_s) else nan,
        "slowdown_mean": mean(slowdown[done]),
        "bounded_slowdown_mean": mean(bounded[done]),
        "bounded_slowdown_p99": quantiles(bounded[done], (0.99,))[0],
        "utilisation": utilisation_of(outcome),
        "utilisation_p10": gru_p10,
        "utilisation_p50": gru_p50,
        "utilisation_p90": gru_p90,
        "late": float(np.count_nonzero(tardiness_s > 0.0)),
        "tardiness_mean_s": mean(tardiness_s[tardiness_s > 0.0]),
        "completed": float(np.count_nonzero(outcome.state == JobEnd.COMPLETED)),
        "killed": float(np.count_nonzero(outcome.state == JobEnd.KILLED)),
        "failed": float(np.count_nonzero(outcome.state > JobEnd.KILLED)),
        "unfinished": float(np.count_nonzero(outcome.state == JobEnd.OPEN)),
        "rounds": float(outcome.rounds),
        "part_of_rounds_changed": outcome.rounds_changed / outcome.rounds
        if outcome.rounds
        else nan,
        **{name: float(getattr(outcome, name).sum()) for name in sums},
        **{name: nan if value is None else value for name, value in errors.items()},
        "pairs_measured": nan if pairs is None else float(pairs.measured),
        **{
            metric: nan if run_times is None else getattr(run_times, name)
            for metric, name in RUN_TIME_ERRORS.items()
        },
    }
    known = {metric.name: found.get(metric.name, used.get(metric.name, nan)) for metric in METRICS}
    return {**known, **{name: part for name, part in used.items() if name not in known}}


def metrics_in(runs: Iterable[Mapping[str, float]]) -> tuple[Metric, ...]:
    """METRICS, and the named resources of these runs."""
    known = {metric.name for metric in METRICS}
    named = sorted({name for run in runs for name in run if name not in known})
    added = (Metric(n, f"{n.removeprefix(USED)} in use", "", "more", always=False) for n in named)
    return (*METRICS, *added)


def slowdowns(outcome: Outcome) -> tuple[Floats, Floats]:
    """(slowdown, bounded slowdown), float64[J] each; nan for a job that is never completed."""
    slowdown: Floats = outcome.jct_s / np.maximum(outcome.fastest_s, np.finfo(np.float64).tiny)
    bounded: Floats = np.maximum(1.0, outcome.jct_s / np.maximum(SHORTEST_S, outcome.fastest_s))
    return slowdown, bounded


def utilisation_of(outcome: Outcome) -> float:
    """Mean fraction of GPUs in use from first arrival over the makespan; nan if idle."""
    if not len(outcome.arrival_s) or not outcome.utilisation.gpus or not outcome.makespan_s > 0.0:
        return nan
    from_s = float(outcome.arrival_s.min())
    used = averages(outcome.utilisation, np.array([from_s, from_s + outcome.makespan_s]))
    return float(used[0]) / outcome.utilisation.gpus


def utilisation_quantiles(outcome: Outcome, levels: Sequence[float]) -> list[float]:
    """Fractions of GPUs in use that are not exceeded for these parts of the makespan.

    The distribution of GPU resource utilisation (GRU) over time in Hadar's figure 3. A GPU is in
    use from a launch to its end, set-up and restart included. nan if idle.
    """
    steps = outcome.utilisation
    if isnan(utilisation_of(outcome)):
        return [nan] * len(levels)

    # 1. Moments at which the number in use may change, within the makespan.
    from_s = float(outcome.arrival_s.min())
    until_s = from_s + outcome.makespan_s
    inside = (steps.time_s > from_s) & (steps.time_s < until_s)
    edges_s = np.concatenate([[from_s], steps.time_s[inside], [until_s]])

    # 2. GPUs in use between them, from the fewest on, with the part of time up to each.
    in_use = np.concatenate([[0], steps.gpus_in_use])
    counts = in_use[np.searchsorted(steps.time_s, edges_s[:-1], side="right")]
    order = np.argsort(counts, kind="stable")
    passed = np.cumsum(np.diff(edges_s)[order]) / outcome.makespan_s

    # 3. The first number in use by which that part of the time has passed.
    found = []
    for level in levels:
        place = min(int(np.searchsorted(passed, level - 1e-12)), len(order) - 1)
        found.append(float(counts[order[place]]) / steps.gpus)
    return found


def averages(steps: Utilisation, edges_s: Floats) -> Floats:
    """float64[len(edges) - 1]: GPUs in use on average between one edge and the next."""
    if not len(steps.time_s):
        return np.zeros(len(edges_s) - 1)
    gpu_s = np.concatenate([[0.0], np.cumsum(np.diff(steps.time_s) * steps.gpus_in_use[:-1])])
    after_s = np.maximum(0.0, edges_s - steps.time_s[-1])
    until = np.interp(edges_s, steps.time_s, gpu_s) + steps.gpus_in_use[-1] * after_s
    result: Floats = np.diff(until) / np.diff(edges_s)
    return result


def mean(values: Floats) -> float:
    """The mean, nan of nothing."""
    return float(values.mean()) if len(values) else nan


def quantiles(values: Floats, at: Sequence[float] | Floats) -> list[float]:
    """The quantiles, linear between neighbours; nan of nothing."""
    return [float(q) for q in np.quantile(values, at)] if len(values) else [nan] * len(at)


def interval(values: Sequence[float]) -> Interval:
    """Mean and half width over runs; nan values do not count."""
    known = [v for v in values if isfinite(v)]
    n = len(known)
    if n < 2:
        return Interval(known[0] if known else nan, None, n)
    from scipy.special import stdtrit  # 26 MB, which web does without

    middle = sum(known) / n
    deviation = sqrt(sum((v - middle) ** 2 for v in known) / (n - 1))
    half_width = float(stdtrit(n - 1, (1.0 + CONFIDENCE) / 2.0)) * deviation / sqrt(n)
    return Interval(middle, half_width, n)


def intervals(runs: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    """Every metric over the runs of one policy."""
    return {
        metric.name: interval([run.get(metric.name, nan) for run in runs])
        for metric in metrics_in(runs)
    }


def fewest_unfinished(means: Sequence[float | None]) -> list[bool]:
    """Return, by policy, True if it leaves no more jobs unfinished than any other."""
    known = [mean for mean in means if mean is not None and isfinite(mean)]
    return [mean is None or not known or not mean > min(known) for mean in means]


def relative(runs: Mapping[int, float], baseline: Mapping[int, float]) -> Interval:
    """Excess over the baseline as a fraction, seed by seed, so that jobs are the same."""
    return interval(
        [runs[s] / baseline[s] - 1.0 for s in sorted(runs.keys() & baseline.keys()) if baseline[s]]
    )
