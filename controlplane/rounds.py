"""The loop: see the world, let the policy decide, hold the decision to the rules, make it so.

`run_round` is the same for the live cluster and for a simulated one; the world is swapped, never branched on. It reads no clock and
knows no database. A policy that fails costs nothing that runs: the round keeps it and says why.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from controlplane.changes import Change, PlacementKey
from policies.base import Policy, PolicyError
from policies.judge import violations
from policies.mechanisms.profiling import merge, reserve_profiling
from policies.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.snapshot import JobPhase, JobView, Purpose, Snapshot

logger = logging.getLogger(__name__)

SHOWN_VIOLATIONS = 3


class RejectCode(StrEnum):
    """Why a placement was not launched. DEFERRED: what it needs is still being given up; the end of that asks for a new round.

    STALE: the world has changed since the snapshot (job gone, node or device no longer usable, a slot taken).
    """

    DEFERRED = "deferred"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A placement that was not launched; nothing of its gang was."""

    key: PlacementKey
    code: RejectCode
    detail: str


@dataclass(frozen=True, slots=True)
class Applied:
    """What applying a plan came to: every change it meant, and those placements that were not launched."""

    changes: tuple[Change, ...]
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One turn of the loop. `failure` says why the policy's answer could not be used; then `plan` keeps what runs."""

    snapshot: Snapshot
    plan: Plan
    applied: Applied
    failure: str | None = None


class World(Protocol):
    """Where decisions are made and come true: the live cluster or a simulated one."""

    def snapshot(self) -> Snapshot:
        """What is the case now. Work that is being stopped is shown as its job waiting, its devices as held by that job."""
        ...

    def apply(self, plan: Plan) -> Applied:
        """Make the plan so as far as the newest state allows: each gang whole or not at all, the plan in part if need be."""
        ...


def run_round(world: World, policy: Policy, *, name: str = "") -> RoundResult:
    """One round. Whatever the policy does, what runs goes on unless a plan that breaks no rule stops it.

    `name` is the policy's, for the plan of a round in which it fails.
    """
    snapshot = world.snapshot()
    plan, failure = decide_or_keep(snapshot, policy, name)
    return RoundResult(snapshot, plan, world.apply(plan), failure)


def decide_or_keep(snapshot: Snapshot, policy: Policy, name: str = "") -> tuple[Plan, str | None]:
    """(the policy's plan, None), or (the plan that keeps what runs, why the policy's could not be had)."""
    try:
        return decide(snapshot, policy), None
    except PolicyError as error:
        failure = str(error) or type(error).__name__
    except Exception as error:  # a policy may be anybody's code: whatever it raises must not stop the loop
        logger.exception("policy %s broke", name)
        failure = f"{type(error).__name__}: {error}"
    return kept(snapshot, name or type(policy).__name__, failure), failure


def decide(snapshot: Snapshot, policy: Policy) -> Plan:
    """The policy's plan with the profile runs that were given their devices before it. PolicyError if it breaks a rule."""
    rest, profile_runs = reserve_profiling(snapshot)
    plan = merge(policy(rest), profile_runs)
    found = violations(plan, snapshot)
    if found:
        shown = "; ".join(str(v) for v in found[:SHOWN_VIOLATIONS])
        more = f" and {len(found) - SHOWN_VIOLATIONS} more" if len(found) > SHOWN_VIOLATIONS else ""
        raise PolicyError(f"the plan breaks the rules and is refused: {shown}{more}")
    return plan


def kept(snapshot: Snapshot, policy: str, message: str) -> Plan:
    """The plan that changes nothing: what runs goes on as committed, the rest waits because the policy failed."""
    jobs = tuple(snapshot.jobs)
    placements = tuple(p for job in jobs for p in _as_committed(job))
    placed = {p.job for p in placements if p.purpose is Purpose.TRAINING}
    waiting = tuple(Waiting(job.id, _wait_code(job)) for job in jobs if job.id not in placed)
    return Plan(policy, PlanStatus.KEPT, placements, waiting, memory=dict(snapshot.memory), message=message)


def _as_committed(job: JobView) -> list[Placement]:
    return [Placement(job.id, r.ranks, r.copy, r.purpose, steps_quota=r.steps_quota, until_s=r.until_s) for r in job.running]


def _wait_code(job: JobView) -> WaitCode:
    return WaitCode.AWAITING_PROFILE if job.phase is JobPhase.PROFILING else WaitCode.SOLVER_FAILED
