"""Why a request finds no capacity: the first limit without which it would."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import inf

from policies.placement.cluster_state import ClusterState
from policies.placement.finders import least_power_mw
from policies.placement.layout import EVERY
from policies.placement.requests import Request


class ShortageCode(Enum):
    """What is missing."""

    IMPOSSIBLE = "no node of the empty cluster would do"
    POWER_CAP = "power"
    CLOSED = "nodes that take new jobs"
    RESOURCE = "a resource other than devices"
    DEVICES = "devices"


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a request lacks. `missing_mw`: power; `resource`: its number; `nodes`: closed ones."""

    code: ShortageCode
    missing_mw: int = 0
    resource: int = -1
    nodes: tuple[int, ...] = ()


def why_not(state: ClusterState, request: Request) -> Shortage:
    """Return the first limit without which a request that does not fit would."""
    if ClusterState(state.layout).find(request) is None:
        return Shortage(ShortageCode.IMPOSSIBLE)
    needed_mw = least_power_mw(state, request)
    if needed_mw is not None:
        return Shortage(
            ShortageCode.POWER_CAP, missing_mw=int(needed_mw + state.used_mw - state.cap_mw)
        )
    trial = state.copy()
    trial.cap_mw, trial.open = inf, EVERY
    if found := trial.find(request):
        return Shortage(ShortageCode.CLOSED, nodes=tuple(p.node for p in found.parts))
    for resource in range(len(state.layout.resources)):
        if trial.find(_without(request, resource)):
            return Shortage(ShortageCode.RESOURCE, resource=resource)
    return Shortage(ShortageCode.DEVICES)


def holders(state: ClusterState, request: Request) -> Iterator[Hashable]:
    """Yield the jobs that hold anything on nodes that a request allows, in the order of nodes."""
    classes, allowed = state.layout.admitting(request)
    allowed &= sum(state.layout.members[c] for c in classes)
    found = [
        (part.node, i, job)
        for i, (job, hold) in enumerate(state.held.items())
        for part in hold.allocation.parts
        if allowed >> part.node & 1
    ]
    yield from dict.fromkeys(job for _, _, job in sorted(found, key=lambda f: f[:2]))


def _without(request: Request, resource: int) -> Request:
    amounts, once = list(request.amounts), list(request.per_node)
    for of in (amounts, once):
        if of:
            of[resource] = 0
    return replace(request, amounts=tuple(amounts), per_node=tuple(once))
