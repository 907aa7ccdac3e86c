"""Stores the starts that a round expects, as forecasts with intervals, and scores them.

A forecast is written only where it differs from the job's newest one by more than a small move.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import MappingProxyType

from celery import current_app
from django.core.cache import cache
from django.db.models import F
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from clusters.events import forget, is_first
from controlplane.loop.forecasts import SCORED, Calibration, Interval, Score, Told, has_moved
from controlplane.loop.models import Round
from controlplane.web.storage.bulk import insert
from jobs.forecasts.starts import TELLS, newest
from jobs.models import UNFINISHED, Forecast, Job
from policies.contract.plan import Expected, Plan, PlanStatus, WaitCode
from policies.contract.snapshot import Snapshot
from policies.host import registry

logger = logging.getLogger(__name__)

FORECAST_TASK = "controlplane.studies.tasks.forecast_starts"

NO_REASONS: Mapping[str, str] = MappingProxyType({})
LONGEST_WHY = 200

NEVER_FIT = frozenset(
    {
        WaitCode.AWAITING_PROFILE, WaitCode.NO_THROUGHPUT, WaitCode.NO_NODE_FITS,
        WaitCode.TYPES_UNAVAILABLE, WaitCode.LABEL_UNAVAILABLE, WaitCode.RUNTIME_UNAVAILABLE,
        WaitCode.AGENT_TOO_OLD, WaitCode.NODES_OF_OTHER_TEAMS, WaitCode.NOT_SPREAD,
    }
)  # fmt: skip
"""Codes of jobs for which alone no round is simulated: none starts on the cluster as it is."""

FAR_S = 100 * 365.25 * 86_400.0
"""No moment further ahead is stored: a start beyond it is not expected, an end is unknown."""

ASKED_S = 30
"""Time after which a later round asks again if no worker has taken the request."""

REST, LONGEST_REST_S = 9.0, 20.0
"""A simulation begins after so many times the last one's length, and at most so long."""


def store_expected(
    row: Round, plan: Plan, snapshot: Snapshot, blocked: Collection[str] = ()
) -> None:
    """Store the starts that a round's plan schedules, and ask for a simulation of the others.

    `blocked`: jobs outside the snapshot that wait for others. The plan of a policy that failed says
    nothing, and other people's policies are not simulated.
    """
    if plan.status is PlanStatus.KEPT or not (plan.waiting or blocked):
        return
    is_known = row.policy in registry.BUILT_IN
    simulated = not_scheduled(plan).union(blocked) if is_known else frozenset()
    told = {w.job: w.expected for w in plan.waiting if w.job not in simulated}
    if told:
        names = {node.id: node.name for node in snapshot.nodes}
        store(row.cluster_id, row.number, snapshot.now_s, told, names)
    if simulated:
        _ask_for_simulation(row.cluster_id)


def not_scheduled(plan: Plan) -> frozenset[str]:
    """Return the waiting jobs of whose start a plan says nothing, but for those that never fit.

    A plan without any scheduled start says nothing of all of them.
    """
    scheduled = {w.job for w in plan.waiting if w.expected is not None and w.expected.nodes}
    if not scheduled:
        return frozenset(w.job for w in plan.waiting)
    may_start = (w for w in plan.waiting if w.code not in NEVER_FIT)
    return frozenset(w.job for w in may_start if w.job not in scheduled)


def simulate_paced(cluster_id: int, simulate: Callable[[int], object]) -> None:
    """Simulate a cluster's queue. Rounds that follow ask anew, and then it is simulated later."""
    forget(_asked(cluster_id))
    began_s = time.monotonic()
    simulate(cluster_id)
    rest_s = min(REST * (time.monotonic() - began_s), LONGEST_REST_S)
    with suppress(RedisError, OSError):  # without a cache it is simulated at once
        cache.set(_rest(cluster_id), rest_s, ASKED_S)


def _asked(cluster_id: int) -> str:
    return f"forecast-asked:{cluster_id}"


def _rest(cluster_id: int) -> str:
    return f"forecast-rest:{cluster_id}"


def _ask_for_simulation(cluster_id: int) -> None:
    """Ask for a simulation of the newest round; one that is asked for already will do."""
    if not is_first(_asked(cluster_id), ASKED_S):
        return
    rest_s = 0.0
    with suppress(RedisError, OSError):
        rest_s = cache.get(_rest(cluster_id), 0.0)
    try:
        current_app.send_task(FORECAST_TASK, (cluster_id,), countdown=rest_s)
    except OperationalError as error:
        logger.warning("the broker is away, so no start is forecast: %s", error)


def store(
    cluster_id: int,
    number: int,
    now_s: float,
    expected: Mapping[str, Expected | None],
    names: Mapping[str, str],
    whys: Mapping[str, str] = NO_REASONS,
) -> None:
    """Store forecasts of these waiting jobs of a cluster; `names` of nodes by id.

    `whys`: by job, why it has no expected start.
    """
    waiting = Job.objects.filter(UNFINISHED, cluster=cluster_id, state__in=TELLS)
    told = {f.job_id: f for f in newest(Forecast.objects.filter(job__in=waiting.values("pk")))}
    first = Forecast.objects.filter(job__in=waiting.values("pk"), first=True)
    started = set(first.values_list("job", flat=True))
    calibration, rows = calibrated(cluster_id), list[Forecast]()
    for pk, fence in waiting.values_list("pk", "fence"):
        if str(pk) not in expected:
            continue
        row = _forecast(expected[str(pk)], now_s, calibration, names)
        row.why = "" if row.start_at else whys.get(str(pk), "")[:LONGEST_WHY]
        row.job_id, row.fence, row.round = pk, fence, number
        row.first = bool(row.start_at) and pk not in started
        before = told.get(pk)
        if _differs(before if before and before.fence == fence else None, row, now_s):
            rows.append(row)
    insert(Forecast, rows)


def calibrated(cluster_id: int) -> Calibration:
    """Return the factors learnt from the newest jobs of a cluster that have started."""
    waits = [
        ((f.planned_at - f.made_at).total_seconds(), (started_at - f.made_at).total_seconds())
        for f, started_at in _scored(cluster_id)
        if f.planned_at
    ]
    return Calibration([expected_s for expected_s, _ in waits], [actual_s for _, actual_s in waits])


def score_of(cluster_id: int, **jobs: object) -> Score | None:
    """Return the score of the newest jobs of a cluster that have started; None without any.

    `jobs`: conditions on the jobs, such as batch=True.
    """
    told = [
        Told(
            f.made_at.timestamp(),
            Interval(f.low_at.timestamp(), f.start_at.timestamp(), f.high_at.timestamp()),
            started_at.timestamp(),
        )
        for f, started_at in _scored(cluster_id, **jobs)
        if f.low_at and f.start_at and f.high_at
    ]
    return Score.of(told)


def _scored(cluster_id: int, **jobs: object) -> list[tuple[Forecast, datetime]]:
    """First forecasts of jobs that have started since, the newest ones, with the start."""
    first = Forecast.objects.filter(first=True, job__started_at__gt=F("made_at"))
    first = first.filter(**{f"job__{name}": value for name, value in jobs.items()})
    rows = first.filter(job__cluster=cluster_id).order_by("-pk").annotate(at=F("job__started_at"))
    return [(row, row.at) for row in rows[:SCORED]]


def _forecast(
    expected: Expected | None, now_s: float, calibration: Calibration, names: Mapping[str, str]
) -> Forecast:
    """Return the row of an expected start, still without its job."""
    row, last_s = Forecast(made_at=_time(now_s)), now_s + FAR_S
    if expected is None or expected.start_s > last_s:
        return row
    start_s = max(expected.start_s, now_s)
    interval = calibration.interval(now_s, start_s)
    row.planned_at = _time(start_s)
    row.low_at, row.start_at, row.high_at = (_time(min(moment_s, last_s)) for moment_s in interval)
    if expected.end_s is not None and expected.end_s <= last_s:
        row.end_at = _time(interval.start_s + max(0.0, expected.end_s - start_s))
    row.nodes, row.gpus = [names.get(n, n) for n in expected.nodes], expected.gpus
    return row


def _differs(before: Forecast | None, after: Forecast, now_s: float) -> bool:
    """Return True if the start or the end moved by more than a small move, or its reason did."""
    if before is None:
        return after.start_at is not None or bool(after.why)
    if before.why != after.why:
        return True
    pairs = ((before.start_at, after.start_at), (before.end_at, after.end_at))
    return any(has_moved(now_s, _seconds(was), _seconds(now)) for was, now in pairs)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
