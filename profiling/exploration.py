"""Exploration: a job may try an unmeasured GPU configuration that could be the cheapest. Pure.

A step of a kind costs (cost of energy per second + value of time) / speed. The best known cost is
K. On a configuration that nobody has measured the estimated cost is m > K; its logarithm has a
normal error of standard deviation sigma, which is known from the errors of estimates of measured
speeds (leave one out). If the kind's waiting jobs have W steps left, a trial gains at most

    gain = W * E[max(0, K - m exp(sigma Z))] = W * (K Phi(d) - m exp(sigma^2 / 2) Phi(d - sigma)),

d = log(K / m) / sigma. Its price is the extra cost of the n steps of one launch, which is long
enough to measure and to be allowed to stop, and a restart:

    price = n * max(0, m exp(sigma^2 / 2) - K) + restart.

If the gain is LEAST_RETURN times the price or more, and GPUs are idle, the oldest waiting job of
the kind gets a kind of its own in the snapshot, whose speed there is exp(2 sigma) times the
estimate. The policy decides with it as with any other kind. While a job of the kind runs there, no
other job tries.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import NormalDist

import numpy as np

from clusters.energy import JOULES_PER_KWH
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
"""Standard deviations by which the shown speed of a trial exceeds its estimate."""

MEASURED_STEPS = 20.0
"""Steps after which an exploring launch has surely measured its speed."""

EXPLORES = "explores"
"""First word of the text of a trial."""

MARK = "+"
"""Separator in the id of an exploring job's kind: kind's id + configuration."""


_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Trial:
    """Configuration that a job may try; `times`: factor by which a step may cost less there."""

    job: str
    kind: str
    config: Config
    gain: float
    price: float
    times: float

    @property
    def surplus(self) -> float:
        """Gain less LEAST_RETURN times the price; 0 or less: not worth it."""
        return self.gain - LEAST_RETURN * self.price

    @property
    def text(self) -> str:
        """Sentence for the job's history."""
        gpu_type, gpus = self.config
        return f"{EXPLORES} {gpus} x {gpu_type}: a step may cost up to {self.times:.2g} times less"


def spread_of(errors: Iterable[float]) -> float:
    """Return sigma of estimates with these errors, log(estimated / measured), and the prior."""
    squares = [error * error for error in errors]
    total = PRIOR_WEIGHT * PRIOR_SIGMA**2 + sum(squares)
    return sqrt(total / (PRIOR_WEIGHT + len(squares)))


def expected_saving(best: float, estimated: float, sigma: float) -> float:
    """Return E[max(0, K - m exp(sigma Z))], the saving per step if the cost became known.

    `best` is K, `estimated` is m.
    """
    if sigma <= 0 or best <= 0 or estimated <= 0:
        return 0.0
    d = log(best / estimated) / sigma
    mean = estimated * exp(sigma * sigma / 2)
    return max(0.0, best * _NORMAL.cdf(d) - mean * _NORMAL.cdf(d - sigma))


def explored(snapshot: Snapshot, jobs: Collection[str], sigma: float) -> Snapshot:
    """Return the snapshot in which, of each kind, one of these waiting jobs may explore.

    `jobs`: ids of the jobs. `sigma`: of estimates, see `spread_of`.
    """
    # 1. The trials, with a kind of its own for each exploring job.
    trial_by_job = {trial.job: trial for trial in trials(snapshot, jobs, sigma)}
    if not trial_by_job:
        return snapshot
    kind_by_id = {kind.id: kind for kind in snapshot.kinds}
    own_kinds = {}
    for job, trial in trial_by_job.items():
        own_kinds[job] = _optimistic_kind(kind_by_id[trial.kind], trial, sigma)

    # 2. The snapshot in which these jobs are of these kinds.
    columns = snapshot.jobs.columns
    job_kinds = []
    for job, kind_id in zip(columns.ids, columns.kinds, strict=True):
        job_kinds.append(own_kinds[job].id if job in own_kinds else kind_id)
    return replace(
        snapshot,
        kinds=(*snapshot.kinds, *own_kinds.values()),
        jobs=Jobs(replace(columns, kinds=tuple(job_kinds))),
    )


def trials(snapshot: Snapshot, jobs: Collection[str], sigma: float) -> Iterator[Trial]:
    """Yield for each kind the trial of the greatest surplus, if one is worth it."""
    # 1. Rows of the jobs, by kind, of kinds with measured and estimated speeds.
    kinds = {}
    for kind in snapshot.kinds:
        if _is_partly_measured(kind) and not kind.is_assumed:
            kinds[kind.id] = kind
    columns = snapshot.jobs.columns
    rows_by_kind: dict[str, list[int]] = {}
    for row, (job, kind_id) in enumerate(zip(columns.ids, columns.kinds, strict=True)):
        if kind_id in kinds and job in jobs:
            rows_by_kind.setdefault(kind_id, []).append(row)
    if not rows_by_kind:
        return

    # 2. Of each kind, the oldest job tries a configuration that has idle GPUs and is not tried yet.
    under_way = set(_configurations_under_way(snapshot))
    most_idle = _most_idle_gpus(snapshot)
    arrival_s = columns.numbers["arrival_s"]
    for kind_id, rows in rows_by_kind.items():
        oldest = min(rows, key=lambda row: (arrival_s[row], columns.ids[row]))
        best = None
        for trial in _trials_of(kinds[kind_id], snapshot.jobs[oldest], rows, snapshot, sigma):
            gpu_type, gpus = trial.config
            if (kind_id, trial.config) in under_way or gpus > most_idle.get(gpu_type, 0):
                continue
            if best is None or trial.surplus > best.surplus:
                best = trial
        if best is not None and best.surplus > 0:
            yield best


def reason_of(snapshot: Snapshot, placement: Placement) -> str:
    """Return the text of the trial that a placement carries out; "" if it explores nothing."""
    row = snapshot.jobs.position.get(placement.job)
    if row is None:
        return ""
    kind_id = snapshot.jobs.columns.kinds[row]
    if MARK not in kind_id:
        return ""
    kind = snapshot.kinds[snapshot.kind_index[kind_id]]
    config = _configuration_of(placement.ranks, snapshot.node_by_id)
    for throughput in kind.throughputs:
        if throughput.source is Source.ASSUMED and _is_on(throughput, config):
            return kind.name
    return ""


def _trials_of(
    kind: KindView, job: JobView, rows: Sequence[int], snapshot: Snapshot, sigma: float
) -> Iterator[Trial]:
    """Yield the trials that the job could make, at the prices of now.

    `rows`: of all waiting jobs of the kind, which gain by a trial.
    """
    # 1. Cost per second and per step of each configuration with a known speed.
    known: dict[Config, Throughput] = {}
    cost_per_s: dict[Config, float] = {}
    cost_per_step: dict[Config, float] = {}
    for throughput in kind.throughputs:
        if not throughput.is_known or throughput.spread or not _allows(job, throughput):
            continue
        config = (throughput.gpu_type, throughput.gpus)
        known[config] = throughput
        cost_per_s[config] = _energy_cost_per_s(snapshot, config) + job.waiting_cost
        if cost_per_s[config] > 0:
            cost_per_step[config] = cost_per_s[config] / throughput.steps_per_s

    # 2. Gain and price of each estimated one that may turn out to cost less than the best.
    best = min(cost_per_step.values(), default=0.0)
    for config, cost in cost_per_step.items():
        throughput = known[config]
        could_be_best = best < cost < best * exp(OPTIMISM * sigma)
        if throughput.source is Source.MEASURED or not could_be_best:
            continue
        gain = _steps_left(snapshot, rows, config) * expected_saving(best, cost, sigma)
        launch_steps = max(MEASURED_STEPS, job.min_run_s * throughput.steps_per_s)
        extra_cost = max(0.0, cost * exp(sigma * sigma / 2) - best)
        restart_cost = job.restart_cost_s * cost_per_s[config]
        price = min(launch_steps, job.remaining_steps) * extra_cost + restart_cost
        times = best / cost * exp(OPTIMISM * sigma)
        yield Trial(job.id, kind.id, config, gain, price, times)


def _optimistic_kind(kind: KindView, trial: Trial, sigma: float) -> KindView:
    """Return the exploring job's kind, with an assumed speed on the configuration of the trial.

    No expected time is shown for an assumed speed.
    """
    throughputs = []
    for throughput in kind.throughputs:
        if _is_on(throughput, trial.config):
            speed = throughput.steps_per_s * exp(OPTIMISM * sigma)
            throughput = replace(throughput, steps_per_s=speed, source=Source.ASSUMED)
        throughputs.append(throughput)
    gpu_type, gpus = trial.config
    return replace(
        kind,
        id=f"{kind.id}{MARK}{gpu_type}:{gpus}",
        name=trial.text,
        throughputs=tuple(throughputs),
        pairs=(),
    )


def _is_partly_measured(kind: KindView) -> bool:
    """Return True for a kind with measured and estimated speeds."""
    sources = {throughput.source for throughput in kind.throughputs}
    return Source.MEASURED in sources and Source.ESTIMATED in sources


def _is_on(throughput: Throughput, config: Config | None) -> bool:
    """Return True for the throughput on a configuration of one node."""
    return (throughput.gpu_type, throughput.gpus) == config and not throughput.spread


def _allows(job: JobView, throughput: Throughput) -> bool:
    """Return True if the job may run on the configuration of the throughput."""
    allows_type = not job.allowed_types or throughput.gpu_type in job.allowed_types
    return allows_type and job.gpus_min <= throughput.gpus <= job.gpus_max


def _steps_left(snapshot: Snapshot, rows: Sequence[int], config: Config) -> float:
    """Return the remaining steps of the jobs in these rows that may run on the configuration."""
    gpu_type, gpus = config
    columns = snapshot.jobs.columns
    chosen = np.array(rows, dtype=np.int64)
    allows_type = snapshot.allowed[chosen, snapshot.type_index[gpu_type]]
    allows_fewest = columns.counts["gpus_min"][chosen] <= gpus
    allows_most = columns.counts["gpus_max"][chosen] >= gpus
    remaining_steps = columns.numbers["remaining_steps"][chosen]
    return float(remaining_steps[allows_type & allows_fewest & allows_most].sum())


def _energy_cost_per_s(snapshot: Snapshot, config: Config) -> float:
    """Return the energy cost of a second on a node with nothing else; 0 without prices.

    A price below 0 counts as 0, as in all decisions.
    """
    gpu_type, gpus = config
    interval = snapshot.energy_at(snapshot.now_s)
    if interval is None:
        return 0.0
    able = [n for n in snapshot.nodes if n.gpu_type == gpu_type and len(n.devices) >= gpus]
    watts = min((node.draw_w(gpus) for node in able), default=0.0)
    return watts * max(0.0, interval.price_per_kwh) * interval.pue / JOULES_PER_KWH


def _most_idle_gpus(snapshot: Snapshot) -> Mapping[str, int]:
    """Return the most idle GPUs on one node that takes training jobs, by type."""
    most: dict[str, int] = {}
    for node in snapshot.nodes:
        idle = 0
        if node.takes_training:
            idle = sum(device.healthy and not device.held for device in node.devices)
        most[node.gpu_type] = max(most.get(node.gpu_type, 0), idle)
    return most


def _configurations_under_way(snapshot: Snapshot) -> Iterator[tuple[str, Config]]:
    """Yield (kind, configuration) of running jobs, and of wanted profile runs."""
    columns = snapshot.jobs.columns
    for kind_id, running in zip(columns.kinds, columns.others["running"], strict=True):
        for run in running:
            config = _configuration_of(run.ranks, snapshot.node_by_id)
            if config is not None:
                yield kind_id, config
    for wanted in snapshot.profiling:
        yield wanted.kind, (wanted.gpu_type, wanted.gpus)


def _configuration_of(
    ranks: Iterable[RankPlacement], nodes: Mapping[str, NodeView]
) -> Config | None:
    """Return the GPU type and number of GPUs of a placement; None if it has not one type."""
    seats = [seat for seat in ranks if seat.node in nodes]
    types = {nodes[seat.node].gpu_type for seat in seats}
    if len(types) != 1:
        return None
    return types.pop(), sum(len(seat.devices) for seat in seats)
