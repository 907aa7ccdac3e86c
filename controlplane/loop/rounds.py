"""Loop: read the world, let the policy decide, validate the plan, apply it.

The same live and simulated; it reads no clock and knows no database. When a policy fails, the round
keeps running jobs. A round requested only by ended stops carries out the plan that requested those
stops, if that is still valid (`carried_out`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from controlplane.loop.changes import Change, Keep, PlacementKey, Start, changes, current_of
from controlplane.loop.team_limits import within_team_limits
from policies.batch.queue import with_batch_queue
from policies.contract.assumed import without_assumed_times
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.policy import Policy, PolicyError, places_batch
from policies.contract.snapshot import JobPhase, JobView, Purpose, Snapshot
from policies.contract.validation import validate_plan
from policies.host import registry
from policies.host.garbage import not_collected
from policies.placement.profiling import merge, reserve_profiling

logger = logging.getLogger(__name__)

SHOWN_VIOLATIONS = 3

ENDED_STOP = "stopped"
"""Reason of a round that follows a requested stop."""


class RejectCode(StrEnum):
    """DEFERRED until a stop ends, or STALE: the state has changed."""

    DEFERRED = "deferred"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Rejected:
    """Placement that was not launched; nothing of its gang was."""

    key: PlacementKey
    code: RejectCode
    detail: str


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of applying a plan: its changes, and the rejected placements."""

    changes: tuple[Change, ...]
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, slots=True)
class LastPlan:
    """Previous plan, of round `number`; `deferred`: launches that wait for stops."""

    plan: Plan
    number: int
    deferred: frozenset[PlacementKey]

    @classmethod
    def of(cls, plan: Plan, number: int, rejected: Iterable[Rejected]) -> LastPlan:
        return cls(
            plan, number, frozenset(r.key for r in rejected if r.code is RejectCode.DEFERRED)
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """Plan of a round; `failure`: why the policy gave none; `carried`: round whose plan it is."""

    plan: Plan
    failure: str | None = None
    carried: int | None = None


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Snapshot, decision and applied changes of a round."""

    snapshot: Snapshot
    plan: Plan
    applied: Applied
    failure: str | None = None
    carried: int | None = None


class World(Protocol):
    """World of decisions: the live cluster or a simulated one."""

    def snapshot(self) -> Snapshot:
        """Present state. A stopping job is shown as waiting and its devices as held."""
        ...

    def last_plan(self) -> LastPlan | None:
        """Plan of the previous round; None if there is none, it failed, or the policy changed."""
        ...

    def apply(self, plan: Plan, carried: int | None = None) -> Applied:
        """Apply as much as the newest state allows, each gang whole; `carried` as in Decision."""
        ...


@not_collected()
def run_round(world: World, policy: Policy, *, name: str = "") -> RoundResult:
    """Run one round; if the policy, `name` in the round's plan, fails, running jobs go on."""
    snapshot = world.snapshot()
    found = carry_out_or_decide(snapshot, policy, world.last_plan, name)
    return RoundResult(
        snapshot, found.plan, world.apply(found.plan, found.carried), found.failure, found.carried
    )


def carry_out_or_decide(
    snapshot: Snapshot, policy: Policy, last_plan: Callable[[], LastPlan | None], name: str = ""
) -> Decision:
    """Decision of the round; `last_plan` is used if only ended stops requested the round."""
    last = last_plan() if snapshot.trigger.reasons == (ENDED_STOP,) else None
    plan = carried_out(snapshot, last) if last is not None else None
    if last is not None and plan is not None:
        return Decision(plan, carried=last.number)
    return Decision(*decide_or_keep(snapshot, policy, name))


def carried_out(snapshot: Snapshot, last: LastPlan) -> Plan | None:
    """Last plan as this round's, if valid, knowing all ended jobs, starting only deferred ones."""
    plan = last.plan
    knows = {w.job for w in plan.waiting} | {p.job for p in plan.placements}
    todo = changes(current_of(snapshot), plan)
    deferred_only = all(
        isinstance(change, Keep)
        or (isinstance(change, Start) and change.placement.key in last.deferred)
        for change in todo
    )
    held_back = any(w.code is WaitCode.TEAM_LIMIT for w in plan.waiting)  # now there may be room
    if held_back or not knows.issuperset(snapshot.trigger.jobs) or not deferred_only:
        return None
    if validate_plan(plan, snapshot):
        return None
    message = f"carried out round {last.number}'s plan"
    return replace(plan, objective=None, bound=None, message=message)


def decide_or_keep(snapshot: Snapshot, policy: Policy, name: str = "") -> tuple[Plan, str | None]:
    """(the policy's plan, None), or (the plan that keeps running jobs, the failure)."""
    try:
        return decide(snapshot, policy, name), None
    except PolicyError as error:
        failure = str(error) or type(error).__name__
    except Exception as error:  # a policy may be anybody's code and must not stop the loop
        logger.exception("policy %s broke", name)
        failure = f"{type(error).__name__}: {error}"
    return kept(snapshot, name or type(policy).__name__, failure), failure


def decide(snapshot: Snapshot, policy: Policy, name: str = "") -> Plan:
    """Policy's plan with the reserved profile runs, and with batch jobs unless it places them.

    It sees what the limits of teams leave; the others wait for them.

    `name`: of a policy that is asked by a function. PolicyError if the plan breaks a rule.
    """
    allowed, held_back = within_team_limits(snapshot)
    rest, profile_runs = reserve_profiling(allowed)
    sees_all = places_batch(policy) or registry.places_batch(name)
    plan = policy(rest) if sees_all else with_batch_queue(policy, rest)
    plan = merge(plan, profile_runs)
    plan = replace(plan, waiting=(*plan.waiting, *held_back)) if held_back else plan
    found = validate_plan(plan, snapshot)
    if found:
        shown = "; ".join(str(v) for v in found[:SHOWN_VIOLATIONS])
        more = f" and {len(found) - SHOWN_VIOLATIONS} more" if len(found) > SHOWN_VIOLATIONS else ""
        raise PolicyError(f"the plan breaks the rules and is refused: {shown}{more}")
    return without_assumed_times(plan, snapshot)


def kept(snapshot: Snapshot, policy: str, message: str) -> Plan:
    """Plan that changes nothing: running jobs stay, the rest waits as the policy failed."""
    jobs = tuple(snapshot.jobs)
    placements = tuple(p for job in jobs for p in _as_committed(job))
    placed = {p.job for p in placements if p.purpose is Purpose.TRAINING}
    waiting = tuple(Waiting(job.id, _wait_code(job)) for job in jobs if job.id not in placed)
    return Plan(
        policy, PlanStatus.KEPT, placements, waiting, memory=dict(snapshot.memory), message=message
    )


def _as_committed(job: JobView) -> list[Placement]:
    return [
        Placement(job.id, r.ranks, r.copy, r.purpose, steps_quota=r.steps_quota, until_s=r.until_s)
        for r in job.running
    ]


def _wait_code(job: JobView) -> WaitCode:
    return WaitCode.AWAITING_PROFILE if job.phase is JobPhase.PROFILING else WaitCode.SOLVER_FAILED
