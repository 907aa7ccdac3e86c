"""Speed of a gang over several nodes: what is known, else an estimate.

With S(g) = 1 / (1 - p + p / g) the speed-up of g GPUs by Amdahl's law, s(t, g) the speed on g GPUs
of type t on one node, and e the efficiency of a gang over nodes, 0 < e:

    speed over nodes = s(t, h) * S(g) / S(h) * e,   h the known count that is nearest to g.

The efficiency is the geometric mean of speed over nodes / speed on one node, of the first of these
that is known: the kind itself, other kinds on this type, other kinds on any type. If none is, a
step is taken to wait for an all-reduce over the slowest link, which sends 2 (n - 1) / n of the
gradients of n nodes, and which a fast GPU does not hide:

    e = 1 / (1 + WAIT * TFLOP/s / (Gbit/s) * 2 (n - 1) / n).

WAIT is from Gavel's tables (two nodes at 10 Gbit/s: V100 0.50, P100 0.69, K80 1.0 times the speed
on one node); half of their kinds are within a factor of 1.5 of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, log, sqrt
from typing import NamedTuple

from policies.contract.views import KindView, Source
from policies.placement.amdahl import PARALLEL_PRIOR, own_fraction, speed_up

WAIT = 0.6
"""Gbit of gradients that a GPU of one TFLOP/s makes in a second."""

USUAL_GBPS = 10.0
"""Link of nodes that do not say how fast theirs is."""

USUAL_TFLOPS = 15.0
"""Speed of a GPU type about which nothing is known."""

PRIOR_ERROR = 0.4
"""Standard deviation of log(estimate / truth) where no kind shows its speed over nodes."""

FROM_OWN = "its speed over nodes with other numbers of GPUs"
FROM_TYPE = "other kinds over nodes of this type"
FROM_OTHERS = "other kinds over nodes of other types"
FROM_LINKS = "the links and the number of nodes"


@dataclass(frozen=True, slots=True)
class SpreadEstimate:
    """Estimated steps/s over nodes, where it is from, and its error.

    `error`: standard deviation of log(estimate / truth); 0.4 is a factor of 1.5.
    """

    steps_per_s: float
    basis: str
    error: float


@dataclass(frozen=True, slots=True)
class _Efficiency:
    """Speed over nodes / speed on one node that a kind has shown on a type."""

    kind: str
    gpu_type: str
    log: float


class Links(NamedTuple):
    """GPUs of the largest node of a type, and Gbit/s of the slowest link of such a node."""

    largest: int
    slowest_gbps: float


def links_of(nodes: Iterable[tuple[str, int, float]]) -> dict[str, Links]:
    """Return the links by type of nodes: (GPU type, GPUs, Gbit/s; 0 if unknown)."""
    links: dict[str, Links] = {}
    for gpu_type, gpus, link_gbps in nodes:
        gbps = link_gbps or USUAL_GBPS
        largest, slowest_gbps = links.get(gpu_type, Links(1, gbps))
        links[gpu_type] = Links(max(largest, gpus), min(slowest_gbps, gbps))
    return links


class SpreadRates:
    """Estimated speeds of kinds over the nodes of a cluster.

    `tflops`, `links`: by GPU type.
    """

    def __init__(
        self,
        kinds: Iterable[KindView],
        links: Mapping[str, Links],
        tflops: Mapping[str, float],
    ) -> None:
        self._kinds = {kind.id: kind for kind in kinds}
        self._links = links
        self._tflops = tflops
        self._estimates: dict[tuple[str, str, int], SpreadEstimate | None] = {}

    def estimate(self, kind: str, gpu_type: str, gpus: int) -> SpreadEstimate | None:
        """Return the estimate for a gang of `gpus` GPUs of a type; None if nothing is known."""
        key = kind, gpu_type, gpus
        if key not in self._estimates:
            self._estimates[key] = self._estimate(kind, gpu_type, gpus)
        return self._estimates[key]

    def _estimate(self, kind: str, gpu_type: str, gpus: int) -> SpreadEstimate | None:
        view = self._kinds.get(kind)
        if view is None or gpus < 2:
            return None
        on_one_node = speed_on_one_node(view, gpu_type, gpus)
        if on_one_node <= 0.0:
            return None
        logs, basis = self._shown_by(kind, gpu_type)
        if not logs:
            efficiency = self._by_links(gpu_type, gpus)
            return SpreadEstimate(on_one_node * efficiency, basis, PRIOR_ERROR)
        mean = sum(logs) / len(logs)
        return SpreadEstimate(on_one_node * exp(mean), basis, _error_of(logs))

    def _shown_by(self, kind: str, gpu_type: str) -> tuple[list[float], str]:
        """Return (logarithms, basis) of the nearest known efficiencies, as in the module's text.

        ([], FROM_LINKS) if none is known.
        """
        shown = self._efficiencies
        own = [one.log for one in shown if one.kind == kind and one.gpu_type == gpu_type]
        if own:
            return own, FROM_OWN
        others = [one for one in shown if one.kind != kind]
        on_type = [one.log for one in others if one.gpu_type == gpu_type]
        if on_type:
            return on_type, FROM_TYPE
        anywhere = [one.log for one in others]
        if anywhere:
            return anywhere, FROM_OTHERS
        return [], FROM_LINKS

    @cached_property
    def _efficiencies(self) -> list[_Efficiency]:
        """Mean efficiency of each kind on each type over whose nodes it has run."""
        shown: list[_Efficiency] = []
        for view in self._kinds.values():
            by_type: dict[str, list[float]] = {}
            for known in view.throughputs:
                is_shown = known.source in (Source.MEASURED, Source.DECLARED)
                if not known.spread or not known.is_known or not is_shown:
                    continue
                on_one_node = speed_on_one_node(view, known.gpu_type, known.gpus)
                if on_one_node > 0.0:
                    ratio = known.steps_per_s / on_one_node
                    by_type.setdefault(known.gpu_type, []).append(log(ratio))
            for gpu_type, logs in by_type.items():
                shown.append(_Efficiency(view.id, gpu_type, sum(logs) / len(logs)))
        return shown

    def _by_links(self, gpu_type: str, gpus: int) -> float:
        """Return the efficiency by the slowest link of a type, on as few nodes as there can be."""
        largest, slowest_gbps = self._links.get(gpu_type, Links(1, USUAL_GBPS))
        nodes = max(2, ceil(gpus / largest))
        tflops = self._tflops.get(gpu_type, 0.0) or USUAL_TFLOPS
        waiting = WAIT * tflops / slowest_gbps * 2 * (nodes - 1) / nodes
        return 1.0 / (1.0 + waiting)


def speed_on_one_node(kind: KindView, gpu_type: str, gpus: int) -> float:
    """Return steps/s on so many GPUs as if one node had them; 0 if nothing is known of the type."""
    speeds: dict[int, float] = {}
    for (name, count, spread), steps_per_s in kind.rates.items():
        if name == gpu_type and not spread and count:
            speeds[count] = steps_per_s
    if not speeds:
        return 0.0
    if gpus in speeds:
        return speeds[gpus]
    nearest = min(speeds, key=lambda count: (abs(log(gpus / count)), count))
    of_type = {(gpu_type, count): speed for count, speed in speeds.items()}
    fraction = own_fraction(of_type)
    if fraction is None:
        fraction = PARALLEL_PRIOR
    return speeds[nearest] * speed_up(fraction, gpus) / speed_up(fraction, nearest)


def _error_of(logs: list[float]) -> float:
    """Return the standard deviation of these logarithms, with the prior as one more of them."""
    mean = sum(logs) / len(logs)
    squares = PRIOR_ERROR**2 + sum((one - mean) ** 2 for one in logs)
    return sqrt(squares / len(logs))
