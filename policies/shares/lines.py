"""What follows of a group of like jobs and the nodes: its row of rates, and with whom it is a class. Kept from round to round.

Jobs come and go one at a time and are of few kinds: a group that was there before is looked up. What is known of kinds changes
more often than nodes do, so lines are kept with the nodes, each with the kind that it was worked out from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from policies.shares.division import Column
from policies.shares.ground import Ground
from policies.shares.rates import Group, rates_of
from policies.shares.telling import What, group_of
from policies.snapshot import KindView, Snapshot

NAMES_KEPT = 4096
"""Of classes: they are the same whatever the nodes, and a name costs ten look-ups."""

LINES_KEPT = 4096
"""At least; beyond, and beyond twice as many as a round needs, those of jobs that have gone would pile up."""

Like: TypeAlias = tuple[str, int, float, str, str, bool, str, tuple[float, ...]]
"""What jobs of a class have in common: kind, GPUs, weight, team, user, whether they share, the one job in a queue, row of rates."""


class Class:
    """What jobs of a class have in common; there is one of each `like` among the lines kept together."""

    def __init__(self, like: Like) -> None:
        self.like = like

    @cached_property
    def key(self) -> str:
        """The name of the class from one snapshot to the next."""
        return _name(self.like)


class Line(NamedTuple):
    """A group, its row of rates by column, and its class; None where it has no claim (weight 0) or can run nowhere now."""

    kind: KindView
    group: Group
    row: tuple[float, ...]
    of_class: Class | None


@dataclass(frozen=True, slots=True)
class _Kept:
    """Lines on the same ground by what their jobs are, and their classes."""

    ground: Any
    lines: dict[What, Line] = field(default_factory=dict)
    classes: dict[Like, Class] = field(default_factory=dict)

    def add(self, what: What, kind: KindView, group: Group, row: tuple[float, ...]) -> None:
        """A line more, or one anew."""
        of_class = None
        if group.weight > 0.0 and any(row):
            like = (group.kind, group.gpus, group.weight, group.team, group.user, group.shares, group.job, row)
            of_class = self.classes.setdefault(like, Class(like))
        self.lines[what] = Line(kind, group, row, of_class)


def lines_of(snapshot: Snapshot, ground: Ground, columns: tuple[Column, ...], groups: Sequence[What]) -> list[Line]:
    """The line of each of these groups, worked out where its kind or the ground are not as they were."""
    kept = _kept(snapshot, ground, columns)
    index, kinds, known = snapshot.kind_index, snapshot.kinds, kept.lines
    missing = [w for w in groups if (line := known.get(w)) is None or line.kind is not kinds[index[w[0]]]]
    if len(missing) + max(len(known), len(kept.classes)) > max(LINES_KEPT, 2 * len(groups)):
        known.clear()
        kept.classes.clear()
        missing = list(groups)
    if missing:
        made = [group_of(what) for what in missing]
        rows = rates_of(snapshot, ground, made, columns).tolist()
        for what, group, row in zip(missing, made, rows, strict=True):
            kept.add(what, kinds[index[group.kind]], group, tuple(row))
    return [known[what] for what in groups]


def _kept(snapshot: Snapshot, ground: Ground, columns: tuple[Column, ...]) -> _Kept:
    """Those of the round before if the ground was the same: nodes that stand may still have given more devices or fewer."""
    key = columns, ground.types, ground.type_of, ground.sizes
    kept: _Kept | None = snapshot.standing.get("lines")
    if kept is None or kept.ground != key:
        kept = snapshot.standing["lines"] = _Kept(key)
    return kept


@lru_cache(maxsize=NAMES_KEPT)
def _name(like: Like) -> str:
    """A short name for a class: what its jobs are and where they can run, not how fast, which is measured anew all the time."""
    *what, job, row = like
    if job:
        return job
    where = "".join("1" if rate > 0.0 else "0" for rate in row)
    return blake2b(repr((what, where)).encode(), digest_size=8).hexdigest()
