"""The user of a request before Django answers it is the user that Django finds."""

import asyncio
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.test import Client

from controlplane.web.credentials import users as credential_users
from controlplane.web.credentials.users import (
    KNOWN_S,
    Credential,
    Users,
    credentials_of,
    user_of,
)
from controlplane.web.http.asgi import Receive, Scope, Send, ThreadedHandler
from controlplane.web.logs.middleware import user_id_of
from tests.builders import a_user
from tests.builders_asgi import ask
from tests.builders_jobs import a_token

COOKIE = django_settings.SESSION_COOKIE_NAME
PAGE, API = "/tokens/", "/api/v1/jobs/"
NOBODYS = "0" * 64

HEADERS = {
    "nothing": [],
    "a token": [("authorization", "Bearer {token}")],
    "a token after more blanks": [("authorization", "bEARER  \t{token} ")],
    "a token in pieces": [("authorization", "Bearer {token} x")],
    "a token twice": [("authorization", "Bearer {token}"), ("authorization", "Bearer {token}")],
    "a token of another scheme": [("authorization", "Token {token}")],
    "an unknown token": [("authorization", f"Bearer {NOBODYS}")],
    "a token that is no text": [("authorization", "Bearer \xff\xfe")],
    "a session": [("cookie", f"a=b; {COOKIE}={{session}}; c=d")],
    "a session in the first of two headers": [
        ("cookie", f"{COOKIE}={{session}}; x=1"),
        ("cookie", "a=b"),
    ],
    "a session beside another scheme": [
        ("authorization", "Basic YTpi"),
        ("cookie", f"{COOKIE}={{session}}"),
    ],
    "a session in quotes": [("cookie", f'{COOKIE}="{{session}}"')],
    "an unknown session": [("cookie", f"{COOKIE}={'a' * 32}")],
    "a session that is no text": [("cookie", f'{COOKIE}="abcdefghij\\000"')],
    "a cookie that is none": [("cookie", "\xff\xfe=\x00")],
}


Raw = list[tuple[bytes, bytes]]


async def users_to_django(headers: Raw) -> set[object]:
    """Ids of the users as whom Django answers a page and the API."""
    found = set[object]()

    class Noting(ThreadedHandler):
        def get_response(self, request: HttpRequest) -> HttpResponseBase:
            try:
                return super().get_response(request)
            finally:
                found.add(user_id_of(request))

    handler = Noting()

    async def with_headers(scope: Scope, receive: Receive, send: Send) -> None:
        scope["headers"] += headers
        await handler(scope, receive, send)

    for path in (PAGE, API):
        await ask(with_headers, "GET", path, {})
    handler.close()
    return found - {None}


def logged_in(user: User) -> str:
    client = Client()
    client.force_login(user)
    return str(client.session.session_key)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_a_request_has_the_user_that_django_finds(headers: list[tuple[str, str]]) -> None:
    eve = a_user("eve")
    known = {"token": a_token(eve), "session": logged_in(eve)}
    raw = [(name.encode(), value.format(**known).encode("latin-1")) for name, value in headers]
    here = {user_of(each) for each in credentials_of({"headers": raw})}
    assert here - {None} == asyncio.run(users_to_django(raw))


@pytest.mark.django_db(transaction=True)
def test_a_session_is_nobodys_after_a_change_of_the_password_or_of_the_user(settings: Any) -> None:
    eve = a_user("eve")
    session = Credential(is_token=False, text=logged_in(eve))
    assert user_of(session) == eve.pk
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another" * 10
    assert user_of(session) == eve.pk
    assert Session.objects.filter(pk=session.text).exists(), "a browser has no other key"
    eve.set_password("changed")
    eve.save()
    assert user_of(session) is None
    another = Credential(is_token=False, text=logged_in(eve))
    User.objects.filter(pk=eve.pk).update(is_active=False)
    assert user_of(another) is None


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_while_the_database_is_away_everybody_is_a_stranger(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def away() -> None:
        raise error("away")

    monkeypatch.setattr(credential_users, "close_old_connections", away)
    assert user_of(Credential(is_token=True, text="x")) is None


def test_a_user_is_asked_for_once_in_a_while() -> None:
    now_s, asked = [0.0], list[str]()

    async def answer(credential: Credential) -> object:
        asked.append(credential.text)
        await asyncio.sleep(0)
        return None if credential.text == "nobody" else 7

    users = Users(answer, lambda: now_s[0])
    eves, nobodys = [Credential(is_token=True, text="eve")], [Credential(False, "nobody")]

    async def run(*credentials: Credential) -> list[str | None]:
        return await asyncio.gather(*(users.look_up(credentials) for _ in range(9)))

    assert asyncio.run(run(*nobodys, *eves)) == ["user 7"] * 9
    assert asked.count("eve") <= credential_users.LOOKUPS_AT_ONCE
    assert users.remembered([*nobodys, *eves]) == "user 7"
    assert users.remembered(nobodys) is None
    assert users.remembered([Credential(is_token=False, text="eve")]) is None
    now_s[0] = KNOWN_S
    assert users.remembered(eves) is None


def test_of_too_many_users_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credential_users, "MOST_KNOWN", 2)
    now_s = [0.0]

    async def answer(credential: Credential) -> object:
        return credential.text

    users = Users(answer, lambda: now_s[0])
    one, two, three = ([Credential(is_token=True, text=text)] for text in "123")

    async def run() -> None:
        for credentials in (one, two):
            await users.look_up(credentials)
        now_s[0] = KNOWN_S
        for credentials in (one, three):
            await users.look_up(credentials)

    asyncio.run(run())
    now_s[0] = 0.0
    assert [users.remembered(each) for each in (one, two, three)] == ["user 1", None, "user 3"]
