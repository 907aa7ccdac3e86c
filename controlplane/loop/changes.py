"""Changes from committed placements to a plan. Pure, live and simulated.

Placements that the plan drops are stopped; jobs that it does not mention go on. Stops come first,
because starts may need what they free.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from policies.contract.placement_rules import needs_stop, seats_with_new_quota
from policies.contract.plan import Placement, Plan
from policies.contract.snapshot import Purpose, RankPlacement, Running, Snapshot

PlacementKey: TypeAlias = tuple[str, Purpose, int]
"""(job, purpose, copy), which identifies a placement."""

Current: TypeAlias = Mapping[PlacementKey, Running]
"""Committed placements that are not stopping."""


@dataclass(frozen=True, slots=True)
class Start:
    """Launch of a placement."""

    placement: Placement


class Keep(NamedTuple):
    """Placement that stays, perhaps with another term; `placement` None if the plan is silent.

    A named tuple because nearly all changes are such, and it is made in half of the time.
    """

    key: PlacementKey
    before: Running
    placement: Placement | None = None

    @property
    def changes_term(self) -> bool:
        """Return True if the plan wants another end than the committed one."""
        planned = self.placement
        if planned is None:
            return False
        before = self.before
        return planned.until_s != before.until_s or planned.steps_quota != before.steps_quota


@dataclass(frozen=True, slots=True)
class ChangeQuotas:
    """Running placement that stays with other quotas of cores, and perhaps another term."""

    placement: Placement
    before: Running

    @property
    def changes_term(self) -> bool:
        """Return True if the plan wants another end than the committed one."""
        return Keep(self.placement.key, self.before, self.placement).changes_term


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop of a running placement that the plan drops, at a checkpoint."""

    key: PlacementKey
    before: Running


@dataclass(frozen=True, slots=True)
class Migrate:
    """Stop of a running placement at a checkpoint, then start elsewhere."""

    placement: Placement
    before: Running


@dataclass(frozen=True, slots=True)
class Resize:
    """Stop of a running placement at a checkpoint, then start with more or fewer GPUs."""

    placement: Placement
    before: Running


Change: TypeAlias = Start | Keep | ChangeQuotas | Preempt | Migrate | Resize
Stop: TypeAlias = Preempt | Migrate | Resize


def changes(current: Current, plan: Plan) -> tuple[Change, ...]:
    """Return the changes from `current` to a plan: stops, then keeps, then starts.

    Stops and keeps are in the order of `current`, starts in that of the plan. Changes of quotas are
    among the keeps.
    """
    planned = {placement.key: placement for placement in plan.placements}
    stops: list[Stop] = []
    keeps: list[Keep | ChangeQuotas] = []
    mentioned: set[str] = set()
    for key, run in current.items():
        placement = planned.get(key)
        if placement is not None and placement.ranks == run.ranks:  # nearly all
            keeps.append(Keep(key, run, placement))
            continue
        if not mentioned:  # few rounds need them, and they are as many as the plan's jobs
            mentioned.update(placement.job for placement in plan.placements)
            mentioned.update(waiting.job for waiting in plan.waiting)
        change = _change_of(key, run, placement, mentioned)
        if isinstance(change, Stop):
            stops.append(change)
        else:
            keeps.append(change)
    starts = [Start(placement) for key, placement in planned.items() if key not in current]
    return (*stops, *keeps, *starts)


def _change_of(
    key: PlacementKey, run: Running, placement: Placement | None, mentioned: set[str]
) -> Stop | Keep | ChangeQuotas:
    """Return the change of a running placement; `mentioned`: jobs of which the plan says anything.

    A launch that the plan moves to the same number of devices migrates; else it is resized.
    """
    if placement is None:
        job, _, _ = key
        return Preempt(key, run) if job in mentioned else Keep(key, run)
    if not needs_stop(run.ranks, placement.ranks):
        if seats_with_new_quota(run.ranks, placement.ranks):
            return ChangeQuotas(placement, run)
        return Keep(key, run, placement)
    if _size(placement.ranks) == _size(run.ranks):
        return Migrate(placement, run)
    return Resize(placement, run)


def _size(ranks: tuple[RankPlacement, ...]) -> float:
    """Return the devices of these ranks, a shared one by its share."""
    return sum(len(seat.devices) * seat.share for seat in ranks)


def current_of(snapshot: Snapshot) -> dict[PlacementKey, Running]:
    """Return the committed placements of a snapshot, in its order of jobs."""
    columns = snapshot.jobs.columns
    current = {}
    for job, runs in zip(columns.ids, columns.others["running"], strict=True):
        for run in runs:
            current[job, run.purpose, run.copy] = run
    return current


def key_of(change: Change) -> PlacementKey:
    """Return the key of the placement that a change is about."""
    return change.key if isinstance(change, Keep | Preempt) else change.placement.key


def sides(
    change: Start | ChangeQuotas | Stop,
) -> tuple[tuple[RankPlacement, ...], tuple[RankPlacement, ...]]:
    """Return the job's ranks before and after a change; () for nowhere."""
    before = () if isinstance(change, Start) else change.before.ranks
    after = () if isinstance(change, Preempt) else change.placement.ranks
    return before, after


def describe(change: Change) -> dict[str, Any]:
    """Return a change as plain data, for the round's record."""
    job, purpose, copy = key_of(change)
    name = "quotas" if isinstance(change, ChangeQuotas) else type(change).__name__.lower()
    data: dict[str, Any] = {"change": name, "job": job}
    if purpose is not Purpose.TRAINING:
        data["purpose"] = purpose.value
        data["copy"] = copy
    if not isinstance(change, Start):
        data["from"] = _described(change.before.ranks)
    if isinstance(change, Start | ChangeQuotas | Migrate | Resize):
        data["to"] = _described(change.placement.ranks)
    return data


def _described(ranks: tuple[RankPlacement, ...]) -> list[dict[str, Any]]:
    """Return the ranks' nodes and devices as plain data, with share and quota if they have any."""
    described = []
    for seat in ranks:
        data: dict[str, Any] = {"node": seat.node, "devices": list(seat.devices)}
        if seat.share < 1.0:
            data["share"] = seat.share
        if seat.cpu_quota is not None:
            data["cpu_quota"] = seat.cpu_quota
        described.append(data)
    return described
