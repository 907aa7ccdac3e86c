"""Visibility of simulations, and their share links. Every read on a user's behalf begins here.

A share link shows one simulation without an account, until it is taken back. It is the simulation's
id and its random share key, signed by the server: nobody can make one without the key and the
server's secret. Taking it back forgets the key; sharing again makes another link.
"""

import uuid
from contextlib import suppress

from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ValidationError
from django.core.signing import BadSignature, Signer
from django.db.models import Q, QuerySet
from django.http import Http404

from controlplane.studies.models import Simulation
from controlplane.web.operators import is_operator
from jobs.selectors import teams_of

_SALT = "loadmaster.simulation"


def visible_simulations(user: User | AnonymousUser) -> QuerySet[Simulation]:
    """The user's own and their teams' simulations, all for operators; without documents."""
    rows = Simulation.objects.select_related("user", "team").defer("document")
    if is_operator(user):
        return rows
    if not user.is_authenticated:
        return rows.none()
    return rows.filter(Q(user=user.pk, team=None) | Q(team__in=teams_of(user)))


def get_simulation(user: User | AnonymousUser, pk: uuid.UUID | str) -> Simulation:
    """Return the simulation if this user may see it, else raise Http404."""
    try:
        return visible_simulations(user).get(pk=pk)
    except (Simulation.DoesNotExist, ValidationError):
        raise Http404(f"there is no simulation {pk}") from None


def link_of(simulation: Simulation) -> str:
    """Last part of the shared simulation's address; empty if it is not shared."""
    if not simulation.share_key:
        return ""
    return Signer(salt=_SALT).sign(f"{simulation.pk.hex}.{simulation.share_key}")


def shared_simulation(link: str) -> Simulation:
    """Simulation of a share link; Http404 if not shared any more."""
    simulation = None
    with suppress(BadSignature, ValueError):
        pk, _, share_key = Signer(salt=_SALT).unsign(link).partition(".")
        shared = Simulation.objects.defer("document").filter(share_key=share_key)
        simulation = shared.filter(pk=uuid.UUID(pk)).first()
    if simulation is None or not simulation.share_key:
        raise Http404("this link does not exist or was withdrawn")
    return simulation
