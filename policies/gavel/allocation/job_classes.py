"""Classes of equal jobs: the rows of an allocation problem; some classes also in pairs.

Jobs of a group have the same kind, GPUs, weight, team, willingness to share and constraints (types,
labels, resources). Groups that differ in constraints only, and run at the same rates, are one
class.
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
"""Class, or group, of a job that is in none."""

ClassKey: TypeAlias = tuple[str, int, float, str, str, bool, str, tuple[float, ...]]
"""Kind, GPUs, weight, team, user, willingness to share, the one job of a queue, row of rates."""


@dataclass(frozen=True)
class JobClasses:
    """Allocation problem with the jobs behind its numbers.

    `keys[m]`: name of class m, the same in every snapshot. `entities`: the team of each entity of
    the problem; several entities are of one team where its users are told apart. `groups`, and
    `rates[g]`: steps/s of group g by column.

    By row of the snapshot: `group_of` (-1: takes no part) and `class_of` (-1: has no share, as its
    weight is 0 or it can run nowhere now).
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
        members: list[list[int]] = [[] for _ in self.keys]
        for row, m in enumerate(self.class_of):
            if m >= 0:
                members[m].append(row)
        return members

    @cached_property
    def account_rows(self) -> list[tuple[int, ...]]:
        """Rows of the service account: the classes in each, one or the two of a pair."""
        alone = [(m,) for m in range(len(self.keys))]
        pairs = [(first, second) for first, second in self.problem.pairs.tolist()]
        return [*alone, *pairs]

    @cached_property
    def row_keys(self) -> list[tuple[str, ...]]:
        """The same rows by the keys of their classes."""
        return [tuple([self.keys[m] for m in row]) for row in self.account_rows]

    @cached_property
    def column_names(self) -> list[str]:
        """Names of the columns, the same in every snapshot."""
        names = []
        for column in self.problem.columns:
            names.append(f"{column.gpu_type} spread" if column.spread else column.gpu_type)
        return names

    @cached_property
    def pair_row(self) -> dict[tuple[int, int], int]:
        """Number of each pair of the problem by its classes, the lower one first."""
        pairs = self.problem.pairs.tolist()
        return {(first, second): number for number, (first, second) in enumerate(pairs)}

    @cached_property
    def column_of(self) -> dict[tuple[str, bool], int]:
        """Number of each column by (GPU type, spread)."""
        columns = enumerate(self.problem.columns)
        return {(column.gpu_type, column.spread): number for number, column in columns}

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the inputs of shares, in 32 characters."""
        problem = self.problem
        digest = blake2b(digest_size=16)
        digest.update(repr((self.keys, problem.types, self.column_names)).encode())
        for array in (
            problem.gpus,
            problem.rates,
            problem.count,
            problem.scale,
            problem.weight,
            problem.entity,
            problem.pairs,
            problem.pair_rates,
        ):
            digest.update(array.tobytes())
        return digest.hexdigest()


def job_classes(
    snapshot: Snapshot,
    state: ClusterState,
    requests: JobRequests,
    options: GroupingOptions,
    apart: Collection[int],
) -> JobClasses:
    """Return the classes of a snapshot's jobs, on what `state` has free.

    Jobs in the rows `apart` take no part.
    """
    # 1. Groups, with the first row of each.
    keys = group_keys(snapshot.jobs.columns, options)
    groups, example_rows, group_of = _grouped(keys, apart)

    # 2. Their rates on the columns: a type, on one node or over several.
    gpus = {gpu_type: free for gpu_type, free in state.free_gpus().items() if free}
    speeds = Speeds.of(snapshot)
    is_wide = [requests.is_wide(row) for row in example_rows]
    over_nodes = spread_types(speeds, groups, is_wide, gpus, narrow=options.spread)
    columns = columns_of(sorted(gpus), over_nodes)
    reach = Reach(state, requests, columns)
    rates = rates_of(groups, example_rows, reach, speeds, is_wide, narrow=options.spread)

    # 3. Classes, with a group of each.
    class_keys = [_class_key(group, row) for group, row in zip(groups, rates, strict=True)]
    if options.jobs:
        names, example_groups, class_of = _one_class_per_job(
            snapshot.jobs.columns.ids, class_keys, group_of
        )
    else:
        names, example_groups, class_of = _one_class_per_key(class_keys, group_of)

    # 4. The problem, with pairs if asked for.
    examples = [groups[number] for number in example_groups]
    example_rates = [rates[number] for number in example_groups]
    problem, entities = _problem(examples, example_rates, columns, gpus, class_of)
    if options.pairs:
        partners = PARTNERS if options.jobs or options.queues else None
        problem = _paired(problem, examples, speeds, _types_for_two(state), partners)
    return JobClasses(problem, names, entities, tuple(groups), tuple(rates), group_of, class_of)


def _grouped(
    keys: Sequence[GroupKey], apart: Collection[int]
) -> tuple[list[JobGroup], list[int], list[int]]:
    """Return the groups, the first row of each, and the group of each row."""
    number_of: dict[GroupKey, int] = {}
    first_rows: list[int] = []
    group_of_row: list[int] = []
    for row, key in enumerate(keys):
        if row in apart:
            group_of_row.append(NO_CLASS)
            continue
        number = number_of.setdefault(key, len(number_of))
        if number == len(first_rows):
            first_rows.append(row)
        group_of_row.append(number)
    return [group_of(key) for key in number_of], first_rows, group_of_row


def _class_key(group: JobGroup, rates: tuple[float, ...]) -> ClassKey | None:
    """Return the common properties of the group's class; None if its jobs have no share."""
    if group.weight <= 0.0 or not any(rates):
        return None
    return (
        group.kind,
        group.gpus,
        group.weight,
        group.team,
        group.user,
        group.shares,
        group.queued,
        rates,
    )


def _one_class_per_job(
    ids: Sequence[str], keys: Sequence[ClassKey | None], group_of: Sequence[int]
) -> tuple[tuple[str, ...], list[int], list[int]]:
    """Return (names of the classes, a group of each class, class of each row): a class per job."""
    names: list[str] = []
    example: list[int] = []
    class_of = [NO_CLASS] * len(group_of)
    for row, g in enumerate(group_of):
        if g >= 0 and keys[g] is not None:
            class_of[row] = len(names)
            names.append(ids[row])
            example.append(g)
    return tuple(names), example, class_of


def _one_class_per_key(
    keys: Sequence[ClassKey | None], group_of: Sequence[int]
) -> tuple[tuple[str, ...], list[int], list[int]]:
    """Return the same with a class for all groups of equal keys, sorted by key."""
    example = {key: group for group, key in enumerate(keys) if key is not None}
    ordered = sorted(example)
    number = {key: m for m, key in enumerate(ordered)}
    class_of_group = [NO_CLASS if key is None else number[key] for key in keys]
    class_of_group.append(NO_CLASS)  # of the group -1
    names = tuple([_class_name(key) for key in ordered])
    return names, [example[key] for key in ordered], [class_of_group[g] for g in group_of]


@lru_cache(maxsize=4096)
def _class_name(key: ClassKey) -> str:
    """Return a short name, by the jobs' properties and the columns where they run.

    Their speeds are left out: these are measured anew. The class of a queued job has the job's id.
    """
    *properties, queued, rates = key
    if queued:
        return queued
    columns = "".join(["1" if rate > 0.0 else "0" for rate in rates])
    return blake2b(repr((properties, columns)).encode(), digest_size=8).hexdigest()


def _problem(
    groups: Sequence[JobGroup],
    rates: Sequence[tuple[float, ...]],
    columns: tuple[Column, ...],
    gpus: dict[str, int],
    class_of: Sequence[int],
) -> tuple[AllocationProblem, tuple[str, ...]]:
    """Return the problem without pairs, and the team of each of its entities.

    `groups`, `rates`: an example of each class. `gpus`: free ones by type. `class_of`: each row's.
    """
    types = tuple(sorted(gpus))
    entities = sorted({(group.team, group.user) for group in groups})
    entity_number = {entity: number for number, entity in enumerate(entities)}
    # Rows without a class (-1) are counted first, and left out.
    rows_of_class = np.bincount(np.array(class_of, dtype=np.int64) + 1, minlength=len(groups) + 1)
    problem = AllocationProblem(
        types=types,
        gpus=frozen(np.array([gpus[t] for t in types], dtype=np.float64)),
        columns=columns,
        column_type=_ints([types.index(column.gpu_type) for column in columns]),
        rates=frozen(np.array(rates, dtype=np.float64).reshape(len(rates), len(columns))),
        count=frozen(rows_of_class[1:]),
        scale=_ints([group.gpus for group in groups]),
        weight=frozen(np.array([group.weight for group in groups], dtype=np.float64)),
        entity=_ints([entity_number[group.team, group.user] for group in groups]),
        pairs=_ints([]).reshape(0, 2),
        pair_rates=frozen(np.zeros((0, len(columns), 2))),
    )
    return problem, tuple([team for team, _ in entities])


def _paired(
    problem: AllocationProblem,
    groups: Sequence[JobGroup],
    speeds: Speeds,
    types_for_two: frozenset[str],
    partners: int | None,
) -> AllocationProblem:
    """Return the problem with the pairs of those classes whose jobs may share a device.

    `groups`: an example of each class. `partners`: as in `with_pairs`.
    """
    sharing = np.array([group.shares for group in groups], dtype=np.bool_)
    if not sharing.any() or not types_for_two:
        return problem
    kinds = sorted({group.kind for group in groups if group.shares})
    kind_number = {kind: number for number, kind in enumerate(kinds)}
    kind_of_class = _ints([kind_number.get(group.kind, -1) for group in groups])
    colocated: Floats = colocated_rates(speeds, kinds, problem.columns, types_for_two)
    return with_pairs(problem, kind_of_class, colocated, sharing, partners=partners)


def _types_for_two(state: ClusterState) -> frozenset[str]:
    """Return the GPU types with a free device on an open node that two jobs may share."""
    dimension = state.layout.devices_at(2)
    if dimension is None:
        return frozenset()
    types = set()
    for node_class, nodes_by_free in zip(state.layout.classes, state.groups, strict=True):
        for free, nodes in nodes_by_free.items():
            if free[dimension] and nodes & state.open:
                types.add(node_class.gpu_type)
    return frozenset(types)


def _ints(values: list[int]) -> Ints:
    """int64: these values, which must not be changed."""
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
    share. A pair needs equal scales, and two jobs if within one class; it beats taking turns where
    the fractions that both keep of their speeds alone add up to more than 1. With `partners`, a
    pair must be among so many best of one of its classes: else pairs of single jobs grow
    quadratically.
    """
    # 1. What both jobs of each possible pair keep of their speeds, on each column.
    first, second = _possible_pairs(problem, sharing)
    rates_of_first = colocated[kind[first], kind[second]]
    rates_of_second = colocated[kind[second], kind[first]]
    kept = _kept_fraction(rates_of_first, problem.rates[first])
    kept = kept + _kept_fraction(rates_of_second, problem.rates[second])

    # 2. The pairs that are worth it somewhere.
    best = kept.max(axis=1, initial=-np.inf)
    is_worth = best > 1.0
    if partners is not None:
        is_worth[is_worth] = among_best(
            first[is_worth], second[is_worth], best[is_worth], len(kind), partners
        )
    pairs = np.column_stack([first, second])[is_worth]

    # 3. Their rates, where they are worth it.
    rates = np.stack([rates_of_first, rates_of_second], axis=2)
    pair_rates = np.where((kept > 1.0)[..., None], rates, 0.0)[is_worth]
    return replace(problem, pairs=frozen(pairs), pair_rates=frozen(pair_rates))


def colocated_rates(
    speeds: Speeds, kinds: Sequence[str], columns: Sequence[Column], types_for_two: frozenset[str]
) -> Floats:
    """float64[K, K, C]: steps/s of a job of the first kind with one of the second on its GPU.

    0 if unknown, and on all GPU types but `types_for_two`, which have devices for two.
    """
    table = np.zeros((len(kinds), len(kinds), len(columns)))
    for c, column in enumerate(columns):
        if column.spread or column.gpu_type not in types_for_two:
            continue
        for i, kind in enumerate(kinds):
            for j, other in enumerate(kinds):
                own_speed, _ = speeds.pair(kind, other, column.gpu_type)
                table[i, j, c] = own_speed
    return table


def _possible_pairs(problem: AllocationProblem, sharing: Bools) -> tuple[Ints, Ints]:
    """int64[P] each: pairs of classes that may share, of one scale factor, with enough jobs."""
    classes = np.flatnonzero(sharing)
    first_index, second_index = np.triu_indices(len(classes))
    first = classes[first_index]
    second = classes[second_index]
    has_two_jobs = (first != second) | (problem.count[first] >= 2)
    is_possible = (problem.scale[first] == problem.scale[second]) & has_two_jobs
    return first[is_possible], second[is_possible]


def _kept_fraction(together: Floats, alone: Floats) -> Floats:
    """Return the fraction of its speed that a job keeps; -inf where it cannot run in both ways."""
    ratio: Floats = np.full(together.shape, -np.inf)
    np.divide(together, alone, out=ratio, where=(together > 0.0) & (alone > 0.0))
    return ratio


def among_best(first: Ints, second: Ints, gain: Floats, classes: int, partners: int) -> Bools:
    """bool[P]: True for pairs among the best `partners` of one of their classes.

    `first`, `second` int64[P]: classes of each pair; `gain` float64[P]; `classes`: their number.
    Ties go by a ring of classes, so that equal jobs do not all choose the same.
    """
    # 1. Every pair twice, once for each class, sorted by class and falling gain.
    own = np.concatenate([first, second])
    other = np.concatenate([second, first])
    distance_on_ring = (other - own) % classes
    order = np.lexsort((distance_on_ring, -np.concatenate([gain, gain]), own))

    # 2. Its rank among the pairs of that class.
    pairs_before = np.concatenate([[0], np.cumsum(np.bincount(own, minlength=classes))])
    rank = np.empty(len(own), dtype=np.int64)
    rank[order] = np.arange(len(own)) - pairs_before[own[order]]
    is_among = rank < partners
    return is_among[: len(first)] | is_among[len(first) :]
