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

    `spread`: time on several nodes has columns of its own, also for gangs that fit on one. `pairs`:
    jobs that may share devices have rows together. `teams`: a class is of one team; with `users` of
    one user of it. `queues`: every job of these teams is a class. `jobs`: every job of all teams
    is.
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
    """Return the key of each job's group, by row. Columns that do not count are all equal."""
    others = columns.others
    queues = options.queues
    teams: Iterable[str] = others["team"] if options.teams else repeat("")
    shares: Iterable[bool] = others["may_share"] if options.pairs else repeat(False)
    demands = repeat(()) if columns.gpus_only else _demands(columns)
    constraints = zip(others["allowed_types"], others["labels"], demands, strict=False)

    # Jobs of a queue are told apart by their ids; a team with a queue has no users.
    queued: Iterable[str] = repeat("")
    if queues:
        ids_and_teams = zip(columns.ids, others["team"], strict=True)
        queued = [job if team in queues else "" for job, team in ids_and_teams]
    users: Iterable[str] = repeat("")
    if options.users:
        users_and_teams = zip(others["user"], others["team"], strict=True)
        users = ["" if team in queues else user for user, team in users_and_teams]
    keys = zip(
        columns.kinds,
        columns.counts["gpus_min"].tolist(),
        columns.numbers["weight"].tolist(),
        constraints,
        teams,
        shares,
        queued,
        users,
        strict=False,
    )
    return list(keys)


def group_of(key: GroupKey) -> JobGroup:
    """Return the group of this key; only jobs of one GPU can share a device."""
    group = JobGroup(*key)
    if group.gpus > 1:
        group = group._replace(shares=False)
    return group


def _demands(columns: JobColumns) -> Iterable[tuple[Any, ...]]:
    """Return the resources of a node beside GPUs that each job needs."""
    cores = columns.numbers["cores"].tolist()
    memory_gb = columns.numbers["memory_gb"].tolist()
    return zip(cores, memory_gb, columns.others["resources"], strict=True)


def columns_of(types: Sequence[str], over_nodes: Collection[str]) -> tuple[Column, ...]:
    """Return a column for each type, then one for several nodes of each type in `over_nodes`."""
    on_one_node = [Column(gpu_type) for gpu_type in types]
    spread = [Column(gpu_type, spread=True) for gpu_type in types if gpu_type in over_nodes]
    return (*on_one_node, *spread)


def spread_types(
    speeds: Speeds,
    groups: Sequence[JobGroup],
    wide: Sequence[bool],
    types: Iterable[str],
    *,
    narrow: bool,
) -> set[str]:
    """Return the GPU types over several nodes of which some of these groups may run.

    `wide`: for each group, True if no node can hold it; its unknown speeds are estimated. `narrow`:
    the others may spread, too, where their speed there is known.
    """
    types = set(types)
    usable: set[str] = set()
    for group, is_wide in zip(groups, wide, strict=True):
        if is_wide:
            for gpu_type in types:
                if speeds.alone(group.kind, (gpu_type,), group.gpus, spread=True) > 0.0:
                    usable.add(gpu_type)
        elif narrow:
            for (gpu_type, _, spread), rate in speeds.rates(group.kind).items():
                if spread and rate > 0.0:
                    usable.add(gpu_type)
    return usable & types


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
    rates_of_groups = []
    for group, row, is_wide in zip(groups, rows, wide, strict=True):
        known = speeds.rates(group.kind)
        may_spread = is_wide or narrow
        rates: list[float] = []
        for gpu_type, spread, most_gpus in reach.most(group, row):
            if group.gpus > most_gpus or (spread and not may_spread):
                rates.append(0.0)
            elif is_wide:
                rates.append(speeds.alone(group.kind, (gpu_type,), group.gpus, spread=spread))
            else:
                rates.append(known.get((gpu_type, group.gpus, spread), 0.0))
        rates_of_groups.append(tuple(rates))
    return rates_of_groups


class Reach:
    """Most GPUs that a job could have on each column, on what is free before the round."""

    def __init__(
        self, state: ClusterState, requests: JobRequests, columns: Sequence[Column]
    ) -> None:
        self.state = state
        self.requests = requests
        self.columns = columns
        self.has_spread_column = any(column.spread for column in columns)
        self._most: dict[tuple[Any, ...], list[tuple[str, bool, int]]] = {}

    def most(self, group: JobGroup, row: int) -> list[tuple[str, bool, int]]:
        """Return (GPU type, spread, most GPUs) by column; `row` is of one of the group's jobs."""
        may_spread = self.has_spread_column and group.gpus > 1
        key = group.constraints, may_spread
        if key not in self._most:
            on_one_node = self._on_one_node(group, row)
            on_several: Mapping[str, int] = {}
            if may_spread:
                on_several = self._on_several(group, row)
            most: list[tuple[str, bool, int]] = []
            for column in self.columns:
                most_of_type = on_several if column.spread else on_one_node
                gpus = most_of_type.get(column.gpu_type, 0)
                most.append((column.gpu_type, column.spread, gpus))
            self._most[key] = most
        return self._most[key]

    def _on_one_node(self, group: JobGroup, row: int) -> Mapping[str, int]:
        """Return by GPU type the most GPUs of any node that suits the job."""
        most: dict[str, int] = {}
        for gpu_type, gpus, _ in self._usable(group, row):
            most[gpu_type] = max(gpus, most.get(gpu_type, 0))
        return most

    def _on_several(self, group: JobGroup, row: int) -> Mapping[str, int]:
        """Return by GPU type the GPUs of all nodes together that suit one process for each GPU.

        Types with a single such node are left out.
        """
        gpus_of_type: dict[str, int] = {}
        nodes_of_type: dict[str, int] = {}
        for gpu_type, gpus, nodes in self._usable(group, row):
            gpus_of_type[gpu_type] = gpus_of_type.get(gpu_type, 0) + gpus * nodes
            nodes_of_type[gpu_type] = nodes_of_type.get(gpu_type, 0) + nodes
        return {t: gpus for t, gpus in gpus_of_type.items() if nodes_of_type[t] > 1}

    def _usable(self, group: JobGroup, row: int) -> Iterator[tuple[str, int, int]]:
        """Yield (GPU type, free devices, nodes) of nodes that suit a process if empty.

        Devices of a node that the power cap never allows together are left out.
        """
        layout = self.state.layout
        left_mw = self.state.cap_mw - self.state.used_mw
        types, labels, _ = group.constraints
        request = layout.request(0, self.requests.demand(row), types=types, labels=labels)
        classes, allowed = layout.admitting(request)
        for number in classes:
            node_class = layout.classes[number]
            if request.fitting(node_class.capacity) <= 0:
                continue
            for free, nodes in self.state.groups[number].items():
                gpus = node_class.powered(free, left_mw)
                usable = nodes & allowed & self.state.open
                if gpus and usable:
                    yield node_class.gpu_type, gpus, usable.bit_count()
