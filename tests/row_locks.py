"""Rows that an action locks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from django.db.models import Model
from django.db.models.sql.compiler import SQLCompiler


@contextmanager
def noted_locks() -> Iterator[list[type[Model]]]:
    """Collect the model of each query that locks rows, in the order of the queries.

    SQLite has one writer and leaves the locks out of its statements. That is why this asks the
    queries, and a test on SQLite notices a missing lock of PostgreSQL.
    """
    locked: list[type[Model]] = []
    execute = SQLCompiler.execute_sql

    def noting(compiler: Any, *given: Any, **options: Any) -> Any:
        if compiler.query.select_for_update:
            locked.append(compiler.query.model)
        return execute(compiler, *given, **options)

    with patch.object(SQLCompiler, "execute_sql", noting):
        yield locked
