"""Simulated nodes: holders of devices, and views for snapshots."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import NamedTuple

from controlplane.simulation.world.job_table import Launch
from policies.contract.plan import available, seat_demand, seat_demanded
from policies.contract.snapshot import (
    DeviceView,
    JobColumns,
    NodeState,
    NodeView,
    RankPlacement,
    SlotHold,
)
from policies.contract.validation import TOLERANCE
from policies.placement.speed import devices_of

_REST = attrgetter(*[f.name for f in fields(NodeView)[4:]])
"""All fields of a node but the first four; `replace` costs four times as much."""


class Hold(NamedTuple):
    """Launch on a device, its share of the device, and its view in snapshots."""

    launch: Launch
    share: float
    view: SlotHold


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
        self.used: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._by_cores: dict[str, dict[int, Launch]] = defaultdict(dict)
        self.index = {n: i for i, n in enumerate(self.nodes)}
        self.holds: dict[tuple[str, str], tuple[Hold, ...]] = {}
        self._bare = {(n.id, d.id): d for n in self.nodes.values() for d in n.devices}
        self._held: dict[tuple[str, str], DeviceView] = {}
        self.shares = any(d.slots > 1 for d in self._bare.values())
        """True if devices may have several holders."""
        self.in_use = dict.fromkeys(self.nodes, 0)
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
        held = {
            (s.node, d) for s in ranks for d in s.devices if not self._fits((s.node, d), s.share)
        }
        return sorted(held)

    def lacking(self, row: int, ranks: Iterable[RankPlacement]) -> list[str]:
        """Nodes that have too little free of what the job in this row needs on these seats."""
        wanted: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for seat in ranks:
            for name, amount in self._amounts(row, seat).items():
                wanted[seat.node][name] += amount
        return sorted(node for node, amounts in wanted.items() if self._is_short(node, amounts))

    def with_company(self, row: int, ranks: Iterable[RankPlacement]) -> list[str]:
        """Nodes of these seats where the job in this row, or one that is there, is to be alone."""
        alone = self._exclusive
        nodes = {seat.node for seat in ranks} if alone else ()
        on = {node: {launch.row for launch in self.launches_on(node)} - {row} for node in nodes}
        return sorted(n for n, rows in on.items() if any(alone[row] or alone[r] for r in rows))

    def works(self, node: str) -> bool:
        """Return True if a job holds something of a node."""
        return bool(self.in_use[node] or self._by_cores.get(node))

    def take(self, launch: Launch) -> None:
        self._count(launch, 1)
        for seat in launch.ranks:
            if not seat.devices:
                self._by_cores[seat.node][launch.row] = launch
            own = Hold(launch, seat.share, SlotHold(launch.job, share=seat.share))
            for device in seat.devices:
                key = seat.node, device
                self._set(key, (*self.holds.get(key, ()), own))

    def release(self, launch: Launch) -> None:
        self._count(launch, -1)
        for seat in launch.ranks:
            self._by_cores[seat.node].pop(launch.row, None)
        for key in devices_of(launch.ranks):
            self._set(key, tuple([hold for hold in self.holds[key] if hold.launch is not launch]))

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
            for hold in self.holds.get((node, device.id), ()):
                found[hold.launch.row] += hold.share
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

    def _amounts(self, row: int, seat: RankPlacement) -> Mapping[str, int]:
        """Return what a seat uses, in billionths."""
        if self.columns is None:
            return {}
        return seat_demanded(seat_demand(self.columns, row), seat.units, seat.cpu_quota)

    def _is_short(self, node: str, wanted: Mapping[str, int]) -> bool:
        view = self.nodes[node]
        has = {"cores": view.cores, "memory_gb": view.memory_gb, **dict(view.resources)}
        used = self.used[node]
        return any(
            used[name] + amount > available(has.get(name, 0.0)) for name, amount in wanted.items()
        )

    def _count(self, launch: Launch, sign: int) -> None:
        for seat in launch.ranks:
            for name, amount in self._amounts(launch.row, seat).items():
                self.used[seat.node][name] += sign * amount

    def _drawn(self, node: str) -> NodeView:
        bare, held = self.nodes[node], self._held
        devices = tuple([held.get((node, d.id), d) for d in bare.devices])
        return NodeView(bare.id, bare.name, bare.gpu_type, devices, *_REST(bare))

    def _launches(self, keys: Iterable[tuple[str, str]]) -> list[Launch]:
        holds = [hold for key in keys for hold in self.holds.get(key, ())]
        return list({hold.launch.number: hold.launch for hold in holds}.values())

    def _fits(self, key: tuple[str, str], share: float) -> bool:
        held = self.holds.get(key, ())
        return not held or (
            len(held) < self._bare[key].slots
            and sum(hold.share for hold in held) + share <= 1.0 + TOLERANCE
        )

    def _set(self, key: tuple[str, str], holds: tuple[Hold, ...]) -> None:
        """Set the holders of a device, and count it."""
        more, node = bool(holds) - (key in self.holds), key[0]
        if holds:
            d, self.holds[key] = self._bare[key], holds
            views = tuple([hold.view for hold in holds])
            self._held[key] = DeviceView(d.id, d.memory_gb, d.slots, d.healthy, views, d.emulated)
        else:
            del self.holds[key], self._held[key]
        self.in_use[node] += more
        if self._usable[node]:
            self.free -= more
        self._changed.add(node)
