"""Estimates of throughputs that nobody has measured, from measured ones. Pure.

Write s[k,t,g] for the steps per second of kind k on g GPUs of type t. Known speeds of the kind
itself are kept; all others follow from two ratios, averaged in log space.

Between types. The ratio of type u to type t is a weighted geometric mean of the data sheets' ratio
F_u / F_t in TFLOP/s, and of the ratios r[k',t,u] that *other* kinds k' show (each a geometric mean
over the numbers of GPUs known on both types; n[t,u] such kinds), with w0 = DATA_SHEET_WEIGHT:

    log R(t->u) = (w0 * log(F_u / F_t) + sum_k' log r[k',t,u]) / (w0 + n[t,u])

where each r[k',t,u] is kept within a factor of MOST_BEYOND_SHEET of F_u / F_t: other teams' jobs
may have reported anything.

Between numbers of GPUs. A step takes T(g) = A + B / g (Amdahl): with p = B / (A + B) the fraction
of it that GPUs share, the speed-up of g GPUs is S(g) = 1 / (1 - p + p / g). Two known numbers of
one type give p; the kind's own p are averaged or, if it has none, those of the others with
PARALLEL_PRIOR.

An estimate on (u, g) is the weighted geometric mean of s[k,t,h] * R(t->u) * S(g) / S(h) over the
known (t, h) of the kind: those on type u or, if there are none, all. Near numbers of GPUs and
well-known ratios weigh more. On one type, more GPUs are never estimated slower than fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import exp, inf, isfinite, log, log2
from statistics import median

from policies.placement.amdahl import (
    PARALLEL_PRIOR,
    Config,
    Speeds,
    bounded,
    own_fraction,
    speed_up,
)

DATA_SHEET_WEIGHT = 0.5
"""Weight of the data sheets' ratio against one other kind's measured ratio."""

MOST_BEYOND_SHEET = 10.0
"""Factor by which another kind's ratio of two types may differ from their data sheets'.

ANDREAS' applications differ by at most 1.4. An application that waits for its data is as fast on
every type: it differs by the whole ratio of the sheets, 10 between the oldest and newest types.
"""


@dataclass(frozen=True, slots=True)
class Pool:
    """Measured ratios of all kinds, and the GPU types' peak TFLOP/s.

    `ratios[t, u][kind]` is log r[kind,t,u] for t < u; `fractions[kind]` its parallel fraction p.
    """

    tflops: Mapping[str, float]
    ratios: Mapping[tuple[str, str], Mapping[str, float]]
    fractions: Mapping[str, float]

    @classmethod
    def of(cls, tflops: Mapping[str, float], known: Mapping[str, Speeds]) -> Pool:
        """Build the pool from known speeds by kind, without those not positive and finite."""
        ratios: dict[tuple[str, str], dict[str, float]] = {}
        fractions: dict[str, float] = {}
        for kind, speeds in known.items():
            usable = _usable(speeds)
            for pair, ratio in _type_ratios(usable).items():
                ratios.setdefault(pair, {})[kind] = ratio
            fraction = own_fraction(usable)
            if fraction is not None:
                fractions[kind] = fraction
        return cls(dict(tflops), ratios, fractions)

    def log_ratio(self, origin: str, target: str, *, without: str) -> tuple[float, float]:
        """Return log R(origin -> target) by all kinds but `without`, and its weight."""
        # 1. The ratio by the data sheets, and the bounds of what other kinds may show.
        first, second = sorted((origin, target))
        sheet = _log_quotient(self.tflops.get(second), self.tflops.get(first))
        low = sheet - log(MOST_BEYOND_SHEET)
        high = sheet + log(MOST_BEYOND_SHEET)

        # 2. The mean of the sheets and the other kinds, in the direction asked for.
        measured = self.ratios.get((first, second), {})
        others = [min(high, max(low, ratio)) for kind, ratio in measured.items() if kind != without]
        weight = DATA_SHEET_WEIGHT + len(others)
        mean = (DATA_SHEET_WEIGHT * sheet + sum(others)) / weight
        if origin == second:
            mean = -mean
        return mean, weight

    def fraction(self, *, without: str) -> float:
        """Return the mean parallel fraction of all kinds but `without`, and of the prior."""
        others = [fraction for kind, fraction in self.fractions.items() if kind != without]
        return (PARALLEL_PRIOR + sum(others)) / (1 + len(others))


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Measured steps/s, and their estimate from all other measurements."""

    kind: str
    config: Config
    measured: float
    estimated: float

    @property
    def error(self) -> float:
        """Relative error |estimated / measured - 1|."""
        return abs(self.estimated / self.measured - 1)


def estimate(kind: str, known: Speeds, wanted: Iterable[Config], pool: Pool) -> dict[Config, float]:
    """Return steps/s of `kind` on each wanted configuration, estimated where they are not known.

    `known`: speeds of the kind by configuration. Without any, {} is returned.
    """
    usable = _usable(known)
    if not usable:
        return {}

    # 1. The fraction of a step that GPUs share: the kind's own, else the other kinds'.
    fraction = own_fraction(usable)
    if fraction is None:
        fraction = pool.fraction(without=kind)

    # 2. Each configuration by itself.
    log_speeds = {config: log(speed) for config, speed in usable.items()}
    speeds = {}
    for config in wanted:
        _, gpus = config
        if gpus < 1:
            continue
        if config in usable:
            speeds[config] = usable[config]
        else:
            speeds[config] = _estimate_one(kind, log_speeds, config, fraction, pool)

    # 3. More GPUs are not slower.
    return _monotone(speeds, usable)


def leave_one_out(known: Mapping[str, Speeds], pool: Pool) -> list[LeaveOneOut]:
    """Estimate each speed of a kind from the others, for kinds with two speeds or more."""
    results = []
    for kind, speeds in known.items():
        usable = _usable(speeds)
        if len(usable) < 2:
            continue
        for config, measured in usable.items():
            others = {other: speed for other, speed in usable.items() if other != config}
            estimated = estimate(kind, others, [config], pool)[config]
            results.append(LeaveOneOut(kind, config, measured, estimated))
    return results


def median_error(results: Iterable[LeaveOneOut]) -> float | None:
    """Return the median relative error; None without results."""
    errors = [result.error for result in results]
    return median(errors) if errors else None


def _estimate_one(
    kind: str, log_speeds: Speeds, config: Config, fraction: float, pool: Pool
) -> float:
    """Return the weighted geometric mean of the estimates from each known speed.

    `log_speeds`: logarithms of the kind's known speeds. `fraction`: its parallel fraction.
    """
    gpu_type, gpus = config
    same_type = [origin for origin in log_speeds if origin[0] == gpu_type]
    total = 0.0
    total_weight = 0.0
    for origin in same_type or log_speeds:
        origin_type, origin_gpus = origin
        log_ratio = 0.0
        ratio_weight = 1.0
        if origin_type != gpu_type:
            log_ratio, ratio_weight = pool.log_ratio(origin_type, gpu_type, without=kind)
        log_speed_up = log(speed_up(fraction, gpus) / speed_up(fraction, origin_gpus))
        weight = ratio_weight / (1.0 + abs(log2(gpus / origin_gpus)))
        total += weight * (log_speeds[origin] + log_ratio + log_speed_up)
        total_weight += weight
    return exp(bounded(total / total_weight))


def _monotone(speeds: dict[Config, float], known: Speeds) -> dict[Config, float]:
    """Return the speeds with estimates that do not fall with more GPUs of a type.

    An estimate is raised to the speed of fewer GPUs, and lowered to known speeds of more GPUs.
    """
    result = dict(speeds)
    for gpu_type in {config[0] for config in speeds}:
        counts = {gpus for other_type, gpus in (*speeds, *known) if other_type == gpu_type}
        floor = 0.0
        for gpus in sorted(counts):
            config = (gpu_type, gpus)
            if config in speeds and config not in known:
                ceiling = inf
                for (known_type, known_gpus), speed in known.items():
                    if known_type == gpu_type and known_gpus > gpus:
                        ceiling = min(ceiling, speed)
                result[config] = max(floor, min(ceiling, speeds[config]))
            floor = max(floor, known.get(config, 0.0), result.get(config, 0.0))
    return result


def _type_ratios(speeds: Speeds) -> dict[tuple[str, str], float]:
    """Return log r[t,u] for types t < u known with equal numbers of GPUs: the mean over these."""
    log_ratios: dict[tuple[str, str], list[float]] = {}
    for (type1, gpus1), (type2, gpus2) in combinations(sorted(speeds), 2):
        if gpus1 == gpus2 and type1 != type2:
            log_ratio = log(speeds[type2, gpus2]) - log(speeds[type1, gpus1])
            log_ratios.setdefault((type1, type2), []).append(log_ratio)
    return {pair: sum(values) / len(values) for pair, values in log_ratios.items()}


def _usable(speeds: Speeds) -> dict[Config, float]:
    """Return the speeds that are positive and finite, on one GPU or more."""
    usable = {}
    for (gpu_type, gpus), speed in speeds.items():
        if isfinite(speed) and speed > 0 and gpus >= 1:
            usable[gpu_type, gpus] = speed
    return usable


def _log_quotient(numerator: float | None, denominator: float | None) -> float:
    """Return log(numerator / denominator) of two data sheets; 0 if a figure is missing."""
    if not numerator or not denominator or numerator <= 0 or denominator <= 0:
        return 0.0
    return bounded(log(numerator) - log(denominator))
