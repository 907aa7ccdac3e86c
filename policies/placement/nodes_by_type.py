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
    """Open nodes that suit a job by GPU type, with the number of their GPUs and a largest one."""

    nodes: Mapping[str, NodeSet]
    gpus: Mapping[str, int]
    largest: Mapping[str, NodeView]

    @classmethod
    def of(
        cls, layout: Layout, suitable: Sequence[tuple[int, NodeSet]], opened: NodeSet
    ) -> NodesByType:
        """Return the `opened` ones of the `suitable` nodes: (class, its nodes)."""
        nodes_of: dict[str, NodeSet] = {}
        gpus_of: dict[str, int] = {}
        largest: dict[str, NodeView] = {}
        for c, members in suitable:
            node_class = layout.classes[c]
            gpus = node_class.capacity[DEVICES]
            nodes = members & opened
            if not nodes or not gpus:
                continue
            gpu_type = node_class.gpu_type
            nodes_of[gpu_type] = nodes_of.get(gpu_type, 0) | nodes
            gpus_of[gpu_type] = gpus_of.get(gpu_type, 0) + gpus * nodes.bit_count()
            node = layout.nodes[lowest(nodes)]
            if gpu_type not in largest or len(node.devices) > len(largest[gpu_type].devices):
                largest[gpu_type] = node
        return cls(nodes_of, gpus_of, largest)

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
        full_nodes, rest = divmod(gpus, len(node.devices))
        return full_nodes * node.draw_w(len(node.devices)) + node.draw_w(rest)
