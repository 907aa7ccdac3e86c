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
    """Start of each job (-1: none was found), and the places of its units, the first first."""

    starts: tuple[int, ...]
    places: tuple[tuple[UnitPlace, ...], ...]


def listed(instance: Instance, nodes: Sequence[Collection[int]]) -> ListSchedule:
    """Return the list schedule with each job on these nodes only."""
    index = {n: k for k, n in enumerate(instance.order)}
    data, boxes = _data(instance, nodes), _running(instance, index)
    starts = np.zeros(len(instance.jobs), dtype=np.int64)
    list_schedule(data, boxes, starts)
    places: list[list[UnitPlace]] = [[] for _ in instance.jobs]
    for b in range(boxes.used[0]):
        if (j := int(boxes.job[b])) != NONE:
            at = tuple(boxes.at[b].tolist())
            places[j].append(UnitPlace(instance.order[boxes.node[b]], at))
    in_order = [tuple(sorted(of, key=lambda u: (index[u.node], u.at))) for of in places]
    return ListSchedule(tuple(starts.tolist()), tuple(in_order))


def _data(instance: Instance, nodes: Sequence[Collection[int]]) -> ListData:
    jobs, used = instance.jobs, list(instance.resources)
    allowed = np.zeros((len(jobs), len(instance.order)), dtype=np.bool_)
    for j, of in enumerate(nodes):
        chosen = frozenset(of)
        allowed[j] = [n in chosen for n in instance.order]

    def column(values: Iterable[int]) -> Ints:
        return np.fromiter(values, dtype=np.int64, count=len(jobs))

    return ListData(
        units=column(job.units for job in jobs),
        most=column(job.most for job in jobs),
        parts=column(job.node_count for job in jobs),
        duration=column(job.duration for job in jobs),
        earliest=column(job.earliest for job in jobs),
        demand=_rows([job.demand for job in jobs], used),
        alone=np.array([job.is_exclusive for job in jobs], dtype=np.bool_),
        allowed=allowed,
        capacity=_rows([instance.capacity[n] for n in instance.order], used),
    )


def _running(instance: Instance, index: Mapping[int, int]) -> Boxes:
    """Return boxes for what runs, with room for those of all units."""
    size = len(instance.running) + sum(job.units for job in instance.jobs)
    before, node, job, start, end = np.zeros((5, size), dtype=np.int64)
    at, height = np.zeros((2, size, len(instance.resources)), dtype=np.int64)
    last, used = np.full(len(instance.order), NONE, dtype=np.int64), np.zeros(1, dtype=np.int64)
    boxes = Boxes(last, used, before, node, job, start, end, at, height)
    for part, first in instance.running_places:
        amounts = np.array([part.demand[r] for r in instance.resources], dtype=np.int64)
        place = np.array(first, dtype=np.int64)
        add_box(boxes, NONE, index[part.node], 0, part.left, place, amounts)
    return boxes


def _rows(amounts: Sequence[Amounts], used: Sequence[int]) -> Ints:
    table = np.array(amounts, dtype=np.int64).reshape(len(amounts), -1)
    return np.ascontiguousarray(table[:, used])
