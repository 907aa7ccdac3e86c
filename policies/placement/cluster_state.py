"""State of a cluster while one plan is made: its free capacity, the searches, and why not."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from math import inf
from typing import NamedTuple

from policies.placement.finders import FINDERS, Order, least_power_mw
from policies.placement.free_capacity import FreeCapacity
from policies.placement.layout import EVERY, Allocation, NodeSet, Request


class ClusterState(FreeCapacity):
    """Free capacity that can be searched."""

    def find(
        self, request: Request, only: NodeSet = EVERY, key: Order | None = None
    ) -> Allocation | None:
        """Return the preferred allocation within the power cap; None exactly if there is none.

        `only`: nodes to look at; `key`: order of groups instead of best fit (one node, any nodes).
        """
        return FINDERS[request.span](self, request, only, key)

    def find_first(self, requests: Iterable[Request], only: NodeSet = EVERY) -> Allocation | None:
        """Return an allocation for the first of these alternatives that fits."""
        for request in requests:
            allocation = self.find(request, only)
            if allocation is not None:
                return allocation
        return None


class ShortageCode(Enum):
    """Limit that is met first."""

    POWER_CAP = "power"
    CAPACITY = "devices or resources of open nodes"


class Shortage(NamedTuple):
    """Shortage of a request; `missing_mw`: power, where devices and resources are there."""

    code: ShortageCode
    missing_mw: int = 0


def why_not(state: ClusterState, request: Request, only: NodeSet = EVERY) -> Shortage | None:
    """Return what a request lacks on these nodes; None if it fits."""
    if state.cap_mw == inf:
        return None if state.find(request, only) else Shortage(ShortageCode.CAPACITY)
    needed_mw = least_power_mw(state, request, only)
    if needed_mw is None:
        return Shortage(ShortageCode.CAPACITY)
    missing_mw = needed_mw + state.used_mw - state.cap_mw
    if missing_mw <= 0:
        return None
    return Shortage(ShortageCode.POWER_CAP, int(missing_mw))
