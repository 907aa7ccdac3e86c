"""Starts that a round's plan schedules are stored; a simulation is requested for the others.

The simulation itself is `controlplane.studies.simulated_starts`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from celery import current_app
from django.core.cache import cache
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from clusters.events import forget, is_first
from jobs.forecasts.storage import store
from policies.contract.plan import Plan, PlanStatus, WaitCode
from policies.contract.snapshot import Snapshot
from policies.host import registry

logger = logging.getLogger(__name__)

FORECAST_TASK = "controlplane.studies.tasks.forecast_starts"

NEVER_FIT = frozenset(
    {
        WaitCode.AWAITING_PROFILE,
        WaitCode.NO_THROUGHPUT,
        WaitCode.NO_NODE_FITS,
        WaitCode.TYPES_UNAVAILABLE,
        WaitCode.LABEL_UNAVAILABLE,
        WaitCode.RUNTIME_UNAVAILABLE,
        WaitCode.AGENT_TOO_OLD,
        WaitCode.NODES_OF_OTHER_TEAMS,
        WaitCode.NOT_SPREAD,
    }
)
"""Codes of jobs for which alone no round is simulated: none starts on the cluster as it is."""

REQUEST_S = 30
"""After this time a later round requests a simulation again if no worker has begun one."""

PAUSE_FACTOR = 9.0
LONGEST_PAUSE_S = 20.0
"""After a simulation there is a pause of so many times its length, at most of so many seconds."""


@dataclass(frozen=True, slots=True)
class RoundKey:
    """A round of a cluster, and the name of the policy that made its plan."""

    cluster_id: int
    number: int
    policy: str


def store_expected(
    of_round: RoundKey, plan: Plan, snapshot: Snapshot, blocked: Collection[str] = ()
) -> None:
    """Store the starts that a round's plan schedules, and request a simulation of the others.

    `blocked`: jobs outside the snapshot that wait for others. Nothing is stored of a plan that was
    kept because the policy failed. Policies of third parties are not simulated.
    """
    if plan.status is PlanStatus.KEPT or not (plan.waiting or blocked):
        return
    simulated: frozenset[str] = frozenset()
    if of_round.policy in registry.BUILT_IN:
        simulated = not_scheduled(plan).union(blocked)
    scheduled = {entry.job: entry.expected for entry in plan.waiting if entry.job not in simulated}
    if scheduled:
        node_names = {node.id: node.name for node in snapshot.nodes}
        store(of_round.cluster_id, of_round.number, snapshot.now_s, scheduled, node_names)
    if simulated:
        _request_simulation(of_round.cluster_id)


def not_scheduled(plan: Plan) -> frozenset[str]:
    """Return the waiting jobs for which a plan schedules no start, but for those that never fit.

    If a plan schedules no start at all, these are all waiting jobs.
    """
    scheduled = {
        entry.job for entry in plan.waiting if entry.expected is not None and entry.expected.nodes
    }
    if not scheduled:
        return frozenset(entry.job for entry in plan.waiting)
    may_start = (entry.job for entry in plan.waiting if entry.code not in NEVER_FIT)
    return frozenset(job for job in may_start if job not in scheduled)


def simulate_paced(cluster_id: int, simulate: Callable[[int], object]) -> None:
    """Simulate a cluster's queue. A request of a later round is answered after a pause."""
    forget(_request_key(cluster_id))
    began_s = time.monotonic()
    simulate(cluster_id)
    pause_s = min(PAUSE_FACTOR * (time.monotonic() - began_s), LONGEST_PAUSE_S)
    with suppress(RedisError, OSError):  # without a cache there is no pause
        cache.set(_pause_key(cluster_id), pause_s, REQUEST_S)


def _request_simulation(cluster_id: int) -> None:
    """Request a simulation of the newest round, unless one is requested already."""
    if not is_first(_request_key(cluster_id), REQUEST_S):
        return
    pause_s = 0.0
    with suppress(RedisError, OSError):
        pause_s = cache.get(_pause_key(cluster_id), 0.0)
    try:
        current_app.send_task(FORECAST_TASK, (cluster_id,), countdown=pause_s)
    except OperationalError as error:
        logger.warning("no start is forecast, as the broker is away: %s", error)


def _request_key(cluster_id: int) -> str:
    return f"forecast-asked:{cluster_id}"


def _pause_key(cluster_id: int) -> str:
    return f"forecast-rest:{cluster_id}"
