"""Another process's write between a read and the write that rests on it."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection


@contextmanager
def just_before(statement: str, act: Callable[[], object]) -> Iterator[None]:
    """Let `act` happen once, before the first SQL statement in which `statement` is found.

    `statement` is a regular expression. The statements of `act` go through the same connection, so
    no lock keeps them out: choose the moment at which nothing is locked yet.
    """
    happened = False

    def watch(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        nonlocal happened
        if not happened and re.search(statement, sql):
            happened = True
            act()
        return execute(sql, *rest)

    with connection.execute_wrapper(watch):
        yield
    assert happened, f"no statement was {statement}"
