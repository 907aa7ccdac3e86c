"""Share links: whoever has one may look at one simulation, without an account, until it is taken
back.

A link is the simulation's id and its share key, signed by the server: nobody can make one without
the key, which is random, and the server's secret. Taking it back forgets the key; sharing again
makes another link.
"""

from __future__ import annotations

import secrets
import uuid

from django.core.signing import BadSignature, Signer

from controlplane.studies.models import Simulation

_SIGNER = "loadmaster.simulation"


def new_key() -> str:
    """A fresh share key, 256 random bits."""
    return secrets.token_urlsafe(32)


def link_of(simulation: Simulation) -> str:
    """The last part of the shared simulation's address; empty if it is not shared."""
    return (
        Signer(salt=_SIGNER).sign(f"{simulation.pk.hex}.{simulation.share_key}")
        if simulation.share_key
        else ""
    )


def read_link(link: str) -> tuple[uuid.UUID, str] | None:
    """(simulation, share key) of a link that this server has made, else None."""
    try:
        pk, _, key = Signer(salt=_SIGNER).unsign(link).partition(".")
        return (uuid.UUID(pk), key) if key else None
    except (BadSignature, ValueError):
        return None
