"""Optimal schedules of tiny instances by trying everything, without any of the models.

Starts are tried by rising sum of slowdowns; units are put on nodes one by one, at each of which
they may have any free positions, or just a free amount.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from policies.batch.cp.instance import Instance, Job

Box = tuple[int, int, int, tuple[int, ...], tuple[int, ...]]
"""(node, start, end, first positions, amounts) of a unit or of what runs."""


def pooled(instance: Instance) -> float:
    """The least sum of slowdowns if all nodes were one."""
    return _least(instance, lambda starts: _fits_pooled(instance, starts))


def by_amounts(instance: Instance) -> float:
    """The least sum of slowdowns where units need free amounts on their nodes."""
    return _least(instance, lambda starts: _placed(instance, starts, positions=False))


def by_positions(instance: Instance) -> float:
    """The least sum of slowdowns where units have the same positions from start to end."""
    return _least(instance, lambda starts: _placed(instance, starts, positions=True))


def _least(instance: Instance, is_possible: Callable[[Sequence[int]], bool]) -> float:
    ranges = [range(j.earliest, instance.horizon - j.duration + 1) for j in instance.jobs]
    for starts in sorted(product(*ranges), key=instance.slowdowns):
        if is_possible(starts):
            return instance.slowdowns(starts)
    raise AssertionError("nothing is possible")


def _fits_pooled(instance: Instance, starts: Sequence[int]) -> bool:
    for r in instance.resources:
        for t in range(instance.horizon):
            used = sum(p.demand[r] for p in instance.running if t < p.left)
            for job, start in zip(instance.jobs, starts, strict=True):
                used += job.total(r) if start <= t < start + job.duration else 0
            if used > instance.total(r):
                return False
    return True


def _placed(instance: Instance, starts: Sequence[int], *, positions: bool) -> bool:
    units = [(job, start) for job, start in zip(instance.jobs, starts, strict=True)
             for _ in range(job.units)]  # fmt: skip
    boxes = [(part.node, 0, part.left, at, tuple(part.demand[r] for r in instance.resources))
             for part, at in instance.running_places]  # fmt: skip
    return _put(instance, units, boxes, positions)


def _put(instance: Instance, units: list[tuple[Job, int]], boxes: list[Box], exact: bool) -> bool:
    if not units:
        return True
    (job, start), rest = units[0], units[1:]
    wanted = tuple(job.demand[r] for r in instance.resources)
    return any(
        _put(instance, rest, [*boxes, (n, start, start + job.duration, at, wanted)], exact)
        for n in job.nodes
        for at in _places(instance, n, start, start + job.duration, wanted, boxes, exact)
    )


def _places(
    instance: Instance,
    n: int,
    start: int,
    end: int,
    wanted: tuple[int, ...],
    boxes: list[Box],
    exact: bool,
) -> Iterator[tuple[int, ...]]:
    has = [instance.capacity[n][r] for r in instance.resources]
    beside = [box for box in boxes if box[0] == n and box[1] < end and start < box[2]]
    if not exact:
        nothing = (0,) * len(has)
        fits = all(
            sum(b[4][k] for b in beside if b[1] <= t < b[2]) + wanted[k] <= has[k]
            for k in range(len(has))
            for t in range(start, end)
        )
        yield from [nothing] if fits else []
        return
    for at in product(*[range(c - w + 1) for c, w in zip(has, wanted, strict=True)]):
        if all(
            at[k] + wanted[k] <= b[3][k] or b[3][k] + b[4][k] <= at[k] or not wanted[k]
            or not b[4][k]
            for b in beside
            for k in range(len(has))
        ):  # fmt: skip
            yield at
