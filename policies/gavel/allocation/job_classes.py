"""Like jobs by the thousand become classes: the rows of a problem (spec, Symmetry).

Jobs are first put into *groups*: same kind, GPUs, weight, team, willingness to share and condition
(types, labels, resources). A group has one row of rates, its line. Groups of like jobs whose
conditions come to the same row are one class.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from operator import attrgetter

import numpy as np

from policies.contract.job_columns import frozen
from policies.contract.snapshot import Floats, Ints, Snapshot
from policies.gavel.allocation.allocatable import Allocatable
from policies.gavel.allocation.grouping import MANY_JOBS, PLAIN, GroupingKey, GroupingOptions
from policies.gavel.allocation.lines import Class, Divided, Line, Lines
from policies.gavel.allocation.pair_rows import pair_rows
from policies.gavel.allocation.problem import AllocationProblem
from policies.gavel.allocation.rates import Group, columns_of

__all__ = ["PLAIN", "GroupingOptions", "JobClasses", "job_classes"]

PARTNERS = 32
"""With how many others a job may share its device where every job is a class; each with those that
it gets on with best.
"""

BY_LIKE = attrgetter("like")


@dataclass(frozen=True)
class JobClasses:
    """A problem with the names behind its numbers, for the E jobs that take part.

    `of` int64[E]: the class of each, -1 where it has no claim (weight 0) or can run nowhere now.
    `group_of` int64[E], `lines`: each group and its row T[m, c]. `keys[m]` names class m from one
    snapshot to the next; `entities` the team of each entity, once for each of its users where they
    are told apart.
    """

    problem: AllocationProblem
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
        return frozen(
            np.array(self.rate_lists, dtype=np.float64).reshape(
                len(self.lines), len(self.problem.columns)
            )
        )

    @cached_property
    def members(self) -> list[list[int]]:
        """By class its jobs, rising."""
        if len(self.of) < MANY_JOBS:
            found: list[list[int]] = [[] for _ in self.keys]
            for e, m in enumerate(self.class_list):
                if m >= 0:
                    found[m].append(e)
            return found
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
    def row_keys(self) -> tuple[str, ...]:
        """The key of each row: classes, then pairs of them. Two rows may have the same where ids of
        jobs have a plus.
        """
        pairs: list[list[int]] = self.problem.pairs.tolist()
        return (*self.keys, *[f"{self.keys[a]}+{self.keys[b]}" for a, b in pairs])

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        """Number of the row of each key, the last of those that have the same."""
        return {key: row for row, key in enumerate(self.row_keys)}

    def names_the_same(self, other: JobClasses) -> bool:
        """Whether it is sure at a glance that rows and columns have the same numbers in both."""
        one, two = self.problem, other.problem
        return self is other or (
            self.keys is other.keys and one.columns is two.columns and one.pairs is two.pairs
        )

    @cached_property
    def column_of(self) -> Mapping[str, int]:
        """Number of each column by its name."""
        return {
            f"{c.gpu_type} spread" if c.spread else c.gpu_type: i
            for i, c in enumerate(self.problem.columns)
        }

    @cached_property
    def fingerprint(self) -> str:
        """What shares depend on, in 32 characters: equal for equal problems of the same
        classes.
        """
        d = self.problem
        arrays = (d.gpus, d.rates, d.count, d.scale, d.weight, d.entity, d.pairs, d.pair_rates)
        told = [
            repr((self.keys, d.types, d.columns)).encode(),
            *[array.tobytes() for array in arrays],
        ]
        return blake2b(b"".join(told), digest_size=16).hexdigest()


def job_classes(
    snapshot: Snapshot, allocatable: Allocatable, rows: Ints, asked: GroupingOptions
) -> JobClasses:
    """The jobs of these rows as classes. Most rounds see the jobs and nodes of the one before:
    theirs is kept with all that it is made of. (Compared, not looked up: texts of the round before
    are the very same objects, and hashes of them all cost more.)
    """
    told = GroupingKey.of(snapshot.jobs.columns, rows, asked)
    key = (
        told,
        asked,
        allocatable.types,
        allocatable.type_of,
        allocatable.sizes,
        allocatable.shared if asked.pairs else (),
    )
    kept: tuple[Hashable, JobClasses] | None = snapshot.lasting.get("classes")
    if kept is not None and kept[0] == key:
        return kept[1]
    made = _Builder(snapshot, allocatable, told, asked).classes()
    snapshot.lasting["classes"] = key, made
    return made


class _Builder:
    def __init__(
        self,
        snapshot: Snapshot,
        allocatable: Allocatable,
        told: GroupingKey,
        asked: GroupingOptions,
    ) -> None:
        self.snapshot, self.allocatable, self.told, self.asked = snapshot, allocatable, told, asked
        self.columns = columns_of(snapshot, allocatable, spread=asked.spread)
        self.kept = Lines.on(snapshot, allocatable, self.columns)
        self.lines, self.group_of = self.kept.of(snapshot, allocatable, self.columns, told)

    def classes(self) -> JobClasses:
        """The problem, and who is where in it."""
        of, divided = self._by_job() if self.asked.jobs else self._by_class()
        count = np.bincount(of + 1, minlength=len(divided.keys) + 1)[1:]
        problem = divided.problem
        pairs, pair_rates = (
            self._pairs(divided, count) if self.asked.pairs else (problem.pairs, problem.pair_rates)
        )
        divided.problem = problem.of_jobs(frozen(count), pairs, pair_rates)
        return JobClasses(
            divided.problem,
            divided.keys,
            divided.entities,
            frozen(of),
            frozen(self.group_of),
            self.lines,
        )

    def _by_job(self) -> tuple[Ints, Divided]:
        """(class of each job, what is divided among whom): a class per job with a claim."""
        claims = np.array([line.of_class is not None for line in self.lines], dtype=np.bool_)
        with_claim = np.flatnonzero(claims[self.group_of])
        of = np.full(len(self.group_of), -1, dtype=np.int64)
        of[with_claim] = np.arange(len(with_claim))
        example = [self.lines[g] for g in self.group_of[with_claim].tolist()]
        return of, self._divided(
            example, tuple([self.told.ids[e] for e in with_claim.tolist()]), {}
        )

    def _by_class(self) -> tuple[Ints, Divided]:
        """The same by likeness; classes are in an order of their own, whoever comes first among the
        jobs. While jobs come and go one at a time, classes are mostly those of the round before.
        """
        example = {line.of_class: line for line in self.lines if line.of_class is not None}
        divided = self.kept.divided
        if divided is None or divided.number.keys() != example.keys():
            number = {of_class: m for m, of_class in enumerate(sorted(example, key=BY_LIKE))}
            divided = self._divided(
                [example[c] for c in number], tuple([c.key for c in number]), number
            )
            self.kept.divided = divided
        class_of = np.array(
            [divided.number[c] if (c := line.of_class) is not None else -1 for line in self.lines],
            dtype=np.int64,
        )
        return class_of[self.group_of], divided

    def _divided(
        self, example: Sequence[Line], keys: tuple[str, ...], number: Mapping[Class, int]
    ) -> Divided:
        """Classes of which these are examples, and a problem of theirs, but for how many jobs they
        have and who shares.
        """
        groups, columns = tuple([line.group for line in example]), self.columns
        entities, entity = self._entities(groups)
        type_of = {c.gpu_type: i for i, c in enumerate(columns) if not c.spread}
        problem = AllocationProblem(
            types=self.allocatable.types,
            gpus=frozen(self.allocatable.gpus.astype(np.float64)),
            columns=columns,
            column_type=_ints([type_of[c.gpu_type] for c in columns]),
            rates=frozen(
                np.array([line.row for line in example], dtype=np.float64).reshape(
                    len(groups), len(columns)
                )
            ),
            count=_ints([0] * len(groups)),
            scale=_ints([g.gpus for g in groups]),
            weight=frozen(np.array([g.weight for g in groups], dtype=np.float64)),
            entity=_ints(entity),
            pairs=_ints([]).reshape(0, 2),
            pair_rates=frozen(np.zeros((0, len(columns), 2))),
        )
        return Divided(keys, groups, entities, problem, number)

    def _entities(self, groups: Sequence[Group]) -> tuple[tuple[str, ...], list[int]]:
        """(the team of each entity, the entity of each class)."""
        number = {of: i for i, of in enumerate(sorted({(g.team, g.user) for g in groups}))}
        return tuple([team for team, _ in number]), [number[g.team, g.user] for g in groups]

    def _pairs(self, divided: Divided, count: Ints) -> tuple[Ints, Floats]:
        partners = PARTNERS if self.asked.jobs or self.asked.queues else None
        rates = divided.problem.rates
        pairs, pair_rates = pair_rows(
            self.snapshot, self.allocatable, divided.groups, count, self.columns, rates, partners
        )
        return frozen(pairs), frozen(pair_rates)


def _ints(values: list[int]) -> Ints:
    return frozen(np.array(values, dtype=np.int64))
