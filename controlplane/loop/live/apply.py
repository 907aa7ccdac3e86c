"""Applying a plan as far as the newest state allows: the only place that launches jobs.

In the transaction that holds the round's lock, stops are requested, terms and expected speeds are
updated, then gangs are launched whole or not at all (`launches`). Database constraints decide: a
slot is held once, a fence launches once. A launch that waits for a stop is deferred; the stop's end
requests a round that launches it or decides again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from clusters.models import Node
from controlplane.execution.services.stops import preempt_gang
from controlplane.loop.changes import (
    Change,
    Keep,
    PlacementKey,
    Preempt,
    Stop,
    changes,
    key_of,
    sides,
)
from controlplane.loop.live.launches import ACTOR, Launcher, time_of
from controlplane.loop.live.live_assignments import Gang, LiveAssignments
from controlplane.loop.live.observe import Observation
from controlplane.loop.models import Round
from controlplane.loop.rounds import Applied
from controlplane.web.storage.bulk import batches
from jobs.assignment_lifecycle import LIVE
from jobs.models import Assignment, Job
from policies.contract.plan import Placement, Plan
from policies.contract.snapshot import Jobs

AT_ONCE = 500
"""Assignments per statement."""


@dataclass(frozen=True, slots=True)
class Changing:
    """Live gangs of the cluster and their changes to a plan."""

    gangs: Mapping[PlacementKey, Gang]
    changes: tuple[Change, ...]

    @classmethod
    def of(cls, held: LiveAssignments, plan: Plan) -> Changing:
        gangs = {gang.key: gang for gang in held.gangs()}
        return cls(gangs, changes({key: gang.running for key, gang in gangs.items()}, plan))


@dataclass(frozen=True, slots=True)
class Prepared:
    """Plan made ready for its transaction, in which others cannot write on SQLite."""

    observed: Observation
    plan: Plan
    launcher: Launcher
    changing: Changing

    @classmethod
    def of(cls, observed: Observation, plan: Plan, of_round: Round) -> Prepared:
        launcher = Launcher(observed, plan, of_round)
        return cls(observed, plan, launcher, Changing.of(observed.held, plan))


def apply_plan(prepared: Prepared, now: datetime) -> Applied:
    """Apply the plan in a transaction that holds the round's lock; see `Applied`."""
    observed, launcher, changing = prepared.observed, prepared.launcher, prepared.changing
    if (held := observed.held.newest()) is not None:
        changing = Changing.of(held, prepared.plan)
    gangs, todo = changing.gangs, changing.changes
    _lock(todo)
    for change in todo:
        if isinstance(change, Stop):
            preempt_gang(gangs[key_of(change)].assignments[0].pk, ACTOR, now)
    kept = [(c, c.placement, gangs[c.key]) for c in todo if isinstance(c, Keep) and c.placement]
    _change_terms([(wanted, gang) for keep, wanted, gang in kept if keep.changes_term], now)
    _expect([(wanted, gang) for _, wanted, gang in kept], launcher, observed.snapshot.jobs)
    wanted = [c.placement for c in todo if not isinstance(c, Keep | Preempt)]
    return Applied(todo, launcher.launch(wanted, now))


def _change_terms(kept: Iterable[tuple[Placement, Gang]], now: datetime) -> None:
    """Write new terms, equal ones together: a round may prolong thousands to the same end."""
    ranks = defaultdict[tuple[float | None, int | None], list[UUID]](list)
    for wanted, gang in kept:
        ranks[wanted.until_s, wanted.steps_quota] += [a.pk for a in gang.assignments]
    for (until_s, quota), pks in ranks.items():
        _update(pks, term_until=time_of(until_s), steps_quota=quota, term_at=now)


def _expect(kept: Iterable[tuple[Placement, Gang]], launcher: Launcher, jobs: Jobs) -> None:
    """Update expected speeds on shared GPUs, where partners come and leave."""
    ranks = defaultdict[float | None, list[UUID]](list)
    for placed, gang in kept:
        if any(seat.share < 1.0 for seat in placed.ranks):
            kind = jobs.columns.kinds[jobs.position[placed.job]]
            speed = launcher.expected_steps_per_s(placed, kind)
            ranks[speed] += [a.pk for a in gang.assignments if a.predicted_steps_per_s != speed]
    for speed, pks in ranks.items():
        _update(pks, predicted_steps_per_s=speed)


def _update(pks: Sequence[UUID], **values: object) -> None:
    for some in batches(pks, AT_ONCE):
        Assignment.objects.filter(pk__in=some, state__in=LIVE).update(**values)


def _lock(todo: Sequence[Change]) -> None:
    """Lock changed rows, nodes before jobs; not keys, which other commits share in any order."""
    nodes, jobs = set[str](), set[str]()
    for change in (c for c in todo if not isinstance(c, Keep)):
        jobs.add(key_of(change)[0])
        nodes |= {rank.node for side in sides(change) for rank in side}
    for rows in (Node.objects.filter(pk__in=nodes), Job.objects.filter(pk__in=jobs)):
        list(rows.select_for_update(no_key=True).order_by("pk").values_list("pk"))
