"""Databases in which backups are made and restored."""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from clusters.models import Cluster
from tests.builders import a_cluster, a_job, a_team
from tests.builders_agents import CLOCK, a_node_with_agent, a_running_assignment
from tests.builders_backups import New
from tests.builders_databases import migrated, postgres_database, sqlite_database

ENGINES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(scope="module", params=ENGINES)
def empty(
    request: pytest.FixtureRequest,
    migrated_sqlite: Path,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[str]:
    """A database with today's schema and nothing in it: a file's path or a database's name."""
    with django_db_blocker.unblock():
        if request.param == "sqlite":
            yield str(migrated_sqlite)
        else:
            with postgres_database() as name:
                migrated()
                connection.close()
                yield name


@pytest.fixture
def new(empty: str, tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[New]:
    """Makes databases of its kind: the default one while the context lasts."""

    def make() -> AbstractContextManager[object]:
        if not empty.startswith("/"):
            return postgres_database(empty)
        path = tmp_path / f"db-{len(list(tmp_path.iterdir()))}.sqlite3"
        shutil.copyfile(empty, path)
        return sqlite_database(path)

    with django_db_blocker.unblock():
        yield make


@pytest.fixture
def house(new: New) -> Iterator[Cluster]:
    """A cluster with a running job, in a database of its own."""
    with new():
        cluster = a_cluster(name="main", **CLOCK)
        a_running_assignment(
            a_node_with_agent(cluster), a_job(cluster, name="runs", team=a_team("vision"))
        )
        yield cluster
