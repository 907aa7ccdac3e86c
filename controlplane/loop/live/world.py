"""Live cluster as a world of the loop, for the one round whose lock is held."""

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
"""(policy, parameters, snapshot) -> plan; raises PolicyError. A child in production."""

OVERHEAD_S = 30.0
"""Longest time of a round beside its solver."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Dependencies of a live round, replaceable in tests.

    `await_solver` returns once a snapshot can be solved. A lock is held for `hold_s` at most
    (default: solver limit and OVERHEAD_S), renewed every `renew_s`, expiring after `expiry_s`.
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
        hold_s = self.hold_s or settings.SOLVER_TIMEOUT_S + OVERHEAD_S
        return Renewal(hold_s, self.expiry_s, self.renew_s)


class LiveWorld:
    """World of a held round: `snapshot` and `apply` use one transaction each."""

    def __init__(self, lock: RoundLock, ports: Ports) -> None:
        self.lock, self.ports = lock, ports
        self.observed: Observation | None = None
        self.row: Round | None = None

    def snapshot(self) -> Snapshot:
        """Snapshot of now; opens the round's row."""
        began = time.perf_counter()
        self.observed = observe(
            self.lock.cluster_id, self.ports.clock(), self.lock.number, self.ports.knowledge
        )
        self.row = record.open_round(
            self.lock, self.observed, self._now(), time.perf_counter() - began
        )
        return self.observed.snapshot

    def decide(self, snapshot: Snapshot) -> Plan:
        """Plan of the cluster's policy and parameters at the snapshot."""
        cluster = self._seen()[0].cluster
        began = time.perf_counter()
        try:
            return self.ports.solve(cluster.policy, cluster.policy_parameters, snapshot)
        finally:
            Round.objects.filter(pk=self._seen()[1].pk).update(solve_s=time.perf_counter() - began)

    def last_plan(self) -> LastPlan | None:
        """Previous plan, if policy and parameters are still the same."""
        return record.last_plan(self._seen()[1])

    def apply(self, decision: Decision) -> Applied:
        """Apply the plan and close the round; LostLockError if another round took over."""
        observed, row = self._seen()
        plan = decision.plan
        if decision.left_out:
            logger.warning("policy %s: %s", row.policy, plan.message)
        began, written = time.perf_counter(), record.Written.of(plan, observed)
        prepared = Prepared.of(observed, plan, row)
        record.note_waiting(written, self.lock, self._now)
        now = self._now()
        with transaction.atomic():
            locks.check(self.lock, now)
            applied = apply_plan(prepared, now).with_refused(decision.refused)
            record.close_round(row, observed, decision, written, applied, now)
            if record.wants_another(row, observed, plan, applied):
                request_reschedule(observed.cluster, Reason.LEFTOVER)
            locks.release(self.lock)
        Round.objects.filter(pk=row.pk).update(apply_s=time.perf_counter() - began)
        store_expected(
            RoundKey(row.cluster_id, row.number, row.policy),
            written.told,
            observed.snapshot,
            observed.blocked,
        )
        return applied

    def _seen(self) -> tuple[Observation, Round]:
        if self.observed is None or self.row is None:
            raise RuntimeError("take a snapshot before deciding or applying")
        return self.observed, self.row

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.ports.clock(), UTC)


def hold_round(cluster_id: int, ports: Ports) -> RoundResult | None:
    """Answer waiting events by one round's commit; None without events or lock."""
    if not is_wanted(cluster_id):
        return None
    ports.await_solver()
    renewal, now = ports.renewal(), datetime.fromtimestamp(ports.clock(), UTC)
    lock = locks.acquire(cluster_id, now, renewal.expires(now), ports.watch)
    if lock is None:
        return None
    with bound(cluster=cluster_id, round=lock.number), renewed(lock, renewal):
        world = LiveWorld(lock, ports)
        try:
            wanted = is_wanted(lock.cluster_id)
            policy = Cluster.objects.values_list("policy", flat=True).get(pk=lock.cluster_id)
            return run_round(world, world.decide, name=policy) if wanted else None
        except LostLockError as lost:
            logger.warning("%s", lost)
            return None
        finally:
            locks.end(lock, now)


def is_wanted(cluster_id: int) -> bool:
    """Return True if events of the cluster wait for a round."""
    return RescheduleEvent.objects.filter(cluster=cluster_id, round=None).exists()
