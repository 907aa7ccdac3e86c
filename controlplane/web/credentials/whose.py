"""Users of tokens and sessions: looked up in the database, and remembered for ten minutes."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
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
"""Seconds for which a user is remembered. A revoked token is refused, but counts as its user's."""

MOST_KNOWN = 10_000
"""Credentials whose users are remembered."""

ASKS_AT_ONCE = 2
"""Look-ups in the database at once."""


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

    They are read as Django and knox read them. Else a request could be a user's there, and nobody's
    here.
    """
    credentials = []
    words = _header(scope, b"authorization").split()
    if len(words) == 2 and words[0].lower() == knox_settings.AUTH_HEADER_PREFIX.lower():
        credentials.append(Credential(is_token=True, text=words[1]))
    session = parse_cookie(_header(scope, b"cookie")).get(settings.SESSION_COOKIE_NAME)
    if session:
        credentials.append(Credential(is_token=False, text=session))
    return credentials


def _header(scope: Scope, name: bytes) -> str:
    """Value of a header; several are joined as Django joins them."""
    values = (value.decode("latin-1") for key, value in scope["headers"] if key == name)
    return ",".join(values)


class SessionStore(db.SessionStore):
    """Session that `get_user` can neither end nor give another key: no browser would learn of it.

    The name is Django's: it is part of the signature of a session.
    """

    def flush(self) -> None:
        pass

    def cycle_key(self) -> None:
        pass


def user_of(credential: Credential) -> int | None:
    """Id of the credential's user; None if it is nobody's, or the database does not answer."""
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
    """Users of credentials, named such as "user 7".

    `ask` returns the id of a credential's user, None if it is nobody's. `clock` is in seconds.
    """

    def __init__(
        self,
        ask: Callable[[Credential], Awaitable[object]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._asks = asyncio.Semaphore(ASKS_AT_ONCE)
        self._known: dict[bytes, tuple[str, float]] = {}

    def remembered(self, credentials: Sequence[Credential]) -> str | None:
        """Return the user of the first credential whose user is remembered."""
        since_s = self._clock() - KNOWN_S
        for credential in credentials:
            user, at_s = self._known.get(credential.digest, ("", -inf))
            if at_s > since_s:
                return user
        return None

    async def look_up(self, credentials: Sequence[Credential]) -> str | None:
        """Return the user of the first credential that is anybody's, and remember it."""
        async with self._asks:
            # Another request with the same credential may have asked meanwhile.
            user = self.remembered(credentials)
            if user is not None:
                return user
            for credential in credentials:
                user_id = await self._ask(credential)
                if user_id is not None:
                    user = f"user {user_id}"
                    self._remember(credential.digest, user)
                    return user
        return None

    def _remember(self, digest: bytes, user: str) -> None:
        """Remember a user; the credential whose user was remembered first is forgotten first."""
        self._known.pop(digest, None)
        self._known[digest] = (user, self._clock())  # the last: the oldest go first
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
