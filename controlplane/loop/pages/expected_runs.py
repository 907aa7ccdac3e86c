"""Bars of the timeline for runs that are expected to start."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from django.contrib.auth.models import User
from django.db.models import F, QuerySet

from clusters.models import Cluster
from controlplane.web.pages.gantt import Bar
from jobs.forecasts import TELLS, newest
from jobs.models import Forecast
from jobs.selectors import OTHERS, seen_by

MOST_RUNS = 1000
"""Most expected runs on a chart, the soonest ones."""

END_UNKNOWN = "its run time is unknown"


def expected_runs(
    user: User,
    cluster: Cluster,
    lanes: Mapping[str, Sequence[str]],
    bars: Sequence[Bar],
    now_s: float,
    until_s: float,
) -> list[Bar]:
    """Bars of the runs that waiting jobs are expected to have, by the schedule of the plan.

    `lanes` by node. A schedule names no GPUs: a run is drawn on those that are free first after
    `bars`. A run of unknown length ends at `until_s`.
    """
    free_s: dict[str, float] = defaultdict(float)
    for bar in bars:
        free_s[bar.lane] = max(free_s[bar.lane], bar.to_s)
    rows = list(_coming(cluster))
    seen = seen_by(user, {row.job_id for row in rows})
    found = []
    for row in rows:
        from_s, to_s = _span(row, now_s, until_s)
        known = row.job_id in seen
        name, key = (row.job.name, str(row.job_id)) if known else (OTHERS, "")
        for lane in _lanes_of(row, lanes, free_s):
            free_s[lane] = max(free_s[lane], to_s)
            hover = END_UNKNOWN if known and row.end_at is None else ""
            found.append(Bar(lane, key, name, from_s, to_s, "coming", hover))
    return found


def _coming(cluster: Cluster) -> QuerySet[Forecast]:
    of_cluster = Forecast.objects.filter(job__cluster=cluster, job__state__in=TELLS)
    rows = newest(of_cluster).filter(fence=F("job__fence"), planned_at__isnull=False)
    shown = rows.select_related("job").only(
        "planned_at", "start_at", "end_at", "nodes", "gpus", "job__name"
    )
    return shown.order_by("planned_at")[:MOST_RUNS]


def _span(row: Forecast, now_s: float, until_s: float) -> tuple[float, float]:
    """Start by the schedule, not before now, and end."""
    assert row.planned_at is not None  # the query asks for it
    from_s = max(row.planned_at.timestamp(), now_s)
    if row.end_at is None or row.start_at is None:
        return from_s, max(from_s, until_s)
    return from_s, from_s + (row.end_at - row.start_at).total_seconds()


def _lanes_of(
    row: Forecast, lanes: Mapping[str, Sequence[str]], free_s: Mapping[str, float]
) -> Iterator[str]:
    """Lanes of the nodes' GPUs that are free first, as evenly over the nodes as they come.

    Without GPUs each node's lane of cores, the last one.
    """
    if not row.gpus:
        yield from (lanes[node][-1] for node in row.nodes if lanes.get(node))
    left = row.gpus
    for rest, node in zip(range(len(row.nodes), 0, -1), row.nodes, strict=True):
        of_node = sorted(lanes.get(node, ()), key=lambda lane: free_s[lane])[: -(-left // rest)]
        yield from of_node
        left -= -(-left // rest)
