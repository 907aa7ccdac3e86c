"""What the pages of nodes and of the timeline show, in a constant number of queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator
from django.db.models import Count, Min, Prefetch, Q, prefetch_related_objects
from django.utils import timezone

from clusters.lifecycle import LIVE
from clusters.models import Assignment, AssignmentSlot, Cluster, Device, Node
from clusters.runtimes import runtimes_of
from controlplane.models import Round
from controlplane.web.pages.gantt import Bar, row_of
from controlplane.web.pages.paging import page_of
from jobs.models import Job
from jobs.selectors import is_operator, visible_jobs

OTHERS = "another team's job"
MAX_BARS = 3000
NODES_A_PAGE = 24
NODES_A_CHART = 24
Place = tuple[str, int, int]
"""A lane of the timeline, and which of how many rows of it."""
NEWEST_ROUNDS = 20
"""Newest rounds searched for a plan with expected ends; held or abandoned ones have none."""


_OF_BAR = (
    "job__name", "job__total_steps", "purpose", "copy", "fence", "state", "start_steps",
    "steps_done", "predicted_run_s",
    "created_at", "accepted_at", "running_at", "ended_at",
)  # fmt: skip
"""Columns that the timeline shows; the JSON columns of a job would cost more than all."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """What runs on a device: a job the reader may see, or somebody else's (`job_id` None)."""

    job_id: str | None
    name: str
    purpose: str
    state: str


@dataclass(frozen=True, slots=True)
class DeviceCard:
    """A GPU and what runs on it. `power_source` says whether the watts are measured or modelled."""

    device: Device
    emulated: bool
    occupants: tuple[Occupant, ...]

    @property
    def percent(self) -> float | None:
        """Use in percent."""
        return None if self.device.gpu_fraction is None else 100 * self.device.gpu_fraction


@dataclass(frozen=True, slots=True)
class NodeCard:
    """A machine, its GPUs, and its watts now as far as they are known."""

    node: Node
    emulated: bool
    devices: tuple[DeviceCard, ...]
    silent: bool

    @property
    def busy(self) -> int:
        """GPUs with work."""
        return sum(bool(d.occupants) for d in self.devices)

    @property
    def slots(self) -> int | None:
        """How many jobs may share each of its GPUs; None where that differs."""
        numbers = {d.device.slots for d in self.devices}
        return numbers.pop() if len(numbers) == 1 else None

    @property
    def shared(self) -> int:
        """The most jobs that may share a GPU of it; 0 where none may."""
        most = max((d.device.slots for d in self.devices), default=1)
        return most if most > 1 else 0

    @property
    def runtimes(self) -> str:
        """The ways in which it runs jobs."""
        return " and ".join(runtimes_of(self.node))

    @property
    def power_w(self) -> float | None:
        """Watts of the GPUs together."""
        known = [d.device.power_w for d in self.devices if d.device.power_w is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class ClusterNodes:
    """A cluster, the page's nodes, and totals: nodes, GPUs of nodes not lost, GPUs in use."""

    cluster: Cluster
    nodes: tuple[NodeCard, ...]
    count: int
    gpus: int
    busy: int


def page_of_nodes(number: object) -> Page[Node]:
    """A page of all nodes, in the order of names."""
    nodes = Node.objects.select_related("gpu_type", "cluster").order_by("cluster__name", "name")
    return page_of(Paginator(nodes, NODES_A_PAGE), number)


def page_of_lanes(number: object, cluster: Cluster | None) -> Page[Node]:
    """A page of a cluster's nodes by name, with the timeline's data; empty without cluster."""
    nodes = Node.objects.filter(cluster=cluster).select_related("gpu_type").order_by("name")
    lanes = nodes.only("name", "emulated", "gpu_type__name", "gpu_type__emulated")
    return page_of(Paginator(lanes, NODES_A_CHART), number)


def cluster_nodes(user: User, page: Page[Node]) -> tuple[ClusterNodes, ...]:
    """The page's nodes by cluster and what runs on each GPU; names of jobs only where the reader
    may see the job.

    Clusters without nodes stand on the first page. A constant number of queries.
    """
    nodes, now = list(page.object_list), timezone.now()
    prefetch_related_objects(nodes, Prefetch("devices", queryset=Device.objects.order_by("uuid")))
    working = _working(nodes)
    seen = _seen(user, {a.job_id for assignments in working.values() for a in assignments})
    cards: dict[int, list[NodeCard]] = defaultdict(list)
    for node in nodes:
        cards[node.cluster_id].append(_node_card(node, working, seen, now))
    counts = _counts()
    shown = [
        c
        for c in Cluster.objects.order_by("name")
        if c.pk in cards or (page.number == 1 and c.pk not in counts)
    ]
    return tuple(ClusterNodes(c, tuple(cards[c.pk]), *counts.get(c.pk, (0, 0, 0))) for c in shown)


def _counts() -> Mapping[int, tuple[int, int, int]]:
    """(nodes, GPUs of nodes that are not lost, GPUs with work) by cluster; three queries."""
    nodes = dict(Node.objects.order_by().values_list("cluster").annotate(n=Count("pk")))
    there = Device.objects.exclude(node__state="lost").order_by()
    gpus = dict(there.values_list("node__cluster").annotate(n=Count("pk")))
    held = AssignmentSlot.objects.filter(live=True).order_by()
    busy = dict(
        held.values_list("device__node__cluster").annotate(n=Count("device", distinct=True))
    )
    return {pk: (n, gpus.get(pk, 0), busy.get(pk, 0)) for pk, n in nodes.items()}


def gantt_bars(
    user: User, cluster: Cluster, nodes: Sequence[Node], since: datetime, until: datetime
) -> tuple[tuple[Bar, ...], tuple[str, ...]]:
    """(bars, lanes) of these nodes' GPUs over [since, until): past, running, expected."""
    now = timezone.now()
    lanes = _lanes(nodes)
    assignments = _shown(nodes, since)
    places = _places(assignments, lanes)
    seen = _seen(user, {a.job_id for a in assignments})
    expected = _expected(cluster)
    bars = [b for a in assignments for b in _bars(a, places[a.pk], seen, expected, now)]
    return tuple(
        b for b in bars if b.to_s > since.timestamp() and b.from_s < until.timestamp()
    ), tuple(lanes.values())


def past_s(cluster: Cluster) -> float:
    """Seconds since the first assignment of the last day; 0 without any."""
    now = timezone.now()
    recent = Assignment.objects.filter(
        node__cluster=cluster, created_at__gte=now - timedelta(days=1)
    )
    first = recent.aggregate(first=Min("created_at"))["first"]
    return (now - first).total_seconds() if first else 0.0


def _seen(user: User, jobs: Iterable[Any]) -> frozenset[Any]:
    """Which of these jobs the reader may know of."""
    jobs = set(jobs)
    if is_operator(user) or not jobs:
        return frozenset(jobs)
    return frozenset(visible_jobs(user).filter(pk__in=jobs).values_list("pk", flat=True))


def _working(nodes: Sequence[Node]) -> Mapping[int, list[Assignment]]:
    """Device -> what runs on it now."""
    of_slot = ("device_id", "assignment__job__name", "assignment__purpose", "assignment__state")
    slots = (
        AssignmentSlot.objects.filter(live=True, device__node__in=nodes)
        .select_related("assignment__job")
        .only(*of_slot)
    )
    working: dict[int, list[Assignment]] = defaultdict(list)
    for slot in slots.order_by("pk"):
        working[slot.device_id].append(slot.assignment)
    return working


def _node_card(
    node: Node, working: Mapping[int, list[Assignment]], seen: frozenset[Any], now: datetime
) -> NodeCard:
    emulated = node.emulated or node.gpu_type.emulated
    devices = tuple(
        _device_card(d, emulated, working.get(d.pk, ()), seen) for d in node.devices.all()
    )
    patience = timedelta(seconds=3 * node.cluster.heartbeat_s)
    return NodeCard(
        node, emulated, devices, node.last_seen_at is None or now - node.last_seen_at > patience
    )


def _device_card(
    device: Device, emulated: bool, working: Iterable[Assignment], seen: frozenset[Any]
) -> DeviceCard:
    return DeviceCard(
        device, emulated or device.emulated, tuple(_occupant(a, seen) for a in working)
    )


def _occupant(assignment: Assignment, seen: frozenset[Any]) -> Occupant:
    known = assignment.job_id in seen
    name = assignment.job.name if known else OTHERS
    return Occupant(
        str(assignment.job_id) if known else None, name, assignment.purpose, assignment.state
    )


def _lanes(nodes: Sequence[Node]) -> dict[int, str]:
    """Lane of each device, by node and GPU number."""
    lanes: dict[int, str] = {}
    devices: dict[Any, list[int]] = defaultdict(list)
    for node_id, pk in (
        Device.objects.filter(node__in=nodes).order_by("uuid").values_list("node_id", "pk")
    ):
        devices[node_id].append(pk)
    for node in nodes:
        mark = " (emulated)" if node.emulated or node.gpu_type.emulated else ""
        for index, device in enumerate(devices[node.pk]):
            lanes[device] = f"{node.name} · {node.gpu_type.name} {index}{mark}"
    return lanes


def _shown(nodes: Sequence[Node], since: datetime) -> list[Assignment]:
    """Assignments that held a GPU since then, newest first up to a bound."""
    held = Q(ended_at__isnull=True) | Q(ended_at__gte=since)
    rows = (
        Assignment.objects.filter(held, node__in=nodes)
        .exclude(state="rejected")
        .select_related("job")
        .only(*_OF_BAR)
    )
    return list(rows.order_by("-created_at")[:MAX_BARS])


def _places(
    assignments: Iterable[Assignment], lanes: Mapping[int, str]
) -> Mapping[Any, list[Place]]:
    """The lanes of each assignment, and its row, as plain values (a prefetch costs more)."""
    places: dict[Any, list[Place]] = defaultdict(list)
    held = AssignmentSlot.objects.filter(assignment__in=[a.pk for a in assignments]).order_by("pk")
    for assignment, device, slot, share in held.values_list(
        "assignment_id", "device_id", "slot", "share"
    ):
        if device in lanes:
            places[assignment].append((lanes[device], *row_of(slot, share)))
    return places


def _expected(cluster: Cluster) -> Mapping[tuple[str, str, int], float]:
    """When the latest round expects each placement to end, by (job, purpose, copy)."""
    newest = (
        Round.objects.filter(cluster=cluster)
        .order_by("-number")
        .values_list("runs_expected", "started_at")[:NEWEST_ROUNDS]
    )
    runs, start_s = next(
        ((runs, started.timestamp()) for runs, started in newest if runs is not None), ([], 0.0)
    )
    return {(job, purpose, copy): start_s + run_s for job, purpose, copy, run_s in runs}


def _bars(
    assignment: Assignment,
    places: Sequence[Place],
    seen: frozenset[Any],
    expected: Mapping[tuple[str, str, int], float],
    now: datetime,
) -> list[Bar]:
    job, known = assignment.job, assignment.job_id in seen
    name = job.name if known else OTHERS
    from_s = (assignment.accepted_at or assignment.created_at).timestamp()
    live = assignment.state in LIVE
    to_s = now.timestamp() if live else (assignment.ended_at or now).timestamp()
    kind = "profiling" if assignment.purpose == "profiling" else "running" if live else "ran"
    hover = _hover(assignment, job) if known else ""
    key = str(job.pk) if known else ""
    bars = [
        Bar(lane, key, name, from_s, to_s, kind, hover, row, rows) for lane, row, rows in places
    ]
    end_s = _expected_end(assignment, expected) if live else None
    if end_s is not None and end_s > to_s:
        bars += [
            Bar(lane, key, name, to_s, end_s, "planned", hover, row, rows)
            for lane, row, rows in places
        ]
    return bars


def _expected_end(
    assignment: Assignment, expected: Mapping[tuple[str, str, int], float]
) -> float | None:
    newest = expected.get((str(assignment.job_id), assignment.purpose, assignment.copy))
    if newest is not None or assignment.predicted_run_s is None:
        return newest
    return (assignment.running_at or assignment.created_at).timestamp() + assignment.predicted_run_s


def _hover(assignment: Assignment, job: Job) -> str:
    """What the chart says under the pointer, beside name and times."""
    end = assignment.steps_done or assignment.start_steps
    steps = f"steps {assignment.start_steps:,} to {end:,} of {job.total_steps:,}"
    return f"{assignment.state} · {steps} · launch {assignment.fence}"
