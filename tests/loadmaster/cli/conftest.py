"""The command line against a real server: people, a node, and where the token is kept."""

from pathlib import Path

import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

from tests.builders import a_user
from tests.builders_jobs import a_token


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "250")
    for name in ("LOADMASTER_URL", "LOADMASTER_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("LOADMASTER_URL", live_server.url)
    return str(live_server.url)


@pytest.fixture
def ada(server: str, user: User, monkeypatch: pytest.MonkeyPatch) -> User:
    monkeypatch.setenv("LOADMASTER_TOKEN", a_token(user))
    return user


@pytest.fixture
def root(server: str, transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> User:
    user = a_user("root", operator=True)
    monkeypatch.setenv("LOADMASTER_TOKEN", a_token(user))
    return user
