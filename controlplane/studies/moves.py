"""The one way a simulation changes state: a move of the table, written by compare-and-swap."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.studies.lifecycle import ACTIVE, SimulationMove, check_move
from controlplane.studies.models import Simulation

FREED: dict[str, Any] = {"slot": None, "owner": "", "expires_at": None, "left_s": None}
"""Fields that a simulation clears when it stops running."""


class LostRaceError(Exception):
    """Somebody else moved the row first: read it again and decide anew."""


def move_simulation(simulation: Simulation, move: SimulationMove, **values: Any) -> Simulation:
    """Move `simulation` (as it was read) and set `values` with it; one that stops running gives
    slot and owner back.

    Raises IllegalSimulationMoveError if the table has no such move, LostRaceError if state or owner
    have changed since it was read. The given object is brought up to date.
    """
    before = Simulation.State(simulation.state)
    after = check_move(before, move)
    if after != Simulation.State.RUNNING:
        values = {**FREED, **values}
    if after not in ACTIVE:
        values.setdefault("ended_at", timezone.now())
    with transaction.atomic():
        same = Simulation.objects.filter(pk=simulation.pk, state=before, owner=simulation.owner)
        if not same.update(state=after, **values):
            raise LostRaceError(f"simulation {simulation.pk} is no longer {before}")
    simulation.state = after
    for name, value in values.items():
        setattr(simulation, name, value)
    return simulation
