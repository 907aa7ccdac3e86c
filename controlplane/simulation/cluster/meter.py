"""Energy cost of simulated nodes (ANDREAS), and the least cost of remaining work."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import inf

import numpy as np

from clusters.energy import JOULES_PER_KWH
from controlplane.simulation.cluster.fleet import Fleet
from policies.contract.snapshot import (
    Floats,
    Ints,
    JobColumns,
    KindView,
    NodeRole,
    NodeView,
    PriceInterval,
    Source,
    Throughput,
)
from policies.placement.speed import Speeds


class Meter:
    """Meter of energy and its cost; needs every change of a node's devices in use.

    `noise(node, number)` is a factor of a node's power in its `number`-th stretch of constant use.
    """

    def __init__(
        self,
        nodes: Mapping[str, NodeView],
        energy: Sequence[PriceInterval],
        noise: Callable[[str, int], float] | None = None,
    ) -> None:
        self.nodes, self.noise = nodes, noise
        self.energy_kwh = 0.0
        self.energy_cost = 0.0
        self.emissions_g = 0.0
        self._prices = Prices(energy)
        self._use: dict[str, tuple[float, float]] = {}
        self._stretches: dict[str, int] = {}

    def use(self, now_s: float, node: str, devices: int, *, works: bool = False) -> None:
        """Set the devices in use on this node from `now_s` on, and if it works without any."""
        before = self._use.pop(node, None)
        if before is not None and before[1] < now_s:  # else one of several changes of a moment
            self._add(*before, now_s)
        if devices or works:
            self._use[node] = (self._power_w(node, devices), now_s)

    def settle(self, now_s: float) -> None:
        """Add up energy and cost until `now_s`."""
        for node, (power_w, since_s) in self._use.items():
            self._add(power_w, since_s, now_s)
            self._use[node] = (power_w, now_s)

    def _power_w(self, node: str, devices: int) -> float:
        power_w = self.nodes[node].power_w[devices]
        if self.noise is None:
            return power_w
        number = self._stretches[node] = self._stretches.get(node, 0) + 1
        return power_w * self.noise(node, number)

    def _add(self, power_w: float, since_s: float, now_s: float) -> None:
        kwh, cost, emissions_g = self._prices.between(since_s, now_s)
        self.energy_kwh += power_w * kwh
        self.energy_cost += power_w * cost
        self.emissions_g += power_w * emissions_g


class SplitMeter(Meter):
    """Meter that divides energy among jobs in proportion to GPUs held, shared ones by share.

    `job_kwh`, `job_cost` float64[J]: energy and cost so far by the jobs' rows; they sum up to all.
    """

    def __init__(
        self,
        fleet: Fleet,
        energy: Sequence[PriceInterval],
        jobs: int,
        noise: Callable[[str, int], float] | None = None,
    ) -> None:
        super().__init__(fleet.nodes, energy, noise)
        self.fleet = fleet
        self.job_kwh, self.job_cost = np.zeros(jobs), np.zeros(jobs)
        self._parts: dict[str, Mapping[int, float]] = {}

    def use(self, now_s: float, node: str, devices: int, *, works: bool = False) -> None:
        """Note the number of devices in use; the fleet knows which jobs hold them."""
        self._divide(node, now_s)
        super().use(now_s, node, devices, works=works)
        self._parts[node] = self.fleet.parts(node)

    def settle(self, now_s: float) -> None:
        """Add up and divide energy and cost until `now_s`."""
        for node in self._use:
            self._divide(node, now_s)
        super().settle(now_s)

    def _divide(self, node: str, now_s: float) -> None:
        if node not in self._use:
            return
        power_w, since_s = self._use[node]
        kwh, cost, _ = self._prices.between(since_s, now_s)
        held = sum(self._parts[node].values())
        for row, part in self._parts[node].items():
            self.job_kwh[row] += power_w * kwh * part / held
            self.job_cost[row] += power_w * cost * part / held


class Prices:
    """Integrals of the price steps, so that a bill over a year costs two look-ups."""

    def __init__(self, steps: Sequence[PriceInterval]) -> None:
        self.steps = tuple(steps)
        spans = [s.to_s - s.from_s for s in self.steps[:-1]]
        self._starts = [s.from_s for s in self.steps[1:]]
        pairs = list(zip(spans, self.steps, strict=False))
        self._cost = [0.0, *accumulate(d * s.price_per_kwh * s.pue for d, s in pairs)]
        self._grams = [0.0, *accumulate(d * s.emissions_g_per_kwh * s.pue for d, s in pairs)]

    def between(self, from_s: float, to_s: float) -> tuple[float, float, float]:
        """(kWh, cost, grams) of one watt of IT power over that time (`clusters.energy.priced`)."""
        kwh = (to_s - from_s) / JOULES_PER_KWH
        if not self.steps:
            return kwh, 0.0, 0.0
        (cost_a, grams_a), (cost_b, grams_b) = self._until(from_s), self._until(to_s)
        return kwh, (cost_b - cost_a) / JOULES_PER_KWH, (grams_b - grams_a) / JOULES_PER_KWH

    def _until(self, at_s: float) -> tuple[float, float]:
        i = bisect_right(self._starts, at_s)
        step = self.steps[i]
        since_s = at_s - (step.from_s if i else self.steps[0].from_s)
        return (
            self._cost[i] + since_s * step.price_per_kwh * step.pue,
            self._grams[i] + since_s * step.emissions_g_per_kwh * step.pue,
        )


def meter_of(
    fleet: Fleet,
    energy: Sequence[PriceInterval],
    jobs: int,
    noise: Callable[[str, int], float] | None,
    *,
    splits: bool,
) -> Meter:
    """Return a meter of a fleet, which divides the energy among `jobs` rows if it `splits`."""
    if splits:
        return SplitMeter(fleet, energy, jobs, noise)
    return Meter(fleet.nodes, energy, noise)


@dataclass(frozen=True, slots=True)
class Remaining:
    """Least run time and energy cost of each job's remaining work; inf s if speed is unknown."""

    run_s: Floats
    energy_cost: Floats


def remaining_work(
    columns: JobColumns,
    rows: Sequence[int],
    steps: Floats | Ints,
    from_s: float,
    nodes: Iterable[NodeView],
    kinds: Iterable[KindView],
    energy: Sequence[PriceInterval],
) -> Remaining:
    """Least time and cost of `steps` of the jobs of `rows` if each starts alone at `from_s`.

    Run time of its fastest configuration, energy of its cheapest: all that the nodes draw while
    nothing else runs there.
    """
    prices = Prices(energy)
    nodes = tuple(nodes)
    speeds = Speeds(kinds, nodes)
    shapes = {
        (n.gpu_type, n.power_w) for n in nodes if n.power_w and n.role is not NodeRole.PROFILING
    }

    @cache
    def best(kind: str, least: int, most: int, types: tuple[str, ...]) -> tuple[float, ...]:
        """(steps/s of the fastest configuration; steps/s and watts of the cheapest one)."""
        fitting = [
            (t.steps_per_s, watts)
            for t in _throughputs(speeds, kind, least, shapes)
            if least <= t.gpus <= most and t.steps_per_s > 0.0
            if not types or t.gpu_type in types
            for watts in _watts(t, shapes)
        ]
        if not fitting:
            return 0.0, 0.0, 0.0
        return max(fitting)[0], *min(fitting, key=lambda f: f[1] / f[0])

    run_s, cost = np.full(len(steps), inf), np.zeros(len(steps))
    alike = ~np.array(columns.others["batch"], dtype=np.bool_)  # a batch job is as fast anywhere
    least = (columns.counts["gpus_min"] * alike).tolist()
    most = (columns.counts["gpus_max"] * alike).tolist()
    types = columns.others["allowed_types"]
    for i, (row, left) in enumerate(zip(rows, steps.tolist(), strict=True)):
        fastest, rate, watts = best(columns.kinds[row], least[row], most[row], types[row])
        if fastest:
            run_s[i] = left / fastest
            cost[i] = watts * prices.between(from_s, from_s + left / rate)[1]
    return Remaining(run_s, cost)


def _throughputs(
    speeds: Speeds, kind: str, least: int, shapes: Collection[tuple[str, tuple[float, ...]]]
) -> Iterator[Throughput]:
    """Yield the known throughputs of a kind, and estimates for a gang that no node can hold."""
    if kind in speeds.kinds:
        yield from speeds.kinds[kind].throughputs
    is_wide = least > max((len(power_w) - 1 for _, power_w in shapes), default=0)
    if not is_wide:
        return
    for gpu_type in {of_type for of_type, _ in shapes}:
        rate = speeds.alone(kind, (gpu_type,), least, spread=True)
        if rate > 0.0 and (gpu_type, least, True) not in speeds.rates(kind):
            yield Throughput(gpu_type, least, rate, Source.ESTIMATED, spread=True)


def _watts(
    throughput: Throughput, shapes: Iterable[tuple[str, tuple[float, ...]]]
) -> Iterable[float]:
    """Watts of that many GPUs on otherwise idle nodes of each shape, over several if spread."""
    if not throughput.gpus:
        yield from (power_w[0] for _, power_w in shapes)
        return
    for gpu_type, power_w in shapes:
        devices = len(power_w) - 1
        if gpu_type == throughput.gpu_type and (throughput.spread or throughput.gpus <= devices):
            full, rest = divmod(throughput.gpus, devices)
            yield full * power_w[devices] + (power_w[rest] if rest else 0.0)
