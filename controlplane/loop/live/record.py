"""Row of a round, to replay and recompute it; timings stay outside snapshot and plan."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings

from clusters.energy import cost_per_hour
from clusters.models import Cluster, Reason, RescheduleEvent
from clusters.models.clusters import policy_fault
from controlplane.loop.changes import Start, describe
from controlplane.loop.live.lock import RoundLock, check
from controlplane.loop.live.observe import Observation
from controlplane.loop.models import Round
from controlplane.loop.rounds import Applied, Decision, LastPlan, RejectCode, Rejected
from controlplane.web.storage.bulk import batches
from controlplane.web.storage.packed_json import pack, pack_text
from controlplane.web.storage.turns import ROWS_A_TURN, turn
from foundation import forms
from jobs.lifecycle import JobState
from jobs.models import UNFINISHED, Job
from jobs.wording.reasons import ARRAY_LIMIT
from policies.contract import plan_json
from policies.contract.plan import Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import Purpose, Snapshot
from policies.contract.validation import power_w
from policies.placement.speed import devices_of
from policies.placement.waiting.explained import explained
from policies.placement.waiting.idle import idle_gpus, waiting_for_gpus

BATCH = 500
USUAL = "afterok"
"""Condition of a dependency that a reason does not name."""

ROUNDS_SEARCHED = 20
"""Rounds searched for the newest finished one; abandoned ones may lie between."""

MAY_WAIT = (JobState.QUEUED, JobState.PROFILING, JobState.STOPPING)


def open_round(
    lock: RoundLock, observed: Observation, started: datetime, snapshot_s: float
) -> Round:
    """Write the row of a round that has seen the cluster and is about to decide."""
    cluster = observed.cluster
    snapshot = observed.snapshot
    canonical_bytes = snapshot.canonical_bytes
    return Round.objects.create(
        cluster=cluster,
        number=lock.number,
        reasons=list(snapshot.trigger.reasons),
        policy=cluster.policy,
        parameters=cluster.policy_parameters,
        seed=snapshot.seed,
        snapshot=pack_text(canonical_bytes),
        snapshot_sha256=forms.digest_of_bytes(canonical_bytes),
        tariff=observed.tariff,
        pue=observed.pue,
        timezone=cluster.timezone,
        snapshot_s=snapshot_s,
    )


@dataclass(frozen=True, slots=True)
class Written:
    """Plan as a round keeps it: JSON form, packed, and its digest.

    `runs_expected`: [job, purpose, copy, run time (s)] of placements, packed. `waits`: jobs by
    reason for waiting, those whose reason has changed. `told`: the plan with the reasons that
    people read.
    """

    form: dict[str, Any]
    packed: Any
    digest: str
    runs_expected: Any
    cost_rate_per_h: float | None
    waits: Mapping[str, Sequence[UUID]]
    idle: dict[str, Any]
    told: Plan

    @classmethod
    def of(cls, plan: Plan, observed: Observation) -> Written:
        """Prepare the plan of a round to be written; the changed reasons are read from the rows."""
        snapshot = observed.snapshot
        form = plan_json.to_json(plan)
        told = replace(plan, waiting=explained(plan, snapshot))
        runs_expected: list[list[Any]] = []
        for placement in plan.placements:
            run_s = placement.predicted_run_s
            if run_s is not None:
                runs_expected.append(
                    [placement.job, placement.purpose.value, placement.copy, run_s]
                )
        return cls(
            form=form,
            packed=pack(form),
            digest=forms.digest_of(form),
            runs_expected=pack(runs_expected),
            cost_rate_per_h=cost_rate_per_h(plan, snapshot),
            waits=_changed(observed, _reasons(observed, told.waiting)),
            idle=idle_form(told, snapshot),
            told=told,
        )


def idle_form(plan: Plan, snapshot: Snapshot) -> dict[str, Any]:
    """Return the idle GPUs beside waiting jobs as a round keeps them; empty if there are none."""
    groups = idle_gpus(plan, snapshot)
    if not groups:
        return {}
    gpus = [[group.code.value, group.gpus, group.job, group.start_s] for group in groups]
    return {"waiting": len(waiting_for_gpus(plan, snapshot)), "gpus": gpus}


def close_round(
    row: Round,
    observed: Observation,
    decision: Decision,
    written: Written,
    applied: Applied,
    now: datetime,
) -> None:
    """Close the round in the applying transaction, if it has not been abandoned."""
    # 1. The round's row, and the same values in memory; there the plan is not packed.
    plan = decision.plan
    status = Round.Status.PARTIAL if applied.rejected else Round.Status.APPLIED
    if plan.status is PlanStatus.KEPT:
        status = Round.Status.KEPT
    values: dict[str, Any] = {
        "status": status,
        "plan": written.form,
        "plan_sha256": written.digest,
        "runs_expected": written.runs_expected,
        "plan_status": plan.status,
        "objective": plan.objective,
        "bound": plan.bound,
        "message": plan.message,
        "carried": decision.carried,
        "cost_rate_per_h": written.cost_rate_per_h,
        "idle": written.idle,
        "ended_at": now,
        "changes": [describe(change) for change in applied.changes],
        "rejected": [_rejected_form(rejected) for rejected in applied.rejected],
    }
    stored = {**values, "plan": written.packed}
    Round.objects.filter(pk=row.pk, status=Round.Status.RUNNING).update(**stored)
    for name, value in values.items():
        setattr(row, name, value)

    # 2. Only the newest round keeps expected ends. A scan of all older rows would read their
    # snapshots, so only the last ones are searched.
    last_numbers = range(row.number - ROUNDS_SEARCHED, row.number)
    earlier = Round.objects.filter(cluster=row.cluster_id, number__in=last_numbers)
    earlier.filter(runs_expected__isnull=False).update(runs_expected=None)

    # 3. The cluster keeps the policy's memory and its fault, unless an earlier plan was used.
    of_cluster: dict[str, Any] = {"memory": dict(plan.memory)}
    if decision.carried is None:
        fault_before = observed.cluster.policy_fault
        of_cluster["policy_fault"] = policy_fault(fault_before, row.policy, decision.fault)
    Cluster.objects.filter(pk=row.cluster_id).update(**of_cluster)

    # 4. Reasons of jobs that could not be launched, and the events that are dealt with.
    for reason, job_ids in _changed(observed, _rejections(applied)).items():
        _note(reason, job_ids)
    for ids in batches(observed.events, BATCH):
        RescheduleEvent.objects.filter(pk__in=ids, round=None).update(round=row)


def wants_another(row: Round, observed: Observation, plan: Plan, applied: Applied) -> bool:
    """Return True if stale placements, idle GPUs or jobs not seen need one more round."""
    # Refused placements were left out of the plan, so they are not among the changes.
    not_launched = sum(each.code is not RejectCode.REFUSED for each in applied.rejected)
    started = sum(isinstance(change, Start) for change in applied.changes) - not_launched
    if observed.cut and started > settings.ROUND_JOBS // 2:
        return True
    if set(row.reasons) == {Reason.LEFTOVER}:
        return False  # it was such a round itself
    if any(each.code is RejectCode.STALE for each in applied.rejected):
        return True
    return observed.cut and started <= 0 and _leaves_idle(plan, observed.snapshot)


def last_plan(row: Round) -> LastPlan | None:
    """Return the plan of the previous round, if the same policy and parameters decided it."""
    earlier = Round.objects.filter(cluster=row.cluster_id, number__lt=row.number).exclude(plan=None)
    before = earlier.defer("snapshot").order_by("-number").first()
    if before is None or before.status == Round.Status.KEPT:
        return None
    if (before.policy, before.parameters) != (row.policy, row.parameters):
        return None
    rejected = []
    for form in before.rejected:
        key = (form["job"], Purpose(form["purpose"]), form["copy"])
        rejected.append(Rejected(key, RejectCode(form["code"]), form["detail"]))
    decided_by = before.carried or before.number
    return LastPlan.of(plan_json.from_json(before.plan), decided_by, rejected)


def _leaves_idle(plan: Plan, snapshot: Snapshot) -> bool:
    """Return True if free healthy GPUs are in no placement of the plan."""
    used = _devices_of(plan)
    for node in snapshot.nodes:
        if not node.takes_training:
            continue
        for device in node.devices:
            if device.healthy and not device.held and (node.id, device.id) not in used:
                return True
    return False


def _devices_of(plan: Plan) -> set[tuple[str, str]]:
    """Return (node, device) of all placements."""
    devices: set[tuple[str, str]] = set()
    for placement in plan.placements:
        devices.update(devices_of(placement.ranks))
    return devices


def cost_rate_per_h(plan: Plan, snapshot: Snapshot) -> float | None:
    """Hourly cost of the plan's watts at present prices, sum_n c[n, used]; None without prices."""
    step = snapshot.energy_at(snapshot.now_s)
    if step is None:
        return None
    in_use = Counter(node for node, _ in _devices_of(plan))
    return cost_per_hour(power_w(snapshot.node_by_id, in_use), step)


def note_waiting(written: Written, lock: RoundLock, clock: Callable[[], datetime]) -> None:
    """Write changed reasons for waiting before the plan is applied, in batches that keep the lock.

    Between batches others may write. LostLockError if the lock is lost.
    """
    for reason, jobs in written.waits.items():
        for ids in batches(jobs, ROWS_A_TURN):
            with turn():
                check(lock, clock())
                _note(reason, ids)


def _note(reason: str, ids: Sequence[UUID]) -> None:
    """Store a reason, a JSON list of code and detail, of jobs that may still wait."""
    code, detail = json.loads(reason)
    Job.objects.filter(pk__in=ids, state__in=MAY_WAIT).update(
        waiting_code=code, waiting_detail=detail
    )


def _changed(
    observed: Observation, reasons: Mapping[str, list[Any]]
) -> Mapping[str, Sequence[UUID]]:
    """Return jobs by reason, as JSON, of those whose stored reason is another one."""
    changed: dict[str, list[UUID]] = defaultdict(list)
    if not reasons:
        return changed
    waiting = Job.objects.filter(UNFINISHED, cluster=observed.cluster, state__in=MAY_WAIT)
    if observed.cut or len(reasons) <= BATCH:
        waiting = waiting.filter(pk__in=list(reasons))
    for pk, *stored in waiting.values_list("pk", "waiting_code", "waiting_detail"):
        reason = reasons.get(str(pk))
        if reason is not None and stored != reason:
            changed[json.dumps(reason)].append(pk)
    return changed


def _reasons(observed: Observation, waiting: Iterable[Waiting]) -> dict[str, list[Any]]:
    """Return (code, detail) of every waiting job, as jobs keep them."""
    reasons: dict[str, list[Any]] = {}
    # 1. Jobs that the policy does not see.
    for job, others in observed.blocked.items():
        detail = {"jobs": list(others), **conditions_of(observed.conditions.get(job, {}), others)}
        if job in observed.one_suffices:
            detail["one_suffices"] = True
        reasons[job] = [WaitCode.DEPENDENCY.value, detail]
    for job, limit in observed.over_limit.items():
        reasons[job] = [ARRAY_LIMIT, {"at_once": limit}]

    # 2. Jobs that the policy left waiting.
    for entry in waiting:
        detail = waiting_detail(entry, observed.snapshot)
        if entry.code is WaitCode.DEPENDENCY:
            detail |= conditions_of(observed.conditions.get(entry.job, {}), entry.jobs)
        reasons[entry.job] = [entry.code.value, detail]
    return reasons


def conditions_of(known: Mapping[str, str], jobs: Iterable[str]) -> dict[str, Any]:
    """Return the conditions of these jobs that are not the usual one, as a detail of a reason."""
    unusual = {job: known[job] for job in jobs if known.get(job, USUAL) != USUAL}
    return {"conditions": unusual} if unusual else {}


def waiting_detail(entry: Waiting, snapshot: Snapshot) -> dict[str, Any]:
    """Return the details of a reason for waiting as stored, without empty ones."""
    given: dict[str, Any] = {
        "nodes": list(entry.nodes),
        "jobs": list(entry.jobs),
        "watts": entry.watts,
        "price": _two_digits(entry.price),
        "worth": _two_digits(entry.worth),
        "missing": list(entry.missing),
        "offered": list(entry.offered),
        "from_s": None if entry.from_s is None else round(entry.from_s / 60.0) * 60,
        "gpus": entry.gpus,
        "team": entry.team,
        "lacks": [[lack.name, lack.wanted, lack.most] for lack in entry.lacks],
        "needs": _needs(entry, snapshot),
    }
    return {name: value for name, value in given.items() if value}


def _two_digits(value: float | None) -> float | None:
    """Return a number to two digits, so that a reason is not written anew for each small change."""
    return None if value is None else float(f"{value:.2g}")


def _needs(entry: Waiting, snapshot: Snapshot) -> list[str]:
    """Return what a job without capacity asks for, so that remedies name nothing else."""
    if entry.code is not WaitCode.NO_CAPACITY:
        return []
    columns = snapshot.jobs.columns
    row = snapshot.jobs.position[entry.job]
    needs: list[str] = []
    if columns.counts["gpus_max"][row]:
        has_several = columns.counts["gpus_min"][row] > 1
    else:
        needs.append("cores")
        cores = float(columns.numbers["cores"][row]) * float(columns.counts["units"][row])
        has_several = cores > 1.0
    if has_several:
        needs.append("several")
    if columns.others["allowed_types"][row]:
        needs.append("types")
    return needs


def _rejections(applied: Applied) -> dict[str, list[Any]]:
    """Return (code, detail) of the training jobs that could not be launched, as jobs keep them."""
    reasons: dict[str, list[Any]] = {}
    for rejected in applied.rejected:
        job, purpose, _ = rejected.key
        if purpose is Purpose.TRAINING:
            reasons[job] = [rejected.code.value, {"detail": rejected.detail}]
    return reasons


def _rejected_form(rejected: Rejected) -> dict[str, Any]:
    """Return a rejection as a round keeps it."""
    job, purpose, copy = rejected.key
    return {
        "job": job,
        "purpose": purpose.value,
        "copy": copy,
        "code": rejected.code.value,
        "detail": rejected.detail,
    }
