"""Services on simulations: create, cancel, delete, share."""

import secrets
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.studies.documents import Resolved, StudyDocumentError, resolved
from controlplane.studies.lifecycle import (
    ACTIVE,
    IllegalSimulationMoveError,
    SimulationMove,
    move_simulation,
)
from controlplane.studies.models import Simulation
from controlplane.studies.running.folders import remove_folder
from controlplane.studies.running.workers import hint_simulations
from controlplane.web.rest.errors import ConflictError
from jobs.models import Team
from jobs.moves import LostRaceError
from jobs.selectors import teams_of

MOST_ACTIVE = 20
"""Simulations of one person that may wait or run."""


class SimulationConflictError(ConflictError):
    """Action that the simulation's present state does not allow."""


def simulation_create(user: User, asked: Mapping[str, Any]) -> Simulation:
    """Create a simulation of the study. StudyDocumentError has messages by field."""
    asked = dict(asked)
    team = asked.pop("team", None) or None
    is_name = isinstance(team, str) and "\0" not in team
    found = teams_of(user).filter(name=team).first() if is_name else None
    if team is not None and found is None:
        raise StudyDocumentError(
            {"team": ["is no team of yours; leave it out to keep the simulation to yourself"]}
        )
    study = resolved(user, asked)
    return enqueue(user, str(study.document["name"])[:100], study, team=found)


def enqueue(user: User, name: str, study: Resolved, team: Team | None = None) -> Simulation:
    """Queue a checked study for the workers. SimulationConflictError if the user has too many."""
    if Simulation.objects.filter(user=user, state__in=ACTIVE).count() >= MOST_ACTIVE:
        raise SimulationConflictError(
            f"{MOST_ACTIVE} of your simulations wait or run already; cancel some, or wait for them"
        )
    simulation = Simulation.objects.create(
        name=name, user=user, team=team, document=study.document, summary=study.summary
    )
    transaction.on_commit(hint_simulations, robust=True)
    return simulation


def simulation_cancel(simulation: Simulation) -> Simulation:
    """Stop it for good. SimulationConflictError if it is over already."""
    while True:
        try:
            return move_simulation(simulation, SimulationMove.CANCEL)
        except LostRaceError:
            try:
                simulation.refresh_from_db(fields=["state", "owner"])
            except Simulation.DoesNotExist:
                raise SimulationConflictError("the simulation has just been deleted") from None
        except IllegalSimulationMoveError:
            raise SimulationConflictError(f"the simulation is {simulation.state} already") from None


def simulation_delete(simulation: Simulation) -> None:
    """Remove it with all it came to; its worker, if it has one, notices within seconds."""
    Simulation.objects.filter(pk=simulation.pk).delete()
    remove_folder(simulation)


def simulation_share(simulation: Simulation) -> Simulation:
    """Give it a share link; a link that it has stays."""
    unshared = Simulation.objects.filter(pk=simulation.pk, share_key="")
    unshared.update(share_key=secrets.token_urlsafe(32))
    simulation.refresh_from_db(fields=["share_key"])
    return simulation


def simulation_unshare(simulation: Simulation) -> Simulation:
    """Take its link back."""
    Simulation.objects.filter(pk=simulation.pk).update(share_key="")
    simulation.share_key = ""
    return simulation
