"""Requests for capacity and the allocations that answer them. All amounts are integers.

Units: thousandths of a core, of 10**9 bytes of memory and of named resources; milliwatts. Demand is
rounded up and capacity down, once, when a snapshot is read, so that taking and releasing are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from math import ceil, floor, isinf
from typing import NamedTuple, TypeAlias

Free: TypeAlias = tuple[int, ...]
"""A node's free capacity: devices, resources in the layout's order, devices with at least 2, 3 ...
slots (one number for each number of slots that occurs)."""

DEVICES = 0
"""Position of all free devices in `Free`."""
RESOURCES = 1
"""Position of the first resource in `Free`."""
THOUSANDTHS = 1000
UNLIMITED = 1 << 60
"""An amount that never runs out."""
ROUNDING = 1e-6
"""Part of a thousandth that is taken for an error of floating point."""


def demand_in_thousandths(amount: float) -> int:
    """Return the amount in whole thousandths, rounded up."""
    return ceil(amount * THOUSANDTHS - ROUNDING)


def capacity_in_thousandths(amount: float) -> int:
    """Return the amount in whole thousandths, rounded down."""
    return UNLIMITED if isinf(amount) else floor(amount * THOUSANDTHS + ROUNDING)


class Span(Enum):
    """Nodes over which the units of a request may be spread."""

    ONE_NODE = "one node"
    ONE_TYPE = "nodes of one GPU type, one node if possible"
    MIXED = "nodes of several GPU types, of the first types if possible"
    ANY = "any nodes, by best fit"


@dataclass(frozen=True, slots=True)
class Request:
    """`units` equal workers: each has `gpus` whole devices and `amounts` of the layout's resources.

    `per_node`: amounts used once on each node, however many units are there. `nodes`: exactly so
    many nodes, 0 for any number. `types`: allowed GPU types, preferred ones first; () allows all.
    `devices_at`: position in `Free` of the devices that will do (see `Layout.request`).
    """

    gpus: int = 0
    amounts: tuple[int, ...] = ()
    units: int = 1
    span: Span = Span.ONE_NODE
    types: tuple[str, ...] = ()
    labels: frozenset[str] = frozenset()
    per_node: tuple[int, ...] = ()
    nodes: int = 0
    devices_at: int = DEVICES
    needs: tuple[tuple[int, int, int], ...] = field(init=False, compare=False, repr=False)
    """(position in `Free`, amount once on a node, amount of each unit), where not both are 0."""

    def __post_init__(self) -> None:
        size = max(len(self.amounts), len(self.per_node))
        once = self.per_node + (0,) * (size - len(self.per_node))
        each = self.amounts + (0,) * (size - len(self.amounts))
        wanted = [(self.devices_at, 0, self.gpus)]
        wanted += [(i, *of) for i, of in enumerate(zip(once, each, strict=True), RESOURCES)]
        needs = tuple([need for need in wanted if need[1] > 0 or need[2] > 0])
        object.__setattr__(self, "needs", needs)

    def fitting(self, free: Free) -> int:
        """Return how many units fit into this free capacity of one node; 0 or less if none."""
        most = self.units
        for i, once, each in self.needs:
            left = free[i] - once
            if left < each * most:
                most = left // each if each else 0
        return most

    def used(self, units: int) -> tuple[int, ...]:
        """Return the amounts of resources that so many units use on one node."""
        if not self.amounts:
            return self.per_node
        if not self.per_node:
            return tuple([units * amount for amount in self.amounts])
        of_both = zip(self.per_node, self.amounts, strict=True)
        return tuple([once + units * each for once, each in of_both])


class Part(NamedTuple):
    """Units of an allocation on one node, and their devices there as a bit set."""

    node: int
    units: int
    devices: int


class Allocation(NamedTuple):
    """Nodes and devices that answer a request."""

    request: Request
    parts: tuple[Part, ...]


def members(bits: int) -> Iterator[int]:
    """Yield the numbers in a bit set, rising."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def lowest(bits: int) -> int:
    """Return the least number in a bit set that is not empty."""
    return (bits & -bits).bit_length() - 1
