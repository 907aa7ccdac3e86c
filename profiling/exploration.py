"""Exploration: when a job is shown a GPU configuration as faster than it is estimated. Pure.

A step of a kind costs (energy per second + value of time) / speed. The best known cost is K. On a
configuration that nobody has measured the estimated cost is m > K; its logarithm has a normal
error of standard deviation sigma, from the errors of estimates of what was measured (leave one
out). If the kind's waiting jobs have W steps left, trying the configuration gains at most

    gain = W * E[max(0, K - m exp(sigma Z))] = W * (K Phi(d) - m exp(sigma^2 / 2) Phi(d - sigma)),

d = log(K / m) / sigma. The price is the dearer steps of one launch that is long enough to measure
and to be allowed to stop, n of them, and a restart:

    price = n * max(0, m exp(sigma^2 / 2) - K) + restart.

Where the gain is 60 times the price or more, and GPUs are free, the oldest waiting job of the kind
gets a kind of its own, whose speed there is exp(2 sigma) times the estimate. The policy decides
with it as with any other. While a job of the kind runs there, no other tries.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import NormalDist

import numpy as np

from policies.contract.plan import Placement
from policies.contract.snapshot import (
    Jobs,
    JobView,
    KindView,
    NodeView,
    RankPlacement,
    Snapshot,
    Source,
    Throughput,
)
from policies.placement.amdahl import Config

PRIOR_SIGMA = 0.3
"""Standard deviation of the logarithm of an estimate's error, before any is known."""

PRIOR_WEIGHT = 4
"""Errors that the prior counts as."""

LEAST_RETURN = 60.0
"""Least gain over price: few trials make most savings, and gains are less sure than prices."""

OPTIMISM = 2.0
"""Standard deviations by which an explored speed may exceed its estimate."""

MEASURED_STEPS = 20.0
"""Steps of an exploring launch that surely measure it."""

EXPLORES = "explores"
"""First word of what a launch explores."""

MARK = "+"
"""Between a kind's id and the configuration that a job of it explores."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Trial:
    """Configuration worth a try by one job; `times`: how much less a step may cost there."""

    job: str
    kind: str
    config: Config
    gain: float
    price: float
    times: float

    @property
    def surplus(self) -> float:
        """Gain beyond what the price demands; 0 or less: not worth it."""
        return self.gain - LEAST_RETURN * self.price

    @property
    def text(self) -> str:
        gpu_type, gpus = self.config
        return f"{EXPLORES} {gpus} x {gpu_type}: a step may cost up to {self.times:.2g} times less"


def spread_of(errors: Iterable[float]) -> float:
    """Return sigma of estimates with these errors, log(estimated / measured)."""
    squares = [e * e for e in errors]
    total = PRIOR_WEIGHT * PRIOR_SIGMA**2 + sum(squares)
    return sqrt(total / (PRIOR_WEIGHT + len(squares)))


def expected_saving(best: float, estimated: float, sigma: float) -> float:
    """E[max(0, K - m exp(sigma Z))]: expected saving of a step by knowing."""
    if sigma <= 0 or best <= 0 or estimated <= 0:
        return 0.0
    d = log(best / estimated) / sigma
    mean = estimated * exp(sigma * sigma / 2)
    return max(0.0, best * _NORMAL.cdf(d) - mean * _NORMAL.cdf(d - sigma))


def explored(snapshot: Snapshot, jobs: Collection[str], sigma: float) -> Snapshot:
    """Return the snapshot in which one of these waiting jobs of a kind may try a configuration."""
    found = {trial.job: trial for trial in trials(snapshot, jobs, sigma)}
    if not found:
        return snapshot
    columns, views = snapshot.jobs.columns, {kind.id: kind for kind in snapshot.kinds}
    optimistic = {t.job: _optimistic(views[t.kind], t, sigma) for t in found.values()}
    kinds = tuple(
        optimistic[job].id if job in optimistic else kind
        for job, kind in zip(columns.ids, columns.kinds, strict=True)
    )
    return replace(
        snapshot,
        kinds=(*snapshot.kinds, *optimistic.values()),
        jobs=Jobs(replace(columns, kinds=kinds)),
    )


def trials(snapshot: Snapshot, jobs: Collection[str], sigma: float) -> Iterator[Trial]:
    """Yield the trial with the greatest gain beyond its price's for each kind with one."""
    kinds = {k.id: k for k in snapshot.kinds if _is_partly_measured(k) and not k.is_assumed}
    columns, by_kind = snapshot.jobs.columns, dict[str, list[int]]()
    for row, (job, kind) in enumerate(zip(columns.ids, columns.kinds, strict=True)):
        if kind in kinds and job in jobs:
            by_kind.setdefault(kind, []).append(row)
    busy = set(_under_way(snapshot)) if by_kind else set()
    free = _largest_free(snapshot) if by_kind else {}
    arrival_s = columns.numbers["arrival_s"]
    for kind, rows in by_kind.items():
        first = snapshot.jobs[min(rows, key=lambda row: (arrival_s[row], columns.ids[row]))]
        found = _trials_of(kinds[kind], first, rows, snapshot, sigma)
        possible = (
            t
            for t in found
            if (kind, t.config) not in busy and t.config[1] <= free.get(t.config[0], 0)
        )
        best = max(possible, key=lambda t: t.surplus, default=None)
        if best is not None and best.surplus > 0:
            yield best


def reason_of(snapshot: Snapshot, placement: Placement) -> str:
    """Return what a placement explores, in words; "" if nothing."""
    row = snapshot.jobs.position.get(placement.job)
    kind = "" if row is None else snapshot.jobs.columns.kinds[row]
    if MARK not in kind:
        return ""
    config = _config_of(placement.ranks, snapshot.node_by_id)
    view = snapshot.kinds[snapshot.kind_index[kind]]
    return view.name if any(_is(t, config) for t in view.throughputs if _guessed(t)) else ""


def _trials_of(
    kind: KindView, job: JobView, rows: Sequence[int], snapshot: Snapshot, sigma: float
) -> Iterator[Trial]:
    """Yield what the job could try, at the prices of now; `rows`: waiting jobs of the kind."""
    per_s = {
        (t.gpu_type, t.gpus): _cost_per_s(snapshot, t.gpu_type, t.gpus) + job.waiting_cost
        for t in kind.throughputs
        if t.is_known and not t.spread and _allows(job, t)
    }
    speeds = {
        c: t for t in kind.throughputs if not t.spread and (c := (t.gpu_type, t.gpus)) in per_s
    }
    costs = {c: per_s[c] / t.steps_per_s for c, t in speeds.items() if per_s[c] > 0}
    best = min(costs.values(), default=0.0)
    for config, cost in costs.items():
        known = speeds[config]
        if known.source is Source.MEASURED or not best < cost < best * exp(OPTIMISM * sigma):
            continue
        gain = _steps_left(snapshot, rows, config) * expected_saving(best, cost, sigma)
        steps = max(MEASURED_STEPS, job.min_run_s * known.steps_per_s)
        dearer = max(0.0, cost * exp(sigma * sigma / 2) - best)
        price = min(steps, job.remaining_steps) * dearer + job.restart_cost_s * per_s[config]
        times = best / cost * exp(OPTIMISM * sigma)
        yield Trial(job.id, kind.id, config, gain, price, times)


def _optimistic(kind: KindView, trial: Trial, sigma: float) -> KindView:
    """Return the kind as the exploring job shows it; nobody is told a time that follows."""
    gpu_type, gpus = trial.config
    factor = exp(OPTIMISM * sigma)
    speeds = tuple(
        replace(t, steps_per_s=t.steps_per_s * factor, source=Source.ASSUMED)
        if _is(t, trial.config)
        else t
        for t in kind.throughputs
    )
    return replace(
        kind, id=f"{kind.id}{MARK}{gpu_type}:{gpus}", name=trial.text, throughputs=speeds, pairs=()
    )


def _is_partly_measured(kind: KindView) -> bool:
    return {Source.MEASURED, Source.ESTIMATED} <= {t.source for t in kind.throughputs}


def _guessed(known: Throughput) -> bool:
    return known.source is Source.ASSUMED


def _is(known: Throughput, config: Config | None) -> bool:
    return (known.gpu_type, known.gpus) == config and not known.spread


def _allows(job: JobView, known: Throughput) -> bool:
    of_type = not job.allowed_types or known.gpu_type in job.allowed_types
    return of_type and job.gpus_min <= known.gpus <= job.gpus_max


def _steps_left(snapshot: Snapshot, rows: Sequence[int], config: Config) -> float:
    """Remaining steps of the jobs in these rows that may run on the configuration."""
    gpu_type, gpus = config
    columns, chosen = snapshot.jobs.columns, np.array(rows, dtype=np.int64)
    able = snapshot.allowed[chosen, snapshot.type_index[gpu_type]]
    able &= columns.counts["gpus_min"][chosen] <= gpus
    able &= columns.counts["gpus_max"][chosen] >= gpus
    return float(columns.numbers["remaining_steps"][chosen][able].sum())


def _cost_per_s(snapshot: Snapshot, gpu_type: str, gpus: int) -> float:
    """Energy cost of a second of so many GPUs, on a node with nothing else; 0 without prices.

    A price below 0 counts as 0, as in all decisions.
    """
    step = snapshot.energy_at(snapshot.now_s)
    able = (n for n in snapshot.nodes if n.gpu_type == gpu_type and len(n.devices) >= gpus)
    watts = min((n.draw_w(gpus) for n in able), default=0.0)
    return 0.0 if step is None else watts * max(0.0, step.price_per_kwh) * step.pue / 3.6e6


def _largest_free(snapshot: Snapshot) -> Mapping[str, int]:
    """Most idle GPUs on one node that takes jobs, by type."""
    found: dict[str, int] = {}
    for node in snapshot.nodes:
        idle = sum(d.healthy and not d.held for d in node.devices) if node.takes_training else 0
        found[node.gpu_type] = max(found.get(node.gpu_type, 0), idle)
    return found


def _under_way(snapshot: Snapshot) -> Iterator[tuple[str, Config]]:
    """Yield (kind, configuration) of what runs or is to be measured by a profile run."""
    columns, nodes = snapshot.jobs.columns, snapshot.node_by_id
    for kind, running in zip(columns.kinds, columns.others["running"], strict=True):
        for run in running:
            if (config := _config_of(run.ranks, nodes)) is not None:
                yield kind, config
    for wanted in snapshot.profiling:
        yield wanted.kind, (wanted.gpu_type, wanted.gpus)


def _config_of(ranks: Iterable[RankPlacement], nodes: Mapping[str, NodeView]) -> Config | None:
    seats = [seat for seat in ranks if seat.node in nodes]
    types = {nodes[seat.node].gpu_type for seat in seats}
    return (types.pop(), sum(len(s.devices) for s in seats)) if len(types) == 1 else None
