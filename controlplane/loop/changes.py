"""Changes from committed placements to a plan. Pure, live and simulated.

Placements that the plan drops are stopped; jobs that it does not mention go on. Stops come first,
because starts may need what they free.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from policies.contract.placement_rules import needs_stop
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
        wanted, before = self.placement, self.before
        return wanted is not None and (
            wanted.until_s != before.until_s or wanted.steps_quota != before.steps_quota
        )


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


Change: TypeAlias = Start | Keep | Preempt | Migrate | Resize
Stop: TypeAlias = Preempt | Migrate | Resize


def changes(current: Current, plan: Plan) -> tuple[Change, ...]:
    """Changes from `current` to `plan`: stops, then keeps, then starts, each in the order given."""
    wanted = {(p.job, p.purpose, p.copy): p for p in plan.placements}
    stops, keeps, decided = list[Stop](), list[Keep](), set[str]()
    for key, run in current.items():
        placement = wanted.get(key)
        if placement is not None and placement.ranks == run.ranks:  # nearly all
            keeps.append(Keep(key, run, placement))
            continue
        decided = decided or {p.job for p in plan.placements} | {w.job for w in plan.waiting}
        if isinstance(change := _of_running(key, run, placement, decided), Keep):
            keeps.append(change)
        else:
            stops.append(change)
    starts = [Start(p) for key, p in wanted.items() if key not in current]
    return (*stops, *keeps, *starts)


def current_of(snapshot: Snapshot) -> dict[PlacementKey, Running]:
    """Committed placements of a snapshot, in its order of jobs."""
    columns = snapshot.jobs.columns
    pairs = zip(columns.ids, columns.others["running"], strict=True)
    return {(job, run.purpose, run.copy): run for job, runs in pairs for run in runs}


def key_of(change: Change) -> PlacementKey:
    return change.key if isinstance(change, Keep | Preempt) else change.placement.key


def sides(change: Start | Stop) -> tuple[tuple[RankPlacement, ...], tuple[RankPlacement, ...]]:
    """(ranks before, ranks afterwards) of the job; empty for nowhere."""
    before = () if isinstance(change, Start) else change.before.ranks
    return before, () if isinstance(change, Preempt) else change.placement.ranks


def describe(change: Change) -> dict[str, Any]:
    """Change as plain data, for the round's record."""
    job, purpose, copy = key_of(change)
    data: dict[str, Any] = {"change": type(change).__name__.lower(), "job": job}
    if purpose is not Purpose.TRAINING:
        data |= {"purpose": purpose.value, "copy": copy}
    if not isinstance(change, Start):
        data["from"] = _places(change.before.ranks)
    if isinstance(change, Start | Migrate | Resize):
        data["to"] = _places(change.placement.ranks)
    return data


def _of_running(
    key: PlacementKey, run: Running, placement: Placement | None, decided: set[str]
) -> Stop | Keep:
    if placement is None:
        return Preempt(key, run) if key[0] in decided else Keep(key, run)
    if not needs_stop(run.ranks, placement.ranks):
        return Keep(key, run, placement)
    same_size = _size(placement.ranks) == _size(run.ranks)
    return Migrate(placement, run) if same_size else Resize(placement, run)


def _size(ranks: tuple[RankPlacement, ...]) -> float:
    return sum(len(seat.devices) * seat.share for seat in ranks)


def _places(ranks: tuple[RankPlacement, ...]) -> list[dict[str, Any]]:
    return [
        {
            "node": seat.node,
            "devices": list(seat.devices),
            **({"share": seat.share} if seat.share < 1.0 else {}),
        }
        for seat in ranks
    ]
