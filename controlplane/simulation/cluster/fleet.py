"""Simulated nodes: holders of devices, and views for snapshots."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
"""All fields of a node after the devices, to copy a node: `replace` costs four times as much."""

NOTHING: Mapping[str, int] = {}
"""Amounts of a seat where no node counts them."""


class Fleet:
    """Nodes by id with their states, and launches by (node, device).

    A device is full when all its slots or shares are taken; in use it counts once. `columns`: the
    jobs, whose amounts of cores, memory and named resources count too; None: nobody's do.
    """

    def __init__(self, nodes: Iterable[NodeView], columns: JobColumns | None = None) -> None:
        # 1. Nodes, their devices, and what is held.
        self.nodes = {node.id: node for node in nodes}
        self.index = {node: position for position, node in enumerate(self.nodes)}
        self._bare: dict[tuple[str, str], DeviceView] = {}
        """Devices without holders."""
        for node in self.nodes.values():
            for device in node.devices:
                self._bare[node.id, device.id] = device
        self._held: dict[tuple[str, str], DeviceView] = {}
        """Devices with their holders, if they have any."""
        self._by_cores: dict[str, dict[int, Launch]] = defaultdict(dict)
        """Launches without GPUs by node and the job's row."""
        self.shares = any(device.slots > 1 for device in self._bare.values())
        """True if devices may have several holders."""

        # 2. The occupancy; amounts count only if some job asks for more than GPUs.
        self.columns = None
        if columns is not None and not columns.gpus_only:
            self.columns = columns
        self._exclusive: Sequence[bool] = ()
        """By row, True for a job that is to be alone on its nodes; empty if there is none."""
        if columns is not None and any(columns.others["exclusive"]):
            self._exclusive = columns.others["exclusive"]
        slots = {key: device.slots for key, device in self._bare.items()}
        amounts: dict[str, dict[str, int]] = {}
        if self.columns is not None:
            amounts = {node.id: _amounts_of(node) for node in self.nodes.values()}
        self.occupancy: Occupancy[Launch] = Occupancy(slots, amounts)
        self.in_use = self.occupancy.in_use
        self.in_use.update(dict.fromkeys(self.nodes, 0))

        # 3. Nodes that drain, and free devices of nodes that take training jobs.
        self.draining: set[str] = set()
        self._usable: dict[str, int] = {}
        for node in self.nodes.values():
            if node.state is NodeState.DRAINING:
                self.draining.add(node.id)
            self._usable[node.id] = _usable_devices(node)
        self.free = sum(self._usable.values())

        # 4. The views of the last snapshot, and the nodes changed since.
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
        if len(set(keys)) < len(keys):
            return False
        if not all(key in self._bare for key in keys):
            return False
        return all(seat.node in self.nodes for seat in ranks)

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
        """Launches on a node: on its devices, then those without GPUs."""
        with_gpus = self._launches([(node, device.id) for device in self.nodes[node].devices])
        without_gpus = self._by_cores.get(node, {}).values()
        return [*with_gpus, *without_gpus]

    def beside(self, ranks: Iterable[RankPlacement]) -> list[Launch]:
        """Launches on these devices, once each."""
        return self._launches(devices_of(ranks))

    def parts(self, node: str) -> Mapping[int, float]:
        """Part of each job, by its row, of a node's energy; the sum of the parts is arbitrary.

        Jobs with GPUs have the GPUs that they hold, a shared one by its share. Jobs without GPUs
        have, by their cores, the part of the node's power that their cores draw.
        """
        by_gpus: dict[int, float] = defaultdict(float)
        for device in self.nodes[node].devices:
            for hold in self.occupancy.holds.get((node, device.id), ()):
                by_gpus[hold.holder.row] += hold.share
        by_cores = self._cores(node)
        if not by_cores:
            return by_gpus
        if not by_gpus:
            return by_cores

        # Both kinds: express the power of the cores in GPUs, each of which draws the same.
        view = self.nodes[node]
        gpus = sum(by_gpus.values())
        cores = sum(by_cores.values())
        of_cores_w = view.draw_w(0, works=True) * min(1.0, cores / view.cores)
        of_gpus_w = max(view.draw_w(self.in_use[node]) - of_cores_w, 1e-9)
        parts = dict(by_gpus)
        for row, of_job in by_cores.items():
            parts[row] = of_cores_w / of_gpus_w * gpus * of_job / cores
        return parts

    def change_state(self, node: str, state: NodeState, drain_until_s: float | None = None) -> None:
        """Set the state of a node."""
        view = replace(self.nodes[node], state=state, drain_until_s=drain_until_s)
        self.nodes[node] = view
        if state is NodeState.DRAINING:
            self.draining.add(node)
        else:
            self.draining.discard(node)

        # A node without usable devices has no free ones, whatever is in use on it.
        before = self._usable[node]
        if before:
            self.free -= before - self.in_use[node]
        usable = _usable_devices(view)
        if usable:
            self.free += usable - self.in_use[node]
        self._usable[node] = usable
        self._changed.add(node)

    def _cores(self, node: str) -> dict[int, float]:
        """Cores of each job without GPUs on a node, by row; at least a thousandth."""
        launches = self._by_cores.get(node, {})
        if self.columns is None:
            return dict.fromkeys(launches, 1.0)
        cores_of_unit = self.columns.numbers["cores"]
        cores: dict[int, float] = {}
        for row, launch in launches.items():
            units = sum(seat.units for seat in launch.ranks if seat.node == node)
            cores[row] = max(0.001, float(cores_of_unit[row]) * units)
        return cores

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
                bare = self._bare[key]
                shown = tuple([SlotHold(hold.holder.job, share=hold.share) for hold in holds])
                self._held[key] = DeviceView(
                    bare.id, bare.memory_gb, bare.slots, bare.healthy, shown, bare.emulated
                )
            else:
                del self._held[key]
            self._changed.add(key[0])
        for node, in_use in before.items():
            if self._usable[node]:
                self.free -= self.in_use[node] - in_use

    def _drawn(self, node: str) -> NodeView:
        """View of a node with the holders of its devices."""
        bare = self.nodes[node]
        devices = tuple([self._held.get((node, device.id), device) for device in bare.devices])
        return NodeView(bare.id, bare.name, bare.gpu_type, devices, *_REST(bare))

    def _launches(self, keys: Iterable[tuple[str, str]]) -> list[Launch]:
        """Launches that hold these devices, once each."""
        launches: dict[int, Launch] = {}
        for key in keys:
            for launch in self.occupancy.holders(key):
                launches[launch.number] = launch
        return list(launches.values())


def _usable_devices(node: NodeView) -> int:
    """Number of healthy devices of a node that takes training jobs; else 0."""
    if not node.takes_training:
        return 0
    return sum(device.healthy for device in node.devices)


def _amounts_of(node: NodeView) -> dict[str, int]:
    """Return the cores, memory and named resources of a node, in billionths."""
    has = {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
    return {name: available(amount) for name, amount in has.items()}
