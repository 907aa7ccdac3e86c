"""Nodes, requests and allocations of the placement engine. All amounts are integers.

Units: billionths of a core, of 10**9 bytes of memory and of named resources, rounded once
(`policies.contract.plan`), so that taking and releasing are exact; milliwatts. A `Layout`
changes when nodes do, not when jobs start or end.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import zip_longest
from math import ceil, floor, inf, isinf
from typing import NamedTuple, TypeAlias

from policies.contract.plan import UNLIMITED, available, demanded
from policies.contract.views import NodeRole, NodeState, NodeView

Free: TypeAlias = tuple[int, ...]
"""Free capacity of a node: devices, resources, then devices by `Layout.levels` of slots."""

NodeSet: TypeAlias = int
"""Set of nodes as bits: bit n stands for the node with number n of the layout."""

DeviceSet: TypeAlias = int
"""Set of one node's devices as bits: bit i stands for the device with number i of the node."""

DEVICES = 0
"""Position of all free devices in `Free`."""
RESOURCES = 1
"""Position of the first resource in `Free`."""
MILLIWATTS = 1000
"""In a watt."""
ROUNDING = 1e-6
"""Fraction of a milliwatt that counts as an error of floating point."""


def needed_mw(watts: float) -> int:
    """Return the power that something needs, in milliwatts, rounded up."""
    return ceil(watts * MILLIWATTS - ROUNDING)


def allowed_mw(watts: float) -> int:
    """Return the power that a cap allows, in milliwatts, rounded down."""
    return UNLIMITED if isinf(watts) else floor(watts * MILLIWATTS + ROUNDING)


class Span(Enum):
    """Nodes over which the units of a request may be spread, and in what order they are tried."""

    ONE_NODE = "one node"
    ONE_TYPE = "nodes of one GPU type, one node if possible"
    MIXED = "nodes of several GPU types, of the first types if possible"
    ANY = "any nodes, by best fit"


@dataclass(frozen=True, slots=True)
class Request:
    """Request for `units` equal workers with `gpus` whole devices and `amounts` of resources each.

    `per_node`: amounts used once on each node. `nodes`: exactly so many nodes, 0 for any number.
    `most`: units on one node, 0 for any number. `types`: allowed GPU types, preferred ones first;
    () allows all. `devices_at`: position in `Free` of suitable devices (see `Layout.request`).
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
    most: int = 0
    needs: tuple[tuple[int, int, int], ...] = field(init=False, compare=False, repr=False)
    """(position in `Free`, amount once on a node, amount of each unit), where not both are 0."""
    hashed: int = field(init=False, compare=False, repr=False)
    """Hash of the request, made once: requests are keys of every search."""

    def __post_init__(self) -> None:
        needs = []
        if self.gpus > 0:
            needs.append((self.devices_at, 0, self.gpus))
        amounts = zip_longest(self.per_node, self.amounts, fillvalue=0)
        for position, (once, each) in enumerate(amounts, RESOURCES):
            if once > 0 or each > 0:
                needs.append((position, once, each))
        object.__setattr__(self, "needs", tuple(needs))
        wants = (self.gpus, self.amounts, self.units, self.types, self.labels, self.per_node)
        object.__setattr__(self, "hashed", hash((*wants, self.nodes, self.most)))

    def __hash__(self) -> int:
        return self.hashed

    def fitting(self, free: Free) -> int:
        """Return how many units fit into this free capacity of one node; 0 or less if none."""
        fitting = min(self.units, self.most or self.units)
        for position, once, each in self.needs:
            left = free[position] - once
            if left < each * fitting:
                fitting = left // each if each else 0
        return fitting

    def used(self, units: int) -> tuple[int, ...]:
        """Return the amounts of resources that so many units use on one node."""
        if not self.amounts:
            return self.per_node
        if not self.per_node:
            if units == 1:
                return self.amounts
            return tuple([units * amount for amount in self.amounts])
        once_and_each = zip(self.per_node, self.amounts, strict=True)
        return tuple([once + units * each for once, each in once_and_each])


class Part(NamedTuple):
    """Units of an allocation on one node (its number in the layout), and their devices there."""

    node: int
    units: int
    devices: DeviceSet


class Allocation(NamedTuple):
    """Nodes and devices that answer a request."""

    request: Request
    parts: tuple[Part, ...]


def node_set(allocation: Allocation) -> NodeSet:
    """Return the nodes of an allocation."""
    nodes: NodeSet = 0
    for part in allocation.parts:
        nodes |= 1 << part.node
    return nodes


def members(bits: int) -> Iterator[int]:
    """Yield the numbers in a bit set, rising."""
    while bits:
        lowest_bit = bits & -bits
        yield lowest_bit.bit_length() - 1
        bits ^= lowest_bit


def lowest(bits: int) -> int:
    """Return the least number in a bit set that is not empty."""
    return (bits & -bits).bit_length() - 1


PLAIN = ("cores", "memory_gb")
"""Resources that every node has; the others are named by people."""

EVERY = -1
"""The set of all nodes, or of all devices of a node: every bit is set."""


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes with equal GPU type, capacity and power.

    `power_mw`: power of one of them by devices in use. `size`: devices of each, also unhealthy
    ones.
    """

    gpu_type: str
    capacity: Free
    power_mw: tuple[int, ...] = (0,)
    size: int = 0

    def draw(self, free: Free) -> int:
        """Return the power (mW) of a node with this free capacity; a node without work is off."""
        if free == self.capacity:
            return 0
        return self.power_at(self.capacity[DEVICES] - free[DEVICES])

    def power_at(self, gpus: int) -> int:
        """Return the power (mW) with so many devices in use; the last known for more."""
        return self.power_mw[min(gpus, len(self.power_mw) - 1)]

    def powered(self, free: Free, left_mw: float) -> int:
        """Return how many free devices of a node this additional power allows."""
        if left_mw == inf:
            return free[DEVICES]
        used = self.capacity[DEVICES] - free[DEVICES]
        drawn_mw = self.draw(free)
        for gpus in range(free[DEVICES], 0, -1):
            if self.power_at(used + gpus) - drawn_mw <= left_mw:
                return gpus
        return 0


class Layout:
    """Class, labels and devices of each node, by its number in `nodes`.

    `resources`: names in the order of `Free`. `present[n]`: devices of node n that count as
    capacity. `levels`: numbers of slots above 1 that devices have, rising; `wide[n]`: by level, the
    devices of node n with at least so many slots (both only if `shares`). `class_of[n]`: number of
    node n's class in `classes`; `members[c]`: nodes of class c; `labelled`: nodes by label.
    """

    def __init__(
        self,
        nodes: Sequence[NodeView],
        resources: Sequence[str] = (),
        present: Sequence[DeviceSet] | None = None,
        *,
        shares: bool = True,
    ) -> None:
        """`present`: by default the healthy devices. `shares`: devices may be shared."""
        self.nodes = nodes
        self.resources = tuple(resources)
        self.present = [_healthy(node) for node in nodes] if present is None else present
        slots: set[int] = set()
        if shares:
            for node in nodes:
                slots.update([device.slots for device in node.devices])
        self.levels = tuple(sorted(level for level in slots if level > 1))
        self.wide = [self._wide(node) for node in nodes] if self.levels else ()
        self.classes: list[NodeClass] = []
        self.class_of: list[int] = []
        self.members: list[NodeSet] = []
        self._classify()
        self.labelled: dict[str, NodeSet] = {}
        for n, node in enumerate(nodes):
            for label in node.labels:
                self.labelled[label] = self.labelled.get(label, 0) | 1 << n

    @cached_property
    def index(self) -> dict[str, int]:
        """Number of each node by id."""
        return {node.id: n for n, node in enumerate(self.nodes)}

    @cached_property
    def lasting(self) -> NodeSet:
        """Nodes for training that are there, though they may take nothing new for a while."""
        nodes: NodeSet = 0
        for n, node in enumerate(self.nodes):
            if node.state is not NodeState.LOST and node.role is not NodeRole.PROFILING:
                nodes |= 1 << n
        return nodes

    def request(
        self,
        gpus: int,
        demand: Mapping[str, float],
        *,
        units: int = 1,
        span: Span = Span.ONE_NODE,
        types: tuple[str, ...] = (),
        labels: Iterable[str] = (),
        per_node: Mapping[str, float] | None = None,
        nodes: int = 0,
        slots: int = 1,
        most: int = 0,
    ) -> Request:
        """Return a request in the engine's units.

        `slots`: so many jobs share its devices. Without such devices the request fits nowhere.
        """
        devices_at = self.devices_at(slots)
        if devices_at is None:
            devices_at = DEVICES
            gpus = UNLIMITED
        return Request(
            gpus,
            self.amounts(demand),
            units,
            span,
            types,
            frozenset(labels),
            self.amounts(per_node or {}),
            nodes,
            devices_at,
            most,
        )

    def amounts(self, demand: Mapping[str, float]) -> tuple[int, ...]:
        """Return a demand (by name) in billionths in the order of `resources`; () for none.

        Resources that are not among them are unlimited: no node lacks them.
        """
        if not demand or not any(demand.values()):
            return ()
        return tuple([demanded(demand.get(name, 0.0)) for name in self.resources])

    def devices_at(self, slots: int) -> int | None:
        """Return the position in `Free` of devices with at least so many slots; None if none."""
        if slots <= 1:
            return DEVICES
        for i, level in enumerate(self.levels):
            if level >= slots:
                return RESOURCES + len(self.resources) + i
        return None

    def free(self, n: int, devices: DeviceSet, resources: tuple[int, ...]) -> Free:
        """Return the free capacity of node n with these devices and resources left."""
        if not self.levels:
            return (devices.bit_count(), *resources)
        wide = [(devices & of_level).bit_count() for of_level in self.wide[n]]
        return (devices.bit_count(), *resources, *wide)

    def admitting(self, request: Request) -> tuple[Sequence[int], NodeSet]:
        """Return the classes that a request's types allow, and the nodes that its labels allow."""
        nodes = EVERY
        for label in request.labels:
            nodes &= self.labelled.get(label, 0)
        if not request.types:
            return range(len(self.classes)), nodes
        classes = [
            c for c, of_class in enumerate(self.classes) if of_class.gpu_type in request.types
        ]
        return classes, nodes

    def bits(self, n: int, devices: Collection[str]) -> DeviceSet:
        """Return the set of these devices (ids) of node n, without unknown ones."""
        known: DeviceSet = 0
        bit = 1
        for device in self.nodes[n].devices:
            if device.id in devices:
                known |= bit
            bit <<= 1
        return known

    def has_slots(self, request: Request, part: Part) -> bool:
        """Return True if these devices can be shared by as many jobs as a request says."""
        if request.devices_at == DEVICES:
            return request.gpus < UNLIMITED
        level = request.devices_at - RESOURCES - len(self.resources)
        return not part.devices & ~self.wide[part.node][level]

    def ids(self, n: int, devices: DeviceSet) -> tuple[str, ...]:
        """Return the ids of this set of devices of node n, in the node's order."""
        views = self.nodes[n].devices
        return tuple([views[i].id for i in members(devices)])

    def _wide(self, node: NodeView) -> tuple[DeviceSet, ...]:
        """Return by level the devices of a node with at least so many slots."""
        sets: list[DeviceSet] = []
        for level in self.levels:
            devices: DeviceSet = 0
            for i, device in enumerate(node.devices):
                if device.slots >= level:
                    devices |= 1 << i
            sets.append(devices)
        return tuple(sets)

    def _classify(self) -> None:
        """Fill `classes`, `class_of` and `members`: nodes with equal keys are of one class."""
        class_of_key: dict[object, int] = {}
        c = 0
        key_before: object = None
        for n, (node, present) in enumerate(zip(self.nodes, self.present, strict=True)):
            key: tuple[object, ...]
            key = (node.gpu_type, node.power_w, len(node.devices), present.bit_count())
            if self.resources:
                key += (node.cores, node.memory_gb, node.resources)
            if self.levels:
                key += tuple([(present & devices).bit_count() for devices in self.wide[n]])
            if key != key_before:  # nodes of a class nearly always stand together
                key_before = key
                c = class_of_key.setdefault(key, len(class_of_key))
                if c == len(self.classes):
                    self._add_class(n, node, present)
            self.class_of.append(c)
            self.members[c] |= 1 << n

    def _add_class(self, n: int, node: NodeView, present: DeviceSet) -> None:
        """Add the class of node n, which is its first member."""
        capacity = self.free(n, present, capacity_of(node, self.resources))
        power_mw = tuple([needed_mw(watts) for watts in node.power_w]) or (0,)
        self.classes.append(NodeClass(node.gpu_type, capacity, power_mw, len(node.devices)))
        self.members.append(0)


def capacity_of(node: NodeView, resources: Sequence[str]) -> tuple[int, ...]:
    """Return the node's allocatable amounts of these resources, in billionths."""
    if not resources:
        return ()
    amounts = {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
    return tuple([available(amounts.get(name, 0.0)) for name in resources])


def _healthy(node: NodeView) -> DeviceSet:
    """Return the healthy devices of a node."""
    devices: DeviceSet = 0
    for i, device in enumerate(node.devices):
        if device.healthy:
            devices |= 1 << i
    return devices
