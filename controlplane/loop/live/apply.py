"""The only writer of assignments: applies a plan as far as the newest state allows.

In the transaction that holds the round's lock, stops are requested, terms and expected speeds are
updated, then gangs are launched whole or not at all (`launches`). Constraints of the database have
the last word: a slot is held once, a fence launches once. A launch that waits for a stop is
deferred; the stop's end asks for the round that carries the plan out or decides again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from clusters.models import Node
from controlplane.loop.changes import Change, Keep, Migrate, Preempt, Resize, Start, changes
from controlplane.loop.live.launches import ACTOR, Launcher, ProfileRunStarted, time_of
from controlplane.loop.live.live_assignments import Gang, LiveAssignments
from controlplane.loop.live.observe import Observation
from controlplane.loop.models import Round
from controlplane.loop.rounds import Applied
from jobs.assignment_lifecycle import LIVE
from jobs.models import Assignment, Job
from policies.contract.plan import Placement, Plan
from policies.contract.snapshot import RankPlacement

TOGETHER = 500
"""Assignments that one statement changes."""


class PreemptGang(Protocol):
    """Stops a gang: `controlplane.execution.services.preempt_gang`."""

    def __call__(self, assignment_id: UUID, actor: str, now: datetime | None = None) -> object:
        """Pre-empt the gang: its job moves to STOPPING, or to the queue if nothing was accepted."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """Calls to other applications that applying a plan needs."""

    preempt_gang: PreemptGang
    profile_run_started: ProfileRunStarted


def apply_plan(
    observed: Observation, plan: Plan, of_round: Round, services: Services, now: datetime
) -> Applied:
    """Apply the plan in a transaction that holds the round's lock; see `Applied`."""
    return _Application(observed, plan, of_round, services, now).run()


class _Application:
    def __init__(
        self, observed: Observation, plan: Plan, of_round: Round, services: Services, now: datetime
    ) -> None:
        self.observed, self.plan, self.services, self.now = observed, plan, services, now
        self.launches = Launcher(observed, plan, of_round, services.profile_run_started, now)

    def run(self) -> Applied:
        gangs = {gang.key: gang for gang in LiveAssignments(self.observed.cluster).gangs()}
        todo = changes({key: gang.running for key, gang in gangs.items()}, self.plan)
        _lock(todo)
        for change in todo:
            self._stop(change, gangs)
        self._change_terms(todo, gangs)
        self._expect(todo, gangs)
        wanted = [c.placement for c in todo if isinstance(c, Start | Migrate | Resize)]
        return Applied(todo, self.launches.launch(wanted))

    def _stop(self, change: Change, gangs: Mapping[Any, Gang]) -> None:
        match change:
            case (
                Preempt(key=key)
                | Migrate(placement=Placement(key=key))
                | Resize(placement=Placement(key=key))
            ):
                self.services.preempt_gang(gangs[key].assignments[0].pk, ACTOR, self.now)

    def _change_terms(self, todo: Sequence[Change], gangs: Mapping[Any, Gang]) -> None:
        """Write new terms, equal ones together: a round may prolong thousands, to the same end."""
        ranks = defaultdict[tuple[float | None, int | None], list[UUID]](list)
        for change in todo:
            if isinstance(change, Keep) and change.changes_term and (wanted := change.placement):
                ranks[wanted.until_s, wanted.steps_quota] += [
                    a.pk for a in gangs[change.key].assignments
                ]
        for (until_s, quota), pks in ranks.items():
            term = {"term_until": time_of(until_s), "steps_quota": quota, "term_at": self.now}
            for some in _parts(pks):
                Assignment.objects.filter(pk__in=some, state__in=LIVE).update(**term)

    def _expect(self, todo: Sequence[Change], gangs: Mapping[Any, Gang]) -> None:
        """Update expected speeds on shared GPUs, where partners come and leave."""
        ranks = defaultdict[float | None, list[UUID]](list)
        for change in todo:
            if (
                isinstance(change, Keep)
                and (placed := change.placement)
                and any(seat.share < 1.0 for seat in placed.ranks)
            ):
                speed = self.launches.expected_steps_per_s(placed, self._kind(placed))
                ranks[speed] += [
                    a.pk for a in gangs[change.key].assignments if a.predicted_steps_per_s != speed
                ]
        for speed, pks in ranks.items():
            for some in _parts(pks):
                Assignment.objects.filter(pk__in=some, state__in=LIVE).update(
                    predicted_steps_per_s=speed
                )

    def _kind(self, placement: Placement) -> str:
        jobs = self.observed.snapshot.jobs
        return jobs.columns.kinds[jobs.position[placement.job]]


def _parts(pks: Sequence[UUID]) -> Iterable[Sequence[UUID]]:
    return (pks[i : i + TOGETHER] for i in range(0, len(pks), TOGETHER))


def _lock(todo: Sequence[Change]) -> None:
    """Lock what changes, nodes before jobs; not keys, which other commits share in any order."""
    changing = [c for c in todo if not isinstance(c, Keep)]
    seats = [s for c in changing for s in _ranks(c)]
    node_ids, job_ids = {s.node for s in seats}, {_job(c) for c in changing}
    list(
        Node.objects.select_for_update(no_key=True)
        .filter(pk__in=node_ids)
        .order_by("pk")
        .values_list("pk")
    )
    list(
        Job.objects.select_for_update(no_key=True)
        .filter(pk__in=job_ids)
        .order_by("pk")
        .values_list("pk")
    )


def _ranks(change: Change) -> tuple[RankPlacement, ...]:
    before = () if isinstance(change, Start) else change.before.ranks
    after = () if isinstance(change, Keep | Preempt) else change.placement.ranks
    return (*before, *after)


def _job(change: Change) -> str:
    return change.key[0] if isinstance(change, Keep | Preempt) else change.placement.job
