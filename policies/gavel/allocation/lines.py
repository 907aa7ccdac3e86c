"""What follows of a group of like jobs and the nodes: its row of rates, and with whom it is a
class. Kept from round to round.

Jobs come and go one at a time and are of few kinds: a group that was there before is looked up.
What is known of kinds changes more often than nodes do, so lines are kept with the nodes, each with
the kind that it was worked out from.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TypeAlias, cast

import numpy as np

from policies.contract.snapshot import Ints, KindView, Snapshot
from policies.gavel.allocation.allocatable import Allocatable
from policies.gavel.allocation.grouping import GroupingKey, What, group_of
from policies.gavel.allocation.problem import AllocationProblem, Column
from policies.gavel.allocation.rates import Group, rates_of

NAMES_KEPT = 4096
"""Of classes: they are the same whatever the nodes, and a name costs ten look-ups."""

LINES_KEPT = 4096
"""At least; beyond, and beyond twice as many as a round needs, those of jobs that have gone would
pile up.
"""

Like: TypeAlias = tuple[str, int, float, str, str, bool, str, tuple[float, ...]]
"""What jobs of a class have in common: kind, GPUs, weight, team, user, whether they share, the one
job in a queue, row of rates.
"""


class Class:
    """What jobs of a class have in common; there is one of each `like` among the lines kept
    together.
    """

    __slots__ = ("_key", "like")

    def __init__(self, like: Like) -> None:
        self.like, self._key = like, ""

    @property
    def key(self) -> str:
        """The name of the class from one snapshot to the next; made when it is asked for."""
        if not self._key:
            self._key = _name(self.like)
        return self._key


@dataclass(slots=True, eq=False)
class Line:
    """A group, its row of rates by column, and its class; None where it has no claim (weight 0) or
    can run nowhere now.

    Never written to (not frozen, which makes thousands of them at once take twice as long), and the
    same only as itself.
    """

    kind: KindView
    group: Group
    row: tuple[float, ...]
    of_class: Class | None


@dataclass(slots=True)
class Divided:
    """Classes in their order: their `keys`, a group of each, the teams of their `entities`; and the
    problem last made of them.

    `number` of each class, empty where every job is one.
    """

    keys: tuple[str, ...]
    groups: tuple[Group, ...]
    entities: tuple[str, ...]
    problem: AllocationProblem
    number: Mapping[Class, int]


class Lines:
    """Lines on the same nodes (`key`), their classes, and the classes `divided` last."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.lines: dict[What, Line] = {}
        self.classes: dict[Like, Class] = {}
        self.divided: Divided | None = None

    @classmethod
    def on(cls, snapshot: Snapshot, allocatable: Allocatable, columns: tuple[Column, ...]) -> Lines:
        """Those of the round before if the allocatable devices were the same."""
        key = columns, allocatable.types, allocatable.type_of, allocatable.sizes
        kept: Lines | None = snapshot.standing.get("lines")
        if kept is None or kept.key != key:
            kept = snapshot.standing["lines"] = cls(key)
        return kept

    def of(
        self,
        snapshot: Snapshot,
        allocatable: Allocatable,
        columns: tuple[Column, ...],
        told: GroupingKey,
    ) -> tuple[tuple[Line, ...], Ints]:
        """(lines, int64[E] which of them is each job's); worked out where they are new, or their
        kinds not as they were.
        """
        if told.has_many:
            groups, of = told.groups()
            return tuple(self._found(snapshot, allocatable, columns, groups)), of
        by_job = self._found(snapshot, allocatable, columns, told.jobs())
        number = {line: g for g, line in enumerate(dict.fromkeys(by_job))}
        return tuple(number), np.array([number[line] for line in by_job], dtype=np.int64)

    def _found(
        self,
        snapshot: Snapshot,
        allocatable: Allocatable,
        columns: tuple[Column, ...],
        asked: list[What],
    ) -> list[Line]:
        found = list(map(self.lines.get, asked))
        kinds, index = snapshot.kinds, snapshot.kind_index
        stale = {
            line
            for line in set(found)
            if line is None or line.kind is not kinds[index[line.group.kind]]
        }
        if not stale:
            return cast("list[Line]", found)
        missing = [what for what, line in zip(asked, found, strict=True) if line in stale]
        if len(missing) + max(len(self.lines), len(self.classes)) > max(LINES_KEPT, 2 * len(asked)):
            self.lines.clear()
            self.classes.clear()
            missing = asked
        self._add(snapshot, allocatable, columns, list(dict.fromkeys(missing)))
        return [self.lines[what] for what in asked]

    def _add(
        self,
        snapshot: Snapshot,
        allocatable: Allocatable,
        columns: tuple[Column, ...],
        missing: list[What],
    ) -> None:
        groups, kinds, index = (
            [group_of(what) for what in missing],
            snapshot.kinds,
            snapshot.kind_index,
        )
        rows = rates_of(snapshot, allocatable, groups, columns).tolist()
        for what, group, row in zip(missing, groups, map(tuple, rows), strict=True):
            self.lines[what] = Line(
                kinds[index[group.kind]], group, row, self._class_of(group, row)
            )

    def _class_of(self, group: Group, row: tuple[float, ...]) -> Class | None:
        if group.weight <= 0.0 or not any(row):
            return None
        like = (
            group.kind,
            group.gpus,
            group.weight,
            group.team,
            group.user,
            group.shares,
            group.job,
            row,
        )
        found = self.classes.get(like)
        if found is None:
            found = self.classes[like] = Class(like)
        return found


@lru_cache(maxsize=NAMES_KEPT)
def _name(like: Like) -> str:
    """A short name for a class: what its jobs are and where they can run, not how fast, which is
    measured anew all the time.
    """
    *what, job, row = like
    if job:
        return job
    where = "".join("1" if rate > 0.0 else "0" for rate in row)
    return blake2b(repr((what, where)).encode(), digest_size=8).hexdigest()
