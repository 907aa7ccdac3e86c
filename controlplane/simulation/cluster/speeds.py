"""True speeds of jobs, known to the world, and which jobs no node can ever run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, inf
from typing import Any

from policies.contract.snapshot import (
    JobColumns,
    KindView,
    NodeRole,
    NodeView,
    PowerCapStep,
    RankPlacement,
)
from policies.placement.speed import Speeds as KindSpeeds


class Speeds:
    """True throughputs by kind, and by what a job asks for the best of them."""

    def __init__(
        self, nodes: Iterable[NodeView], kinds: Iterable[KindView], cap_w: float | None = None
    ) -> None:
        self.nodes = {n.id: n for n in nodes}
        self.known = KindSpeeds(kinds)
        self.kinds = self.known.kinds
        self.cap_w = inf if cap_w is None else cap_w
        self._best: dict[tuple[Any, ...], tuple[float, str]] = {}
        self._shapes = _shapes(self.nodes.values())

    def of(self, kind: str, ranks: Sequence[RankPlacement]) -> float:
        """Steps per second of a job of this kind on these seats; 0 where it is not known."""
        return self.known.on_ranks(kind, ranks, self.nodes)

    def best(self, columns: JobColumns, row: int) -> tuple[float, str]:
        """(steps/s at the job's fastest, ""), or (0, why no node can ever run it)."""
        counts, others = columns.counts, columns.others
        wants = (columns.kinds[row], int(counts["gpus_min"][row]), int(counts["gpus_max"][row]))
        demand = () if columns.gpus_only else _demand(columns, row)
        mixes = bool(others["may_mix"][row])
        needs = (others["allowed_types"][row], others["labels"][row], demand)
        asked = (*wants, *needs, mixes)
        found = self._best.get(asked)
        if found is None:
            found = self._best[asked] = self._find(*wants, *needs, mixes)
        return found

    def _find(
        self,
        kind: str,
        least: int,
        most: int,
        types: tuple[str, ...],
        labels: tuple[str, ...],
        demand: tuple[tuple[str, float], ...],
        may_mix: bool,
    ) -> tuple[float, str]:
        if not self.nodes:
            return 0.0, "the cluster has no nodes"
        nodes = [n for n in self._shapes if n.role is not NodeRole.PROFILING]
        of_type = [n for n in nodes if not types or n.gpu_type in types]
        labelled = [n for n in of_type if set(labels) <= set(n.labels)]
        roomy = [n for n in labelled if _has(n, demand)]
        if not of_type:
            return (
                0.0,
                (
                    f"no node for training has GPUs of type {' or '.join(types)}"
                    if types
                    else "no node is for training"
                ),
            )
        if not labelled:
            return 0.0, f"no such node has {', '.join(labels)}"
        if not roomy:
            return 0.0, f"no such node has {_worded(demand)}"
        return self._fastest(kind, least, most, roomy, may_mix)

    def _fastest(
        self, kind: str, least: int, most: int, nodes: Sequence[NodeView], may_mix: bool
    ) -> tuple[float, str]:
        known = {
            key: rate
            for key, rate in self.known.rates(kind).items()
            if rate > 0.0 and least <= key[1] <= most
        }
        large = [n for n in nodes if len(n.devices) >= least]
        spread = self._spread(known, may_mix)
        if not large and not spread:
            return (
                0.0,
                (
                    f"it needs {least} GPUs of a node, the largest that would do has"
                    f" {max(len(n.devices) for n in nodes)}"
                ),
            )
        found = [
            (known.get((n.gpu_type, g, False), 0.0), n, g)
            for n in large
            for g in range(least, min(most, len(n.devices)) + 1)
        ]
        best = max([*(rate for rate, _, _ in found), *spread], default=0.0)
        if best <= 0.0:
            kinds = (
                f"kind {self.kinds[kind].name or kind}" if kind in self.kinds else f"kind {kind}"
            )
            return (
                0.0,
                (
                    f"no speed of {kinds} is known on {least} to {most} GPUs of"
                    f" {' or '.join(sorted({n.gpu_type for n in nodes}))}"
                ),
            )
        watts = min((n.draw_w(g) for rate, n, g in found if rate > 0.0), default=0.0)
        if watts > self.cap_w:
            return (
                0.0,
                (
                    f"it needs {watts:g} W at the least, the cluster may never use more than"
                    f" {self.cap_w:g} W"
                ),
            )
        return best, ""

    def _spread(self, known: Mapping[tuple[str, int, bool], float], may_mix: bool) -> list[float]:
        """Return the speeds of gangs over several nodes for which there are devices enough.

        A gang that may mix types has those of the fastest first, and the speed of its slowest.
        """
        found, gathered = [], dict[int, int]()
        for (gpu_type, gpus, spread), rate in sorted(known.items(), key=lambda of: -of[1]):
            devices = _devices_of(gpu_type, self.nodes.values()) if spread else 0
            gathered[gpus] = gathered.get(gpus, 0) + devices
            if spread and (gathered[gpus] if may_mix else devices) >= gpus:
                found.append(rate)
        return found


def _shapes(nodes: Iterable[NodeView]) -> tuple[NodeView, ...]:
    """One node of each shape: what makes a difference to what fits there."""
    found: dict[tuple[Any, ...], NodeView] = {}
    for n in nodes:
        shape = (
            n.gpu_type,
            len(n.devices),
            n.cores,
            n.memory_gb,
            n.resources,
            n.labels,
            n.role,
            n.power_w,
        )
        found.setdefault(shape, n)
    return tuple(found.values())


def _demand(columns: JobColumns, row: int) -> tuple[tuple[str, float], ...]:
    """Demand of the job on a node of its own, without amounts of 0."""
    numbers, times = columns.numbers, max(1, ceil(int(columns.counts["units"][row])))
    plain = (
        ("cores", float(numbers["cores"][row])),
        ("memory_gb", float(numbers["memory_gb"][row])),
    )
    return tuple(
        (name, amount * times)
        for name, amount in (*plain, *columns.others["resources"][row])
        if amount > 0.0
    )


def _has(node: NodeView, demand: tuple[tuple[str, float], ...]) -> bool:
    limits = {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
    return all(amount <= limits.get(name, 0.0) + 1e-9 for name, amount in demand)


def _worded(demand: tuple[tuple[str, float], ...]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in demand)


def _devices_of(gpu_type: str, nodes: Iterable[NodeView]) -> int:
    return sum(len(n.devices) for n in nodes if n.gpu_type == gpu_type)


def highest_cap_w(power_cap_w: float | None, steps: Sequence[PowerCapStep]) -> float | None:
    """The most watts the cluster may ever use; None for any number."""
    always = inf if power_cap_w is None else power_cap_w
    moments = {-inf, *(s.from_s for s in steps), *(s.to_s for s in steps)} - {inf}
    highest = max(
        min([always, *(s.power_cap_w for s in steps if s.from_s <= at < s.to_s)]) for at in moments
    )
    return None if highest == inf else highest
