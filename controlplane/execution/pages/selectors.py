"""Rows of the page of nodes, in a constant number of queries."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        """Use of the GPU in percent; None if unknown."""
        return None if self.device.gpu_fraction is None else 100 * self.device.gpu_fraction


@dataclass(frozen=True, slots=True)
class NodeCard:
    """Node, its GPUs, and its known watts.

    `silent`: its agent has not been heard. `on_cores`: jobs there without GPUs; `cores_held`: their
    cores. `implausible`: figures of the last day that it reported and that cannot be.
    """

    node: Node
    emulated: bool
    devices: tuple[DeviceCard, ...]
    silent: bool
    on_cores: tuple[Occupant, ...] = ()
    cores_held: float = 0.0
    implausible: tuple[ImplausibleFigure, ...] = ()

    @property
    def busy(self) -> int:
        """Number of GPUs with a job."""
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
        """Runtimes of its agent, in words."""
        return " and ".join(runtimes_of(self.node.features))

    @property
    def power_w(self) -> float | None:
        """Watts of the GPUs of which they are known; None if of none."""
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
    """Return a page of all nodes by name."""
    nodes = Node.objects.select_related("gpu_type", "cluster").order_by("cluster__name", "name")
    return Paginator(nodes, NODES_A_PAGE).get_page(number)


def cluster_nodes(user: User, page: Page[Node]) -> tuple[ClusterNodes, ...]:
    """Return the nodes of the page by cluster, in a few queries.

    Clusters without nodes are on the first page.
    """
    # 1. Nodes with their devices, and who holds these.
    nodes = list(page.object_list)
    devices = Prefetch("devices", queryset=Device.objects.order_by("uuid"))
    prefetch_related_objects(nodes, devices, recent(timezone.now()))
    on_devices = _holders_of_devices(nodes)
    on_cores = _holders_of_cores(nodes)
    jobs = {holder.job_id for holder in chain(*on_devices.values(), *on_cores.values())}
    visible_jobs = seen_by(user, jobs)

    # 2. A card for each node.
    cards: dict[int, list[NodeCard]] = defaultdict(list)
    for node in nodes:
        card = _node_card(node, on_devices, on_cores[node.pk], visible_jobs)
        cards[node.cluster_id].append(card)

    # 3. The clusters of these nodes, and on the first page those without any.
    counts = _counts()
    clusters = []
    for cluster in Cluster.objects.order_by("name"):
        is_empty = cluster.pk not in counts
        if cluster.pk in cards or (page.number == 1 and is_empty):
            count, gpus, busy = counts.get(cluster.pk, (0, 0, 0))
            clusters.append(ClusterNodes(cluster, tuple(cards[cluster.pk]), count, gpus, busy))
    return tuple(clusters)


def _counts() -> Mapping[int, tuple[int, int, int]]:
    """Return (nodes, GPUs of nodes that are not lost, busy GPUs) of each cluster with nodes."""
    nodes = dict(Node.objects.order_by().values_list("cluster").annotate(n=Count("pk")))
    devices = Device.objects.exclude(node__state="lost").order_by()
    gpus = dict(devices.values_list("node__cluster").annotate(n=Count("pk")))
    live_slots = AssignmentSlot.objects.filter(live=True).order_by()
    busy_devices = Count("device", distinct=True)
    busy = dict(live_slots.values_list("device__node__cluster").annotate(n=busy_devices))
    return {pk: (count, gpus.get(pk, 0), busy.get(pk, 0)) for pk, count in nodes.items()}


class _Holder(NamedTuple):
    """Job that holds a device, or `cores` of a node."""

    job_id: UUID
    name: str
    purpose: str
    state: str
    cores: float = 0.0


def _holders_of_devices(nodes: Sequence[Node]) -> Mapping[int, list[_Holder]]:
    """Return the holders of the nodes' devices, by device."""
    slots = AssignmentSlot.objects.filter(live=True, device__node__in=nodes).order_by("pk")
    rows = slots.values_list(
        "device",
        "assignment__job_id",
        "assignment__job__name",
        "assignment__purpose",
        "assignment__state",
    )
    holders: dict[int, list[_Holder]] = defaultdict(list)
    for device, job, name, purpose, state in rows:
        holders[device].append(_Holder(job, name, purpose, state))
    return holders


def _holders_of_cores(nodes: Sequence[Node]) -> Mapping[Any, list[_Holder]]:
    """Return the jobs without GPUs, by node."""
    live = Assignment.objects.filter(node__in=nodes, gpus=0, state__in=LIVE).order_by("pk")
    cores = F("job__cores") * F("units")
    holders: dict[Any, list[_Holder]] = defaultdict(list)
    rows = live.values_list("node", "job_id", "job__name", "purpose", "state", cores)
    for node, *fields in rows:
        holders[node].append(_Holder(*fields))
    return holders


def _node_card(
    node: Node,
    on_devices: Mapping[int, list[_Holder]],
    on_cores: Sequence[_Holder],
    visible_jobs: frozenset[Any],
) -> NodeCard:
    """Return a node's card; `on_devices`: holders by device, `on_cores`: of this node's cores."""
    cards = []
    for device in node.devices.all():
        holders = on_devices.get(device.pk, ())
        occupants = tuple([_occupant(holder, visible_jobs) for holder in holders])
        cards.append(DeviceCard(device, node.is_emulated or device.emulated, occupants))
    return NodeCard(
        node,
        node.is_emulated,
        tuple(cards),
        is_silent(node.session_expires_at),
        on_cores=tuple([_occupant(holder, visible_jobs) for holder in on_cores]),
        cores_held=sum(holder.cores for holder in on_cores),
        implausible=tuple(getattr(node, RECENT)),
    )


def _occupant(holder: _Holder, visible_jobs: frozenset[Any]) -> Occupant:
    """Return the job of a holder as the reader may see it."""
    if holder.job_id in visible_jobs:
        return Occupant(str(holder.job_id), holder.name, holder.purpose, holder.state)
    return Occupant(None, OTHERS, holder.purpose, holder.state)
