"""Nodes of a batch job: which of those with room are taken first, and in what order they stand."""

from collections.abc import Mapping
from dataclasses import replace

from policies.contract.snapshot import Snapshot
from policies.placement.cluster_state import Group
from policies.placement.finders import Order
from policies.placement.layout import lowest


def _first(group: Group) -> tuple[float, ...]:
    return (lowest(group.nodes),)


def _worst(group: Group) -> tuple[float, ...]:
    return tuple([-left for left in group.free])


FITS: Mapping[str, Order | None] = {"best": None, "first": _first, "worst": _worst}
"""Order of nodes by name: the least free capacity first (GPUs are compared first, then cores,
memory and named resources), the order of the nodes, the most free capacity first. GPU units that
fit on no single node take the fewest nodes whatever the order."""

NODE_ORDERS = ("given", "reversed", "gpus_first", "gpus_last")


def with_node_order(snapshot: Snapshot, order: str) -> Snapshot:
    """Return the snapshot with its nodes in this order, which decides between equally good ones."""
    nodes = list(snapshot.nodes)
    if order == "given":
        return snapshot
    if order == "reversed":
        return replace(snapshot, nodes=tuple(reversed(nodes)))
    nodes.sort(key=lambda node: len(node.devices), reverse=order == "gpus_first")
    return replace(snapshot, nodes=tuple(nodes))
