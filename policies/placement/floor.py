"""The devices that are left to give while the jobs of a round are seated, node by node.

Devices of a job that is to go on but has not been seated yet are *kept* for it: a gang that finds
no node else may have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from policies.gavel.allocation.allocatable import Condition
from policies.gavel.allocation.observe import Observed
from policies.placement.homes import Place
from policies.placement.supplies import Supplies

SLOTS = 2
"""Jobs that share a device."""


@dataclass(frozen=True, slots=True)
class Guest:
    """Who looks for a node: what it asks, by node whether one would do if it were empty, what it
    uses of one as one process.
    """

    condition: Condition
    admitted: Sequence[bool]
    demand: Mapping[str, float]


class Floor:
    """`open[n]`: devices of node n that nobody has or keeps; `kept[n]`: for which job others are
    kept.
    """

    def __init__(self, observed: Observed) -> None:
        self.allocatable, self.supplies = observed.allocatable, Supplies(observed)
        self.open = [list(given) for given in self.allocatable.devices]
        self.kept: dict[int, dict[str, int]] = {}
        self.keeps: dict[int, tuple[Place, ...]] = {}
        self._by_open: list[list[dict[int, None]]] | None = None

    @property
    def by_open(self) -> list[list[dict[int, None]]]:
        """[t][g]: nodes of type t with g open devices, in the order in which they came to have so
        many; made when asked for.
        """
        if self._by_open is None:
            most = max(self.allocatable.sizes, default=0)
            self._by_open = [[{} for _ in range(most + 1)] for _ in self.allocatable.types]
            for n, of in enumerate(self.allocatable.type_of):
                if of >= 0:
                    self._by_open[of][len(self.open[n])][n] = None
        return self._by_open

    def left(self) -> list[int]:
        """Open devices by type."""
        counted = [0] * len(self.allocatable.types)
        for of, devices in zip(self.allocatable.type_of, self.open, strict=True):
            if devices:
                counted[of] += len(devices)
        return counted

    def keep(self, job: int, places: tuple[Place, ...]) -> bool:
        """Keep these devices for a job, if they are all open."""
        if not self.take(places):
            return False
        for n, devices in places:
            self.kept.setdefault(n, {}).update(dict.fromkeys(devices, job))
        self.keeps[job] = places
        return True

    def let_go(self, job: int) -> bool:
        """Open what is kept for a job; whether anything was."""
        places = self.keeps.pop(job, ())
        for n, devices in places:
            for device in devices:
                del self.kept[n][device]
            self._change(n, self.open[n] + list(devices))
        return bool(places)

    def are_open(self, places: Iterable[Place]) -> bool:
        """Whether all these devices are open."""
        for n, devices in places:
            opened = self.open[n]
            for device in devices:
                if device not in opened:
                    return False
        return True

    def remove(self, places: Iterable[Place]) -> None:
        """These devices are open no longer."""
        for n, devices in places:
            opened = self.open[n]
            self._change(
                n,
                []
                if len(devices) == len(opened)
                else [device for device in opened if device not in devices],
            )

    def take(self, places: tuple[Place, ...]) -> bool:
        """Remove these devices if they are all open; whether they were."""
        n, devices = places[0]
        if (
            len(places) == 1 and len(devices) == 1 and self._by_open is None
        ):  # nearly all, while those who go on are seated
            opened = self.open[n]
            if devices[0] not in opened:
                return False
            opened.remove(devices[0])
            return True
        if not self.are_open(places):
            return False
        self.remove(places)
        return True

    def on_one(self, of_type: int, gpus: int, guest: Guest) -> Place | None:
        """Open devices of the node that will have fewest left (best fit)."""
        for nodes in self.by_open[of_type][gpus:]:
            for n in nodes:
                if guest.admitted[n] and self._has(n, guest.demand, gpus):
                    return n, tuple(self.open[n][:gpus])
        return None

    def on_one_with_kept(self, of_type: int, gpus: int, guest: Guest) -> Place | None:
        """Devices of the node where fewest of them are kept for others, who keep nothing from then
        on.
        """
        for n in self._by_most_open(of_type):
            kept = self.kept.get(n, {})
            if (
                len(self.open[n]) + len(kept) >= gpus
                and guest.admitted[n]
                and self._has(n, guest.demand, gpus)
            ):
                while len(self.open[n]) < gpus:
                    self.let_go(next(reversed(kept.values())))
                return n, tuple(self.open[n][:gpus])
        return None

    def on_several(self, of_type: int, gpus: int, guest: Guest) -> tuple[Place, ...] | None:
        """Open devices of as few nodes as will do, at least two, those with most of them first."""
        for ranks in range(2, gpus + 1):
            demand = guest.condition.of_rank(ranks)
            roomy = (
                n
                for n in self._by_most_open(of_type)
                if self.open[n] and guest.admitted[n] and self.supplies.has(n, demand)
            )
            nodes = list(islice(roomy, ranks))
            if len(nodes) < ranks:
                return None
            if sum(len(self.open[n]) for n in nodes) >= gpus:
                return tuple(self._filled(nodes, gpus))
        return None

    def shared(self, of_type: int, guests: tuple[Guest, Guest]) -> Place | None:
        """An open device that has room for both."""
        demand = _sum(guests[0].demand, guests[1].demand)
        for n in (n for nodes in self.by_open[of_type][1:] for n in nodes):
            if guests[0].admitted[n] and guests[1].admitted[n] and self._has(n, demand, 1):
                device = next((d for d in self.open[n] if self.slots(n, d) >= SLOTS), None)
                if device is not None:
                    return n, (device,)
        return None

    def slots(self, n: int, device: str) -> int:
        """How many jobs a device has room for."""
        return next(d.slots for d in self.allocatable.nodes[n].devices if d.id == device)

    def _has(self, n: int, demand: Mapping[str, float], gpus: int) -> bool:
        supplies = self.supplies
        return supplies.unlimited or (supplies.has(n, demand) and supplies.has_watts(((n, gpus),)))

    def _by_most_open(self, of_type: int) -> Iterator[int]:
        return (n for nodes in reversed(self.by_open[of_type]) for n in nodes)

    def _filled(self, nodes: Sequence[int], gpus: int) -> Iterator[Place]:
        """So many devices of these nodes, at least one of each."""
        for after, n in zip(range(len(nodes) - 1, -1, -1), nodes, strict=True):
            taken = tuple(self.open[n][: gpus - after])
            gpus -= len(taken)
            yield n, taken

    def _change(self, n: int, devices: list[str]) -> None:
        before, self.open[n] = len(self.open[n]), devices
        if self._by_open is not None:
            of = self._by_open[self.allocatable.type_of[n]]
            del of[before][n]
            of[len(devices)][n] = None


def _sum(a: Mapping[str, float], b: Mapping[str, float]) -> Mapping[str, float]:
    return {name: a.get(name, 0.0) + b.get(name, 0.0) for name in {**a, **b}}
