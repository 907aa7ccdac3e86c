"""Expected starts of waiting jobs as rows with intervals, and the score of those that have started.

A forecast is written only where it differs from the job's newest one by more than a small move.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from django.db.models import F

from controlplane.web.storage.bulk import insert
from jobs.forecasts.calibration import SCORED, Calibration, Interval, Score, StartedJob, has_moved
from jobs.forecasts.expected_starts import TELLS, newest
from jobs.models import UNFINISHED, Forecast, Job
from policies.contract.plan import Expected

NO_REASONS: Mapping[str, str] = MappingProxyType({})
LONGEST_REASON = 200

FAR_S = 100 * 365.25 * 86_400.0
"""No moment further ahead is stored: a start beyond it is not expected, an end is unknown."""


def store(
    cluster_id: int,
    number: int,
    now_s: float,
    expected: Mapping[str, Expected | None],
    node_names: Mapping[str, str],
    reasons: Mapping[str, str] = NO_REASONS,
) -> None:
    """Store the forecasts of a cluster's waiting jobs that have moved.

    `number`: of the round that they are from. `expected`: start by job, None if none is expected;
    jobs that are missing keep their last forecast. `node_names`: by the node's id. `reasons`: by
    job, why it has no expected start.
    """
    waiting = Job.objects.filter(UNFINISHED, cluster=cluster_id, state__in=TELLS)
    of_waiting = Forecast.objects.filter(job__in=waiting.values("pk"))
    last = {row.job_id: row for row in newest(of_waiting)}
    have_first = set(of_waiting.filter(first=True).values_list("job", flat=True))
    calibration = calibrated(cluster_id)

    rows = []
    for pk, fence in waiting.values_list("pk", "fence"):
        job = str(pk)
        if job not in expected:
            continue
        row = _forecast(expected[job], now_s, calibration, node_names)
        row.job_id = pk
        row.fence = fence
        row.round = number
        row.first = row.start_at is not None and pk not in have_first
        if row.start_at is None:
            row.why = reasons.get(job, "")[:LONGEST_REASON]

        # A forecast of before the job's last launch says nothing of its next start.
        before = last.get(pk)
        if before is not None and before.fence != fence:
            before = None
        if _differs(before, row, now_s):
            rows.append(row)
    insert(Forecast, rows)


def calibrated(cluster_id: int) -> Calibration:
    """Return the factors learnt from the newest jobs of a cluster that have started."""
    expected_s = []
    actual_s = []
    for row, started_at in _started(cluster_id):
        if row.planned_at is not None:
            expected_s.append((row.planned_at - row.made_at).total_seconds())
            actual_s.append((started_at - row.made_at).total_seconds())
    return Calibration(expected_s, actual_s)


def score_of(cluster_id: int, **jobs: object) -> Score | None:
    """Return the score of the newest jobs of a cluster that have started; None without any.

    `jobs`: conditions on the jobs, such as batch=True.
    """
    started = []
    for row, started_at in _started(cluster_id, **jobs):
        if row.low_at and row.start_at and row.high_at:
            interval = Interval(
                row.low_at.timestamp(), row.start_at.timestamp(), row.high_at.timestamp()
            )
            started.append(StartedJob(row.made_at.timestamp(), interval, started_at.timestamp()))
    return Score.of(started)


def _started(cluster_id: int, **jobs: object) -> list[tuple[Forecast, datetime]]:
    """First forecasts of the newest jobs that have started since, with the moment of the start."""
    first = Forecast.objects.filter(first=True, job__started_at__gt=F("made_at"))
    first = first.filter(**{f"job__{name}": value for name, value in jobs.items()})
    rows = first.filter(job__cluster=cluster_id).order_by("-pk").annotate(at=F("job__started_at"))
    return [(row, row.at) for row in rows[:SCORED]]


def _forecast(
    expected: Expected | None,
    now_s: float,
    calibration: Calibration,
    node_names: Mapping[str, str],
) -> Forecast:
    """Return the row of an expected start, still without its job."""
    row = Forecast(made_at=_moment(now_s))
    last_s = now_s + FAR_S
    if expected is None or expected.start_s > last_s:
        return row
    start_s = max(expected.start_s, now_s)
    interval = calibration.interval(now_s, start_s)
    row.planned_at = _moment(start_s)
    row.low_at = _moment(min(interval.low_s, last_s))
    row.start_at = _moment(min(interval.start_s, last_s))
    row.high_at = _moment(min(interval.high_s, last_s))
    if expected.end_s is not None and expected.end_s <= last_s:
        run_s = max(0.0, expected.end_s - start_s)
        row.end_at = _moment(interval.start_s + run_s)
    row.nodes = [node_names.get(node, node) for node in expected.nodes]
    row.gpus = expected.gpus
    return row


def _differs(before: Forecast | None, after: Forecast, now_s: float) -> bool:
    """Return True if start or end moved by more than a small move, or the reason changed."""
    if before is None:
        return after.start_at is not None or bool(after.why)
    if before.why != after.why:
        return True
    pairs = ((before.start_at, after.start_at), (before.end_at, after.end_at))
    return any(has_moved(now_s, _seconds(old), _seconds(new)) for old, new in pairs)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
