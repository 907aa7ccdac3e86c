"""Groups of equal jobs, and what they are equal in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

from policies.contract.snapshot import JobColumns

GroupKey: TypeAlias = tuple[Any, ...]
"""The fields of a `JobGroup`."""


@dataclass(frozen=True, slots=True)
class GroupingOptions:
    """What a policy's job classes distinguish.

    `spread`: time on several nodes has columns of its own. `pairs`: jobs that may share devices
    have rows together. `teams`: a class is of one team; with `users` of one user of it. `queues`:
    every job of these teams is a class. `jobs`: every job of all teams is.
    """

    spread: bool = False
    pairs: bool = False
    teams: bool = False
    users: bool = False
    jobs: bool = False
    queues: frozenset[str] = frozenset()


class JobGroup(NamedTuple):
    """What jobs of a group have in common. `demand`: what they use of a node beside GPUs.

    `queued`: the id of the one job whose position in its team's queue matters; `user`: the owner
    where users are told apart.
    """

    kind: str
    gpus: int
    weight: float
    types: tuple[str, ...]
    labels: tuple[str, ...]
    team: str
    shares: bool
    demand: tuple[Any, ...]
    queued: str
    user: str


def group_keys(columns: JobColumns, options: GroupingOptions) -> list[GroupKey]:
    """Return by row what groups distinguish of a job."""
    others = columns.others
    of = zip(
        columns.kinds,
        columns.counts["gpus_min"].tolist(),
        columns.numbers["weight"].tolist(),
        others["allowed_types"],
        others["labels"],
        others["team"] if options.teams else repeat(""),
        others["may_share"] if options.pairs else repeat(False),
        repeat(()) if columns.gpus_only else _demands(columns),
        _queued(columns, options.queues) if options.queues else repeat(""),
        _users(columns, options.queues) if options.users else repeat(""),
        strict=False,
    )
    return list(of)


def group_of(key: GroupKey) -> JobGroup:
    """Return the group of this key; a device is shared by two jobs of one GPU each."""
    group = JobGroup(*key)
    return group._replace(shares=False) if group.gpus > 1 else group


def _demands(columns: JobColumns) -> Iterable[tuple[Any, ...]]:
    numbers = (columns.numbers[name].tolist() for name in ("cores", "memory_gb"))
    return zip(columns.counts["units"].tolist(), *numbers, columns.others["resources"], strict=True)


def _queued(columns: JobColumns, queues: frozenset[str]) -> Iterable[str]:
    teams = columns.others["team"]
    return (job if team in queues else "" for job, team in zip(columns.ids, teams, strict=True))


def _users(columns: JobColumns, queues: frozenset[str]) -> Iterable[str]:
    """The owner of each job; nobody where the team has a queue."""
    owners = zip(columns.others["user"], columns.others["team"], strict=True)
    return ("" if team in queues else user for user, team in owners)
