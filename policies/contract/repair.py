"""Repair of a plan: `repaired(plan, snapshot)` leaves out the gangs that break a rule.

A policy may be anybody's code, and one bad seat of it must neither keep other jobs from starting
nor stop a running job. `validate_plan` alone judges; a job's placements are left out whole:

- A placement that breaks a rule by itself (a node or device that is not there, a wrong number of
  GPUs, labels ...) is left out.
- Of gangs that break a rule together (devices, cores, memory, an exclusive node) the last one is
  left out: what stays where it runs comes first, then profile runs, then moves, then starts, each
  in the plan's order.
- Of a team above its limit of GPUs, and of a cluster above its power cap, the last gangs are left
  out until the others fit.

A running job that is left out stays where it is if the rules allow that, else it stops. Any other
job waits. A plan whose own numbers are wrong, or of which no such part is valid, is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import TypeAlias

from policies.contract.placement_rules import Violation, needs_stop
from policies.contract.plan import (
    PROFILING,
    TRAINING,
    Placement,
    Plan,
    Purpose,
    Running,
    WaitCode,
    Waiting,
)
from policies.contract.policy import PolicyError
from policies.contract.snapshot import JobPhase, Snapshot
from policies.contract.validation import (
    node_violations,
    power_violations,
    team_violations,
    validate_plan,
)

ON_A_NODE = frozenset({
    "device_slots", "device_share", "may_not_share", "device_taken", "exclusive",
    "node_cores", "node_memory", "node_resource",
})  # fmt: skip
"""Codes of rules that gangs on one node break together."""

TOGETHER = ON_A_NODE | {"team_gpus", "power_cap"}
"""Codes of rules that gangs break together."""

SHOWN_VIOLATIONS = 3

Gang: TypeAlias = tuple[Placement, ...]
"""All placements of a job."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Job left out of a plan: the key of its first placement, and the rule it broke, in words."""

    key: tuple[str, Purpose, int]
    detail: str


def repaired(plan: Plan, snapshot: Snapshot) -> tuple[Plan, tuple[LeftOut, ...]]:
    """Return the valid part of a plan, and the jobs left out of it; a valid plan as it is.

    PolicyError if the plan is wrong as a whole.
    """
    repair = _Repair(plan, snapshot)
    violations = validate_plan(plan, snapshot)
    while violations:
        repair.leave_out(violations)
        violations = validate_plan(repair.plan(), snapshot)
    return repair.plan(), repair.left_out()


def committed(job: str, running: Iterable[Running]) -> Gang:
    """Return the placements that keep a job where it runs."""
    gang: list[Placement] = []
    for run in running:
        gang.append(
            Placement(
                job,
                run.ranks,
                run.copy,
                run.purpose,
                steps_quota=run.steps_quota,
                until_s=run.until_s,
            )
        )
    return tuple(gang)


def waiting_unplaced(job: str, phase: JobPhase) -> Waiting:
    """Return the reason of a job for which the policy has no valid placement."""
    if phase is JobPhase.PROFILING:
        return Waiting(job, WaitCode.AWAITING_PROFILE)
    return Waiting(job, WaitCode.SOLVER_FAILED)


class _Step(IntEnum):
    """What becomes of a job: as planned, else as it runs, else not placed."""

    PLANNED = 0
    AS_IT_RUNS = 1
    NOT_PLACED = 2


class _Turn(IntEnum):
    """Order in which gangs take devices, nodes, limits and watts."""

    STAYS = 0
    MEASURES = 1
    MOVES = 2
    STARTS = 3


class _Repair:
    """Plan that becomes valid step by step.

    `steps`: what has become of each job left out; the others are still placed as planned.
    """

    def __init__(self, plan: Plan, snapshot: Snapshot) -> None:
        self.original = plan
        self.snapshot = snapshot
        self.running: Mapping[str, tuple[Running, ...]] = dict(
            zip(snapshot.jobs.columns.ids, snapshot.jobs.columns.others["running"], strict=True)
        )
        self.steps: dict[str, _Step] = {}
        self.broken: dict[str, str] = {}
        """First rule that each job left out has broken, in words."""

    @cached_property
    def planned(self) -> Mapping[str, Gang]:
        """Gangs of the plan by job, in its order."""
        gangs: dict[str, list[Placement]] = {}
        for placement in self.original.placements:
            gangs.setdefault(placement.job, []).append(placement)
        return {job: tuple(gang) for job, gang in gangs.items()}

    def plan(self) -> Plan:
        """Return the plan as far as it is repaired."""
        if not self.steps:
            return self.original
        gangs = self._gangs()
        placements = tuple(placement for gang in gangs.values() for placement in gang)
        trained = {p.job for p in placements if p.purpose is TRAINING}
        phases = self.snapshot.jobs.columns.others["phase"]
        position = self.snapshot.jobs.position
        waiting = [entry for entry in self.original.waiting if entry.job not in self.steps]
        for job in self.steps:
            if job in position and job not in trained:
                waiting.append(waiting_unplaced(job, phases[position[job]]))
        return replace(
            self.original,
            placements=placements,
            waiting=tuple(waiting),
            objective=None,
            bound=None,
        )

    def left_out(self) -> tuple[LeftOut, ...]:
        """Return the jobs left out, with the first rule that each has broken."""
        left_out = []
        for job, detail in self.broken.items():
            gang = self.planned.get(job)
            key = gang[0].key if gang else (job, TRAINING, 0)
            left_out.append(LeftOut(key, detail))
        return tuple(left_out)

    def leave_out(self, violations: Sequence[Violation]) -> None:
        """Leave out gangs with these violations, at least one. PolicyError if that cannot be."""
        # 1. Numbers of the plan itself are of no job.
        if any(v.job is None and v.code not in TOGETHER for v in violations):
            raise _refused(violations)

        # 2. Gangs that break a rule by themselves. Of each its first violation is named: it comes
        #    last, and replaces the others.
        bad: dict[str, Violation] = {}
        for violation in reversed(violations):
            if violation.job and violation.code not in TOGETHER:
                bad[violation.job] = violation

        # 3. If there are none, the last of those that break a rule together.
        if not bad:
            bad = self._last_on_nodes(violations)
        if not bad:
            bad = self._last_of_teams() or self._last_under_cap()

        # 4. Each takes a step down; a job that is not placed has none left.
        if not bad or any(self.steps.get(job) is _Step.NOT_PLACED for job in bad):
            raise _refused(violations)
        for job, violation in bad.items():
            self._step_down(job, violation)

    def _step_down(self, job: str, violation: Violation) -> None:
        self.broken.setdefault(job, str(violation))
        may_stay = job not in self.steps and bool(self.running.get(job))
        self.steps[job] = _Step.AS_IT_RUNS if may_stay else _Step.NOT_PLACED

    def _gangs(self) -> dict[str, Gang]:
        """Return the gangs by job as far as the plan is repaired."""
        gangs = {job: gang for job, gang in self.planned.items() if job not in self.steps}
        for job, step in self.steps.items():
            if step is _Step.AS_IT_RUNS:
                gangs[job] = committed(job, self.running[job])
        return gangs

    def _in_turn(self) -> list[tuple[str, Gang]]:
        """Return (job, gang) in the order of their turns, and in the plan's order within a turn."""
        gangs = self._gangs().items()
        return sorted(gangs, key=lambda item: self._turn(job=item[0], gang=item[1]))

    def _turn(self, job: str, gang: Gang) -> _Turn:
        """Return the turn of a gang: what stops nothing comes first."""
        runs = {(run.purpose, run.copy): run.ranks for run in self.running.get(job, ())}
        stays = True
        for placement in gang:
            before = runs.get((placement.purpose, placement.copy))
            if before is None or needs_stop(before, placement.ranks):
                stays = False
        if stays:
            return _Turn.STAYS
        if all(placement.purpose is PROFILING for placement in gang):
            return _Turn.MEASURES
        return _Turn.MOVES if runs else _Turn.STARTS

    def _last_on_nodes(self, violations: Iterable[Violation]) -> dict[str, Violation]:
        """Return the gangs that do not fit on a node beside those before them."""
        # 1. The gangs on each node with a violation; plans are too large to try all nodes.
        ids = {v.node for v in violations if v.code in ON_A_NODE}
        nodes = [node for node in self.snapshot.nodes if node.id in ids]
        gangs_on: dict[str, list[tuple[str, Gang]]] = {node.id: [] for node in nodes}
        for job, gang in self._in_turn():
            for node_id in {seat.node for placement in gang for seat in placement.ranks}:
                if node_id in gangs_on:
                    gangs_on[node_id].append((job, gang))

        # 2. On each node by itself, gangs are added in turn; one that breaks a rule is bad.
        bad: dict[str, Violation] = {}
        for node in nodes:
            alone = replace(self.snapshot, nodes=(node,))
            taken: Gang = ()
            for job, gang in gangs_on[node.id]:
                if job in bad:
                    continue
                tried = _only(self.original, (*taken, *gang))
                broken = [v for v in node_violations(tried, alone) if v.code in ON_A_NODE]
                if broken:
                    bad[job] = broken[0]
                else:
                    taken = (*taken, *gang)
        return bad

    def _last_of_teams(self) -> dict[str, Violation]:
        """Return the last gangs of each team above its limit of GPUs."""
        teams = self.snapshot.jobs.columns.others["team"]
        position = self.snapshot.jobs.position
        bad: dict[str, Violation] = {}
        for team in self.snapshot.teams:
            gangs = [
                (job, gang) for job, gang in self._in_turn() if teams[position[job]] == team.name
            ]
            bad |= self._beyond(gangs, team_violations)
        return bad

    def _last_under_cap(self) -> dict[str, Violation]:
        """Return the last gangs of a cluster above its power cap."""
        return self._beyond(self._in_turn(), power_violations)

    def _beyond(
        self,
        gangs: Sequence[tuple[str, Gang]],
        violations: Callable[[Plan, Snapshot], Iterable[Violation]],
    ) -> dict[str, Violation]:
        """Return the gangs after the longest beginning that breaks none of these rules."""

        def first_violation(number: int) -> Violation | None:
            """Return the first violation of the first `number` gangs alone."""
            placements = [placement for _, gang in gangs[:number] for placement in gang]
            return next(iter(violations(_only(self.original, placements), self.snapshot)), None)

        of_all = first_violation(len(gangs))
        if of_all is None:
            return {}
        # Bisect: more gangs use more GPUs and watts, so the first ones that fit are a beginning.
        fitting = 0
        too_many = len(gangs)
        while too_many - fitting > 1:
            middle = (fitting + too_many) // 2
            if first_violation(middle) is None:
                fitting = middle
            else:
                too_many = middle
        return {job: of_all for job, _ in gangs[fitting:]}


def _only(plan: Plan, placements: Iterable[Placement]) -> Plan:
    """Return a plan of these placements alone."""
    return Plan(plan.policy, plan.status, tuple(placements))


def _refused(violations: Sequence[Violation]) -> PolicyError:
    """Return the error for a plan that cannot be repaired."""
    shown = "; ".join(str(violation) for violation in violations[:SHOWN_VIOLATIONS])
    others = len(violations) - SHOWN_VIOLATIONS
    if others > 0:
        shown += f" and {others} more"
    return PolicyError(f"the plan breaks the rules and is refused: {shown}")
