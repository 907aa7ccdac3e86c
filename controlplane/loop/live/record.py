"""A round's row, to replay and recompute it; timings stay outside snapshot and plan."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import transaction

from clusters.energy import cost_per_hour
from clusters.models import Cluster, Reason, RescheduleEvent
from controlplane.loop.changes import Start, describe
from controlplane.loop.live.lock import RoundLock, check
from controlplane.loop.live.observe import Observation
from controlplane.loop.models import Round
from controlplane.loop.rounds import Applied, LastPlan, RejectCode, Rejected
from controlplane.web.storage.packed_json import pack, pack_text
from jobs.lifecycle import JobState
from jobs.models import Job
from policies.contract import forms, plan_json
from policies.contract.plan import Plan, PlanStatus, WaitCode
from policies.contract.snapshot import Purpose, Snapshot
from policies.contract.validation import power_w
from policies.contract.views import runtime_of

T = TypeVar("T")

BATCH = 500
FORGOTTEN = 20
"""Rounds searched for the previous newest one; abandoned ones may lie between."""

SMALL = 0.1
"""The part of a wait by which its expected end may move unseen."""

MAY_WAIT = (JobState.QUEUED, JobState.PROFILING, JobState.STOPPING)


def open_round(
    lock: RoundLock, observed: Observation, started: datetime, snapshot_s: float
) -> Round:
    """The row of a round that has seen the cluster and is about to decide."""
    cluster, snapshot = observed.cluster, observed.snapshot
    spelling = snapshot.canonical_bytes
    return Round.objects.create(
        cluster=cluster, number=lock.number, reasons=list(snapshot.trigger.reasons),
        policy=cluster.policy,
        parameters=cluster.policy_parameters, seed=snapshot.seed, snapshot=pack_text(spelling),
        snapshot_sha256=forms.digest_of_bytes(spelling), tariff=observed.tariff, pue=observed.pue,
        timezone=cluster.timezone,
        snapshot_s=snapshot_s,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Written:
    """What is to be written of a plan, made before the transaction that applies it: on SQLite
    everybody waits for that one.

    The plan's form, also packed, with its digest; and the jobs whose stored reason for waiting is
    another one than this plan's, by the new one (`note_waiting`).
    """

    form: dict[str, Any]
    packed: Any
    digest: str
    waits: Mapping[str, Sequence[UUID]]

    @classmethod
    def of(cls, plan: Plan, observed: Observation) -> Written:
        """Of a plan that was made of what was observed."""
        form = plan_json.to_json(plan)
        return cls(
            form, pack(form), forms.digest_of(form), _changed(observed, _reasons(observed, plan))
        )


def close_round(
    row: Round,
    observed: Observation,
    plan: Plan,
    written: Written,
    applied: Applied,
    now: datetime,
    carried: int | None = None,
) -> None:
    """Write what was decided and done, in the transaction that does it: the row, why launches were
    refused, the events answered, memory.

    What no longer fitted asks for another round, once: a round that has only such events to answer
    leaves the rest to the next one. What was deferred asks for nothing here: the end of the stop
    that is in its way will. `carried`: the round whose plan it is.
    """
    values: dict[str, Any] = {
        "status": _status(plan, applied), "plan": written.form, "plan_sha256": written.digest,
        "runs_expected": _runs_expected(plan), "plan_status": plan.status,
        "objective": plan.objective, "bound": plan.bound,
        "message": plan.message, "carried": carried,
        "cost_rate_per_h": cost_rate_per_h(plan, observed.snapshot), "ended_at": now,
        "changes": [describe(change) for change in applied.changes],
        "rejected": [_rejected(r) for r in applied.rejected],
    }  # fmt: skip
    Round.objects.filter(pk=row.pk, status=Round.Status.RUNNING).update(
        **{**values, "plan": written.packed}
    )
    for name, value in values.items():
        setattr(row, name, value)
    _forget_expected(row)
    Cluster.objects.filter(pk=row.cluster_id).update(memory=dict(plan.memory))
    for reason, refused in _changed(observed, _rejections(applied)).items():
        _note(reason, refused)
    for ids in _batches(observed.events):
        RescheduleEvent.objects.filter(pk__in=ids, round=None).update(round=row)


def _runs_expected(plan: Plan) -> list[list[object]]:
    """Expected ends for the timeline, so that it need not read whole plans."""
    known = [p for p in plan.placements if p.predicted_run_s is not None]
    return [[p.job, p.purpose.value, p.copy, p.predicted_run_s] for p in known]


def _forget_expected(newest: Round) -> None:
    """Only a cluster's newest round says how long placements are expected to run.

    Looked for among the last rounds alone: to look at all of them means to read past the snapshot
    of each.
    """
    last = range(newest.number - FORGOTTEN, newest.number)
    Round.objects.filter(
        cluster=newest.cluster_id, number__in=last, runs_expected__isnull=False
    ).update(runs_expected=None)


def wants_another(row: Round, observed: Observation, plan: Plan, applied: Applied) -> bool:
    """Whether something no longer fitted and this round was not itself asked for by nothing but
    such leftovers.

    A round that saw a part of the queue and started the greater part of that has left GPUs to those
    it did not see. One that started nothing although GPUs are idle wants another part to be looked
    at, once: the next event or period goes on.
    """
    started = sum(isinstance(c, Start) for c in applied.changes) - len(applied.rejected)
    if observed.cut and started > settings.ROUND_JOBS // 2:
        return True
    stale = any(r.code is RejectCode.STALE for r in applied.rejected)
    in_vain = observed.cut and started <= 0 and _leaves_idle(plan, observed.snapshot)
    return (stale or in_vain) and set(row.reasons) != {Reason.LEFTOVER}


def last_plan(row: Round) -> LastPlan | None:
    """Plan of the previous round if the same policy and parameters decided it."""
    earlier = Round.objects.filter(cluster=row.cluster_id, number__lt=row.number).exclude(plan=None)
    before = earlier.defer("snapshot").order_by("-number").first()
    if before is None or before.status == Round.Status.KEPT:
        return None
    if (before.policy, before.parameters) != (row.policy, row.parameters):
        return None
    rejected = (
        Rejected((r["job"], Purpose(r["purpose"]), r["copy"]), RejectCode(r["code"]), r["detail"])
        for r in before.rejected
    )
    return LastPlan.of(plan_json.from_json(before.plan), before.carried or before.number, rejected)


def _leaves_idle(plan: Plan, snapshot: Snapshot) -> bool:
    """Whether GPUs that may be given away are in no placement of the plan."""
    used = _devices_of(plan)
    return any(
        d.healthy and not d.held and (n.id, d.id) not in used
        for n in snapshot.nodes
        if n.takes_training
        for d in n.devices
    )


def _devices_of(plan: Plan) -> set[tuple[str, str]]:
    return {
        (seat.node, device) for p in plan.placements for seat in p.ranks for device in seat.devices
    }


def cost_rate_per_h(plan: Plan, snapshot: Snapshot) -> float | None:
    """sum_n c[n, used]: hourly cost of the placements at present prices; None without prices."""
    step = snapshot.energy_at(snapshot.now_s)
    if step is None:
        return None
    return cost_per_hour(
        power_w(snapshot.node_by_id, Counter(node for node, _ in _devices_of(plan))), step
    )


def note_waiting(written: Written, lock: RoundLock, clock: Callable[[], datetime]) -> None:
    """Write to the jobs that the plan leaves waiting why they do, where that has changed; those
    with the same reason together.

    Before the plan is applied, by batches, each a transaction that keeps the round's lock:
    thousands of jobs in the one that applies the plan made everybody wait half a second on SQLite.
    Between two batches others have their turn for as long as one took (who waits for SQLite's lock
    looks seldom). LostLockError if another round has taken over.
    """
    took_s = 0.0
    for reason, jobs in written.waits.items():
        for ids in _batches(jobs):
            time.sleep(took_s)
            began_s = time.perf_counter()
            with transaction.atomic():
                check(lock, clock())
                _note(reason, ids)
            took_s = time.perf_counter() - began_s


def _note(reason: str, ids: Sequence[UUID]) -> None:
    code, detail = json.loads(reason)
    Job.objects.filter(pk__in=ids, state__in=MAY_WAIT).update(
        waiting_code=code, waiting_detail=detail
    )


def _changed(
    observed: Observation, reasons: Mapping[str, list[Any]]
) -> Mapping[str, Sequence[UUID]]:
    """Reasons [code, detail] that differ from the stored ones: jobs by the reason's JSON."""
    changed: dict[str, list[UUID]] = defaultdict(list)
    if not reasons:
        return changed
    waiting = Job.objects.filter(cluster=observed.cluster, state__in=MAY_WAIT)
    if observed.cut or len(reasons) <= BATCH:
        waiting = waiting.filter(pk__in=list(reasons))
    for pk, *stored in waiting.values_list("pk", "waiting_code", "waiting_detail"):
        reason = reasons.get(str(pk))
        if reason is not None and _differ(stored, reason, observed.snapshot.now_s):
            changed[json.dumps(reason)].append(pk)
    return changed


def _differ(stored: list[Any], reason: list[Any], now_s: float) -> bool:
    """True if a reason changed; small moves of the earliest start do not count."""
    if stored == reason:
        return False
    (_, before), (_, after) = stored, reason
    if stored[0] != reason[0] or not {"earliest_s"} <= before.keys() & after.keys():
        return True
    moved_s = abs(after["earliest_s"] - before["earliest_s"])
    return {**before, "earliest_s": 0} != {**after, "earliest_s": 0} or moved_s > SMALL * (
        after["earliest_s"] - now_s
    )


def _reasons(observed: Observation, plan: Plan) -> dict[str, list[Any]]:
    """[code, detail] by job."""
    reasons: dict[str, list[Any]] = {
        job: [WaitCode.DEPENDENCY.value, {"jobs": list(others)}]
        for job, others in observed.blocked.items()
    }
    for entry in plan.waiting:
        earliest_s = None if entry.earliest_s is None else round(entry.earliest_s)
        given: dict[str, Any] = {
            "nodes": list(entry.nodes),
            "jobs": list(entry.jobs),
            "watts": entry.watts,
            "earliest_s": earliest_s,
        }
        if entry.code is WaitCode.RUNTIME_UNAVAILABLE:
            jobs = observed.snapshot.jobs
            given["runtime"] = runtime_of(jobs.columns.others["labels"][jobs.position[entry.job]])
        reasons[entry.job] = [
            entry.code.value,
            {name: value for name, value in given.items() if value},
        ]
    return reasons


def _rejections(applied: Applied) -> dict[str, list[Any]]:
    """[code, detail] by job of what was to be launched and was not."""
    return {
        r.key[0]: [r.code.value, {"detail": r.detail}]
        for r in applied.rejected
        if r.key[1] is Purpose.TRAINING
    }


def _status(plan: Plan, applied: Applied) -> Round.Status:
    if plan.status is PlanStatus.KEPT:
        return Round.Status.KEPT
    return Round.Status.PARTIAL if applied.rejected else Round.Status.APPLIED


def _rejected(rejected: Rejected) -> dict[str, Any]:
    job, purpose, copy = rejected.key
    return {
        "job": job,
        "purpose": purpose.value,
        "copy": copy,
        "code": rejected.code.value,
        "detail": rejected.detail,
    }


def _batches(ids: Sequence[T]) -> Iterable[Sequence[T]]:
    return (ids[i : i + BATCH] for i in range(0, len(ids), BATCH))
