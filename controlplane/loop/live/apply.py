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
    ChangeQuotas,
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
from jobs.models import Assignment, AssignmentEvent, Job
from policies.contract.plan import Placement, Plan
from policies.contract.snapshot import Jobs

ROWS_PER_STATEMENT = 500
"""Assignments that one statement updates."""


@dataclass(frozen=True, slots=True)
class GangChanges:
    """Live gangs of the cluster, and the changes from them to a plan."""

    gangs: Mapping[PlacementKey, Gang]
    changes: tuple[Change, ...]

    @classmethod
    def of(cls, assignments: LiveAssignments, plan: Plan) -> GangChanges:
        """Return the changes from these assignments to a plan."""
        gangs = {gang.key: gang for gang in assignments.gangs()}
        running = {key: gang.running for key, gang in gangs.items()}
        return cls(gangs, changes(running, plan))


@dataclass(frozen=True, slots=True)
class Prepared:
    """Plan made ready for its transaction, in which others cannot write on SQLite."""

    observed: Observation
    plan: Plan
    launcher: Launcher
    observed_changes: GangChanges
    """Changes from the assignments that the plan was made from."""

    @classmethod
    def of(cls, observed: Observation, plan: Plan, of_round: Round) -> Prepared:
        """Prepare the plan of a round."""
        launcher = Launcher(observed, plan, of_round)
        return cls(observed, plan, launcher, GangChanges.of(observed.held, plan))


def apply_plan(prepared: Prepared, now: datetime) -> Applied:
    """Apply the plan in a transaction that holds the round's lock; see `Applied`."""
    # 1. The changes from the newest assignments, under the locks of their nodes and jobs.
    gang_changes = prepared.observed_changes
    newest = prepared.observed.held.newest()
    if newest is not None:
        gang_changes = GangChanges.of(newest, prepared.plan)
    gangs = gang_changes.gangs
    _lock(gang_changes.changes)

    # 2. Stops.
    for change in gang_changes.changes:
        if isinstance(change, Stop):
            preempt_gang(gangs[key_of(change)].assignments[0].pk, ACTOR, now)

    # 3. Quotas, terms and expected speeds of the gangs that go on.
    with_new_term: list[tuple[Placement, Gang]] = []
    with_new_speed: list[tuple[Placement, Gang]] = []
    for change in gang_changes.changes:
        if not isinstance(change, Keep | ChangeQuotas) or change.placement is None:
            continue
        gang = gangs[key_of(change)]
        if change.changes_term:
            with_new_term.append((change.placement, gang))
        if isinstance(change, ChangeQuotas):
            _change_quotas(change, gang, now)

        # Partners on shared GPUs come and leave.
        is_shared = any(seat.share < 1.0 for seat in change.placement.ranks)
        if is_shared or isinstance(change, ChangeQuotas):
            with_new_speed.append((change.placement, gang))
    _change_terms(with_new_term, now)
    _update_expected_speeds(with_new_speed, prepared.launcher, prepared.observed.snapshot.jobs)

    # 4. Launches: those that start, and those that start elsewhere once they have stopped.
    to_launch = [
        change.placement
        for change in gang_changes.changes
        if not isinstance(change, Keep | ChangeQuotas | Preempt)
    ]
    return Applied(gang_changes.changes, prepared.launcher.launch(to_launch, now))


def _change_quotas(change: ChangeQuotas, gang: Gang, now: datetime) -> None:
    """Write the new quotas of a gang's ranks, each with an event of its history."""
    # 1. The quotas that the plan wants; seats on the same devices are alike.
    wanted = defaultdict[tuple[str, tuple[str, ...]], list[float | None]](list)
    for seat in change.placement.ranks:
        wanted[seat.node, tuple(sorted(seat.devices))].append(seat.cpu_quota)

    # 2. The ranks that have another one.
    events = []
    for rank, seat in zip(gang.assignments, change.before.ranks, strict=True):
        quota = wanted[seat.node, tuple(sorted(seat.devices))].pop()
        if quota == seat.cpu_quota:
            continue
        _update([rank.pk], cpu_quota=quota, quota_at=now)
        event = AssignmentEvent(
            assignment_id=rank.pk,
            move="quota",
            from_state=rank.state,
            to_state=rank.state,
            data={"by": ACTOR, "from": seat.cpu_quota, "to": quota},
        )
        events.append(event)
    AssignmentEvent.objects.bulk_create(events)


def _change_terms(kept: Iterable[tuple[Placement, Gang]], now: datetime) -> None:
    """Write new terms, equal ones together: a round may prolong thousands to the same end."""
    keys_by_term = defaultdict[tuple[float | None, int | None], list[UUID]](list)
    for placement, gang in kept:
        keys = [assignment.pk for assignment in gang.assignments]
        keys_by_term[placement.until_s, placement.steps_quota] += keys
    for (until_s, steps_quota), keys in keys_by_term.items():
        _update(keys, term_until=time_of(until_s), steps_quota=steps_quota, term_at=now)


def _update_expected_speeds(
    gangs: Iterable[tuple[Placement, Gang]], launcher: Launcher, jobs: Jobs
) -> None:
    """Update the expected speeds of these gangs."""
    keys_by_speed = defaultdict[float | None, list[UUID]](list)
    for placement, gang in gangs:
        kind = jobs.columns.kinds[jobs.position[placement.job]]
        speed = launcher.expected_steps_per_s(placement, kind)
        for assignment in gang.assignments:
            if assignment.predicted_steps_per_s != speed:
                keys_by_speed[speed].append(assignment.pk)
    for speed, keys in keys_by_speed.items():
        _update(keys, predicted_steps_per_s=speed)


def _update(keys: Sequence[UUID], **values: object) -> None:
    """Write these values to the assignments that are still live."""
    for some_keys in batches(keys, ROWS_PER_STATEMENT):
        Assignment.objects.filter(pk__in=some_keys, state__in=LIVE).update(**values)


def _lock(planned: Sequence[Change]) -> None:
    """Lock changed rows, nodes before jobs; not keys, which other commits share in any order."""
    nodes: set[str] = set()
    jobs: set[str] = set()
    for change in planned:
        if isinstance(change, Keep):
            continue
        job, _, _ = key_of(change)
        jobs.add(job)
        before, after = sides(change)
        nodes.update(rank.node for rank in (*before, *after))
    for rows in (Node.objects.filter(pk__in=nodes), Job.objects.filter(pk__in=jobs)):
        list(rows.select_for_update(no_key=True).order_by("pk").values_list("pk"))
