"""Visibility of simulations. Every read on a user's behalf begins here."""

from __future__ import annotations

import uuid

from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet

from controlplane.studies.models import Simulation
from controlplane.studies.sharing import read_link
from controlplane.web.operators import is_operator
from jobs.models import Membership


class SimulationNotFoundError(Exception):
    """There is no such simulation, or this user may not know of it."""


def visible_simulations(user: User | AnonymousUser) -> QuerySet[Simulation]:
    """Simulations of the user and their teams, all for operators; without documents."""
    rows = Simulation.objects.select_related("user", "team").defer("document")
    if is_operator(user):
        return rows
    teams = Membership.objects.filter(user=user.pk).values("team")
    return (
        rows.filter(Q(user=user.pk) | Q(team__in=teams)) if user.is_authenticated else rows.none()
    )


def get_simulation(user: User | AnonymousUser, pk: uuid.UUID | str) -> Simulation:
    """The simulation if this user may see it, else SimulationNotFoundError."""
    try:
        return visible_simulations(user).get(pk=pk)
    except (Simulation.DoesNotExist, ValidationError):
        raise SimulationNotFoundError(f"there is no simulation {pk}") from None


def shared_simulation(link: str) -> Simulation:
    """The simulation of a share link; SimulationNotFoundError if not shared any more."""
    found = read_link(link)
    rows = (
        Simulation.objects.defer("document").filter(share_key=found[1], pk=found[0])
        if found
        else Simulation.objects.none()
    )
    simulation = rows.first()
    if simulation is None:
        raise SimulationNotFoundError("this link leads nowhere, or not any more")
    return simulation
