"""Databases of a test's own beside the one that all tests share: files of SQLite, databases of the
PostgreSQL server at hand.
"""

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg2
from django.core.management import call_command
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from controlplane.environment import SQLITE_OPTIONS
from controlplane.web.storage.sqlite.base import DatabaseWrapper as Sqlite

DATA = Path(__file__).parent / "data"
_numbers = count(1)


@contextmanager
def database_of(wrapper: BaseDatabaseWrapper) -> Iterator[None]:
    """Inside, Django's default connection is this one."""
    usual = connections["default"]
    connections["default"] = wrapper
    try:
        yield
    finally:
        connections["default"].close()
        connections["default"] = usual


@contextmanager
def sqlite_database(path: Path) -> Iterator[str]:
    """The default database is this file."""
    entry = {**connections["default"].settings_dict, "NAME": str(path), "OPTIONS": SQLITE_OPTIONS}
    with database_of(Sqlite({**entry, "ENGINE": "controlplane.web.storage.sqlite"}, "default")):
        yield str(path)


@contextmanager
def postgres_database(template: str = "template0") -> Iterator[str]:
    """The default database is a new one of the server that DATABASE_URL names, a copy of
    `template`; its name.
    """
    usual, name = connections["default"], f"own_{os.getpid()}_{next(_numbers)}"
    entry = {**usual.settings_dict, "NAME": name, "CONN_MAX_AGE": 0}
    with _server(usual) as server:
        server.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        try:
            with database_of(type(usual)(entry, "default")):
                yield name
        finally:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def _server(usual: BaseDatabaseWrapper) -> Iterator[Any]:
    """A cursor outside of any transaction."""
    params = {
        name: value
        for name, value in usual.get_connection_params().items()
        if name in ("user", "password", "host", "port")
    }
    server = psycopg2.connect(dbname="postgres", **params)
    server.autocommit = True
    try:
        yield server.cursor()
    finally:
        server.close()


def first_version_sqlite(path: Path) -> dict[str, Any]:
    """Unpack the first version's SQLite database to a file; what is in it."""
    path.write_bytes(gzip.decompress((DATA / "first-version.sqlite3.gz").read_bytes()))
    return _facts("first-version.json")


def first_version_postgres() -> dict[str, Any]:
    """Read the first version's dump into the default database, which is empty; what is in it."""
    text = gzip.decompress((DATA / "first-version.sql.gz").read_bytes()).decode()
    script = "\n".join(line for line in text.splitlines() if not line.startswith("\\"))
    with connections["default"].cursor() as cursor:
        cursor.execute(script)
    connections["default"].close()
    return _facts("first-version.json")


def migrated() -> None:
    """Bring the default database to today's schema."""
    call_command("migrate", verbosity=0, interactive=False)


def _facts(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((DATA / name).read_text())
    return facts
