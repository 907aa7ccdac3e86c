"""The least that remaining work can still cost: each job alone, from a given time on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf

import numpy as np

from controlplane.simulation.cluster.meter import Prices
from policies.contract.snapshot import (
    Floats,
    Ints,
    JobColumns,
    KindView,
    NodeRole,
    NodeView,
    PriceInterval,
    Throughput,
)


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
    """The least that `steps` of the jobs of `rows` take and cost if each starts alone at `from_s`.

    The run time is that of its fastest configuration, the energy that of its cheapest: all that
    the nodes draw while nothing else runs there.
    """
    prices, known = Prices(energy), {k.id: k.throughputs for k in kinds}
    shapes = {
        (n.gpu_type, n.power_w) for n in nodes if n.devices and n.role is not NodeRole.PROFILING
    }

    @cache
    def best(kind: str, least: int, most: int, types: tuple[str, ...]) -> tuple[float, ...]:
        """(steps/s of the fastest configuration; steps/s and watts of the cheapest one)."""
        fitting = [
            (t.steps_per_s, watts)
            for t in known.get(kind, ())
            if least <= t.gpus <= most and t.steps_per_s > 0.0
            if not types or t.gpu_type in types
            for watts in _watts(t, shapes)
        ]
        if not fitting:
            return 0.0, 0.0, 0.0
        return max(fitting)[0], *min(fitting, key=lambda f: f[1] / f[0])

    run_s, cost = np.full(len(steps), inf), np.zeros(len(steps))
    least, most = columns.counts["gpus_min"].tolist(), columns.counts["gpus_max"].tolist()
    types = columns.others["allowed_types"]
    for i, (row, left) in enumerate(zip(rows, steps.tolist(), strict=True)):
        fastest, rate, watts = best(columns.kinds[row], least[row], most[row], types[row])
        if fastest:
            run_s[i] = left / fastest
            cost[i] = watts * prices.between(from_s, from_s + left / rate)[1]
    return Remaining(run_s, cost)


def _watts(
    throughput: Throughput, shapes: Iterable[tuple[str, tuple[float, ...]]]
) -> Iterable[float]:
    """Watts of that many GPUs on otherwise idle nodes of each shape, over several if spread."""
    for gpu_type, power_w in shapes:
        devices = len(power_w) - 1
        if gpu_type == throughput.gpu_type and (throughput.spread or throughput.gpus <= devices):
            full, rest = divmod(throughput.gpus, devices)
            yield full * power_w[devices] + (power_w[rest] if rest else 0.0)
