"""Hashing of passwords takes OWASP's memory and time, one at a time."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.hashers import Argon2PasswordHasher, get_hasher
from django.contrib.auth.models import User
from django.test import Client, override_settings

from controlplane import settings as production
from controlplane.web.credentials.hashing import NICE
from tests.builders import a_user

HASHERS = override_settings(PASSWORD_HASHERS=production.PASSWORD_HASHERS)
PASSWORD = "a long password"


@HASHERS
def test_a_hash_has_the_parameters_of_owasp() -> None:
    hasher: Any = get_hasher()
    found = hasher.decode(hasher.encode(PASSWORD, "some salt of it"))
    assert found["variety"] == "argon2id"
    assert (found["memory_cost"], found["time_cost"], found["parallelism"]) == (19_456, 2, 1)


@HASHERS
def test_one_password_is_hashed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, most, lock = [0], [0], threading.Lock()

    def counted(*_: object) -> bool:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1
        return True

    monkeypatch.setattr(Argon2PasswordHasher, "verify", counted)
    monkeypatch.setattr(Argon2PasswordHasher, "encode", counted)
    hasher: Any = get_hasher()
    with ThreadPoolExecutor(12) as pool:
        tries = [pool.submit(hasher.verify, PASSWORD, "hash") for _ in range(6)]
        tries += [pool.submit(hasher.encode, PASSWORD, "salt") for _ in range(6)]
        assert all(one.result(60) for one in tries)
    assert most == [1]


@HASHERS
def test_hashing_lets_the_other_threads_of_the_server_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def niceness(*_: object) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    monkeypatch.setattr(Argon2PasswordHasher, "verify", niceness)
    hasher: Any = get_hasher()
    own = niceness()
    assert hasher.verify(PASSWORD, "hash") == min(own + NICE, 19)
    assert niceness() == own


@pytest.mark.django_db
@HASHERS
def test_a_hash_made_with_other_parameters_is_renewed_at_the_next_login(client: Client) -> None:
    user = a_user("ada")
    old = Argon2PasswordHasher().encode(PASSWORD, "some salt of it")
    User.objects.filter(pk=user.pk).update(password=old)
    answer = client.post("/login/", {"username": "ada", "password": PASSWORD})
    assert answer.status_code == 302
    user.refresh_from_db()
    assert "m=19456,t=2,p=1" in user.password
    assert django_settings.PASSWORD_HASHERS == production.PASSWORD_HASHERS
