"""The simulated nodes: who holds which device, and the views that a snapshot shows, rebuilt only where something changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from controlplane.simulation.jobs import Launch
from policies.snapshot import NodeState, NodeView, RankSeat, SlotHold


class Fleet:
    """Nodes by id, with holds and states as they are now. A device has one holder."""

    def __init__(self, nodes: Iterable[NodeView]) -> None:
        self.nodes = {n.id: n for n in nodes}
        self.index = {n: i for i, n in enumerate(self.nodes)}
        self.holder: dict[tuple[str, str], Launch] = {}
        self.in_use = dict.fromkeys(self.nodes, 0)
        self.draining = {n.id for n in self.nodes.values() if n.state is NodeState.DRAINING}
        self._usable = {n.id: sum(d.healthy for d in n.devices) if n.takes_training else 0 for n in self.nodes.values()}
        self.free = sum(self._usable.values())
        self._views = list(self.nodes.values())
        self._shown: tuple[NodeView, ...] | None = None

    def views(self) -> tuple[NodeView, ...]:
        """All nodes as a snapshot shows them; the same tuple until something changes."""
        if self._shown is None:
            self._shown = tuple(self._views)
        return self._shown

    def taken(self, ranks: Iterable[RankSeat]) -> list[tuple[str, str]]:
        """Devices of these seats that somebody holds."""
        return sorted({key for key in _devices(ranks) if key in self.holder})

    def take(self, launch: Launch) -> None:
        """The launch holds its devices from now on."""
        for key in _devices(launch.ranks):
            self.holder[key] = launch
        for seat in launch.ranks:
            self._count(seat.node, len(seat.devices))

    def release(self, launch: Launch) -> None:
        """It no longer does."""
        for key in _devices(launch.ranks):
            del self.holder[key]
        for seat in launch.ranks:
            self._count(seat.node, -len(seat.devices))

    def launches_on(self, node: str) -> list[Launch]:
        """Launches that hold devices of a node, once each."""
        found = (self.holder.get((node, d.id)) for d in self.nodes[node].devices)
        return list({launch.number: launch for launch in found if launch is not None}.values())

    def change_state(self, node: str, state: NodeState, drain_until_s: float | None = None) -> None:
        """The node is ready, cordoned, draining or lost from now on."""
        view = replace(self.nodes[node], state=state, drain_until_s=drain_until_s)
        self.nodes[node] = view
        (self.draining.add if state is NodeState.DRAINING else self.draining.discard)(node)
        usable = sum(d.healthy for d in view.devices) if view.takes_training else 0
        was = self._usable[node]
        self._usable[node] = usable
        self.free += (usable - self.in_use[node] if usable else 0) - (was - self.in_use[node] if was else 0)
        self._redraw(node)

    def _count(self, node: str, devices: int) -> None:
        self.in_use[node] += devices
        if self._usable[node]:
            self.free -= devices
        self._redraw(node)

    def _redraw(self, node: str) -> None:
        bare, holder = self.nodes[node], self.holder
        devices = tuple(
            d
            if (launch := holder.get((node, d.id))) is None
            else replace(d, held=(SlotHold(launch.job, share=_share(launch, node)),))
            for d in bare.devices
        )
        self._views[self.index[node]] = replace(bare, devices=devices)
        self._shown = None


def _devices(ranks: Iterable[RankSeat]) -> Iterator[tuple[str, str]]:
    return ((seat.node, device) for seat in ranks for device in seat.devices)


def _share(launch: Launch, node: str) -> float:
    return next(seat.share for seat in launch.ranks if seat.node == node)
