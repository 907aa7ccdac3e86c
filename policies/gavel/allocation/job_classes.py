"""Classes of equal jobs: the rows of an allocation problem; some classes also in pairs.

Groups have the same kind, GPUs, weight, team, willingness to share and constraints (types, labels,
resources). Groups that differ in constraints only and have the same row of rates are one class.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TypeAlias

import numpy as np

from policies.contract.snapshot import Bools, Floats, Ints, Snapshot, frozen
from policies.gavel.allocation.problem import AllocationProblem, Column
from policies.gavel.allocation.rates import (
    GroupingOptions,
    GroupKey,
    JobGroup,
    Reach,
    columns_of,
    group_keys,
    group_of,
    rates_of,
    spread_types,
)
from policies.placement.cluster_state import ClusterState
from policies.placement.priced_options import JobRequests
from policies.placement.speed import Speeds

PARTNERS = 32
"""Partners of a job where every job is a class: programs with all pairs get too large."""

NO_CLASS = -1

ClassKey: TypeAlias = tuple[str, int, float, str, str, bool, str, tuple[float, ...]]
"""Kind, GPUs, weight, team, user, willingness to share, the one job of a queue, row of rates."""


@dataclass(frozen=True)
class JobClasses:
    """Allocation problem with the names behind its numbers.

    By row of the snapshot: `group_of` (-1: takes no part) and `class_of` (-1: no claim, as its
    weight is 0 or it can run nowhere now). `rates[g]`: steps/s of a group by column. `keys[m]`
    names class m across snapshots; `entities`: the team of each entity of the problem, once for
    each of its users where these are told apart.
    """

    problem: AllocationProblem
    keys: tuple[str, ...]
    entities: tuple[str, ...]
    groups: tuple[JobGroup, ...]
    rates: tuple[tuple[float, ...], ...]
    group_of: list[int]
    class_of: list[int]

    @cached_property
    def members(self) -> list[list[int]]:
        """By class the rows of its jobs, rising."""
        found: list[list[int]] = [[] for _ in self.keys]
        for row, m in enumerate(self.class_of):
            if m >= 0:
                found[m].append(row)
        return found

    @cached_property
    def account_rows(self) -> list[tuple[int, ...]]:
        return [*[(m,) for m in range(len(self.keys))], *map(tuple, self.problem.pairs.tolist())]

    @cached_property
    def row_keys(self) -> list[tuple[str, ...]]:
        keys, pairs = self.keys, self.problem.pairs.tolist()
        return [*[(key,) for key in keys], *[(keys[a], keys[b]) for a, b in pairs]]

    @cached_property
    def column_names(self) -> list[str]:
        columns = self.problem.columns
        return [f"{c.gpu_type} spread" if c.spread else c.gpu_type for c in columns]

    @cached_property
    def pair_row(self) -> dict[tuple[int, int], int]:
        return {(a, b): p for p, (a, b) in enumerate(self.problem.pairs.tolist())}

    @cached_property
    def column_of(self) -> dict[tuple[str, bool], int]:
        """The number of each column by GPU type, and whether it is spread."""
        return {(c.gpu_type, c.spread): i for i, c in enumerate(self.problem.columns)}

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the inputs of shares, in 32 characters."""
        p = self.problem
        arrays = (p.gpus, p.rates, p.count, p.scale, p.weight, p.entity, p.pairs, p.pair_rates)
        names = repr((self.keys, p.types, self.column_names)).encode()
        return blake2b(names + b"".join([a.tobytes() for a in arrays]), digest_size=16).hexdigest()


def job_classes(
    snapshot: Snapshot,
    state: ClusterState,
    requests: JobRequests,
    options: GroupingOptions,
    apart: Collection[int],
) -> JobClasses:
    """Return the jobs of a snapshot but those `apart` as classes, on what `state` has free."""
    ids = snapshot.jobs.columns.ids
    groups, rows, group_of = _grouped(group_keys(snapshot.jobs.columns, options), apart)
    gpus, speeds = {t: n for t, n in state.free_gpus().items() if n}, Speeds.of(snapshot)
    wide = [requests.is_wide(row) for row in rows]
    over_nodes = spread_types(speeds, groups, wide, gpus, narrow=options.spread)
    columns = columns_of(sorted(gpus), over_nodes)
    reach = Reach(state, requests, columns)
    rates = rates_of(groups, rows, reach, speeds, wide, narrow=options.spread)
    keys = [_class_key(group, row) for group, row in zip(groups, rates, strict=True)]
    of_rows = _by_job(ids, keys, group_of) if options.jobs else _by_class(keys, group_of)
    names, example, class_of = of_rows
    of_classes = [groups[g] for g in example]
    problem, entities = _problem(of_classes, [rates[g] for g in example], columns, gpus, class_of)
    if options.pairs:
        partners = PARTNERS if options.jobs or options.queues else None
        problem = _paired(problem, of_classes, speeds, _types_for_two(state), partners)
    return JobClasses(problem, names, entities, tuple(groups), tuple(rates), group_of, class_of)


def _grouped(
    keys: Sequence[GroupKey], apart: Collection[int]
) -> tuple[list[JobGroup], list[int], list[int]]:
    """Return the groups, the first row of each, and the group of each row."""
    number: dict[GroupKey, int] = {}
    first, found = list[int](), list[int]()
    for row, key in enumerate(keys):
        if row in apart:
            found.append(NO_CLASS)
            continue
        g = number.setdefault(key, len(number))
        if g == len(first):
            first.append(row)
        found.append(g)
    return [group_of(key) for key in number], first, found


def _class_key(group: JobGroup, row: tuple[float, ...]) -> ClassKey | None:
    """Return what jobs of the group's class have in common; None if they have no claim."""
    if group.weight <= 0.0 or not any(row):
        return None
    kind, gpus, weight, _, team, shares, queued, user = group
    return kind, gpus, weight, team, user, shares, queued, row


def _by_job(
    ids: Sequence[str], keys: Sequence[ClassKey | None], group_of: Sequence[int]
) -> tuple[tuple[str, ...], list[int], list[int]]:
    """Return (class keys, a group of each class, class of each row): a class per job."""
    names: list[str] = []
    example: list[int] = []
    class_of = [NO_CLASS] * len(group_of)
    for row, g in enumerate(group_of):
        if g >= 0 and keys[g] is not None:
            class_of[row] = len(names)
            names.append(ids[row])
            example.append(g)
    return tuple(names), example, class_of


def _by_class(
    keys: Sequence[ClassKey | None], group_of: Sequence[int]
) -> tuple[tuple[str, ...], list[int], list[int]]:
    example = {key: g for g, key in enumerate(keys) if key is not None}
    ordered = sorted(example)
    number = {key: m for m, key in enumerate(ordered)}
    of_group = [NO_CLASS if key is None else number[key] for key in keys]
    of_group.append(NO_CLASS)  # of the group -1
    names = tuple([_name(key) for key in ordered])
    return names, [example[key] for key in ordered], [of_group[g] for g in group_of]


@lru_cache(maxsize=4096)
def _name(key: ClassKey) -> str:
    """Return a short name: what its jobs are and where they run, not how fast (measured anew)."""
    *what, queued, row = key
    if queued:
        return queued
    where = "".join(["1" if rate > 0.0 else "0" for rate in row])
    return blake2b(repr((what, where)).encode(), digest_size=8).hexdigest()


def _problem(
    groups: Sequence[JobGroup],
    rates: Sequence[tuple[float, ...]],
    columns: tuple[Column, ...],
    gpus: dict[str, int],
    class_of: Sequence[int],
) -> tuple[AllocationProblem, tuple[str, ...]]:
    """Return the problem of classes with these examples, without pairs, and its entities' teams."""
    types = tuple(sorted(gpus))
    number = {of: i for i, of in enumerate(sorted({(g.team, g.user) for g in groups}))}
    count = np.bincount(np.array(class_of, dtype=np.int64) + 1, minlength=len(groups) + 1)[1:]
    problem = AllocationProblem(
        types=types,
        gpus=frozen(np.array([gpus[t] for t in types], dtype=np.float64)),
        columns=columns,
        column_type=_ints([types.index(c.gpu_type) for c in columns]),
        rates=frozen(np.array(rates, dtype=np.float64).reshape(len(rates), len(columns))),
        count=frozen(count),
        scale=_ints([g.gpus for g in groups]),
        weight=frozen(np.array([g.weight for g in groups], dtype=np.float64)),
        entity=_ints([number[g.team, g.user] for g in groups]),
        pairs=_ints([]).reshape(0, 2),
        pair_rates=frozen(np.zeros((0, len(columns), 2))),
    )
    return problem, tuple([team for team, _ in number])


def _paired(
    problem: AllocationProblem,
    groups: Sequence[JobGroup],
    speeds: Speeds,
    wide: frozenset[str],
    partners: int | None,
) -> AllocationProblem:
    sharing = np.array([g.shares for g in groups], dtype=np.bool_)
    if not sharing.any() or not wide:
        return problem
    kinds = sorted({g.kind for g in groups if g.shares})
    number = {kind: k for k, kind in enumerate(kinds)}
    kind = _ints([number.get(g.kind, -1) for g in groups])
    table: Floats = colocated_rates(speeds, kinds, problem.columns, wide)
    return with_pairs(problem, kind, table, sharing, partners=partners)


def _types_for_two(state: ClusterState) -> frozenset[str]:
    at = state.layout.devices_at(2)
    return frozenset(
        of.gpu_type
        for of, groups in zip(state.layout.classes, state.groups, strict=True)
        for free, nodes in groups.items()
        if at is not None and free[at] and nodes & state.open
    )


def _ints(values: list[int]) -> Ints:
    return frozen(np.array(values, dtype=np.int64))


def with_pairs(
    problem: AllocationProblem,
    kind: Ints,
    colocated: Floats,
    sharing: Bools,
    *,
    partners: int | None = None,
) -> AllocationProblem:
    """Return the problem with every pair of its classes that beats taking turns.

    `kind` int64[M]: each class's row in `colocated` float64[K, K, C], steps/s of a job of the first
    kind with one of the second on its GPU, 0 if unknown. `sharing` bool[M]: classes whose jobs may
    share. A pair needs equal scales, and two jobs if within one class; it is worth it where the
    fractions kept of the speeds alone add up to more than 1. With `partners`, a pair must be among
    so many best of one of its classes: else pairs of single jobs grow quadratically.
    """
    first, second = _candidates(problem, sharing)
    both = colocated[kind[first], kind[second]], colocated[kind[second], kind[first]]
    rates = np.stack(both, axis=2)
    kept = _kept(rates[..., 0], problem.rates[first]) + _kept(rates[..., 1], problem.rates[second])
    best = kept.max(axis=1, initial=-np.inf)
    found = best > 1.0
    if partners is not None:
        found[found] = among_best(first[found], second[found], best[found], len(kind), partners)
    worth = np.where((kept > 1.0)[..., None], rates, 0.0)
    pairs = np.column_stack([first, second])[found]
    return replace(problem, pairs=frozen(pairs), pair_rates=frozen(worth[found]))


def colocated_rates(
    speeds: Speeds, kinds: Sequence[str], columns: Sequence[Column], wide: frozenset[str]
) -> Floats:
    """float64[K, K, C]: steps/s of a job of the first kind with one of the second on its GPU.

    0 if unknown, and on GPU types without devices for two (all but `wide`).
    """
    table = np.zeros((len(kinds), len(kinds), len(columns)))
    for c, column in enumerate(columns):
        if column.spread or column.gpu_type not in wide:
            continue
        for i, kind in enumerate(kinds):
            for j, other in enumerate(kinds):
                table[i, j, c] = speeds.pair(kind, other, column.gpu_type)[0]
    return table


def _candidates(problem: AllocationProblem, sharing: Bools) -> tuple[Ints, Ints]:
    """Pairs of classes that are willing, of one scale factor, and with enough jobs."""
    of = np.flatnonzero(sharing)
    first, second = (of[side] for side in np.triu_indices(len(of)))
    enough = (first != second) | (problem.count[first] >= 2)
    fits = (problem.scale[first] == problem.scale[second]) & enough
    return first[fits], second[fits]


def _kept(together: Floats, alone: Floats) -> Floats:
    """Return the fraction of its speed that a job keeps; -inf where it cannot run in both ways."""
    ratio: Floats = np.full(together.shape, -np.inf)
    np.divide(together, alone, out=ratio, where=(together > 0.0) & (alone > 0.0))
    return ratio


def among_best(first: Ints, second: Ints, gain: Floats, classes: int, partners: int) -> Bools:
    """Return True for pairs among the best `partners` of one of their classes.

    Ties go by a ring of classes, so that equal jobs do not all choose the same.
    """
    owner, other = np.concatenate([first, second]), np.concatenate([second, first])
    order = np.lexsort(((other - owner) % classes, -np.concatenate([gain, gain]), owner))
    start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=classes))])
    rank = np.empty(len(owner), dtype=np.int64)
    rank[order] = np.arange(len(owner)) - start[owner[order]]
    among = rank < partners
    return among[: len(first)] | among[len(first) :]
