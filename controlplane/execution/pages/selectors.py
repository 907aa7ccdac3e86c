"""Rows of the page of nodes, in a constant number of queries."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator
from django.db.models import Count, F, Prefetch, prefetch_related_objects
from django.utils import timezone

from clusters.intervals import is_silent
from clusters.models import Cluster, Device, ImplausibleFigure, Node
from clusters.models.nodes import runtimes_of
from clusters.services.implausible import RECENT, recent
from jobs.assignment_lifecycle import LIVE
from jobs.models import Assignment, AssignmentSlot
from jobs.selectors import OTHERS, seen_by

NODES_A_PAGE = 24


@dataclass(frozen=True, slots=True)
class Occupant:
    """Job on a device; of another team's only its state (`job_id` None)."""

    job_id: str | None
    name: str
    purpose: str
    state: str


@dataclass(frozen=True, slots=True)
class DeviceCard:
    """GPU and its jobs; `power_source`: measured or modelled watts."""

    device: Device
    emulated: bool
    occupants: tuple[Occupant, ...]

    @property
    def percent(self) -> float | None:
        return None if self.device.gpu_fraction is None else 100 * self.device.gpu_fraction


@dataclass(frozen=True, slots=True)
class NodeCard:
    """Node, its GPUs, and its known watts; `by_cores`: jobs there without GPUs.

    `implausible`: figures of the last day that it reported and that cannot be.
    """

    node: Node
    emulated: bool
    devices: tuple[DeviceCard, ...]
    silent: bool
    by_cores: tuple[Occupant, ...] = ()
    cores_held: float = 0.0
    implausible: tuple[ImplausibleFigure, ...] = ()

    @property
    def busy(self) -> int:
        return sum(bool(d.occupants) for d in self.devices)

    @property
    def slots(self) -> int | None:
        """Number of jobs that may share each GPU; None where GPUs differ."""
        numbers = {d.device.slots for d in self.devices}
        return numbers.pop() if len(numbers) == 1 else None

    @property
    def shared(self) -> int:
        """Most jobs that may share a GPU of it; 0 where none may."""
        most = max((d.device.slots for d in self.devices), default=1)
        return most if most > 1 else 0

    @property
    def runtimes(self) -> str:
        return " and ".join(runtimes_of(self.node.features))

    @property
    def power_w(self) -> float | None:
        known = [d.device.power_w for d in self.devices if d.device.power_w is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class ClusterNodes:
    """Cluster, its nodes on the page, and counts: nodes, GPUs of nodes not lost, busy GPUs."""

    cluster: Cluster
    nodes: tuple[NodeCard, ...]
    count: int
    gpus: int
    busy: int


def page_of_nodes(number: int | str | None) -> Page[Node]:
    """Page of all nodes by name."""
    nodes = Node.objects.select_related("gpu_type", "cluster").order_by("cluster__name", "name")
    return Paginator(nodes, NODES_A_PAGE).get_page(number)


def cluster_nodes(user: User, page: Page[Node]) -> tuple[ClusterNodes, ...]:
    """Nodes of the page by cluster; empty clusters are on the first page. A few queries in all."""
    nodes = list(page.object_list)
    devices = Prefetch("devices", queryset=Device.objects.order_by("uuid"))
    prefetch_related_objects(nodes, devices, recent(timezone.now()))
    working, by_cores = _working(nodes), _by_cores(nodes)
    held = chain(*working.values(), *by_cores.values())
    seen = seen_by(user, {of_job.job_id for of_job in held})
    cards: dict[int, list[NodeCard]] = defaultdict(list)
    for node in nodes:
        card = _node_card(node, working, seen)
        cores = sum(held.cores for held in by_cores[node.pk])
        occupants = tuple(_occupant(held, seen) for held in by_cores[node.pk])
        cards[node.cluster_id].append(replace(card, by_cores=occupants, cores_held=cores))
    counts = _counts()
    shown = [
        c
        for c in Cluster.objects.order_by("name")
        if c.pk in cards or (page.number == 1 and c.pk not in counts)
    ]
    return tuple(ClusterNodes(c, tuple(cards[c.pk]), *counts.get(c.pk, (0, 0, 0))) for c in shown)


def _counts() -> Mapping[int, tuple[int, int, int]]:
    nodes = dict(Node.objects.order_by().values_list("cluster").annotate(n=Count("pk")))
    there = Device.objects.exclude(node__state="lost").order_by()
    gpus = dict(there.values_list("node__cluster").annotate(n=Count("pk")))
    held = AssignmentSlot.objects.filter(live=True).order_by()
    devices = Count("device", distinct=True)
    busy = dict(held.values_list("device__node__cluster").annotate(n=devices))
    return {pk: (n, gpus.get(pk, 0), busy.get(pk, 0)) for pk, n in nodes.items()}


class _Holder(NamedTuple):
    """Job that holds a device, or `cores` of a node."""

    job_id: UUID
    name: str
    purpose: str
    state: str
    cores: float = 0.0


def _working(nodes: Sequence[Node]) -> Mapping[int, list[_Holder]]:
    """Holders of the nodes' devices, by device."""
    of_assignment = ("job_id", "job__name", "purpose", "state")
    slots = AssignmentSlot.objects.filter(live=True, device__node__in=nodes).order_by("pk")
    working: dict[int, list[_Holder]] = defaultdict(list)
    for device, *of_job in slots.values_list(
        "device", *(f"assignment__{f}" for f in of_assignment)
    ):
        working[device].append(_Holder(*of_job))
    return working


def _by_cores(nodes: Sequence[Node]) -> Mapping[Any, list[_Holder]]:
    """Holders of cores alone, by node."""
    live = Assignment.objects.filter(node__in=nodes, gpus=0, state__in=LIVE).order_by("pk")
    cores = F("job__cores") * F("units")
    found: dict[Any, list[_Holder]] = defaultdict(list)
    rows = live.values_list("node", "job_id", "job__name", "purpose", "state", cores)
    for node, *of_job in rows:
        found[node].append(_Holder(*of_job))
    return found


def _node_card(node: Node, working: Mapping[int, list[_Holder]], seen: frozenset[Any]) -> NodeCard:
    emulated = node.is_emulated
    devices = [
        DeviceCard(
            device,
            emulated or device.emulated,
            tuple(_occupant(held, seen) for held in working.get(device.pk, ())),
        )
        for device in node.devices.all()
    ]
    silent = is_silent(node.session_expires_at)
    implausible = tuple(getattr(node, RECENT))
    return NodeCard(node, emulated, tuple(devices), silent, implausible=implausible)


def _occupant(held: _Holder, seen: frozenset[Any]) -> Occupant:
    job_id, name = (str(held.job_id), held.name) if held.job_id in seen else (None, OTHERS)
    return Occupant(job_id, name, held.purpose, held.state)
