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

SHORTEST_S = 10.0
"""Shortest run time that counts in the bounded slowdown (Feitelson's bound)."""

CONFIDENCE = 0.95
"""Probability that an interval over seeds covers the true mean."""

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
"""Direction in which a metric is better; "" if in none."""

PART = "part"
"""Unit of fractions."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Figure of a run: name in files, words and unit in reports, and better direction.

    `always`: reports show it even if no run has it.
    """

    name: str
    words: str
    unit: str = ""
    better: Better = ""
    always: bool = True


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
"""Prefix of metrics of resources in use: cores, memory and named resources."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean of `n` values and half width of the 95% interval (Student's t; None for one)."""

    mean: float
    half_width: float | None
    n: int


def metrics_of(outcome: Outcome) -> dict[str, float]:
    """Return METRICS of a run by name, then its named resources in use; nan: nothing to average."""
    # 1. Times of the jobs that ran to their end.
    ran = outcome.ran
    jct_s = outcome.jct_s[ran]
    jct_p50_s, jct_p90_s, jct_p99_s = quantiles(jct_s, (0.5, 0.9, 0.99))
    waits_s = (outcome.first_start_s - outcome.arrival_s)[ran]
    slowdown, bounded_slowdown = slowdowns(outcome)
    (bounded_p99,) = quantiles(bounded_slowdown[ran], (0.99,))
    tardiness_s = outcome.tardiness_s[ran]
    is_late = tardiness_s > 0.0

    # 2. Use of the GPUs, and the part of the rounds that changed something.
    used_p10, used_p50, used_p90 = utilisation_quantiles(outcome, (0.1, 0.5, 0.9))
    changed_part = outcome.rounds_changed / outcome.rounds if outcome.rounds else nan

    values = {
        "total_cost": outcome.total_cost,
        "energy_cost": outcome.energy_cost,
        "tardiness_cost": outcome.tardiness_cost,
        "unfinished_cost": outcome.unfinished_cost,
        "energy_kwh": outcome.energy_kwh,
        "emissions_kg": outcome.emissions_kg,
        "jct_mean_s": mean(jct_s),
        "jct_p50_s": jct_p50_s,
        "jct_p90_s": jct_p90_s,
        "jct_p99_s": jct_p99_s,
        "wait_mean_s": mean(waits_s),
        "wait_max_s": float(waits_s.max()) if len(waits_s) else nan,
        "makespan_s": outcome.makespan_s,
        "slowdown_mean": mean(slowdown[ran]),
        "bounded_slowdown_mean": mean(bounded_slowdown[ran]),
        "bounded_slowdown_p99": bounded_p99,
        "utilisation": utilisation_of(outcome),
        "utilisation_p10": used_p10,
        "utilisation_p50": used_p50,
        "utilisation_p90": used_p90,
        "late": float(np.count_nonzero(is_late)),
        "tardiness_mean_s": mean(tardiness_s[is_late]),
        "completed": float(np.count_nonzero(outcome.state == JobEnd.COMPLETED)),
        "killed": float(np.count_nonzero(outcome.state == JobEnd.KILLED)),
        # Deadlines and dependencies have the numbers above.
        "failed": float(np.count_nonzero(outcome.state > JobEnd.KILLED)),
        "unfinished": float(np.count_nonzero(outcome.state == JobEnd.OPEN)),
        "rounds": float(outcome.rounds),
        "part_of_rounds_changed": changed_part,
        "launches": float(outcome.launches.sum()),
        "preemptions": float(outcome.preemptions.sum()),
        "migrations": float(outcome.migrations.sum()),
        "failures": float(outcome.failures.sum()),
    }

    # 3. Figures that not every run has.
    values.update(_pair_metrics(outcome))
    values.update(_run_time_metrics(outcome))
    for resource, part in outcome.used.items():
        values[f"{USED}{resource}"] = part

    # 4. Metrics in the order of METRICS, then named resources.
    metrics = {metric.name: values.pop(metric.name, nan) for metric in METRICS}
    return {**metrics, **values}


def _pair_metrics(outcome: Outcome) -> dict[str, float]:
    """Return errors of estimated pairs, all of them and those that ran, and the measurements."""
    pairs = outcome.pair_estimates
    if pairs is None:
        return {}
    values = {"pairs_measured": float(pairs.measured)}
    for prefix, errors in (("pair_error", pairs.all), ("pair_ran_error", pairs.ran)):
        for part, field in ERROR_PARTS.items():
            error = getattr(errors, field)
            values[f"{prefix}_{part}"] = nan if error is None else error
    return values


def _run_time_metrics(outcome: Outcome) -> dict[str, float]:
    """Return errors of the run times that were predicted at launches."""
    errors = outcome.run_time_errors.total
    if errors is None:
        return {}
    return {metric: getattr(errors, field) for metric, field in RUN_TIME_ERRORS.items()}


def metrics_in(runs: Iterable[Mapping[str, float]]) -> tuple[Metric, ...]:
    """Return METRICS, and a metric for each named resource of these runs by name."""
    known = {metric.name for metric in METRICS}
    names: set[str] = set()
    for run in runs:
        names.update(run)
    resources = []
    for name in sorted(names - known):
        words = f"{name.removeprefix(USED)} in use"
        resources.append(Metric(name, words, "", "more", always=False))
    return (*METRICS, *resources)


def slowdowns(outcome: Outcome) -> tuple[Floats, Floats]:
    """Return (slowdown, bounded slowdown), float64[J] each; nan for a job never completed."""
    smallest_s = np.finfo(np.float64).tiny  # no division by zero
    slowdown: Floats = outcome.jct_s / np.maximum(outcome.fastest_s, smallest_s)
    bounded: Floats = np.maximum(1.0, outcome.jct_s / np.maximum(SHORTEST_S, outcome.fastest_s))
    return slowdown, bounded


def utilisation_of(outcome: Outcome) -> float:
    """Return the mean fraction of GPUs in use from first arrival over the makespan; nan if idle."""
    has_makespan = outcome.makespan_s > 0.0  # False for nan, too
    if not len(outcome.arrival_s) or not outcome.utilisation.gpus or not has_makespan:
        return nan
    from_s = float(outcome.arrival_s.min())
    used = averages(outcome.utilisation, np.array([from_s, from_s + outcome.makespan_s]))
    return float(used[0]) / outcome.utilisation.gpus


def utilisation_quantiles(outcome: Outcome, levels: Sequence[float]) -> list[float]:
    """Return the fractions of GPUs in use that are not exceeded for these parts of the makespan.

    Hadar's figure 3 shows this distribution of GPU resource utilisation (GRU) over time. A GPU is
    in use from a launch to its end, set-up and restart included. nan if idle.
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
    fractions = []
    for level in levels:
        rounded_down = level - 1e-12  # sums of floats may miss a level by little
        index = min(int(np.searchsorted(passed, rounded_down)), len(order) - 1)
        fractions.append(float(counts[order[index]]) / steps.gpus)
    return fractions


def averages(steps: Utilisation, edges_s: Floats) -> Floats:
    """Return the mean GPUs in use between one edge and the next, float64[len(edges) - 1]."""
    if not len(steps.time_s):
        return np.zeros(len(edges_s) - 1)

    # 1. GPU seconds from the first step to each step.
    gpu_s_of_steps = np.diff(steps.time_s) * steps.gpus_in_use[:-1]
    gpu_s_at_steps = np.concatenate([[0.0], np.cumsum(gpu_s_of_steps)])

    # 2. GPU seconds to each edge; after the last step its number stays in use.
    after_last_s = np.maximum(0.0, edges_s - steps.time_s[-1])
    gpu_s_at_edges = np.interp(edges_s, steps.time_s, gpu_s_at_steps)
    gpu_s_at_edges = gpu_s_at_edges + steps.gpus_in_use[-1] * after_last_s

    result: Floats = np.diff(gpu_s_at_edges) / np.diff(edges_s)
    return result


def mean(values: Floats) -> float:
    """Return the mean; nan without values."""
    return float(values.mean()) if len(values) else nan


def quantiles(values: Floats, at: Sequence[float] | Floats) -> list[float]:
    """Return the quantiles at levels from 0 to 1, linear between neighbours; nan without values."""
    if not len(values):
        return [nan] * len(at)
    return [float(quantile) for quantile in np.quantile(values, at)]


def interval(values: Sequence[float]) -> Interval:
    """Return mean and half width over runs; values that are not finite do not count."""
    known = [value for value in values if isfinite(value)]
    n = len(known)
    if n == 0:
        return Interval(nan, None, 0)
    if n == 1:
        return Interval(known[0], None, 1)
    from scipy.special import stdtrit  # 26 MB, which web does without

    middle = sum(known) / n
    deviation = sqrt(sum((value - middle) ** 2 for value in known) / (n - 1))
    half_width = float(stdtrit(n - 1, (1.0 + CONFIDENCE) / 2.0)) * deviation / sqrt(n)
    return Interval(middle, half_width, n)


def intervals(runs: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    """Return the interval of each metric over the runs of one policy."""
    result = {}
    for metric in metrics_in(runs):
        result[metric.name] = interval([run.get(metric.name, nan) for run in runs])
    return result


def fewest_unfinished(means: Sequence[float | None]) -> list[bool]:
    """Return, by policy, True if it leaves no more jobs unfinished than any other."""
    known = [mean for mean in means if mean is not None and isfinite(mean)]
    if not known:
        return [True] * len(means)
    fewest = min(known)
    return [mean is None or not mean > fewest for mean in means]  # True for nan, too


def relative(runs: Mapping[int, float], baseline: Mapping[int, float]) -> Interval:
    """Return the interval of the excess over the baseline, as a fraction.

    Runs of the same seed are compared, as these have the same jobs.
    """
    excesses = []
    for seed in sorted(runs.keys() & baseline.keys()):
        if baseline[seed]:
            excesses.append(runs[seed] / baseline[seed] - 1.0)
    return interval(excesses)
