"""Simulated nodes: holders of devices, and views for snapshots."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from operator import attrgetter

from controlplane.simulation.cluster.launch import Launch
from policies.contract.plan import available, seat_demand, seat_demanded
from policies.contract.snapshot import (
    DeviceView,
    JobColumns,
    NodeState,
    NodeView,
    RankPlacement,
    SlotHold,
)
from policies.placement.occupancy import Occupancy, SeatAmounts
from policies.placement.speed import devices_of

_REST = attrgetter(*[f.name for f in fields(NodeView)[4:]])
"""All fields of a node but the first four; `replace` costs four times as much."""


NOTHING: Mapping[str, int] = {}


class Fleet:
    """Nodes by id with their states, and launches by (node, device).

    A device is full when all its slots or shares are taken; in use it counts once. `columns`: the
    jobs, whose amounts of cores, memory and named resources count too; None: nobody's do.
    """

    def __init__(self, nodes: Iterable[NodeView], columns: JobColumns | None = None) -> None:
        self.nodes = {n.id: n for n in nodes}
        self.columns = None if columns is None or columns.gpus_only else columns
        exclusive = () if columns is None else columns.others["exclusive"]
        self._exclusive = exclusive if any(exclusive) else ()
        self._by_cores: dict[str, dict[int, Launch]] = defaultdict(dict)
        self.index = {n: i for i, n in enumerate(self.nodes)}
        self._bare = {(n.id, d.id): d for n in self.nodes.values() for d in n.devices}
        self._held: dict[tuple[str, str], DeviceView] = {}
        self.shares = any(d.slots > 1 for d in self._bare.values())
        """True if devices may have several holders."""
        slots = {key: device.slots for key, device in self._bare.items()}
        amounts = {} if self.columns is None else {n: _amounts_of(v) for n, v in self.nodes.items()}
        self.occupancy: Occupancy[Launch] = Occupancy(slots, amounts)
        self.in_use = self.occupancy.in_use
        self.in_use.update(dict.fromkeys(self.nodes, 0))
        self.draining = {n.id for n in self.nodes.values() if n.state is NodeState.DRAINING}
        self._usable = {
            n.id: sum(d.healthy for d in n.devices) if n.takes_training else 0
            for n in self.nodes.values()
        }
        self.free = sum(self._usable.values())
        self._views = list(self.nodes.values())
        self._shown = tuple(self._views)
        self._changed: set[str] = set()

    def views(self) -> tuple[NodeView, ...]:
        """Nodes as a snapshot shows them; the same tuple until something changes."""
        if self._changed:
            for node in self._changed:
                self._views[self.index[node]] = self._drawn(node)
            self._changed.clear()
            self._shown = tuple(self._views)
        return self._shown

    def has(self, ranks: Iterable[RankPlacement]) -> bool:
        """Return True if these devices exist, each named once."""
        ranks = tuple(ranks)
        keys = list(devices_of(ranks))
        exist = all(key in self._bare for key in keys) and all(s.node in self.nodes for s in ranks)
        return len(set(keys)) == len(keys) and exist

    def taken(self, ranks: Iterable[RankPlacement]) -> list[tuple[str, str]]:
        """Devices of these seats without a free slot or share."""
        return sorted(set(self.occupancy.full_devices(ranks)))

    def lacking(self, row: int, ranks: Iterable[RankPlacement]) -> list[str]:
        """Nodes that have too little free of what the job in this row needs on these seats."""
        if self.columns is None:
            return []
        short = self.occupancy.short_amounts(self._seats(row, ranks))
        return sorted({node for node, _ in short})

    def with_company(self, row: int, ranks: Iterable[RankPlacement]) -> list[str]:
        """Nodes of these seats where the job in this row, or one that is there, is to be alone."""
        if not self._exclusive:
            return []
        alone = bool(self._exclusive[row])
        nodes = {seat.node for seat in ranks}
        return sorted(n for n in nodes if self.occupancy.others_in_the_way(row, n, alone=alone))

    def works(self, node: str) -> bool:
        """Return True if a job holds something of a node."""
        return bool(self.in_use[node] or self._by_cores.get(node))

    def take(self, launch: Launch) -> None:
        """Let a launch hold its seats."""
        alone = bool(self._exclusive and self._exclusive[launch.row])
        for seat in launch.ranks:
            if not seat.devices:
                self._by_cores[seat.node][launch.row] = launch
        before = self._in_use_on(launch)
        self.occupancy.take(launch, launch.row, self._seats(launch.row, launch.ranks), alone=alone)
        self._show(launch, before)

    def release(self, launch: Launch) -> None:
        """Free the seats of a launch."""
        for seat in launch.ranks:
            self._by_cores[seat.node].pop(launch.row, None)
        before = self._in_use_on(launch)
        self.occupancy.release(launch, launch.row, self._seats(launch.row, launch.ranks))
        self._show(launch, before)

    def launches_on(self, node: str) -> list[Launch]:
        of_devices = self._launches((node, d.id) for d in self.nodes[node].devices)
        return [*of_devices, *self._by_cores.get(node, {}).values()]

    def beside(self, ranks: Iterable[RankPlacement]) -> list[Launch]:
        """Launches on these devices, once each."""
        return self._launches(devices_of(ranks))

    def parts(self, node: str) -> Mapping[int, float]:
        """Part of each job (its row) of a node's energy.

        GPUs held, a shared one by its share; without GPUs its cores' part of the node's power.
        """
        found: dict[int, float] = defaultdict(float)
        for device in self.nodes[node].devices:
            for hold in self.occupancy.holds.get((node, device.id), ()):
                found[hold.holder.row] += hold.share
        by_cores = self._cores(node)
        if not found or not by_cores:
            return found or by_cores
        view, gpus, cores = self.nodes[node], sum(found.values()), sum(by_cores.values())
        most_w = view.draw_w(0, works=True) * min(1.0, cores / view.cores)
        left_w = max(view.draw_w(self.in_use[node]) - most_w, 1e-9)
        return {**found, **{r: most_w / left_w * gpus * c / cores for r, c in by_cores.items()}}

    def change_state(self, node: str, state: NodeState, drain_until_s: float | None = None) -> None:
        """Set the state of a node."""
        view = replace(self.nodes[node], state=state, drain_until_s=drain_until_s)
        self.nodes[node] = view
        (self.draining.add if state is NodeState.DRAINING else self.draining.discard)(node)
        usable = sum(d.healthy for d in view.devices) if view.takes_training else 0
        was = self._usable[node]
        self._usable[node] = usable
        self.free += (usable - self.in_use[node] if usable else 0) - (
            was - self.in_use[node] if was else 0
        )
        self._changed.add(node)

    def _cores(self, node: str) -> dict[int, float]:
        """Cores of each job without GPUs on a node; at least a thousandth."""
        if self.columns is None:
            return dict.fromkeys(self._by_cores.get(node, ()), 1.0)
        cores = self.columns.numbers["cores"]
        return {
            row: max(0.001, float(cores[row]) * sum(s.units for s in of.ranks if s.node == node))
            for row, of in self._by_cores.get(node, {}).items()
        }

    def _seats(self, row: int, ranks: Iterable[RankPlacement]) -> SeatAmounts:
        """Return seats with what each uses, in billionths."""
        if self.columns is None:
            return [(seat, NOTHING) for seat in ranks]
        seats = []
        for seat in ranks:
            of_seat = seat_demand(self.columns, row)
            seats.append((seat, seat_demanded(of_seat, seat.units, seat.cpu_quota)))
        return seats

    def _in_use_on(self, launch: Launch) -> dict[str, int]:
        """Return the devices in use on a launch's nodes."""
        return {seat.node: self.in_use[seat.node] for seat in launch.ranks}

    def _show(self, launch: Launch, before: Mapping[str, int]) -> None:
        """Show the devices of a launch as they are held now, and count free ones."""
        for key in devices_of(launch.ranks):
            holds = self.occupancy.holds.get(key)
            if holds:
                d = self._bare[key]
                views = tuple([SlotHold(of.holder.job, share=of.share) for of in holds])
                self._held[key] = DeviceView(
                    d.id, d.memory_gb, d.slots, d.healthy, views, d.emulated
                )
            else:
                del self._held[key]
            self._changed.add(key[0])
        for node, in_use in before.items():
            if self._usable[node]:
                self.free -= self.in_use[node] - in_use

    def _drawn(self, node: str) -> NodeView:
        bare, held = self.nodes[node], self._held
        devices = tuple([held.get((node, d.id), d) for d in bare.devices])
        return NodeView(bare.id, bare.name, bare.gpu_type, devices, *_REST(bare))

    def _launches(self, keys: Iterable[tuple[str, str]]) -> list[Launch]:
        holders = [holder for key in keys for holder in self.occupancy.holders(key)]
        return list({launch.number: launch for launch in holders}.values())


def _amounts_of(node: NodeView) -> dict[str, int]:
    """Return what a node has of cores, memory and named resources, in billionths."""
    has = {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
    return {name: available(amount) for name, amount in has.items()}
