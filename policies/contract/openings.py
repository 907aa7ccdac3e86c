"""What nodes have to give, read off their views once: from round to round only those are looked at
where somebody came or went.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, count
from operator import is_not

from policies.contract.views import NodeView


@dataclass(frozen=True, slots=True)
class Opening:
    """Of one node: ids of the healthy devices that nobody holds, how many are held, and by which
    jobs.
    """

    free: tuple[str, ...]
    held: int
    holders: tuple[str, ...]

    @classmethod
    def of(cls, node: NodeView) -> Opening:
        """As the node is now."""
        free, held, holders = [], 0, []
        for device in node.devices:
            if device.held:
                held += 1
                holders += [hold.job for hold in device.held]
            elif device.healthy:
                free.append(device.id)
        return cls(tuple(free), held, tuple(holders))


class Openings:
    """Of all nodes, in their order: `of[n]`, free devices as `gpus[n]`, and every job that holds a
    device, with how many.
    """

    def __init__(self, of: Sequence[Opening], gpus: Sequence[int], holders: dict[str, int]) -> None:
        self.of, self.gpus, self.holders = of, gpus, holders

    @classmethod
    def read(cls, nodes: Sequence[NodeView]) -> Openings:
        """As the nodes are now."""
        of, holders = [Opening.of(n) for n in nodes], dict[str, int]()
        for opening in of:
            _add(holders, opening, 1)
        return cls(of, [len(o.free) for o in of], holders)

    def renewed(self, nodes: Sequence[NodeView], at: Sequence[int]) -> Openings:
        """The same after the nodes at these places have changed; this one stays as it is."""
        of, gpus, holders = list(self.of), list(self.gpus), self.holders.copy()
        for i in at:
            _add(holders, of[i], -1)
            of[i] = Opening.of(nodes[i])
            gpus[i] = len(of[i].free)
            _add(holders, of[i], 1)
        return Openings(of, gpus, holders)


def _add(holders: dict[str, int], opening: Opening, times: int) -> None:
    for job in opening.holders:
        left = holders.get(job, 0) + times
        if left:
            holders[job] = left
        else:
            del holders[job]


def changed(before: Sequence[NodeView], after: Sequence[NodeView]) -> list[int] | None:
    """Places of the nodes that are not the same objects; None if they are not as many."""
    if len(before) != len(after):
        return None
    return [] if before is after else list(compress(count(), map(is_not, before, after)))


def differ_by_holds_alone(old: NodeView, new: NodeView) -> bool:
    """Whether two views are of one node that nothing but holds and health of its devices has
    changed on.
    """
    return (
        old.id == new.id
        and old.gpu_type == new.gpu_type
        and len(old.devices) == len(new.devices)
        and old.power_w == new.power_w
        and old.state is new.state
        and old.role is new.role
        and old.labels == new.labels
        and old.cores == new.cores
        and old.memory_gb == new.memory_gb
        and old.resources == new.resources
    )
