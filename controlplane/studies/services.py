"""Services on simulations: create, cancel, delete, share. RoleRefused if the user may not."""

import secrets
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.audit.record import record, record_values
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
from jobs.roles import check_change, teams_to_submit_to

MOST_ACTIVE = 20
"""Simulations of one person that may wait or run."""


class SimulationConflictError(ConflictError):
    """Action that the simulation's present state does not allow."""


def simulation_create(user: User, asked: Mapping[str, Any]) -> Simulation:
    """Create a simulation of the study. StudyDocumentError has messages by field.

    SimulationConflictError if the user has too many, BusyError if too much is asked just now.
    """
    _refuse_too_many(user)
    study = dict(asked)
    team_name = study.pop("team", None) or None
    team = None
    if isinstance(team_name, str) and "\0" not in team_name:  # PostgreSQL refuses NUL
        team = teams_to_submit_to(user).filter(name=team_name).first()
    if team_name is not None and team is None:
        problem = (
            "must be a team of which you are a member; leave it out to keep the simulation private"
        )
        raise StudyDocumentError({"team": [problem]})
    return enqueue(user, resolved(user, study, team), team=team)


def enqueue(user: User, study: Resolved, team: Team | None = None) -> Simulation:
    """Queue a checked study for the workers. SimulationConflictError if the user has too many."""
    values = {"name": study.name, "document": study.document, "summary": study.summary}
    with transaction.atomic():
        _check_active(user)
        simulation = Simulation.objects.create(user=user, team=team, **values)
        record("study.add", simulation, team=team, by=user)
    transaction.on_commit(hint_simulations, robust=True)
    return simulation


def _check_active(user: User) -> None:
    """Refuse more than MOST_ACTIVE, with the user locked until the transaction ends."""
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    _refuse_too_many(user)


def _refuse_too_many(user: User) -> None:
    if Simulation.objects.filter(user=user, state__in=ACTIVE).count() >= MOST_ACTIVE:
        raise SimulationConflictError(
            f"{MOST_ACTIVE} of your simulations wait or run already; cancel some, or wait for them"
        )


def simulation_cancel(simulation: Simulation, user: User) -> Simulation:
    """Stop it for good. SimulationConflictError if it is over already."""
    check_change(user, simulation)
    while True:
        try:
            with transaction.atomic():
                old = {"state": simulation.state}
                cancelled = move_simulation(simulation, SimulationMove.CANCEL)
                new = {"state": cancelled.state}
                record_values("study.cancel", cancelled, new, old, team=cancelled.team, by=user)
            return cancelled
        except LostRaceError:  # it has just begun or ended: look again
            try:
                simulation.refresh_from_db(fields=["state", "owner"])
            except Simulation.DoesNotExist:
                raise SimulationConflictError("the simulation has just been deleted") from None
        except IllegalSimulationMoveError:
            raise SimulationConflictError(f"the simulation is {simulation.state} already") from None


def simulation_delete(simulation: Simulation, user: User) -> None:
    """Delete a simulation and its results. Its worker, if any, notices within seconds."""
    check_change(user, simulation)
    with transaction.atomic():
        if Simulation.objects.filter(pk=simulation.pk).delete()[0]:
            old = {"state": simulation.state, "owner": simulation.user}
            record("study.delete", simulation, team=simulation.team, old=old, by=user)
    remove_folder(simulation)


def simulation_share(simulation: Simulation, user: User) -> Simulation:
    """Give it a share link; a link that it has stays."""
    check_change(user, simulation)
    unshared = Simulation.objects.filter(pk=simulation.pk, share_key="")
    with transaction.atomic():
        if unshared.update(share_key=secrets.token_urlsafe(32)):
            record("study.share", simulation, team=simulation.team, by=user)
    simulation.refresh_from_db(fields=["share_key"])
    return simulation


def simulation_unshare(simulation: Simulation, user: User) -> Simulation:
    """Take its link back."""
    check_change(user, simulation)
    shared = Simulation.objects.filter(pk=simulation.pk).exclude(share_key="")
    with transaction.atomic():
        if shared.update(share_key=""):
            record("study.unshare", simulation, team=simulation.team, by=user)
    simulation.share_key = ""
    return simulation
