"""The life of a simulation: which move leads from which state to which. Pure; the table is the
contract.

queued -> running -> done | failed
  ^---------'  (its worker died, or stopped: it goes on)
queued, running -> cancelled
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from controlplane.studies.models import Simulation

S = Simulation.State

ACTIVE = frozenset({S.QUEUED, S.RUNNING})
"""Everything that is not over."""


class SimulationMove(StrEnum):
    """Moves of a simulation. LOSE: its worker is gone."""

    START = "start"
    LOSE = "lose"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"


M = SimulationMove

MOVES: Mapping[tuple[S, M], S] = {
    (S.QUEUED, M.START): S.RUNNING,
    (S.RUNNING, M.LOSE): S.QUEUED,
    (S.RUNNING, M.FINISH): S.DONE,
    (S.RUNNING, M.FAIL): S.FAILED,
    (S.QUEUED, M.CANCEL): S.CANCELLED,
    (S.RUNNING, M.CANCEL): S.CANCELLED,
}


class IllegalSimulationMoveError(Exception):
    """The table has no such move from that state."""


def check_move(state: S, move: M) -> S:
    """The state that `move` leads to from `state`; IllegalSimulationMoveError if none."""
    try:
        return MOVES[state, move]
    except KeyError:
        raise IllegalSimulationMoveError(f"a simulation that is {state} cannot {move}") from None
