"""Like jobs by the thousand become classes: the rows of a division (spec, Symmetry).

Jobs are first put into *groups*: same kind, GPUs, weight, team, willingness to share and condition (types, labels, resources). A
group has one row of rates, its line. Groups of like jobs whose conditions come to the same row are one class.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from operator import attrgetter

import numpy as np

from policies.job_columns import frozen
from policies.shares.division import Division
from policies.shares.ground import Ground
from policies.shares.lines import Class, Line, lines_of
from policies.shares.pair_rows import pair_rows
from policies.shares.rates import Group, columns_of
from policies.shares.telling import PLAIN, Asked, Told
from policies.snapshot import Floats, Ints, Snapshot

__all__ = ["PLAIN", "Asked", "Classed", "classed"]

PARTNERS = 32
"""With how many others a job may share its device where every job is a class; each with those that it gets on with best."""

BY_LIKE = attrgetter("like")


@dataclass(frozen=True)
class Classed:
    """A division with the names behind its numbers, for the E jobs that take part.

    `of` int64[E]: the class of each, -1 where it has no claim (weight 0) or can run nowhere now. `group_of` int64[E], `lines`: each
    group and its row T[m, c]. `keys[m]` names class m from one snapshot to the next; `entities` the team of each entity, once for
    each of its users where they are told apart.
    """

    division: Division
    keys: tuple[str, ...]
    entities: tuple[str, ...]
    of: Ints
    group_of: Ints
    lines: tuple[Line, ...]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """What jobs of each group have in common."""
        return tuple([line.group for line in self.lines])

    @cached_property
    def rates(self) -> Floats:
        """float64[G, C]: steps/s of each group on each column."""
        return frozen(np.array(self.rate_lists, dtype=np.float64).reshape(len(self.lines), len(self.division.columns)))

    @cached_property
    def members(self) -> list[list[int]]:
        """By class its jobs, rising."""
        order = np.argsort(self.of, kind="stable")
        starts = np.searchsorted(self.of[order], np.arange(len(self.keys) + 1)).tolist()
        rising = order.tolist()
        return [rising[start:end] for start, end in pairwise(starts)]

    @cached_property
    def class_list(self) -> list[int]:
        """`of` for whoever looks at jobs one by one."""
        numbers: list[int] = self.of.tolist()
        return numbers

    @cached_property
    def group_list(self) -> list[int]:
        """`group_of` likewise."""
        numbers: list[int] = self.group_of.tolist()
        return numbers

    @cached_property
    def line_list(self) -> list[Line]:
        """The line of each job."""
        return [self.lines[g] for g in self.group_list]

    @cached_property
    def rate_lists(self) -> list[tuple[float, ...]]:
        """`rates` likewise."""
        return [line.row for line in self.lines]

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        """Number of the row of each key: classes, then pairs."""
        rows = len(self.keys) + len(self.division.pairs)
        pairs = [self.row_key(row) for row in range(len(self.keys), rows)]
        return dict(zip((*self.keys, *pairs), range(rows), strict=True))

    def row_key(self, row: int) -> str:
        """The key of a class, or after all classes of a pair of them."""
        if row < len(self.keys):
            return self.keys[row]
        a, b = self.division.pairs[row - len(self.keys)].tolist()
        return f"{self.keys[a]}+{self.keys[b]}"

    @cached_property
    def column_of(self) -> Mapping[str, int]:
        """Number of each column by its name."""
        return {f"{c.gpu_type} spread" if c.spread else c.gpu_type: i for i, c in enumerate(self.division.columns)}

    @cached_property
    def fingerprint(self) -> str:
        """What shares depend on, in 32 characters: equal for equal divisions of the same classes."""
        d = self.division
        arrays = (d.gpus, d.rates, d.count, d.scale, d.weight, d.entity, d.pairs, d.pair_rates)
        told = [repr((self.keys, d.types, d.columns)).encode(), *[array.tobytes() for array in arrays]]
        return blake2b(b"".join(told), digest_size=16).hexdigest()


def classed(snapshot: Snapshot, ground: Ground, rows: Ints, asked: Asked) -> Classed:
    """The jobs of these rows as classes. Most rounds see the jobs and nodes of the one before: theirs is kept with all that it is
    made of. (Compared, not looked up: texts of the round before are the very same objects, and hashes of them all cost more.)
    """
    told = Told.of(snapshot.jobs.columns, rows, asked)
    key = (told, asked, ground.types, ground.type_of, ground.sizes, ground.shared if asked.pairs else ())
    kept: tuple[Hashable, Classed] | None = snapshot.lasting.get("classes")
    if kept is not None and kept[0] == key:
        return kept[1]
    made = _Builder(snapshot, ground, told, asked).classes()
    snapshot.lasting["classes"] = key, made
    return made


class _Builder:
    def __init__(self, snapshot: Snapshot, ground: Ground, told: Told, asked: Asked) -> None:
        self.snapshot, self.ground, self.told, self.asked = snapshot, ground, told, asked
        self.columns = columns_of(snapshot, ground, spread=asked.spread)
        self.lines, self.group_of = lines_of(snapshot, ground, self.columns, told)

    def classes(self) -> Classed:
        """The division, and who is where in it."""
        of, keys, example = self._by_job() if self.asked.jobs else self._by_class()
        division, entities = self._division(of, example)
        return Classed(division, keys, entities, frozen(of), frozen(self.group_of), self.lines)

    def _by_job(self) -> tuple[Ints, tuple[str, ...], list[Line]]:
        """(class of each job, key of each class, the line whose rates it has): a class per job with a claim."""
        claims = np.array([line.of_class is not None for line in self.lines], dtype=np.bool_)
        with_claim = np.flatnonzero(claims[self.group_of])
        of = np.full(len(self.group_of), -1, dtype=np.int64)
        of[with_claim] = np.arange(len(with_claim))
        example = [self.lines[g] for g in self.group_of[with_claim].tolist()]
        return of, tuple([self.told.ids[e] for e in with_claim.tolist()]), example

    def _by_class(self) -> tuple[Ints, tuple[str, ...], list[Line]]:
        """The same by likeness; classes are in an order of their own, whoever comes first among the jobs."""
        example: dict[Class, Line] = {line.of_class: line for line in self.lines if line.of_class is not None}
        classes = sorted(example, key=BY_LIKE)
        number: dict[Class | None, int] = {of_class: m for m, of_class in enumerate(classes)}
        class_of = np.array([number.get(line.of_class, -1) for line in self.lines], dtype=np.int64)
        return class_of[self.group_of], tuple([c.key for c in classes]), [example[c] for c in classes]

    def _division(self, of: Ints, example: Sequence[Line]) -> tuple[Division, tuple[str, ...]]:
        groups, columns = [line.group for line in example], self.columns
        entities, entity = self._entities(groups)
        number = {c.gpu_type: i for i, c in enumerate(columns) if not c.spread}
        count = np.bincount(of + 1, minlength=len(groups) + 1)[1:]
        rates = np.array([line.row for line in example], dtype=np.float64).reshape(len(groups), len(columns))
        partners = PARTNERS if self.asked.jobs or self.asked.queues else None
        pairs, pair_rates = pair_rows(self.snapshot, self.ground, groups, count, columns, rates, partners)
        division = Division(
            types=self.ground.types,
            gpus=frozen(self.ground.gpus.astype(np.float64)),
            columns=columns,
            column_type=frozen(np.array([number[c.gpu_type] for c in columns], dtype=np.int64)),
            rates=frozen(rates),
            count=frozen(count),
            scale=frozen(np.array([g.gpus for g in groups], dtype=np.int64)),
            weight=frozen(np.array([g.weight for g in groups], dtype=np.float64)),
            entity=frozen(entity),
            pairs=frozen(pairs),
            pair_rates=frozen(pair_rates),
        )
        return division, entities

    def _entities(self, groups: Sequence[Group]) -> tuple[tuple[str, ...], Ints]:
        """(the team of each entity, int64[M] the entity of each class)."""
        if not self.asked.teams and not self.asked.users:
            return ("",) if groups else (), np.zeros(len(groups), dtype=np.int64)
        entities = sorted({(g.team, g.user) for g in groups})
        number = {of: i for i, of in enumerate(entities)}
        entity = np.array([number[g.team, g.user] for g in groups], dtype=np.int64)
        return tuple([team for team, _ in entities]), entity
