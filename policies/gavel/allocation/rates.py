"""Groups of equal jobs, and how fast each runs on the columns of what is free before a round."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

from policies.contract.snapshot import JobColumns
from policies.gavel.allocation.problem import Column
from policies.placement.cluster_state import ClusterState
from policies.placement.priced_options import JobRequests
from policies.placement.speed import Speeds

GroupKey: TypeAlias = tuple[Any, ...]
"""The fields of a `JobGroup`."""


@dataclass(frozen=True, slots=True)
class GroupingOptions:
    """Distinctions of a policy's job classes.

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
    """Common properties of a group's jobs.

    `constraints`: types, labels, and resources of a node beside GPUs; `queued`: the id of a job
    whose queue position matters; `user`: the owner where users are told apart.
    """

    kind: str
    gpus: int
    weight: float
    constraints: tuple[tuple[str, ...], tuple[str, ...], tuple[Any, ...]]
    team: str
    shares: bool
    queued: str
    user: str


def group_keys(columns: JobColumns, options: GroupingOptions) -> list[GroupKey]:
    """Return by row what groups distinguish of a job."""
    others, queues = columns.others, options.queues
    owned = zip(columns.ids, others["team"], strict=True)
    users = zip(others["user"], others["team"], strict=True)
    demands = repeat(()) if columns.gpus_only else _demands(columns)
    of = zip(
        columns.kinds,
        columns.counts["gpus_min"].tolist(),
        columns.numbers["weight"].tolist(),
        zip(others["allowed_types"], others["labels"], demands, strict=False),
        others["team"] if options.teams else repeat(""),
        others["may_share"] if options.pairs else repeat(False),
        [job if team in queues else "" for job, team in owned] if queues else repeat(""),
        # a team with a queue has no users
        ["" if team in queues else user for user, team in users] if options.users else repeat(""),
        strict=False,
    )
    return list(of)


def group_of(key: GroupKey) -> JobGroup:
    """Return the group of this key; a device is shared by two jobs of one GPU each."""
    group = JobGroup(*key)
    return group._replace(shares=False) if group.shares and group.gpus > 1 else group


def _demands(columns: JobColumns) -> Iterable[tuple[Any, ...]]:
    numbers = (columns.numbers[name].tolist() for name in ("cores", "memory_gb"))
    return zip(*numbers, columns.others["resources"], strict=True)


def columns_of(types: Sequence[str], known: Collection[str]) -> tuple[Column, ...]:
    """Return a column for each type, and one for several nodes of it if a speed is known there."""
    return (*[Column(t) for t in types], *[Column(t, True) for t in types if t in known])


def spread_types(
    speeds: Speeds,
    groups: Sequence[JobGroup],
    wide: Sequence[bool],
    types: Iterable[str],
    *,
    narrow: bool,
) -> set[str]:
    """Return the GPU types over several nodes of which some of these groups may run.

    `wide`: groups that no node can hold, whose unknown speeds are estimated. `narrow`: the others
    may spread, too, where their speed there is known.
    """
    types = set(types)
    found: set[str] = set()
    for group, is_wide in zip(groups, wide, strict=True):
        if is_wide:
            found.update(
                t for t in types if speeds.alone(group.kind, (t,), group.gpus, spread=True) > 0.0
            )
        elif narrow:
            known = speeds.rates(group.kind).items()
            found.update(t for (t, _, spread), rate in known if spread and rate > 0.0)
    return found & types


def rates_of(
    groups: Sequence[JobGroup],
    rows: Sequence[int],
    reach: Reach,
    speeds: Speeds,
    wide: Sequence[bool],
    *,
    narrow: bool,
) -> list[tuple[float, ...]]:
    """Return steps/s of each group on each column; 0 where nodes have too few GPUs.

    `rows`: of a job of each group; `wide`, `narrow`: as in `spread_types`.
    """
    found = []
    for group, row, is_wide in zip(groups, rows, wide, strict=True):
        known = speeds.rates(group.kind)
        rates: list[float] = []
        for gpu_type, spread, most in reach.most(group, row):
            if group.gpus > most or (spread and not (is_wide or narrow)):
                rates.append(0.0)
            elif is_wide:
                rates.append(speeds.alone(group.kind, (gpu_type,), group.gpus, spread=spread))
            else:
                rates.append(known.get((gpu_type, group.gpus, spread), 0.0))
        found.append(tuple(rates))
    return found


class Reach:
    """Most GPUs that a job could have on empty nodes."""

    def __init__(
        self, state: ClusterState, requests: JobRequests, columns: Sequence[Column]
    ) -> None:
        self.state, self.requests, self.columns = state, requests, columns
        self.spreads = any(column.spread for column in columns)
        self._most: dict[tuple[Any, ...], list[tuple[str, bool, int]]] = {}

    def most(self, group: JobGroup, row: int) -> list[tuple[str, bool, int]]:
        """Return (GPU type, spread, most GPUs) by column; `row` is of one of the group's jobs."""
        spreads = self.spreads and group.gpus > 1
        key = group.constraints, group.gpus if spreads else 1
        if key not in self._most:
            most = self._on_one_node(group, row), self._on_several(group, row) if spreads else {}
            of = [(c.gpu_type, c.spread) for c in self.columns]
            self._most[key] = [(t, spread, most[spread].get(t, 0)) for t, spread in of]
        return self._most[key]

    def _on_one_node(self, group: JobGroup, row: int) -> Mapping[str, int]:
        most: dict[str, int] = {}
        for gpu_type, gpus, _ in self._usable(group, row, 1):
            most[gpu_type] = max(gpus, most.get(gpu_type, 0))
        return most

    def _on_several(self, group: JobGroup, row: int) -> Mapping[str, int]:
        """By GPU type, on all nodes together, a process for each GPU; none if they are not two."""
        total, nodes = dict[str, int](), dict[str, int]()
        for gpu_type, gpus, count in self._usable(group, row, group.gpus):
            total[gpu_type] = total.get(gpu_type, 0) + gpus * count
            nodes[gpu_type] = nodes.get(gpu_type, 0) + count
        return {t: gpus for t, gpus in total.items() if nodes[t] > 1}

    def _usable(self, group: JobGroup, row: int, ranks: int) -> Iterator[tuple[str, int, int]]:
        """Yield (GPU type, free devices, nodes) of nodes that suit a process if empty.

        Devices of a node that the power cap never allows together are left out.
        """
        left_mw = self.state.cap_mw - self.state.used_mw
        demand, layout = self.requests.demand(row), self.state.layout
        types, labels, _ = group.constraints
        request = layout.request(0, demand, types=types, labels=labels)
        classes, allowed = layout.admitting(request)
        for c in classes:
            if request.fitting(layout.classes[c].capacity) > 0:
                for free, nodes in self.state.groups[c].items():
                    gpus = layout.classes[c].powered(free, left_mw)
                    if gpus and (usable := nodes & allowed & self.state.open):
                        yield layout.classes[c].gpu_type, gpus, usable.bit_count()
