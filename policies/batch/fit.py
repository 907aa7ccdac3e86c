"""Nodes of a batch job: which of those with room are taken first, and in what order they stand."""

from collections.abc import Mapping
from dataclasses import replace

from policies.contract.snapshot import Snapshot
from policies.placement.finders import Order
from policies.placement.free_capacity import Group
from policies.placement.layout import DEVICES, PLAIN, RESOURCES, Layout, lowest


def _first(group: Group) -> tuple[float, ...]:
    return (lowest(group.nodes),)


def _worst(group: Group) -> tuple[float, ...]:
    return tuple([-left for left in group.free])


FITS: Mapping[str, Order | None] = {"best": None, "first": _first, "worst": _worst, "scarce": None}
"""Order of nodes by name: the least free capacity first (GPUs are compared first, then cores,
memory and named resources), the order of the nodes, the most free capacity first, the least with
named resources compared before cores (`order_of`). GPU units that fit on no single node take the
fewest nodes whatever the order."""


def order_of(fit: str, layout: Layout) -> Order | None:
    """Return the order of this name on these nodes."""
    named = [i for i, of in enumerate(layout.resources, RESOURCES) if of not in PLAIN]
    if fit != "scarce" or not named:
        return FITS[fit]
    return lambda group: (*[group.free[i] for i in (DEVICES, *named)], *group.free)


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
