"""API tokens: issued with a scope and an end, noted when used, listed, ended."""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.db import DatabaseError, transaction
from django.db.models import QuerySet
from django.utils import timezone
from knox.models import AuthToken

from controlplane.audit.record import Change, record, record_all
from controlplane.web.models import Scope, TokenGrant

log = logging.getLogger(__name__)

NOTED_EVERY = timedelta(minutes=5)
"""Accuracy of a token's last use: it is not worth a write with every request."""


class LifetimeError(ValueError):
    """Lifetime above the maximum."""


@dataclass(frozen=True, slots=True)
class Issued:
    """New token: its row, and the token itself, which is shown once."""

    row: AuthToken
    token: str


def lifetime(valid_h: float | None) -> timedelta:
    """Return a lifetime of so many hours; TOKEN_DAYS for None.

    Raises LifetimeError above TOKEN_MAX_DAYS.
    """
    if valid_h is None:
        return timedelta(days=settings.TOKEN_DAYS)
    most_h = 24 * settings.TOKEN_MAX_DAYS
    if valid_h > most_h:
        raise LifetimeError(
            f"must be at most {most_h:g} hours ({settings.TOKEN_MAX_DAYS:g} days); operators set"
            " LOADMASTER_TOKEN_MAX_DAYS"
        )
    return timedelta(hours=valid_h)


@transaction.atomic
def issue(user: User, scope: Scope, valid: timedelta) -> Issued:
    """Issue a token."""
    row, token = AuthToken.objects.create(user, expiry=valid)
    TokenGrant.objects.create(token=row, scope=scope)
    record("credential.add", row.token_key, new={"scope": scope, "end": row.expiry}, by=user)
    return Issued(row, token)


def tokens_of(user: User) -> QuerySet[AuthToken]:
    """Return the tokens of a person that have not ended, newest first."""
    tokens: QuerySet[AuthToken] = AuthToken.objects.filter(user=user, expiry__gt=timezone.now())
    return tokens.select_related("grant").order_by("-created")


@transaction.atomic
def end_tokens(tokens: QuerySet[AuthToken]) -> int:
    """End these tokens; return their number."""
    keys = tokens.order_by("created").values_list("token_key", "user__username")
    record_all(Change("credential.end", key, old={"owner": owner}) for key, owner in keys)
    _, deleted_by_model = tokens.delete()
    return int(deleted_by_model.get("knox.AuthToken", 0))


def scope_of(token: AuthToken) -> Scope:
    """Return the scope of a token; one without a grant is older than scopes, and has the widest."""
    grant = getattr(token, "grant", None)
    return Scope(grant.scope) if grant else Scope.OPERATE


def last_used_at(token: AuthToken) -> datetime | None:
    """Return the time of a token's last use; None if it was never used."""
    grant = getattr(token, "grant", None)
    return grant.last_used_at if grant else None


def note_use(token: AuthToken) -> None:
    """Note the use of a token, once in NOTED_EVERY; if the database fails, it is only logged."""
    now = timezone.now()
    last_use = last_used_at(token)
    if last_use is not None and now - last_use < NOTED_EVERY:
        return
    try:
        if not TokenGrant.objects.filter(token=token).update(last_used_at=now):
            grant = TokenGrant(token=token, last_used_at=now)
            TokenGrant.objects.bulk_create([grant], ignore_conflicts=True)
    except DatabaseError as error:
        log.warning("the use of a token is not noted: %s", error)
