"""Throughputs that nobody has measured, estimated from those that somebody has. Pure.

Write s[k,t,g] for the steps per second of kind k on g GPUs of type t. What is known of the kind
itself is taken as it is; everything else follows from two ratios, averaged in log space.

Between types. The ratio of type u to type t is a weighted geometric mean of what the data sheets
say, F_u / F_t in TFLOP/s, and of what the *other* kinds show, r[k',t,u] (a geometric mean over the
counts known on both types; n[t,u] such kinds), with w0 = DATA_SHEET_WEIGHT:

    log R(t->u) = (w0 * log(F_u / F_t) + sum_k' log r[k',t,u]) / (w0 + n[t,u])

where each r[k',t,u] is at most MOST_BEYOND_SHEET times, or one MOST_BEYOND_SHEET-th of, F_u / F_t:
other teams' jobs may have reported anything.

Between counts. A step takes T(g) = A + B / g (Amdahl): with p = B / (A + B) the fraction of it that
GPUs share, the speed-up of g GPUs is S(g) = 1 / (1 - p + p / g). Two known counts of one type give
p; the kind's own are averaged where it has any, else those of the others with PARALLEL_PRIOR.

An estimate on (u, g) is the geometric mean of s[k,t,h] * R(t->u) * S(g) / S(h) over what is known
of the kind on type u or, where nothing is, on the other types; near counts and well-known ratios
weigh more. On one type, more GPUs are never estimated slower than fewer.
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

ANDREAS' applications differ by at most 1.4. One that waits for its data runs alike everywhere: it
differs by the whole ratio of the sheets, which is 10 between the oldest and the newest types.
"""


@dataclass(frozen=True, slots=True)
class Pool:
    """Evidence of all kinds, and the GPU types' peak TFLOP/s.

    `ratios[t, u][kind]` is log r[kind,t,u] for t < u; `fractions[kind]` its parallel fraction.
    """

    tflops: Mapping[str, float]
    ratios: Mapping[tuple[str, str], Mapping[str, float]]
    fractions: Mapping[str, float]

    @classmethod
    def of(cls, tflops: Mapping[str, float], known: Mapping[str, Speeds]) -> Pool:
        """Build the pool from these throughputs, without those not positive and finite."""
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
        first, second = sorted((origin, target))
        sheet = _log_quotient(self.tflops.get(second), self.tflops.get(first))
        low, high = sheet - log(MOST_BEYOND_SHEET), sheet + log(MOST_BEYOND_SHEET)
        shown = self.ratios.get((first, second), {}).items()
        others = [min(high, max(low, r)) for kind, r in shown if kind != without]
        weight = DATA_SHEET_WEIGHT + len(others)
        mean = (DATA_SHEET_WEIGHT * sheet + sum(others)) / weight
        return (mean if origin == first else -mean), weight

    def fraction(self, *, without: str) -> float:
        """Parallel fraction by all kinds but `without`, with the prior as one of them."""
        others = [f for kind, f in self.fractions.items() if kind != without]
        return (PARALLEL_PRIOR + sum(others)) / (1 + len(others))


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Measurement and its estimate from all other measurements."""

    kind: str
    config: Config
    measured: float
    estimated: float

    @property
    def error(self) -> float:
        """Relative error |estimated / measured - 1|."""
        return abs(self.estimated / self.measured - 1)


def estimate(kind: str, known: Speeds, wanted: Iterable[Config], pool: Pool) -> dict[Config, float]:
    """steps/s of `kind` per wanted configuration, estimated where unmeasured; {} if unknown."""
    usable = _usable(known)
    if not usable:
        return {}
    own = own_fraction(usable)
    fraction = pool.fraction(without=kind) if own is None else own
    logs = {config: log(speed) for config, speed in usable.items()}
    raw = {
        c: usable[c] if c in usable else _one(kind, logs, c, fraction, pool)
        for c in wanted
        if c[1] >= 1
    }
    return _monotone(raw, usable)


def leave_one_out(known: Mapping[str, Speeds], pool: Pool) -> list[LeaveOneOut]:
    """Estimate each number of a kind with at least two from all others."""
    found = []
    for kind, speeds in known.items():
        usable = _usable(speeds)
        for config, measured in usable.items() if len(usable) > 1 else ():
            rest = {c: s for c, s in usable.items() if c != config}
            found.append(
                LeaveOneOut(kind, config, measured, estimate(kind, rest, [config], pool)[config])
            )
    return found


def median_error(errors: Iterable[LeaveOneOut]) -> float | None:
    values = [e.error for e in errors]
    return median(values) if values else None


def _one(kind: str, logs: Speeds, config: Config, fraction: float, pool: Pool) -> float:
    """Weighted geometric mean of the estimates from each known number."""
    gpu_type, gpus = config
    near = [c for c in logs if c[0] == gpu_type] or list(logs)
    total = weight = 0.0
    for origin, count in near:
        log_ratio, trust = (
            pool.log_ratio(origin, gpu_type, without=kind) if origin != gpu_type else (0.0, 1.0)
        )
        w = trust / (1.0 + abs(log2(gpus / count)))
        total += w * (
            logs[origin, count]
            + log_ratio
            + log(speed_up(fraction, gpus) / speed_up(fraction, count))
        )
        weight += w
    return exp(bounded(total / weight))


def _monotone(raw: dict[Config, float], known: Speeds) -> dict[Config, float]:
    """Make estimates non-decreasing in the number of GPUs of a type, within known bounds."""
    result = dict(raw)
    for gpu_type in {t for t, _ in raw}:
        floor = 0.0
        counts = sorted({g for t, g in (*raw, *known) if t == gpu_type})
        for gpus in counts:
            config = (gpu_type, gpus)
            if config in raw and config not in known:
                ceiling = min(
                    (s for (t, g), s in known.items() if t == gpu_type and g > gpus), default=inf
                )
                result[config] = max(floor, min(ceiling, raw[config]))
            floor = max(floor, known.get(config, 0.0), result.get(config, 0.0))
    return result


def _type_ratios(speeds: Speeds) -> dict[tuple[str, str], float]:
    """log r[t,u] for types t < u that share counts: the mean over these counts."""
    found: dict[tuple[str, str], list[float]] = {}
    for (type1, g1), (type2, g2) in combinations(sorted(speeds), 2):
        if g1 == g2 and type1 != type2:
            found.setdefault((type1, type2), []).append(
                log(speeds[type2, g2]) - log(speeds[type1, g1])
            )
    return {pair: sum(values) / len(values) for pair, values in found.items()}


def _usable(speeds: Speeds) -> dict[Config, float]:
    return {c: s for c, s in speeds.items() if isfinite(s) and s > 0 and c[1] >= 1}


def _log_quotient(above: float | None, below: float | None) -> float:
    """log(above / below); 0 where a data sheet gives no figure."""
    if not above or not below or above <= 0 or below <= 0:
        return 0.0
    return bounded(log(above) - log(below))
