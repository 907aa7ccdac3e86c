"""Why a request finds no capacity."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from policies.placement.cluster_state import ClusterState
from policies.placement.finders import least_power_mw
from policies.placement.layout import EVERY
from policies.placement.requests import Request


class ShortageCode(Enum):
    """The limit that is met first."""

    POWER_CAP = "power"
    CAPACITY = "devices or resources of open nodes"


class Shortage(NamedTuple):
    """What a request lacks; `missing_mw`: power, where devices and resources are there."""

    code: ShortageCode
    missing_mw: int = 0


def why_not(state: ClusterState, request: Request, only: int = EVERY) -> Shortage | None:
    """Return what a request lacks on these nodes; None if it fits."""
    needed_mw = least_power_mw(state, request, only)
    if needed_mw is None:
        return Shortage(ShortageCode.CAPACITY)
    missing_mw = needed_mw + state.used_mw - state.cap_mw
    return Shortage(ShortageCode.POWER_CAP, int(missing_mw)) if missing_mw > 0 else None
