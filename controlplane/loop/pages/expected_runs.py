"""Bars of the timeline for runs that are expected to start."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from django.contrib.auth.models import User
from django.db.models import F, QuerySet

from clusters.models import Cluster
from controlplane.web.pages.gantt import Bar
from jobs.forecasts.expected_starts import TELLS, newest
from jobs.models import Forecast
from jobs.selectors import OTHERS, seen_by

MOST_RUNS = 1000
"""Most expected runs on a chart, the soonest ones."""

END_UNKNOWN = "its run time is unknown"


@dataclass(frozen=True, slots=True)
class Lanes:
    """Lanes of the chart by node: one for each GPU, and one for all jobs without GPUs."""

    gpus: Mapping[str, Sequence[str]]
    cores: Mapping[str, str]


def expected_runs(
    user: User,
    cluster: Cluster,
    lanes: Lanes,
    bars: Sequence[Bar],
    now_s: float,
    until_s: float,
) -> list[Bar]:
    """Return bars of the runs that waiting jobs are expected to have, by the plan's schedule.

    A schedule names no GPUs: a run is drawn on those that are free first after `bars`. A run of
    unknown length ends at `until_s`.
    """
    free_s: dict[str, float] = defaultdict(float)
    for bar in bars:
        free_s[bar.lane] = max(free_s[bar.lane], bar.to_s)
    rows = list(_coming(cluster))
    visible = seen_by(user, {row.job_id for row in rows})
    on_gpus: list[Bar] = []
    on_cores: list[Bar] = []
    for row in rows:
        from_s, to_s = _span(row, now_s, until_s)
        name, key, hover = OTHERS, "", ""
        if row.job_id in visible:
            name, key = row.job.name, str(row.job_id)
            hover = END_UNKNOWN if row.end_at is None else ""
        if row.gpus:
            for lane in _gpus_free_first(row, lanes.gpus, free_s):
                free_s[lane] = max(free_s[lane], to_s)
                on_gpus.append(Bar(lane, key, name, from_s, to_s, "coming", hover))
        else:
            for node in row.nodes:
                if node in lanes.cores:
                    lane = lanes.cores[node]
                    on_cores.append(Bar(lane, key, name, from_s, to_s, "coming", hover))
    return [*on_gpus, *side_by_side(on_cores)]


def side_by_side(bars: Sequence[Bar]) -> list[Bar]:
    """Give bars that overlap in a lane a row each: the first that is free at their start."""
    ends_s: dict[str, list[float]] = defaultdict(list)
    rows = list[int]()
    for bar in bars:
        of_lane = ends_s[bar.lane]
        free = [row for row, end_s in enumerate(of_lane) if end_s <= bar.from_s]
        if free:
            row = free[0]
            of_lane[row] = bar.to_s
        else:
            row = len(of_lane)
            of_lane.append(bar.to_s)
        rows.append(row)
    pairs = zip(bars, rows, strict=True)
    return [replace(bar, row=row, rows=len(ends_s[bar.lane])) for bar, row in pairs]


def _coming(cluster: Cluster) -> QuerySet[Forecast]:
    of_cluster = Forecast.objects.filter(job__cluster=cluster, job__state__in=TELLS)
    rows = newest(of_cluster).filter(fence=F("job__fence"), planned_at__isnull=False)
    shown = rows.select_related("job").only(
        "planned_at", "start_at", "end_at", "nodes", "gpus", "job__name"
    )
    return shown.order_by("planned_at")[:MOST_RUNS]


def _span(row: Forecast, now_s: float, until_s: float) -> tuple[float, float]:
    """Return the start (s) by the schedule, but not before now, and the end (s)."""
    assert row.planned_at is not None  # the query asks for it
    from_s = max(row.planned_at.timestamp(), now_s)
    if row.end_at is None or row.start_at is None:
        return from_s, max(from_s, until_s)
    return from_s, from_s + (row.end_at - row.start_at).total_seconds()


def _gpus_free_first(
    row: Forecast, gpus: Mapping[str, Sequence[str]], free_s: Mapping[str, float]
) -> Iterator[str]:
    """Yield lanes of a run's GPUs: those that are free first, as evenly as can be on its nodes."""
    left = row.gpus
    for i, node in enumerate(row.nodes):
        nodes_left = len(row.nodes) - i
        count = -(-left // nodes_left)  # rounded up
        yield from sorted(gpus.get(node, ()), key=lambda lane: free_s[lane])[:count]
        left -= count
