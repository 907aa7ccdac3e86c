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
"""Seconds for which a user is remembered. Requests with a token that is revoked meanwhile are
refused, but count as its user's."""

MOST_KNOWN = 10_000
"""Most credentials whose users are remembered."""

LOOKUPS_AT_ONCE = 2
"""Most look-ups in the database at once."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Token or session; `text` is secret."""

    is_token: bool
    text: str

    @property
    def digest(self) -> bytes:
        """Key by which its user is remembered."""
        return hashlib.sha256(f"{self.is_token} {self.text}".encode()).digest()


def credentials_of(scope: Scope) -> list[Credential]:
    """Return the token and the session that a request names, in the order that the API tries.

    They are read as Django and knox read them, so that a request has the same user here and there.
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
    """Return the value of a header; several are joined as Django joins them."""
    values = (value.decode("latin-1") for key, value in scope["headers"] if key == name)
    return ",".join(values)


class SessionStore(db.SessionStore):
    """Session that `get_user` can neither end nor give another key.

    The browser would not learn of either. The name of the class is Django's, as it is part of the
    signature of a session.
    """

    def flush(self) -> None:
        pass

    def cycle_key(self) -> None:
        pass


def user_of(credential: Credential) -> int | None:
    """Return the id of the credential's user; None without one, or if the database fails."""
    try:
        close_old_connections()
        if credential.is_token:
            token = credential.text.encode("latin-1")
            user, _ = BearerAuthentication().authenticate_credentials(token)
            return user.pk
        request = HttpRequest()
        request.session = SessionStore(credential.text)
        return get_user(request).pk
    except (AuthenticationFailed, DatabaseError, InterfaceError, ValueError):
        return None  # the answer to the request will say what is wrong


class Users:
    """Remembered users of credentials, with names such as "user 7".

    `find_user` returns the id of a credential's user, None without one. `clock` is in seconds.
    """

    def __init__(
        self,
        find_user: Callable[[Credential], Awaitable[object]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._find_user = find_user
        self._clock = clock
        self._lookups = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self._known: dict[bytes, tuple[str, float]] = {}

    def remembered(self, credentials: Sequence[Credential]) -> str | None:
        """Return the user of the first credential whose user is remembered; None without one."""
        since_s = self._clock() - KNOWN_S
        for credential in credentials:
            user, remembered_s = self._known.get(credential.digest, ("", -inf))
            if remembered_s > since_s:
                return user
        return None

    async def look_up(self, credentials: Sequence[Credential]) -> str | None:
        """Return the user of the first credential that has one, and remember it."""
        async with self._lookups:
            # Another request with the same credential may have looked it up meanwhile.
            user = self.remembered(credentials)
            if user is not None:
                return user
            for credential in credentials:
                user_id = await self._find_user(credential)
                if user_id is not None:
                    user = f"user {user_id}"
                    self._remember(credential.digest, user)
                    return user
        return None

    def _remember(self, digest: bytes, user: str) -> None:
        """Remember a user; forget the oldest one beyond MOST_KNOWN."""
        self._known.pop(digest, None)
        self._known[digest] = (user, self._clock())  # the last: the oldest go first
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
