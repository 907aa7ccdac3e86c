"""Free capacity before a round: what job classes and their rates depend on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from policies.placement.cluster_state import ClusterState
from policies.placement.layout import DEVICES, Free, NodeClass, Request


class Capacity(NamedTuple):
    """The groups of open nodes, by class: what each has free, and how many or which they are.

    `labelled`: nodes with a label; `for_two`: the position in `Free` of devices for two jobs;
    `left_mw`: power that the cap leaves to all jobs that take part.
    """

    classes: Sequence[NodeClass]
    groups: Sequence[Mapping[Free, int]]
    labelled: Mapping[str, int]
    open: int
    for_two: int | None
    left_mw: float

    @classmethod
    def of(cls, state: ClusterState) -> Capacity:
        """Return the free capacity of a state now."""
        layout, groups = state.layout, [dict(of) for of in state.groups]
        left_mw, for_two = state.cap_mw - state.used_mw, layout.devices_at(2)
        return cls(layout.classes, groups, layout.labelled, state.open, for_two, left_mw)

    def free_gpus(self) -> dict[str, int]:
        """Return the free devices by type, without types that have none."""
        found: dict[str, int] = {}
        for gpu_type, free, nodes in self._free():
            if gpus := free[DEVICES] * nodes.bit_count():
                found[gpu_type] = found.get(gpu_type, 0) + gpus
        return found

    def types_for_two(self) -> frozenset[str]:
        """Return the GPU types with a free device that two jobs may share."""
        at = self.for_two
        return frozenset([t for t, free, _ in self._free() if at is not None and free[at]])

    def for_processes(self, request: Request) -> Iterator[tuple[str, int, int]]:
        """Yield (GPU type, free devices, nodes) of nodes that would do, were they empty.

        Devices of a node that the power cap never allows together are left out.
        """
        among = self.open
        for label in request.labels:
            among &= self.labelled.get(label, 0)
        for of, groups in zip(self.classes, self.groups, strict=True):
            if request.types and of.gpu_type not in request.types:
                continue
            if request.fitting(of.capacity) > 0:
                for free, nodes in groups.items():
                    gpus = of.powered(free, self.left_mw)
                    if gpus and nodes & among:
                        yield of.gpu_type, gpus, (nodes & among).bit_count()

    def _free(self) -> Iterator[tuple[str, Free, int]]:
        for of, groups in zip(self.classes, self.groups, strict=True):
            for free, nodes in groups.items():
                if nodes & self.open:
                    yield of.gpu_type, free, nodes & self.open
