"""Order of nodes for batch jobs: of those with room, and of equally good ones."""

from collections.abc import Mapping
from dataclasses import replace

from policies.contract.snapshot import Snapshot
from policies.placement.finders import Order
from policies.placement.free_capacity import Group
from policies.placement.layout import DEVICES, PLAIN, RESOURCES, Layout, lowest


def _first_fit(group: Group) -> tuple[float, ...]:
    """Return a key: the order of the nodes."""
    return (lowest(group.nodes),)


def _worst_fit(group: Group) -> tuple[float, ...]:
    """Return a key: the most free capacity first."""
    return tuple([-amount for amount in group.free])


FITS: Mapping[str, Order | None] = {
    "best": None,
    "first": _first_fit,
    "worst": _worst_fit,
    "scarce": None,
}
"""Order of nodes by name; None is best fit: the least free capacity first, where GPUs are compared
first, then cores, memory and named resources. For "scarce" see `order_of`. GPU units that fit on no
single node take the fewest nodes whatever the order."""


def order_of(fit: str, layout: Layout) -> Order | None:
    """Return the order of this name on these nodes.

    "scarce" is best fit with named resources compared before cores and memory.
    """
    named = [i for i, name in enumerate(layout.resources, RESOURCES) if name not in PLAIN]
    if fit != "scarce" or not named:
        return FITS[fit]
    first_compared = (DEVICES, *named)
    return lambda group: (*[group.free[i] for i in first_compared], *group.free)


NODE_ORDERS = ("given", "reversed", "gpus_first", "gpus_last")


def with_node_order(snapshot: Snapshot, order: str) -> Snapshot:
    """Return the snapshot with its nodes in this order, which decides between equally good ones."""
    if order == "given":
        return snapshot
    nodes = list(snapshot.nodes)
    if order == "reversed":
        nodes.reverse()
    else:
        nodes.sort(key=lambda node: len(node.devices), reverse=order == "gpus_first")
    return replace(snapshot, nodes=tuple(nodes))
