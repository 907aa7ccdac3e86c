"""List schedule of an instance: the first descent of PCP'20's search, given to CP-SAT as a hint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policies.batch.cp.instance import Amounts, Instance
from policies.batch.cp.kernels.list_schedule import NONE, Boxes, ListData, add_box, list_schedule
from policies.contract.snapshot import Ints


@dataclass(frozen=True, slots=True)
class UnitPlace:
    """Place of a unit: its node, and its first position there on each resource of R."""

    node: int
    at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListSchedule:
    """Start of each job (-1: none), and the places of its units by node and position."""

    starts: tuple[int, ...]
    places: tuple[tuple[UnitPlace, ...], ...]


def listed(instance: Instance, nodes: Sequence[Collection[int]]) -> ListSchedule:
    """Return the list schedule of an instance; `nodes`: those on which each job may be."""
    # 1. Let the kernel fill the boxes and starts.
    position_of_node = {node: position for position, node in enumerate(instance.order)}
    boxes = _boxes(instance, position_of_node)
    starts = np.zeros(len(instance.jobs), dtype=np.int64)
    list_schedule(_data(instance, nodes), boxes, starts)

    # 2. Its boxes of jobs are the places of their units, by node and then by position.
    places: list[list[UnitPlace]] = [[] for _ in instance.jobs]
    for box in range(boxes.used[0]):
        job = int(boxes.job[box])
        if job != NONE:
            node = instance.order[boxes.node[box]]
            places[job].append(UnitPlace(node, tuple(boxes.at[box].tolist())))
    for places_of_job in places:
        places_of_job.sort(key=lambda place: (position_of_node[place.node], place.at))
    return ListSchedule(tuple(starts.tolist()), tuple(map(tuple, places)))


def _data(instance: Instance, nodes: Sequence[Collection[int]]) -> ListData:
    """Return the jobs and nodes of an instance as the kernel's arrays."""
    jobs = instance.jobs
    resources = list(instance.resources)
    allowed = np.zeros((len(jobs), len(instance.order)), dtype=np.bool_)
    for row, nodes_of_job in enumerate(nodes):
        may_be_on = frozenset(nodes_of_job)
        allowed[row] = [node in may_be_on for node in instance.order]

    def column(values: Iterable[int]) -> Ints:
        return np.fromiter(values, dtype=np.int64, count=len(jobs))

    return ListData(
        units=column(job.units for job in jobs),
        most=column(job.most for job in jobs),
        parts=column(job.node_count for job in jobs),
        duration=column(job.duration for job in jobs),
        earliest=column(job.earliest for job in jobs),
        demand=_table([job.demand for job in jobs], resources),
        alone=np.array([job.is_exclusive for job in jobs], dtype=np.bool_),
        allowed=allowed,
        capacity=_table([instance.capacity[node] for node in instance.order], resources),
    )


def _boxes(instance: Instance, position_of_node: Mapping[int, int]) -> Boxes:
    """Return boxes for what runs, with room for those of all units."""
    # 1. Empty ones.
    size = len(instance.running) + sum(job.units for job in instance.jobs)
    before, node, job, start, end = np.zeros((5, size), dtype=np.int64)
    at, height = np.zeros((2, size, len(instance.resources)), dtype=np.int64)
    last = np.full(len(instance.order), NONE, dtype=np.int64)
    used = np.zeros(1, dtype=np.int64)
    boxes = Boxes(last, used, before, node, job, start, end, at, height)

    # 2. Those of running jobs, from now to their end.
    for part, positions in instance.running_places:
        amounts = np.array([part.demand[r] for r in instance.resources], dtype=np.int64)
        place = np.array(positions, dtype=np.int64)
        add_box(boxes, NONE, position_of_node[part.node], 0, part.left, place, amounts)
    return boxes


def _table(amounts: Sequence[Amounts], resources: Sequence[int]) -> Ints:
    """int64[rows, R]: the amounts of these resources."""
    table = np.array(amounts, dtype=np.int64).reshape(len(amounts), -1)
    return np.ascontiguousarray(table[:, resources])
