"""What tells jobs apart in a problem, and the groups of those that nothing tells apart."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from policies.contract.snapshot import Floats, Ints, JobColumns
from policies.gavel.allocation.allocatable import NOTHING, Condition
from policies.gavel.allocation.rates import Group

LARGEST_CODE = 2**62

MANY_JOBS = 1000
"""From so many on jobs are grouped column by column in operations on arrays; fewer are looked up
one by one in less time.
"""

NO_CONDITION = Condition()

What: TypeAlias = tuple[str, int, float, tuple[str, ...], tuple[str, ...], tuple[Any, ...]]
"""All that tells a job apart: kind, GPUs, weight, allowed types, labels; and what `USUAL` has, ()
where nothing of that is told.
"""


@dataclass(frozen=True, slots=True)
class GroupingOptions:
    """What a policy's problem distinguishes.

    `spread`: time on several nodes has columns of its own, where kinds know how fast they are
    there. `pairs`: jobs that may share devices have rows together. `teams`: classes are of one
    team, the entity; with `users` of one of its users, an entity each. `queues`: of these teams
    every job is a class of its own, and users are not told apart. `jobs`: every job of all teams
    is.
    """

    spread: bool = False
    pairs: bool = False
    teams: bool = False
    users: bool = False
    jobs: bool = False
    queues: frozenset[str] = frozenset()


PLAIN = GroupingOptions()
"""Nothing but kinds, GPUs, weights and conditions."""


class GroupingKey(NamedTuple):
    """What tells E jobs apart, by column, to be compared; () for a column by which they are not
    told apart.

    `gpus` int64[E] and `weight` float64[E] as bytes: compared at once. `demands` is empty where
    nobody uses anything but GPUs, `ids` where likeness counts, `queued` where nobody is in a queue.
    """

    kinds: tuple[str, ...]
    gpus: bytes
    weight: bytes
    types: tuple[Any, ...]
    labels: tuple[Any, ...]
    teams: tuple[Any, ...] = ()
    shares: tuple[Any, ...] = ()
    demands: tuple[Any, ...] = ()
    queued: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, columns: JobColumns, rows: Ints, asked: GroupingOptions) -> GroupingKey:
        """Of the jobs in these rows."""
        others, gpus, weight = columns.others, columns.counts["gpus_min"], columns.numbers["weight"]
        if len(rows) == len(columns.ids):
            at, kinds, types, labels = (
                None,
                columns.kinds,
                others["allowed_types"],
                others["labels"],
            )
        else:
            at, gpus, weight = rows.tolist(), gpus[rows], weight[rows]
            kinds, types, labels = (
                _taken(of, at) for of in (columns.kinds, others["allowed_types"], others["labels"])
            )
        demands = () if columns.gpus_only else _demands(columns, rows.tolist())
        shares = _taken(others["may_share"], at) if asked.pairs else ()
        plain = cls(
            kinds, gpus.tobytes(), weight.tobytes(), types, labels, shares=shares, demands=demands
        )
        return (
            plain._with_owners(columns, at, asked)
            if asked.teams or asked.jobs or asked.queues or asked.users
            else plain
        )

    def _with_owners(
        self, columns: JobColumns, at: list[int] | None, asked: GroupingOptions
    ) -> GroupingKey:
        ids, teams = _taken(columns.ids, at), _taken(columns.others["team"], at)
        queued = zip(ids, teams, strict=True) if asked.queues else ()
        return self._replace(
            ids=ids if asked.jobs else (),
            teams=teams if asked.teams else (),
            queued=tuple([job if team in asked.queues else "" for job, team in queued]),
            users=_users(_taken(columns.others["user"], at), teams, asked.queues)
            if asked.users
            else (),
        )

    @property
    def has_many(self) -> bool:
        """Whether to look at groups of jobs, not at jobs."""
        return len(self.kinds) >= MANY_JOBS

    def groups(self) -> tuple[list[What], Ints]:
        """(what the jobs of each group are, int64[E] the group of each job), in a few operations on
        arrays.
        """
        first, group_of = self._grouped()
        return self._jobs(first), group_of

    def jobs(self) -> list[What]:
        """What each job is."""
        return self._jobs(None)

    def _jobs(self, at: list[int] | None) -> list[What]:
        """What these jobs are; None for all of them."""
        gpus, weight = (of if at is None else of[at] for of in (self._gpus, self._weight))
        kinds, types, labels = (_taken(of, at) for of in (self.kinds, self.types, self.labels))
        return list(
            zip(kinds, gpus.tolist(), weight.tolist(), types, labels, self._rest(at), strict=False)
        )

    def _rest(self, at: list[int] | None) -> Iterable[tuple[Any, ...]]:
        """Of these jobs what few policies ask for; () for each, without end, where nothing of it is
        told.
        """
        columns = (self.teams, self.shares, self.demands, self.queued, self.users)
        if not any(columns):
            return repeat(())
        return zip(
            *[
                _taken(of, at) if of else repeat(usual)
                for of, usual in zip(columns, USUAL, strict=True)
            ],
            strict=False,
        )

    @property
    def _gpus(self) -> Ints:
        return np.frombuffer(self.gpus, dtype=np.int64)

    @property
    def _weight(self) -> Floats:
        return np.frombuffer(self.weight, dtype=np.float64)

    def _grouped(self) -> tuple[list[int], Ints]:
        """(a job of each group, int64[E] the group of each job)."""
        texts = (
            self.kinds,
            self.types,
            self.labels,
            self.teams,
            self.shares,
            self.demands,
            self.queued,
            self.users,
        )
        codes = [_codes(values) for values in texts if values]
        codes += [_number_codes(values) for values in (self._gpus, self._weight)]
        size, code = 1, np.zeros(len(self.kinds), dtype=np.int64)
        for many, numbers in codes:
            if size * many > LARGEST_CODE:
                found, code = np.unique(code, return_inverse=True)
                size = len(found)
            size, code = size * many, code * many + numbers
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return first.tolist(), inverse.astype(np.int64)


USUAL = ("", False, NOTHING, "", "")
"""Team, whether it shares, demand, itself in a queue, user: of a job that is not told apart by
them.
"""


def group_of(what: What) -> Group:
    """The group of jobs that are this; a device is shared by two jobs of one GPU each."""
    kind, gpus, weight, types, labels, rest = what
    team, shares, demand, job, user = rest or USUAL
    condition = (
        Condition(types, labels, demand)
        if types or labels or demand is not NOTHING
        else NO_CONDITION
    )
    return Group(kind, gpus, weight, team, shares and gpus == 1, condition, job, user)


def _taken(values: tuple[Any, ...], at: list[int] | None) -> tuple[Any, ...]:
    return values if at is None else tuple([values[i] for i in at])


def _users(users: Sequence[str], teams: Sequence[str], queues: frozenset[str]) -> tuple[str, ...]:
    """Whose job it is; nobody's where the team has a queue."""
    return tuple(["" if team in queues else user for user, team in zip(users, teams, strict=True)])


def _demands(columns: JobColumns, rows: Iterable[int]) -> tuple[Any, ...]:
    units, resources = columns.counts["units"].tolist(), columns.others["resources"]
    cores, memory_gb = columns.numbers["cores"].tolist(), columns.numbers["memory_gb"].tolist()
    return tuple([(units[i], cores[i], memory_gb[i], resources[i]) for i in rows])


def _codes(values: tuple[Hashable, ...]) -> tuple[int, Any]:
    """(how many different values, the number of each)."""
    number = {value: i for i, value in enumerate(dict.fromkeys(values))}
    if len(number) <= 1:
        return 1, 0
    return len(number), np.fromiter(
        map(number.__getitem__, values), dtype=np.int64, count=len(values)
    )


def _number_codes(values: Ints | Floats) -> tuple[int, Any]:
    if not len(values) or values.min() == values.max():
        return 1, 0
    found, inverse = np.unique(values, return_inverse=True)
    return len(found), inverse
