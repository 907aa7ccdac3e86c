"""Bars of the timeline, in a constant number of queries."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator
from django.db.models import Min, Q
from django.utils import timezone

from clusters.models import Cluster, Device, Node
from controlplane.loop.models import Round
from controlplane.loop.pages.expected_runs import END_UNKNOWN, Lanes, expected_runs
from controlplane.web.pages.gantt import Bar, row_of
from jobs.assignment_lifecycle import LIVE
from jobs.models import Assignment, AssignmentSlot, Job
from jobs.selectors import OTHERS, seen_by

MAX_BARS = 3000
NODES_A_CHART = 24
Place = tuple[str, int, int]
"""Lane, row in it, and number of its rows."""
NEWEST_ROUNDS = 20
"""Newest rounds searched for a plan with expected ends; held or abandoned ones have none."""


_OF_BAR = (
    "job__name", "job__total_steps", "purpose", "copy", "fence", "state", "start_steps",
    "steps_done", "predicted_run_s", "gpus", "node_id",
    "created_at", "accepted_at", "running_at", "ended_at",
)  # fmt: skip
"""Columns of a bar; the JSON columns of a job would cost more than all."""


def page_of_lanes(number: int | str | None, cluster: Cluster | None) -> Page[Node]:
    """Page of a cluster's nodes by name, with the timeline's data; empty without cluster."""
    nodes = Node.objects.filter(cluster=cluster).select_related("gpu_type").order_by("name")
    lanes = nodes.only("name", "emulated", "gpu_type__name", "gpu_type__emulated")
    return Paginator(lanes, NODES_A_CHART).get_page(number)


def gantt_bars(
    user: User, cluster: Cluster, nodes: Sequence[Node], since: datetime, until: datetime
) -> tuple[tuple[Bar, ...], tuple[str, ...]]:
    """(bars, lanes) of these nodes' GPUs over [since, until): past, running, expected.

    Jobs without GPUs have a lane of their node's, one row for each of those that run at once.
    """
    now = timezone.now()
    lanes = _lanes(nodes)
    held = Q(ended_at__isnull=True) | Q(ended_at__gte=since)
    rows = Assignment.objects.filter(held, node__in=nodes).exclude(state="rejected")
    shown = rows.select_related("job").only(*_OF_BAR)
    assignments = list(shown.order_by("-created_at")[:MAX_BARS])
    by_cores = _places_by_cores(assignments, nodes, now)
    places = {**_places(assignments, lanes), **by_cores}
    seen = seen_by(user, {a.job_id for a in assignments})
    expected = _expected(cluster)
    bars = [b for a in assignments for b in _bars(a, places[a.pk], seen, expected, now)]
    since_s, until_s = since.timestamp(), until.timestamp()
    cores = {node.name: _cores_lane(node) for node in nodes}
    by_node = Lanes(_by_node(nodes, lanes.values()), cores)
    bars += expected_runs(user, cluster, by_node, bars, now.timestamp(), until_s)
    seen_bars = tuple(b for b in bars if b.to_s > since_s and b.from_s < until_s)
    used = {lane for of in by_cores.values() for lane, *_ in of} | {b.lane for b in seen_bars}
    return seen_bars, tuple(_with_cores(nodes, lanes, used))


def past_s(cluster: Cluster) -> float:
    """Seconds since the first assignment of the last day; 0 without any."""
    now = timezone.now()
    day = now - timedelta(days=1)
    recent = Assignment.objects.filter(node__cluster=cluster, created_at__gte=day)
    first = recent.aggregate(first=Min("created_at"))["first"]
    return (now - first).total_seconds() if first else 0.0


def _lanes(nodes: Sequence[Node]) -> dict[int, str]:
    """Lane of each device, by node and GPU number."""
    lanes: dict[int, str] = {}
    devices: dict[Any, list[int]] = defaultdict(list)
    rows = Device.objects.filter(node__in=nodes).order_by("uuid")
    for node_id, pk in rows.values_list("node_id", "pk"):
        devices[node_id].append(pk)
    for node in nodes:
        mark = " (emulated)" if node.is_emulated else ""
        for index, device in enumerate(devices[node.pk]):
            lanes[device] = f"{node.name} · {node.type_name} {index}{mark}"
    return lanes


def _cores_lane(node: Node) -> str:
    return f"{node.name} · cores"


def _with_cores(nodes: Sequence[Node], lanes: Mapping[int, str], used: set[str]) -> list[str]:
    """All lanes, with one for cores where a node has no GPUs or jobs without any."""
    by_node = _by_node(nodes, lanes.values())
    found = []
    for node in nodes:
        cores, own = _cores_lane(node), by_node[node.name]
        found += [*own, *([cores] if cores in used or not own else [])]
    return found


def _places_by_cores(
    assignments: Iterable[Assignment], nodes: Sequence[Node], now: datetime
) -> Mapping[Any, list[Place]]:
    """Lane of each assignment without GPUs, and the first row that is free at its start."""
    lane_of = {node.pk: _cores_lane(node) for node in nodes}
    without = [a for a in assignments if not a.gpus]
    ends: dict[str, list[datetime]] = defaultdict(list)
    found: dict[Any, tuple[str, int]] = {}
    for a in sorted(without, key=lambda a: a.created_at):
        rows = ends[lane_of[a.node_id]]
        row = next((i for i, end in enumerate(rows) if end <= a.created_at), len(rows))
        rows[row : row + 1] = [a.ended_at or now]
        found[a.pk] = lane_of[a.node_id], row
    return {pk: [(lane, row, len(ends[lane]))] for pk, (lane, row) in found.items()}


def _by_node(nodes: Sequence[Node], lanes: Iterable[str]) -> dict[str, list[str]]:
    """Lanes of each node, by its name."""
    found: dict[str, list[str]] = {node.name: [] for node in nodes}
    for lane in lanes:
        found.setdefault(lane.rpartition(" · ")[0], []).append(lane)
    return found


def _places(
    assignments: Iterable[Assignment], lanes: Mapping[int, str]
) -> Mapping[Any, list[Place]]:
    """Lanes of each assignment, and its row, as plain values (a prefetch costs more)."""
    places: dict[Any, list[Place]] = defaultdict(list)
    held = AssignmentSlot.objects.filter(assignment__in=[a.pk for a in assignments]).order_by("pk")
    columns = ("assignment_id", "device_id", "slot", "share")
    for assignment, device, slot, share in held.values_list(*columns):
        if device in lanes:
            places[assignment].append((lanes[device], *row_of(slot, share)))
    return places


def _expected(cluster: Cluster) -> Mapping[tuple[str, str, int], float]:
    rounds = Round.objects.filter(cluster=cluster).order_by("-number")
    for runs, started in rounds.values_list("runs_expected", "started_at")[:NEWEST_ROUNDS]:
        if runs is not None:
            start_s = started.timestamp()
            return {(job, purpose, copy): start_s + run_s for job, purpose, copy, run_s in runs}
    return {}


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
    end = now if live else min(assignment.ended_at or now, now)  # the clock may have been ahead
    to_s = end.timestamp()
    if from_s > to_s:
        return []
    kind = "profiling" if assignment.purpose == "profiling" else "running" if live else "ran"
    end_s = _expected_end(assignment, expected) if live else None
    hover = _hover(assignment, job) if known else ""
    if hover and live and end_s is None:
        hover = f"{hover} · {END_UNKNOWN}"
    key = str(job.pk) if known else ""
    bars = [
        Bar(lane, key, name, from_s, to_s, kind, hover, row, rows) for lane, row, rows in places
    ]
    if end_s is not None and end_s > to_s:
        bars += [replace(bar, from_s=to_s, to_s=end_s, kind="planned") for bar in bars]
    return bars


def _expected_end(
    assignment: Assignment, expected: Mapping[tuple[str, str, int], float]
) -> float | None:
    newest = expected.get((str(assignment.job_id), assignment.purpose, assignment.copy))
    if newest is not None or assignment.predicted_run_s is None:
        return newest
    return (assignment.running_at or assignment.created_at).timestamp() + assignment.predicted_run_s


def _hover(assignment: Assignment, job: Job) -> str:
    end = assignment.steps_done or assignment.start_steps
    steps = f"steps {assignment.start_steps:,} to {end:,} of {job.total_steps:,}"
    return f"{assignment.state} · {steps} · launch {assignment.fence}"
