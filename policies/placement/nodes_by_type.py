"""Nodes by GPU type on which a gang could be, and the numbers of GPUs that it could have there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.contract.views import NodeView
from policies.placement.layout import DEVICES, Layout, NodeSet, lowest

MOST_COUNTS = 16
"""Numbers of GPUs of an elastic gang over nodes that are options."""


def counts_of_gpus(least: int, most: int) -> list[int]:
    """Return numbers of GPUs from least to most: all of a few, else the least and its doubles."""
    if most - least < MOST_COUNTS:
        return list(range(least, most + 1))
    counts = [least]
    while 2 * counts[-1] < most:
        counts.append(2 * counts[-1])
    return [*counts, most]


@dataclass(frozen=True, slots=True)
class NodesByType:
    """Open nodes that suit a job by GPU type, their GPUs in all, and the largest of them."""

    nodes: Mapping[str, NodeSet]
    gpus: Mapping[str, int]
    largest: Mapping[str, NodeView]

    @classmethod
    def of(
        cls, layout: Layout, suitable: Sequence[tuple[int, NodeSet]], opened: NodeSet
    ) -> NodesByType:
        """Return those of these classes, each with its nodes, that are open."""
        found: dict[str, NodeSet] = {}
        gpus: dict[str, int] = {}
        largest: dict[str, NodeView] = {}
        for c, members in suitable:
            of_class = layout.classes[c]
            nodes = members & opened
            if not nodes or not of_class.capacity[DEVICES]:
                continue
            name = of_class.gpu_type
            found[name] = found.get(name, 0) | nodes
            gpus[name] = gpus.get(name, 0) + of_class.capacity[DEVICES] * nodes.bit_count()
            view = layout.nodes[lowest(nodes)]
            if name not in largest or len(view.devices) > len(largest[name].devices):
                largest[name] = view
        return cls(found, gpus, largest)

    def nodes_of(self, types: Sequence[str]) -> NodeSet:
        """Return the nodes of these types."""
        nodes: NodeSet = 0
        for gpu_type in types:
            nodes |= self.nodes[gpu_type]
        return nodes

    def gpus_of(self, types: Sequence[str]) -> int:
        """Return the GPUs of all nodes of these types."""
        return sum(self.gpus[gpu_type] for gpu_type in types)

    def power_w(self, gpu_type: str, gpus: int) -> float:
        """Return the power of so many GPUs of a type, on as few of its largest nodes as can be."""
        node = self.largest[gpu_type]
        full, rest = divmod(gpus, len(node.devices))
        return full * node.draw_w(len(node.devices)) + node.draw_w(rest)
