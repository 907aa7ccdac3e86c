"""List schedule of units at positions of nodes, compiled.

It is the first descent of PCP'20's search: the job of greatest priority first, each at its earliest
start, its units at the last positions of the last nodes. J jobs, N nodes in order, R resources. A
box is what a unit uses of a node: `height` positions of each resource from `at` on, for a time.
"""

from typing import NamedTuple

import numpy as np

from policies.contract.snapshot import Bools, Ints
from policies.placement.kernels import compiled

NONE = -1


class ListData(NamedTuple):
    """Jobs and nodes of a list schedule.

    `units`, `most` (units on a node), `parts` (nodes that the units are to be on, 0: any number),
    `duration`, `earliest` int64[J]; `demand` int64[J, R]; `alone` bool[J]: a unit has the node for
    itself; `allowed` bool[J, N]; `capacity` int64[N, R].
    """

    units: Ints
    most: Ints
    parts: Ints
    duration: Ints
    earliest: Ints
    demand: Ints
    alone: Bools
    allowed: Bools
    capacity: Ints


class Boxes(NamedTuple):
    """Boxes of all nodes: lists by node, the last one added first.

    `last` int64[N]: a node's first box, -1: none; `used` int64[1]: number of boxes; `before`,
    `node`, `job`, `start`, `end` int64[B]; `at`, `height` int64[B, R].
    """

    last: Ints
    used: Ints
    before: Ints
    node: Ints
    job: Ints
    start: Ints
    end: Ints
    at: Ints
    height: Ints


@compiled
def add_box(
    boxes: Boxes, job: int, node: int, start: int, end: int, at: Ints, height: Ints
) -> None:
    """Add a box of a job on a node for a time; NONE is the job of what runs."""
    b = boxes.used[0]
    boxes.before[b] = boxes.last[node]
    boxes.node[b] = node
    boxes.job[b] = job
    boxes.start[b] = start
    boxes.end[b] = end
    boxes.at[b] = at
    boxes.height[b] = height
    boxes.last[node] = b
    boxes.used[0] = b + 1


@compiled
def remove_boxes(boxes: Boxes, count: int) -> None:
    """Remove all boxes but the first `count`."""
    for b in range(boxes.used[0] - 1, count - 1, -1):
        boxes.last[boxes.node[b]] = boxes.before[b]
    boxes.used[0] = count


@compiled
def last_position(
    boxes: Boxes, node: int, r: int, start: int, end: int, height: int, capacity: int
) -> int:
    """Return the last position on a node that is free for this time; -1 if there is none."""
    at = capacity - height
    moved = True
    while moved and at >= 0:
        moved = False
        b = boxes.last[node]
        while b >= 0:
            if boxes.start[b] < end and start < boxes.end[b] and boxes.height[b, r] > 0:
                first = boxes.at[b, r]
                if first < at + height and at < first + boxes.height[b, r]:
                    at = first - height
                    moved = True
            b = boxes.before[b]
    return max(at, NONE)


@compiled
def is_empty(boxes: Boxes, node: int, start: int, end: int) -> bool:
    """Return True if no box is on a node during this time."""
    b = boxes.last[node]
    while b >= 0:
        if boxes.start[b] < end and start < boxes.end[b]:
            return False
        b = boxes.before[b]
    return True


@compiled
def put_unit(data: ListData, boxes: Boxes, j: int, node: int, start: int, at: Ints) -> bool:
    """Add a box for a unit of job j on a node from `start` on, if it fits there; return if so.

    `at`: space for the unit's positions.
    """
    end = start + data.duration[j]
    if data.alone[j]:
        if not is_empty(boxes, node, start, end):
            return False
        at[:] = 0
        add_box(boxes, j, node, start, end, at, data.capacity[node])
        return True
    for r in range(len(at)):
        at[r] = 0
        height = data.demand[j, r]
        if height > 0:
            at[r] = last_position(boxes, node, r, start, end, height, data.capacity[node, r])
            if at[r] < 0:
                return False
    add_box(boxes, j, node, start, end, at, data.demand[j])
    return True


@compiled
def put_job(data: ListData, boxes: Boxes, j: int, start: int, at: Ints) -> bool:
    """Add boxes for all units of job j from `start` on, the last nodes first, if they fit.

    A job that is to be on so many nodes has an equal part on each of them. Return if they fit.
    """
    used_before = boxes.used[0]
    left = data.units[j]
    nodes_left = data.parts[j]
    for node in range(len(data.allowed[j]) - 1, -1, -1):
        if not data.allowed[j, node]:
            continue
        # As many units as the node may have: those of an equal part, all or none.
        used_before_node = boxes.used[0]
        wanted = min(left, data.most[j])
        if data.parts[j] > 0:
            wanted = -(-left // nodes_left)
        put = 0
        while put < wanted and put_unit(data, boxes, j, node, start, at):
            put += 1
        if data.parts[j] > 0:
            if put < wanted:
                remove_boxes(boxes, used_before_node)
                continue
            nodes_left -= 1
        left -= put
        if left == 0:
            return True
    remove_boxes(boxes, used_before)
    return False


@compiled
def list_schedule(data: ListData, boxes: Boxes, starts: Ints) -> None:
    """Add boxes for all jobs, in their order, each at its earliest start (-1: it has none)."""
    at = np.zeros(data.capacity.shape[1], dtype=np.int64)
    for j in range(len(data.units)):
        starts[j] = NONE
        if put_job(data, boxes, j, data.earliest[j], at):
            starts[j] = data.earliest[j]
            continue
        # Else at the first end of a box that makes room.
        tried = data.earliest[j]
        for end in np.sort(boxes.end[: boxes.used[0]]):
            if end > tried:
                tried = end
                if put_job(data, boxes, j, end, at):
                    starts[j] = end
                    break
