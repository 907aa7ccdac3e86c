"""The life of a simulation: its moves, and the one way to make them, by compare-and-swap.

queued -> running -> done | failed
  ^---------'  (its worker died, or stopped: it goes on)
queued, running -> cancelled
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from django.utils import timezone

from controlplane.studies.models import Simulation
from jobs.moves import LostRaceError

S = Simulation.State

ACTIVE = frozenset({S.QUEUED, S.RUNNING})


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
    """Move that the table does not have from that state."""


def check_move(state: S, move: M) -> S:
    """Return the state after `move`; raise IllegalSimulationMoveError if the table has none."""
    if (state, move) not in MOVES:
        raise IllegalSimulationMoveError(f"a simulation that is {state} cannot {move}")
    return MOVES[state, move]


FREED: dict[str, Any] = {"slot": None, "owner": "", "expires_at": None, "left_s": None}
"""Fields that a simulation clears when it stops running."""


def move_simulation(simulation: Simulation, move: SimulationMove, **values: Any) -> Simulation:
    """Move `simulation` (as read) and set `values`; one that stops running frees its slot.

    Raises IllegalSimulationMoveError, or LostRaceError if state or owner have changed since it was
    read. Updates `simulation`.
    """
    before = Simulation.State(simulation.state)
    after = check_move(before, move)
    if after != Simulation.State.RUNNING:
        values = {**FREED, **values}
    if after not in ACTIVE:
        values.setdefault("ended_at", timezone.now())
    same = Simulation.objects.filter(pk=simulation.pk, state=before, owner=simulation.owner)
    if not same.update(state=after, **values):
        raise LostRaceError(f"simulation {simulation.pk} is no longer {before}")
    simulation.state = after
    for name, value in values.items():
        setattr(simulation, name, value)
    return simulation
