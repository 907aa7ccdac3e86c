"""What follows of a group of like jobs and the nodes: its row of rates, and with whom it is a class. Kept from round to round.

Jobs come and go one at a time and are of few kinds: a group that was there before is looked up. What is known of kinds changes
more often than nodes do, so lines are kept with the nodes, each with the kind that it was worked out from.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TypeAlias, cast

import numpy as np

from policies.shares.division import Column
from policies.shares.ground import Ground
from policies.shares.rates import Group, rates_of
from policies.shares.telling import Told, What, group_of
from policies.snapshot import Ints, KindView, Snapshot

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


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A group, its row of rates by column, and its class; None where it has no claim (weight 0) or can run nowhere now."""

    kind: KindView
    group: Group
    row: tuple[float, ...]
    of_class: Class | None


def lines_of(snapshot: Snapshot, ground: Ground, columns: tuple[Column, ...], told: Told) -> tuple[tuple[Line, ...], Ints]:
    """(lines, int64[E] each job's of them); worked out where they are new, or their kinds or the ground are not as they were."""
    kept = _kept(snapshot, ground, columns)
    if told.has_many:
        groups, of = told.groups()
        return tuple(kept.of(snapshot, ground, columns, groups)), of
    by_job = kept.of(snapshot, ground, columns, told.jobs())
    number = {line: g for g, line in enumerate(dict.fromkeys(by_job))}
    return tuple(number), np.array([number[line] for line in by_job], dtype=np.int64)


class _Kept:
    """Lines on the same ground by what their jobs are, and their classes by what theirs have in common."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.lines: dict[What, Line] = {}
        self.classes: dict[Like, Class] = {}

    def of(self, snapshot: Snapshot, ground: Ground, columns: tuple[Column, ...], asked: list[What]) -> list[Line]:
        """The line of each of these."""
        found = list(map(self.lines.get, asked))
        kinds, index = snapshot.kinds, snapshot.kind_index
        stale = {line for line in set(found) if line is None or line.kind is not kinds[index[line.group.kind]]}
        if not stale:
            return cast(list[Line], found)
        missing = dict.fromkeys([what for what, line in zip(asked, found, strict=True) if line in stale])
        if len(missing) + max(len(self.lines), len(self.classes)) > max(LINES_KEPT, 2 * len(set(found))):
            self.lines.clear()
            self.classes.clear()
            missing = dict.fromkeys(asked)
        self._add(snapshot, ground, columns, list(missing))
        return [self.lines[what] for what in asked]

    def _add(self, snapshot: Snapshot, ground: Ground, columns: tuple[Column, ...], missing: list[What]) -> None:
        groups = [group_of(what) for what in missing]
        rows = rates_of(snapshot, ground, groups, columns).tolist()
        for what, group, row in zip(missing, groups, map(tuple, rows), strict=True):
            kind = snapshot.kinds[snapshot.kind_index[group.kind]]
            self.lines[what] = Line(kind, group, row, self._class_of(group, row))

    def _class_of(self, group: Group, row: tuple[float, ...]) -> Class | None:
        if group.weight <= 0.0 or not any(row):
            return None
        like = (group.kind, group.gpus, group.weight, group.team, group.user, group.shares, group.job, row)
        if like not in self.classes:
            self.classes[like] = Class(like)
        return self.classes[like]


def _kept(snapshot: Snapshot, ground: Ground, columns: tuple[Column, ...]) -> _Kept:
    """Those of the round before if the ground was the same: nodes that stand may still have given more devices or fewer."""
    key = columns, ground.types, ground.type_of, ground.sizes
    kept: _Kept | None = snapshot.standing.get("lines")
    if kept is None or kept.key != key:
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
