"""Like jobs by the thousand become classes: the rows of a division (spec, Symmetry), in a few operations on arrays.

Jobs are first put into *groups*: same kind, GPUs, weight, team, willingness to share and condition (types, labels, resources). A
group has one row of rates. Groups of like jobs whose conditions come to the same row are one class.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from policies.job_columns import frozen
from policies.shares.division import Division
from policies.shares.ground import NOTHING, Condition, Ground
from policies.shares.pair_rows import pair_rows
from policies.shares.rates import Group, columns_of, rates_of
from policies.snapshot import Floats, Ints, JobColumns, Snapshot

LARGEST_CODE = 2**62

NAMES_KEPT = 4096
"""Of classes: they are the same from round to round, and a name costs ten look-ups."""

PARTNERS = 32
"""With how many others a job may share its device where every job is a class; each with those that it gets on with best."""

Like: TypeAlias = tuple[str, int, float, str, str, bool, str, tuple[float, ...]]
"""What jobs of a class have in common: kind, GPUs, weight, team, user, whether they share, the one job in a queue, row of rates."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a policy's division distinguishes.

    `spread`: time on several nodes has columns of its own, where kinds know how fast they are there. `pairs`: jobs that may share
    devices have rows together. `teams`: classes are of one team, the entity; with `users` of one of its users, an entity each.
    `queues`: of these teams every job is a class of its own, and users are not told apart. `jobs`: every job of all teams is.
    """

    spread: bool = False
    pairs: bool = False
    teams: bool = False
    users: bool = False
    jobs: bool = False
    queues: frozenset[str] = frozenset()


PLAIN = Asked()
"""Nothing but kinds, GPUs, weights and conditions."""

NO_CONDITION = Condition()


@dataclass(frozen=True)
class Classed:
    """A division with the names behind its numbers, for the E jobs that take part.

    `of` int64[E]: the class of each, -1 where it has no claim (weight 0) or can run nowhere now. `group_of` int64[E], `groups`,
    `rates` float64[G, C]: each group's row, T[m, c]. `keys[m]` names class m from one snapshot to the next;
    `entities` the team of each entity, once for each of its users where they are told apart.
    """

    division: Division
    keys: tuple[str, ...]
    entities: tuple[str, ...]
    of: Ints
    group_of: Ints
    groups: tuple[Group, ...]
    rates: Floats

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
    def rate_lists(self) -> list[list[float]]:
        """`rates` likewise."""
        rates: list[list[float]] = self.rates.tolist()
        return rates

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        """Number of the row of each key: classes, then pairs."""
        return {self.row_key(row): row for row in range(len(self.keys) + len(self.division.pairs))}

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
        made = blake2b(repr((self.keys, d.types, d.columns)).encode(), digest_size=16)
        for array in (d.gpus, d.rates, d.count, d.scale, d.weight, d.entity, d.pairs, d.pair_rates):
            made.update(np.ascontiguousarray(array).tobytes())
        return made.hexdigest()


def classed(snapshot: Snapshot, ground: Ground, rows: Ints, asked: Asked) -> Classed:
    """The jobs of these rows as classes. Most rounds see the jobs and nodes of the one before: theirs is kept with all that it is
    made of. (Compared, not looked up: texts of the round before are the very same objects, and hashes of them all cost more.)
    """
    told = _Told.of(snapshot.jobs.columns, rows, asked)
    key = (told.key, asked, ground.types, ground.type_of, ground.sizes, ground.shared if asked.pairs else ())
    kept: tuple[Hashable, Classed] | None = snapshot.lasting.get("classes")
    if kept is not None and kept[0] == key:
        return kept[1]
    made = _Builder(snapshot, ground, told, asked).classes()
    snapshot.lasting["classes"] = key, made
    return made


@dataclass(frozen=True, slots=True)
class _Told:
    """What tells jobs apart, by column; `demands` is empty where nobody uses anything but GPUs, `ids` where likeness counts,
    `queued` where nobody is in a queue.
    """

    ids: tuple[str, ...]
    kinds: tuple[str, ...]
    gpus: Ints
    weight: Floats
    types: tuple[Any, ...]
    labels: tuple[Any, ...]
    teams: tuple[Any, ...]
    shares: tuple[Any, ...]
    demands: tuple[Any, ...]
    queued: tuple[str, ...] = ()
    users: tuple[str, ...] = ()

    @classmethod
    def of(cls, columns: JobColumns, rows: Ints, asked: Asked) -> _Told:
        """Of the jobs in these rows."""
        at = None if len(rows) == len(columns.ids) else rows.tolist()
        others, teams = columns.others, _taken(columns.others["team"], at)
        ids = _taken(columns.ids, at) if asked.jobs or asked.queues else ()
        return cls(
            ids=ids if asked.jobs else (),
            kinds=_taken(columns.kinds, at),
            gpus=columns.counts["gpus_min"][rows],
            weight=columns.numbers["weight"][rows],
            types=_taken(others["allowed_types"], at),
            labels=_taken(others["labels"], at),
            teams=teams if asked.teams else (),
            shares=_taken(others["may_share"], at) if asked.pairs else (),
            demands=() if columns.gpus_only else _demands(columns, rows.tolist()),
            queued=tuple([job if team in asked.queues else "" for job, team in zip(ids, teams, strict=True)])
            if asked.queues
            else (),
            users=_users(_taken(others["user"], at), teams, asked.queues) if asked.users else (),
        )

    @property
    def key(self) -> Hashable:
        """All of it, to be compared."""
        texts = (self.ids, self.kinds, self.types, self.labels, self.teams, self.shares, self.demands, self.queued, self.users)
        return (texts, self.gpus.tobytes(), self.weight.tobytes())

    def group(self, e: int) -> Group:
        """The group of job e; a device is shared by two jobs of one GPU each."""
        types, labels, demand = self.types[e], self.labels[e], self.demands[e] if self.demands else NOTHING
        condition = Condition(types, labels, demand) if types or labels or demand is not NOTHING else NO_CONDITION
        gpus = int(self.gpus[e])
        shares = bool(self.shares) and gpus == 1 and bool(self.shares[e])
        team, job, user = _at(self.teams, e), _at(self.queued, e), _at(self.users, e)
        return Group(self.kinds[e], gpus, float(self.weight[e]), team, shares, condition, job, user)


def _at(texts: tuple[str, ...], e: int) -> str:
    return texts[e] if texts else ""


def _taken(values: tuple[Any, ...], at: list[int] | None) -> tuple[Any, ...]:
    return values if at is None else tuple([values[i] for i in at])


def _users(users: Sequence[str], teams: Sequence[str], queues: frozenset[str]) -> tuple[str, ...]:
    """Whose job it is; nobody's where the team has a queue."""
    return tuple(["" if team in queues else user for user, team in zip(users, teams, strict=True)])


def _demands(columns: JobColumns, rows: Iterable[int]) -> tuple[Any, ...]:
    units, resources = columns.counts["units"].tolist(), columns.others["resources"]
    cores, memory_gb = columns.numbers["cores"].tolist(), columns.numbers["memory_gb"].tolist()
    return tuple([(units[i], cores[i], memory_gb[i], resources[i]) for i in rows])


class _Builder:
    def __init__(self, snapshot: Snapshot, ground: Ground, told: _Told, asked: Asked) -> None:
        self.snapshot, self.ground, self.told, self.asked = snapshot, ground, told, asked
        self.columns = columns_of(snapshot, ground, spread=asked.spread)
        first, self.group_of = _grouped(told)
        self.groups = tuple(told.group(e) for e in first)
        self.rates = rates_of(snapshot, ground, self.groups, self.columns)

    def classes(self) -> Classed:
        """The division, and who is where in it."""
        claims = np.array([g.weight > 0.0 for g in self.groups], dtype=np.bool_) & self.rates.any(axis=1)
        of, keys, example = self._by_job(claims) if self.asked.jobs else self._by_class(claims)
        division, entities = self._division(of, example)
        return Classed(division, keys, entities, frozen(of), frozen(self.group_of), self.groups, frozen(self.rates))

    def _by_job(self, claims: Any) -> tuple[Ints, tuple[str, ...], list[int]]:
        """(class of each job, key of each class, a group whose rates it has): a class per job with a claim."""
        with_claim = np.flatnonzero(claims[self.group_of])
        of = np.full(len(self.group_of), -1, dtype=np.int64)
        of[with_claim] = np.arange(len(with_claim))
        return of, tuple(self.told.ids[e] for e in with_claim), self.group_of[with_claim].tolist()

    def _by_class(self, claims: Any) -> tuple[Ints, tuple[str, ...], list[int]]:
        """The same by likeness; classes are in an order of their own, whoever comes first among the jobs."""
        like = [self._like(g) if claims[g] else None for g in range(len(self.groups))]
        first: dict[Like, int] = {}
        for g, key in enumerate(like):
            if key is not None:
                first.setdefault(key, g)
        number = {key: m for m, key in enumerate(sorted(first))}
        class_of = np.array([-1 if key is None else number[key] for key in like], dtype=np.int64)
        example = [first[key] for key in number]
        return class_of[self.group_of], tuple(map(_name, number)), example

    def _like(self, g: int) -> Like:
        group = self.groups[g]
        row = tuple(self.rates[g].tolist())
        return group.kind, group.gpus, group.weight, group.team, group.user, group.shares, group.job, row

    def _division(self, of: Ints, example: Sequence[int]) -> tuple[Division, tuple[str, ...]]:
        groups = [self.groups[g] for g in example]
        entities = sorted({(g.team, g.user) for g in groups})
        number = {c.gpu_type: i for i, c in enumerate(self.columns) if not c.spread}
        count = np.bincount(of[of >= 0], minlength=len(groups)).astype(np.int64)
        rates = self.rates[list(example)].reshape(len(groups), len(self.columns))
        partners = PARTNERS if self.asked.jobs or self.asked.queues else None
        pairs, pair_rates = pair_rows(self.snapshot, self.ground, groups, count, self.columns, rates, partners)
        division = Division(
            types=self.ground.types,
            gpus=frozen(self.ground.gpus.astype(np.float64)),
            columns=self.columns,
            column_type=frozen(np.array([number[c.gpu_type] for c in self.columns], dtype=np.int64)),
            rates=frozen(rates),
            count=frozen(count),
            scale=frozen(np.array([g.gpus for g in groups], dtype=np.int64)),
            weight=frozen(np.array([g.weight for g in groups], dtype=np.float64)),
            entity=frozen(np.array([entities.index((g.team, g.user)) for g in groups], dtype=np.int64)),
            pairs=frozen(pairs),
            pair_rates=frozen(pair_rates),
        )
        return division, tuple(team for team, _ in entities)


@lru_cache(maxsize=NAMES_KEPT)
def _name(like: Like) -> str:
    """A short name for a class: what its jobs are and where they can run, not how fast, which is measured anew all the time."""
    *what, job, row = like
    if job:
        return job
    where = "".join("1" if rate > 0.0 else "0" for rate in row)
    return blake2b(repr((what, where)).encode(), digest_size=8).hexdigest()


def _grouped(told: _Told) -> tuple[list[int], Ints]:
    """(a job of each group, int64[E] the group of each job)."""
    texts = (told.kinds, told.types, told.labels, told.teams, told.shares, told.demands, told.queued, told.users)
    codes = [_codes(values) for values in texts if values]
    codes += [_number_codes(values) for values in (told.gpus, told.weight)]
    size, code = 1, np.zeros(len(told.kinds), dtype=np.int64)
    for many, numbers in codes:
        if size * many > LARGEST_CODE:
            found, code = np.unique(code, return_inverse=True)
            size = len(found)
        size, code = size * many, code * many + numbers
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return first.tolist(), inverse.astype(np.int64)


def _codes(values: tuple[Hashable, ...]) -> tuple[int, Any]:
    """(how many different values, the number of each)."""
    number = {value: i for i, value in enumerate(dict.fromkeys(values))}
    if len(number) <= 1:
        return 1, 0
    return len(number), np.fromiter(map(number.__getitem__, values), dtype=np.int64, count=len(values))


def _number_codes(values: Ints | Floats) -> tuple[int, Any]:
    if not len(values) or values.min() == values.max():
        return 1, 0
    found, inverse = np.unique(values, return_inverse=True)
    return len(found), inverse
