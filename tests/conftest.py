"""What every test shares."""

import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import caches
from django.db import connection
from hypothesis import HealthCheck, is_hypothesis_test, settings
from pytest_django import DjangoDbBlocker

from controlplane.web import nice_process
from tests.builders_databases import migrated, sqlite_database

TESTS = Path(__file__).parent

EXAMPLES = int(os.environ.get("LOADMASTER_TEST_EXAMPLES", "1"))
"""Every property test draws this many times its examples; make test-nightly sets 10."""

UNMEASURED = ("bench", "chaos", "load", "security")
"""Folders whose tests run experiments, or many times what other tests run once."""

DATABASE_WORDS = re.compile(
    r"vendor|postgres|sqlite|JSON|x00|%00|select_for_update|cursor\(|mutex|transaction=True"
    r"|\b(SQL|lock|locks|locked|locking|IntegrityError|OperationalError|DatabaseError)\b"
)

os.environ.setdefault("LOADMASTER_ISOLATION", "none")
os.environ.setdefault("LOADMASTER_CGROUPS", "none")
"""Agents that tests start as programs share their nodes, and make no cgroups: both have tests."""

# How fast a machine is at that moment is no property of the code. The same examples each time: a
# rare one is found by the night (LOADMASTER_EXPLORE), not by somebody else's change.
settings.register_profile(
    "repeatable",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="LOADMASTER_EXPLORE" not in os.environ,
)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give property tests the examples that are asked for, and start the longest tests first."""
    for test in {getattr(item, "obj", None) for item in items}:
        if EXAMPLES > 1 and is_hypothesis_test(test):
            multiply_examples(test, EXAMPLES)
    for item in items:
        if names_a_database(item.path):
            item.add_marker("both_databases")
    items.sort(key=time_limit_s, reverse=True)


@cache
def names_a_database(path: Path) -> bool:
    """Return True for a file of tests where PostgreSQL may differ from SQLite.

    Such a file names one of them, a lock, a transaction, SQL, JSON or NUL.
    """
    return DATABASE_WORDS.search(path.read_text()) is not None


def time_limit_s(item: pytest.Item) -> float:
    """Return the limit that a test sets itself, which says how long it may take; 0 if none."""
    limit = item.get_closest_marker("timeout")
    return 0.0 if limit is None else float(limit.args[0])


def is_measured(item: pytest.Item) -> bool:
    """Return False for tests under which coverage takes much time and finds nothing new."""
    folder = item.path.relative_to(TESTS).parts[0]
    return folder not in UNMEASURED and not is_hypothesis_test(getattr(item, "obj", None))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run what is not measured without coverage's tracer.

    pytest-cov's mark `no_cover` does not: in a worker it goes on with a second tracer.
    """
    tracer = sys.gettrace()
    if tracer is None or is_measured(item):
        yield
        return
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


def multiply_examples(test: Any, times: int) -> None:
    """Let a property test draw more. A profile cannot: a test's own settings win over it."""
    chosen: settings = test._hypothesis_internal_use_settings
    more = settings(chosen, max_examples=times * chosen.max_examples)
    test._hypothesis_internal_use_settings = more


@pytest.fixture(autouse=True)
def _empty_caches() -> Iterator[None]:
    """No test sees another one's caches."""
    for one in caches.all():
        one.clear()
    yield
    for one in caches.all():
        one.clear()


@pytest.fixture(autouse=True)
def _long_questions_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long questions are answered by this process: another does not see the tests' database."""
    monkeypatch.setattr(nice_process, "ask", lambda question, *given: question(*given))


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """End other sessions before the shared database is dropped: a test's thread may keep one."""
    yield
    with django_db_blocker.unblock():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    " AND datname <> 'postgres'"  # where other workers make their databases
                )


@pytest.fixture(scope="session")
def migrated_sqlite(
    tmp_path_factory: pytest.TempPathFactory,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
) -> Path:
    """SQLite file with today's schema and nothing in it, to copy."""
    path = tmp_path_factory.mktemp("migrated") / "db.sqlite3"
    with django_db_blocker.unblock(), sqlite_database(path):
        migrated()
    return path
