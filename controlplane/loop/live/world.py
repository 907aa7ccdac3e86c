"""Live cluster as the loop's world, for one round: that of the process that holds its lock."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from django.conf import settings
from django.db import transaction

import profiling.selectors
from clusters.events import request_reschedule
from clusters.models import Cluster, Reason, RescheduleEvent
from controlplane.loop.live import lock as locks
from controlplane.loop.live import record
from controlplane.loop.live.apply import Prepared, apply_plan
from controlplane.loop.live.lock import (
    EXPIRY_S,
    RENEW_S,
    LostLockError,
    Renewal,
    RoundLock,
    renewed,
)
from controlplane.loop.live.observe import Knowledge, Observation, observe
from controlplane.loop.models import Round
from controlplane.loop.rounds import Applied, Decision, LastPlan, RoundResult, run_round
from controlplane.web.logs.structured import bound
from controlplane.web.storage.watch import THIS_MACHINE, Watch
from jobs.forecasts.scheduled_starts import RoundKey, store_expected
from policies.contract.plan import Plan
from policies.contract.snapshot import Snapshot

logger = logging.getLogger(__name__)

Clock: TypeAlias = Callable[[], float]
"""Seconds since the epoch."""

Solve: TypeAlias = Callable[[str, Mapping[str, Any], Snapshot], Plan]
"""Function (policy, parameters, snapshot) -> plan that raises PolicyError.

In production it asks a child process.
"""

OVERHEAD_S = 30.0
"""Longest time of a round in seconds, without its solver's."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Dependencies of a live round, replaceable in tests.

    `knowledge`: what is measured of kinds. `await_solver` returns once a snapshot can be solved.
    The lock is held for `hold_s` at most (default: solver limit and OVERHEAD_S). It is renewed
    every `renew_s`, and expires `expiry_s` after the last renewal. `watch` tells whether the lock's
    owner still renews it.
    """

    solve: Solve
    clock: Clock = time.time
    knowledge: Knowledge = profiling.selectors
    hold_s: float | None = None
    expiry_s: float = EXPIRY_S
    renew_s: float = RENEW_S
    await_solver: Callable[[], None] = lambda: None
    watch: Watch = THIS_MACHINE

    def renewal(self) -> Renewal:
        """Return how the round's lock is renewed."""
        hold_s = self.hold_s or settings.SOLVER_TIMEOUT_S + OVERHEAD_S
        return Renewal(hold_s, self.expiry_s, self.renew_s)


class LiveWorld:
    """World of one round: `snapshot` and `apply` use one transaction each.

    The steps of the round are called in order: `snapshot` first, which sets `_observation` and
    `_row`, the round's row in the database.
    """

    def __init__(self, lock: RoundLock, ports: Ports) -> None:
        self.lock = lock
        self.ports = ports
        self._observation: Observation | None = None
        self._row: Round | None = None

    def snapshot(self) -> Snapshot:
        """Return the snapshot of now, and open the round's row."""
        began = time.perf_counter()
        self._observation = observe(
            self.lock.cluster_id, self.ports.clock(), self.lock.number, self.ports.knowledge
        )
        snapshot_s = time.perf_counter() - began
        self._row = record.open_round(self.lock, self._observation, self._now(), snapshot_s)
        return self._observation.snapshot

    def decide(self, snapshot: Snapshot) -> Plan:
        """Return the plan of the cluster's policy for the snapshot. Raises PolicyError."""
        observation, row = self._opened()
        cluster = observation.cluster
        began = time.perf_counter()
        try:
            return self.ports.solve(cluster.policy, cluster.policy_parameters, snapshot)
        finally:
            solve_s = time.perf_counter() - began
            Round.objects.filter(pk=row.pk).update(solve_s=solve_s)

    def last_plan(self) -> LastPlan | None:
        """Return the previous plan; None if policy or parameters have changed since."""
        _, row = self._opened()
        return record.last_plan(row)

    def apply(self, decision: Decision) -> Applied:
        """Apply the plan and close the round. Raises LostLockError if another round took over."""
        observed, row = self._opened()
        plan = decision.plan
        if decision.left_out:
            logger.warning("policy %s: %s", row.policy, plan.message)

        # 1. Prepare as much as possible before the transaction, which locks rows.
        began = time.perf_counter()
        written = record.Written.of(plan, observed)
        prepared = Prepared.of(observed, plan, row)
        record.note_waiting(written, self.lock, self._now)

        # 2. Apply the plan if the lock is still this round's, and ask for another round if needed.
        now = self._now()
        with transaction.atomic():
            locks.check(self.lock, now)
            applied = apply_plan(prepared, now).with_refused(decision.refused)
            record.close_round(row, observed, decision, written, applied, now)
            if record.wants_another(row, observed, plan, applied):
                request_reschedule(observed.cluster, Reason.LEFTOVER)
            locks.release(self.lock)

        # 3. Store when waiting jobs are expected to start, outside the transaction.
        Round.objects.filter(pk=row.pk).update(apply_s=time.perf_counter() - began)
        store_expected(
            RoundKey(row.cluster_id, row.number, row.policy),
            written.told,
            observed.snapshot,
            observed.blocked,
        )
        return applied

    def _opened(self) -> tuple[Observation, Round]:
        """Return what `snapshot` has set: the observation, and the round's row."""
        if self._observation is None or self._row is None:
            raise RuntimeError("take a snapshot before deciding or applying")
        return self._observation, self._row

    def _now(self) -> datetime:
        """Return the time of the world's clock."""
        return datetime.fromtimestamp(self.ports.clock(), UTC)


def hold_round(cluster_id: int, ports: Ports) -> RoundResult | None:
    """Run one round if events of the cluster wait for one, and return its result.

    Return None without such events, without the lock, and if the lock was lost.
    """
    # 1. Get the lock.
    if not is_wanted(cluster_id):
        return None
    ports.await_solver()
    renewal = ports.renewal()
    now = datetime.fromtimestamp(ports.clock(), UTC)
    lock = locks.acquire(cluster_id, now, renewal.expires(now), ports.watch)
    if lock is None:
        return None

    # 2. Run the round, unless one of another process has answered the events meanwhile.
    with bound(cluster=cluster_id, round=lock.number), renewed(lock, renewal):
        world = LiveWorld(lock, ports)
        try:
            if not is_wanted(lock.cluster_id):
                return None
            policy = Cluster.objects.values_list("policy", flat=True).get(pk=lock.cluster_id)
            return run_round(world, world.decide, name=policy)
        except LostLockError as lost:
            logger.warning("%s", lost)
            return None
        finally:
            locks.end(lock, now)


def is_wanted(cluster_id: int) -> bool:
    """Return True if events of the cluster wait for a round."""
    return RescheduleEvent.objects.filter(cluster=cluster_id, round=None).exists()
