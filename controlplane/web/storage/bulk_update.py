"""Update many rows with values of their own in one cheap statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection
from django.db.models import CharField, DateTimeField, Field, FloatField, IntegerField, Model


def update_rows(
    model: type[Model], match: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> int:
    """Set `columns` in the rows of `model` whose `match` fields are as given; how many rows were
    there.

    A row lists its `match` values, then its `columns` values; keys may be hexadecimal text, as
    every database takes them. Each is a compare-and-swap: one that does not match is left alone. A
    field may be matched and set.
    """
    if not rows:
        return 0
    fields = [model._meta.get_field(name) for name in (*match, *columns)]
    concrete = [field for field in fields if isinstance(field, Field)]
    columnwise = [
        _prepared(field, column)
        for field, column in zip(concrete, zip(*rows, strict=True), strict=True)
    ]
    by_rows = connection.vendor != "postgresql"
    return (_one_by_one if by_rows else _at_once)(
        model._meta.db_table, concrete, len(match), columnwise
    )


def _prepared(field: Field[Any, Any], column: Sequence[Any]) -> list[Any]:
    """A column's values as the driver takes them; times are converted once each."""
    if isinstance(field, (FloatField, IntegerField, CharField)) or all(
        isinstance(value, str) for value in column
    ):
        return list(column)
    if isinstance(field, DateTimeField):
        known = {value: field.get_db_prep_save(value, connection) for value in set(column)}
        return [known[value] for value in column]
    return [field.get_db_prep_save(value, connection) for value in column]


def _one_by_one(table: str, fields: Sequence[Any], matched: int, columns: list[list[Any]]) -> int:
    """One prepared statement for all rows: SQLite has no round trips to save."""
    quote = connection.ops.quote_name
    names = [f"{quote(field.column)} = %s" for field in fields]
    values, keys = ", ".join(names[matched:]), " AND ".join(names[:matched])
    sql = f"UPDATE {quote(table)} SET {values} WHERE {keys}"  # noqa: S608  # names of our models
    with connection.cursor() as cursor:
        cursor.executemany(sql, list(zip(*columns[matched:], *columns[:matched], strict=True)))
        return max(0, int(cursor.rowcount))


def _at_once(table: str, fields: Sequence[Any], matched: int, columns: list[list[Any]]) -> int:
    """One statement with an array for each column: its text, and so its plan, does not grow with
    the rows.

    The arrays have names of their own, for a field may be matched and set: it was this and is that.
    """
    quote = connection.ops.quote_name
    named = [(quote(field.column), f"v{i}") for i, field in enumerate(fields)]
    arrays = ", ".join(f"%s::{field.rel_db_type(connection)}[]" for field in fields)
    sql = (
        f"UPDATE {quote(table)} AS t SET {', '.join(f'{n} = v.{v}' for n, v in named[matched:])} "  # noqa: S608  # names of our own models
        f"FROM unnest({arrays}) AS v({', '.join(v for _, v in named)}) "
        f"WHERE {' AND '.join(f't.{n} = v.{v}' for n, v in named[:matched])}"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, columns)
        return max(0, int(cursor.rowcount))
