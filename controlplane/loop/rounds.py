"""Loop: read the world, let the policy decide, validate the plan, apply it.

The same live and simulated; it reads no clock and knows no database. When a policy fails, the round
keeps running jobs; of a plan that breaks rules, the gangs that keep to them are applied. A round
requested only by ended stops carries out the plan that requested those stops, if that is still
valid (`carried_out`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeAlias

from controlplane.loop.changes import Change, Keep, PlacementKey, Start, changes, current_of
from controlplane.loop.team_limits import within_team_limits
from foundation.garbage import not_collected
from policies.batch.queue import with_batch_queue
from policies.contract.assumed import without_assumed_times
from policies.contract.plan import LONGEST_TEXT, Placement, Plan, PlanStatus, WaitCode
from policies.contract.policy import Policy, PolicyError, places_batch
from policies.contract.repair import LeftOut, committed, repaired, waiting_unplaced
from policies.contract.snapshot import Purpose, Running, Snapshot, profile_runs
from policies.contract.validation import validate_plan
from policies.host import registry
from policies.placement.profiling import merge, reserve_profiling

logger = logging.getLogger(__name__)

ENDED_STOP = "stopped"
"""Reason of a round that follows a requested stop."""


class RejectCode(StrEnum):
    """Reason why a placement was not launched.

    DEFERRED: until a stop ends; STALE: the state has changed; REFUSED: it breaks a rule.
    """

    DEFERRED = "deferred"
    STALE = "stale"
    REFUSED = "refused"


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

    def with_refused(self, refused: Iterable[Rejected]) -> Applied:
        """Return the result with the placements that were left out of the plan."""
        return replace(self, rejected=(*self.rejected, *refused))


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
    """Plan of a round; `failure`: why the policy gave none; `carried`: round whose plan it is.

    `left_out`: jobs whose placements in the policy's plan broke a rule.
    """

    plan: Plan
    failure: str | None = None
    carried: int | None = None
    left_out: tuple[LeftOut, ...] = ()

    @property
    def refused(self) -> tuple[Rejected, ...]:
        """Placements that were refused because they broke a rule."""
        return tuple(Rejected(of.key, RejectCode.REFUSED, of.detail) for of in self.left_out)

    @property
    def fault(self) -> str:
        """Failure of the policy, or the first rule that it broke; "" if it decided well."""
        if self.failure is not None:
            return self.failure
        return self.left_out[0].detail if self.left_out else ""


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

    def apply(self, decision: Decision) -> Applied:
        """Apply as much of the plan as the newest state allows, each gang whole."""
        ...


@not_collected()
def run_round(world: World, policy: Policy, *, name: str = "") -> RoundResult:
    """Run one round; if the policy, `name` in the round's plan, fails, running jobs go on."""
    snapshot = world.snapshot()
    decision = carry_out_or_decide(snapshot, policy, world.last_plan, name)
    applied = world.apply(decision)
    return RoundResult(snapshot, decision.plan, applied, decision.failure, decision.carried)


def carry_out_or_decide(
    snapshot: Snapshot, policy: Policy, last_plan: Callable[[], LastPlan | None], name: str = ""
) -> Decision:
    """Return the decision of a round.

    If only ended stops requested the round, that is the last plan, if it can be carried out.
    """
    if snapshot.trigger.reasons == (ENDED_STOP,):
        last = last_plan()
        plan = None if last is None else carried_out(snapshot, last)
        if last is not None and plan is not None:
            return Decision(plan, carried=last.number)
    return decide_or_keep(snapshot, policy, name)


def carried_out(snapshot: Snapshot, last: LastPlan) -> Plan | None:
    """Return the last plan as this round's; None if it can no longer be carried out."""
    plan = last.plan

    # 1. It must know the jobs that requested the round.
    known = {w.job for w in plan.waiting} | {p.job for p in plan.placements}
    if not known.issuperset(snapshot.trigger.jobs):
        return None

    # 2. Now there may be room for jobs held back by their team's limit, or left out of the plan.
    if any(w.code in (WaitCode.TEAM_LIMIT, WaitCode.SOLVER_FAILED) for w in plan.waiting):
        return None

    # 3. All that is left to do are the launches that waited for the stops.
    for change in changes(current_of(snapshot), plan):
        is_deferred = isinstance(change, Start) and change.placement.key in last.deferred
        if not is_deferred and not isinstance(change, Keep):
            return None
    if validate_plan(plan, snapshot):
        return None
    message = f"carried out round {last.number}'s plan"
    return replace(plan, objective=None, bound=None, message=message)


def decide_or_keep(snapshot: Snapshot, policy: Policy, name: str = "") -> Decision:
    """Return the policy's decision; if it fails, a plan that keeps running jobs, and why."""
    try:
        return decision_of(snapshot, policy, name)
    except PolicyError as error:
        failure = str(error) or type(error).__name__
    except Exception as error:  # a policy may be anybody's code and must not stop the loop
        logger.exception("policy %s broke", name)
        failure = f"{type(error).__name__}: {error}"
    return Decision(kept(snapshot, name or type(policy).__name__, failure), failure)


def decide(snapshot: Snapshot, policy: Policy, name: str = "") -> Plan:
    """Return the plan of the policy's decision; arguments and errors as in `decision_of`."""
    return decision_of(snapshot, policy, name).plan


def decision_of(snapshot: Snapshot, policy: Policy, name: str = "") -> Decision:
    """Return the policy's plan with the reserved profile runs and the batch jobs.

    `name`: the policy's name in the registry, where `policy` is a function that asks it elsewhere.
    PolicyError if the policy fails, or its plan breaks the rules as a whole.
    """
    # 1. Each stage decides about some jobs, and lets the next ones plan with what is left. A policy
    #    for training jobs alone gets a queue for the batch jobs beside it, which fills what bad
    #    gangs would have taken.
    left_out: list[LeftOut] = []
    stages: list[Stage] = [_within_team_limits, _beside_profile_runs]
    if not _places_batch_jobs(policy, name):
        stages.append(partial(_beside_batch_queue, left_out))
    plan = _through(stages, policy)(snapshot)

    # 2. Leave out what breaks a rule in the whole plan.
    plan, bad = repaired(plan, snapshot)
    left_out.extend(bad)
    if left_out:
        plan = replace(plan, message=_message(plan.message, left_out))
    return Decision(without_assumed_times(plan, snapshot), left_out=tuple(left_out))


Stage: TypeAlias = Callable[[Policy, Snapshot], Plan]
"""Plan of a snapshot, part of which the given policy plans: the stages that follow."""


def _through(stages: Sequence[Stage], policy: Policy) -> Policy:
    """Return the policy behind these stages, the first of which sees the whole snapshot."""
    behind = policy
    for stage in reversed(stages):
        behind = partial(stage, behind)
    return behind


def _within_team_limits(policy: Policy, snapshot: Snapshot) -> Plan:
    """Let jobs above their team's limits wait; the policy does not see them."""
    visible, over_limit = within_team_limits(snapshot)
    plan = policy(visible)
    if not over_limit:
        return plan
    return replace(plan, waiting=(*plan.waiting, *over_limit))


def _beside_profile_runs(policy: Policy, snapshot: Snapshot) -> Plan:
    """Reserve GPUs for profile runs; the policy plans with what is left."""
    remaining, runs = reserve_profiling(snapshot)
    return merge(policy(remaining), runs)


def _beside_batch_queue(left_out: list[LeftOut], policy: Policy, whole: Snapshot) -> Plan:
    """Plan the batch jobs in a queue; gangs of the policy that break a rule go to `left_out`."""

    def valid_part(snapshot: Snapshot) -> Plan:
        # A plan of the whole snapshot is repaired with the rest.
        if snapshot is whole:
            return policy(snapshot)
        runs = [_going_on(job, run) for job, run in profile_runs(snapshot)]
        plan, bad = repaired(merge(policy(snapshot), runs), snapshot)
        left_out.extend(bad)
        return replace(plan, placements=tuple(p for p in plan.placements if p not in runs))

    return with_batch_queue(valid_part, whole)


def _going_on(job: str, run: Running) -> Placement:
    """Return the placement that keeps a profile run."""
    (placement,) = committed(job, (run,))
    return placement


def _places_batch_jobs(policy: Policy, name: str) -> bool:
    """Return True if a policy decides about batch jobs itself.

    A policy is a dataclass and says so. A function asks the policy of that name in a child process,
    so the registry says it.
    """
    if is_dataclass(policy) or not name:
        return places_batch(policy)
    return places_batch(policy) or registry.places_batch(name)


def _message(of_policy: str, left_out: Sequence[LeftOut]) -> str:
    """Return the message of the policy's plan with what was left out of it."""
    jobs = "one job" if len(left_out) == 1 else f"{len(left_out)} jobs"
    faults = f"the policy's placements of {jobs} break a rule, so they are left out: "
    faults += left_out[0].detail
    whole = f"{of_policy}; {faults}" if of_policy else faults
    return whole[:LONGEST_TEXT]


def kept(snapshot: Snapshot, policy: str, message: str) -> Plan:
    """Return the plan that changes nothing: running jobs stay, the others wait."""
    jobs = tuple(snapshot.jobs)
    placements: list[Placement] = []
    for job in jobs:
        placements.extend(committed(job.id, job.running))
    trained = {p.job for p in placements if p.purpose is Purpose.TRAINING}
    waiting = tuple(waiting_unplaced(job.id, job.phase) for job in jobs if job.id not in trained)
    return Plan(
        policy,
        PlanStatus.KEPT,
        tuple(placements),
        waiting,
        memory=dict(snapshot.memory),
        message=message,
    )
