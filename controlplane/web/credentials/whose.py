"""Whose token or session a request names: asked of the database, and remembered for ten minutes."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.sessions.backends import db
from django.db import DatabaseError, InterfaceError, close_old_connections
from django.http import HttpRequest, parse_cookie
from knox.settings import knox_settings
from rest_framework.exceptions import AuthenticationFailed

from controlplane.web.http.asgi import Scope
from controlplane.web.rest.defaults import BearerAuthentication

KNOWN_S = 600.0
"""Time for which an answer counts: a revoked token is refused, but as its user's for so long."""

MOST_KNOWN = 10_000
ASKS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Credential:
    """Token or session; `text` is secret."""

    is_token: bool
    text: str

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(f"{self.is_token} {self.text}".encode()).digest()


def credentials_of(scope: Scope) -> list[Credential]:
    """Token and session that a request names, in the order in which the API tries them.

    Read as Django and knox read them, or a request could be a user's for them and nobody's here.
    """
    words = _header(scope, b"authorization").split()
    is_token = len(words) == 2 and words[0].lower() == knox_settings.AUTH_HEADER_PREFIX.lower()
    session = parse_cookie(_header(scope, b"cookie")).get(settings.SESSION_COOKIE_NAME)
    found = [Credential(True, words[1])] if is_token else []
    return [*found, Credential(False, session)] if session else found


def _header(scope: Scope, name: bytes) -> str:
    values = (value.decode("latin-1") for key, value in scope["headers"] if key == name)
    return ",".join(values)


class SessionStore(db.SessionStore):
    """Session that `get_user` can neither end nor give another key, which no browser would know.

    The name is Django's: it is part of the signature of a session.
    """

    def flush(self) -> None:
        pass

    def cycle_key(self) -> None:
        pass


def user_of(credential: Credential) -> int | None:
    """Id of the user whose credential this is; None if it is nobody's, or cannot be found out."""
    try:
        close_old_connections()
        if credential.is_token:
            token = credential.text.encode("latin-1")
            return BearerAuthentication().authenticate_credentials(token)[0].pk
        request = HttpRequest()
        request.session = SessionStore(credential.text)
        return get_user(request).pk
    except (AuthenticationFailed, DatabaseError, InterfaceError, ValueError):
        return None  # the answer says what is wrong


class Users:
    """Users of credentials by name, such as "user 7"; `ask` returns a user's id, None for nobody.

    `clock` is in seconds.
    """

    def __init__(
        self,
        ask: Callable[[Credential], Awaitable[object]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._ask, self._clock = ask, clock
        self._asks = asyncio.Semaphore(ASKS_AT_ONCE)
        self._known: dict[bytes, tuple[str, float]] = {}

    def known(self, credentials: Sequence[Credential]) -> str | None:
        """Return the user of the first one that is known."""
        since_s = self._clock() - KNOWN_S
        found = (self._known.get(credential.digest) for credential in credentials)
        return next((user for user, at_s in filter(None, found) if at_s > since_s), None)

    async def asked(self, credentials: Sequence[Credential]) -> str | None:
        """Ask for those that are not known; return the user of the first one that is anybody's."""
        async with self._asks:
            if user := self.known(credentials):
                return user
            for credential in credentials:
                found = await self._ask(credential)
                if found is not None:
                    return self._remembered(credential.digest, f"user {found}")
        return None

    def _remembered(self, digest: bytes, user: str) -> str:
        self._known.pop(digest, None)
        self._known[digest] = (user, self._clock())  # the last: the oldest go first
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return user
