"""Bars of the timeline, in a constant number of queries."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

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
"""Most assignments of a chart; the newest are shown."""

NODES_A_CHART = 24

NEWEST_ROUNDS = 20
"""Newest rounds searched for a plan with expected ends; held or abandoned ones have none."""

BAR_COLUMNS = (
    "job__name", "job__total_steps", "purpose", "copy", "fence", "state", "start_steps",
    "steps_done", "predicted_run_s", "gpus", "node_id",
    "created_at", "accepted_at", "running_at", "ended_at",
)  # fmt: skip  # a long list of names
"""Columns that a bar needs; the JSON columns of a job would cost more than all."""

AssignmentKey: TypeAlias = tuple[str, str, int]
"""(job, purpose, copy)."""


class Place(NamedTuple):
    """Place of a bar: its lane, its row there, and the number of the lane's rows."""

    lane: str
    row: int
    rows: int


def page_of_lanes(number: int | str | None, cluster: Cluster | None) -> Page[Node]:
    """Return a page of a cluster's nodes by name; empty without cluster."""
    nodes = Node.objects.filter(cluster=cluster).select_related("gpu_type").order_by("name")
    lanes = nodes.only("name", "emulated", "gpu_type__name", "gpu_type__emulated")
    return Paginator(lanes, NODES_A_CHART).get_page(number)


def gantt_bars(
    user: User, cluster: Cluster, nodes: Sequence[Node], since: datetime, until: datetime
) -> tuple[tuple[Bar, ...], tuple[str, ...]]:
    """Return (bars, lanes) of these nodes' GPUs over [since, until): past, running, expected.

    A node whose jobs have no GPUs has a lane for its cores, with a row for each job that runs at
    the same time.
    """
    # 1. The assignments of that time, and their places in the chart.
    now = timezone.now()
    lane_of_device = _lanes_of_devices(nodes)
    reaches_into = Q(ended_at__isnull=True) | Q(ended_at__gte=since)
    rows = Assignment.objects.filter(reaches_into, node__in=nodes).exclude(state="rejected")
    rows = rows.select_related("job").only(*BAR_COLUMNS)
    assignments = list(rows.order_by("-created_at")[:MAX_BARS])
    on_cores = _places_on_cores(assignments, nodes, now)
    places = {**_places_on_gpus(assignments, lane_of_device), **on_cores}

    # 2. Their bars. The reader sees the names of their own jobs.
    visible_jobs = seen_by(user, {assignment.job_id for assignment in assignments})
    ends_s = _expected_ends_s(cluster)
    bars: list[Bar] = []
    for assignment in assignments:
        bars += _bars(assignment, places[assignment.pk], visible_jobs, ends_s, now)

    # 3. Bars of jobs that wait, where they are expected to run.
    since_s = since.timestamp()
    until_s = until.timestamp()
    cores_lanes = {node.name: _cores_lane(node) for node in nodes}
    lanes = Lanes(_lanes_by_node(nodes, lane_of_device.values()), cores_lanes)
    bars += expected_runs(user, cluster, lanes, bars, now.timestamp(), until_s)

    # 4. What is in the time shown.
    shown = tuple([bar for bar in bars if bar.to_s > since_s and bar.from_s < until_s])
    used_lanes = {bar.lane for bar in shown}
    for places_of_one in on_cores.values():
        used_lanes.update(place.lane for place in places_of_one)
    return shown, tuple(_all_lanes(nodes, lane_of_device, used_lanes))


def past_s(cluster: Cluster) -> float:
    """Return the seconds since the first assignment of the last day; 0 without any."""
    now = timezone.now()
    day = now - timedelta(days=1)
    recent = Assignment.objects.filter(node__cluster=cluster, created_at__gte=day)
    first = recent.aggregate(first=Min("created_at"))["first"]
    return (now - first).total_seconds() if first else 0.0


def _lanes_of_devices(nodes: Sequence[Node]) -> dict[int, str]:
    """Return the lane of each device by its key, in the order of nodes and GPU numbers."""
    devices: dict[Any, list[int]] = defaultdict(list)
    rows = Device.objects.filter(node__in=nodes).order_by("uuid")
    for node_id, device_id in rows.values_list("node_id", "pk"):
        devices[node_id].append(device_id)
    lanes: dict[int, str] = {}
    for node in nodes:
        mark = " (emulated)" if node.is_emulated else ""
        for number, device_id in enumerate(devices[node.pk]):
            lanes[device_id] = f"{node.name} · {node.type_name} {number}{mark}"
    return lanes


def _cores_lane(node: Node) -> str:
    """Return the name of a node's lane for jobs without GPUs."""
    return f"{node.name} · cores"


def _lanes_by_node(nodes: Sequence[Node], lanes: Iterable[str]) -> dict[str, list[str]]:
    """Return the lanes of each node by its name."""
    by_node: dict[str, list[str]] = {node.name: [] for node in nodes}
    for lane in lanes:
        node_name, _, _ = lane.rpartition(" · ")
        by_node.setdefault(node_name, []).append(lane)
    return by_node


def _all_lanes(
    nodes: Sequence[Node], lane_of_device: Mapping[int, str], used_lanes: set[str]
) -> list[str]:
    """Return all lanes, with one for cores where a node has no GPUs or jobs without any."""
    by_node = _lanes_by_node(nodes, lane_of_device.values())
    lanes = []
    for node in nodes:
        gpu_lanes = by_node[node.name]
        lanes += gpu_lanes
        if not gpu_lanes or _cores_lane(node) in used_lanes:
            lanes.append(_cores_lane(node))
    return lanes


def _places_on_cores(
    assignments: Iterable[Assignment], nodes: Sequence[Node], now: datetime
) -> Mapping[Any, list[Place]]:
    """Return the place of each assignment without GPUs: the first row that is free at its start."""
    lane_of_node = {node.pk: _cores_lane(node) for node in nodes}
    ends: dict[str, list[datetime]] = defaultdict(list)  # by lane, the last end in each row
    row_of_assignment: dict[Any, tuple[str, int]] = {}
    without_gpus = [assignment for assignment in assignments if not assignment.gpus]
    for assignment in sorted(without_gpus, key=lambda assignment: assignment.created_at):
        lane = lane_of_node[assignment.node_id]
        last_ends = ends[lane]
        end = assignment.ended_at or now
        for row, last_end in enumerate(last_ends):
            if last_end <= assignment.created_at:
                last_ends[row] = end
                break
        else:
            row = len(last_ends)
            last_ends.append(end)
        row_of_assignment[assignment.pk] = lane, row
    return {
        pk: [Place(lane, row, len(ends[lane]))] for pk, (lane, row) in row_of_assignment.items()
    }


def _places_on_gpus(
    assignments: Iterable[Assignment], lane_of_device: Mapping[int, str]
) -> Mapping[Any, list[Place]]:
    """Return the places of each assignment with GPUs, read as plain values: a prefetch is slow."""
    places: dict[Any, list[Place]] = defaultdict(list)
    keys = [assignment.pk for assignment in assignments]
    slots = AssignmentSlot.objects.filter(assignment__in=keys).order_by("pk")
    columns = ("assignment_id", "device_id", "slot", "share")
    for assignment_id, device_id, slot, share in slots.values_list(*columns):
        if device_id in lane_of_device:
            row, rows = row_of(slot, share)
            places[assignment_id].append(Place(lane_of_device[device_id], row, rows))
    return places


def _expected_ends_s(cluster: Cluster) -> Mapping[AssignmentKey, float]:
    """Return the ends (Unix seconds) that the newest plan expects."""
    rounds = Round.objects.filter(cluster=cluster).order_by("-number")
    for runs, started_at in rounds.values_list("runs_expected", "started_at")[:NEWEST_ROUNDS]:
        if runs is not None:
            start_s = started_at.timestamp()
            return {(job, purpose, copy): start_s + run_s for job, purpose, copy, run_s in runs}
    return {}


def _bars(
    assignment: Assignment,
    places: Sequence[Place],
    visible_jobs: frozenset[Any],
    expected_ends_s: Mapping[AssignmentKey, float],
    now: datetime,
) -> list[Bar]:
    """Return the bars of an assignment at its places, and of its expected rest if it runs."""
    # 1. From when to when it has run.
    job = assignment.job
    from_s = (assignment.accepted_at or assignment.created_at).timestamp()
    is_live = assignment.state in LIVE
    end = now if is_live else min(assignment.ended_at or now, now)  # the clock may have been ahead
    to_s = end.timestamp()
    if from_s > to_s:
        return []
    expected_end_s = _expected_end_s(assignment, expected_ends_s) if is_live else None

    # 2. How it looks, and what the reader may know of it.
    kind = "running" if is_live else "ran"
    if assignment.purpose == "profiling":
        kind = "profiling"
    key = ""
    name = OTHERS
    hover = ""
    if assignment.job_id in visible_jobs:
        key = str(job.pk)
        name = job.name
        hover = _hover(assignment, job)
        if is_live and expected_end_s is None:
            hover = f"{hover} · {END_UNKNOWN}"

    # 3. A bar at each place, and one behind it until its expected end.
    bars = [
        Bar(place.lane, key, name, from_s, to_s, kind, hover, place.row, place.rows)
        for place in places
    ]
    if expected_end_s is not None and expected_end_s > to_s:
        bars += [replace(bar, from_s=to_s, to_s=expected_end_s, kind="planned") for bar in bars]
    return bars


def _expected_end_s(
    assignment: Assignment, expected_ends_s: Mapping[AssignmentKey, float]
) -> float | None:
    """Return the expected end: by the newest plan, else as predicted at its launch, or None."""
    key = str(assignment.job_id), assignment.purpose, assignment.copy
    if key in expected_ends_s:
        return expected_ends_s[key]
    if assignment.predicted_run_s is None:
        return None
    began_at = assignment.running_at or assignment.created_at
    return began_at.timestamp() + assignment.predicted_run_s


def _hover(assignment: Assignment, job: Job) -> str:
    """Return the text of a bar: state, steps and launch."""
    end = assignment.steps_done or assignment.start_steps
    steps = f"steps {assignment.start_steps:,} to {end:,} of {job.total_steps:,}"
    return f"{assignment.state} · {steps} · launch {assignment.fence}"
