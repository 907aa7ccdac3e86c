"""Bulk statements: inserts and updates of many rows at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from django.db import connection, connections, models, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import CharField, DateTimeField, Field, FloatField, IntegerField, Model

M = TypeVar("M", bound=models.Model)
T = TypeVar("T")

PLAIN: dict[type[models.Field[Any, Any]], type] = {
    models.CharField: str, models.TextField: str, models.BooleanField: bool,
    models.FloatField: float,
    models.IntegerField: int, models.BigIntegerField: int, models.PositiveIntegerField: int,
    models.PositiveBigIntegerField: int,
    models.ForeignKey: int,
}  # fmt: skip
"""Fields whose values of this very type go to the database unchanged, as does None."""

MOST_ROWS = 500
"""Rows per statement that carries its values."""


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[i : i + size] for i in range(0, len(items), size))


def insert(model: type[M], rows: Iterable[M]) -> None:
    """Insert rows whose references are saved; nothing is read back, no signal is sent."""
    rows = list(rows)
    if not rows:
        return
    connection = connections[router.db_for_write(model)]
    concrete = [f for f in model._meta.concrete_fields if not f.generated]
    fields = [f for f in concrete if not isinstance(f, models.AutoField)]
    values = list(zip(*(_column(field, rows, connection) for field in fields), strict=True))
    quoted = ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)
    table = connection.ops.quote_name(model._meta.db_table)
    into = f"INSERT INTO {table} ({quoted}) VALUES "  # noqa: S608  # names of our models
    _execute(connection, into, f"({', '.join(['%s'] * len(fields))})", values)
    for row in rows:
        row._state.adding, row._state.db = False, connection.alias


def _column(
    field: models.Field[Any, Any], rows: Collection[models.Model], connection: BaseDatabaseWrapper
) -> list[Any]:
    plain = PLAIN.get(type(field))
    values = [field.pre_save(row, True) for row in rows]
    return [
        v if v is None or type(v) is plain else field.get_db_prep_save(v, connection)
        for v in values
    ]


def _execute(
    connection: BaseDatabaseWrapper, into: str, places: str, values: list[tuple[Any, ...]]
) -> None:
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":  # prepares the statement once
            cursor.executemany(into + places, values)
            return
        for part in batches(values, MOST_ROWS):
            cursor.execute(
                into + ", ".join([places] * len(part)), [value for row in part for value in row]
            )


def update_rows(
    model: type[Model], match: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> int:
    """Set `columns` where `match` fields are as given (compare-and-swap); return the row count.

    A row lists `match` values, then `columns` values. A field may be matched and set.
    """
    if not rows:
        return 0
    fields = [model._meta.get_field(name) for name in (*match, *columns)]
    concrete = [field for field in fields if isinstance(field, Field)]
    pairs = zip(concrete, zip(*rows, strict=True), strict=True)
    columnwise = [_prepared(field, column) for field, column in pairs]
    update = _at_once if connection.vendor == "postgresql" else _one_by_one
    return update(model._meta.db_table, concrete, len(match), columnwise)


def _prepared(field: Field[Any, Any], column: Sequence[Any]) -> list[Any]:
    if isinstance(field, (FloatField, IntegerField, CharField)) or all(
        isinstance(value, str) for value in column
    ):
        return list(column)
    if isinstance(field, DateTimeField):
        known = {value: field.get_db_prep_save(value, connection) for value in set(column)}
        return [known[value] for value in column]
    return [field.get_db_prep_save(value, connection) for value in column]


def _one_by_one(table: str, fields: Sequence[Any], matched: int, columns: list[list[Any]]) -> int:
    quote = connection.ops.quote_name
    names = [f"{quote(field.column)} = %s" for field in fields]
    values, keys = ", ".join(names[matched:]), " AND ".join(names[:matched])
    sql = f"UPDATE {quote(table)} SET {values} WHERE {keys}"  # noqa: S608  # names of our models
    with connection.cursor() as cursor:
        cursor.executemany(sql, list(zip(*columns[matched:], *columns[:matched], strict=True)))
        return max(0, int(cursor.rowcount))


def _at_once(table: str, fields: Sequence[Any], matched: int, columns: list[list[Any]]) -> int:
    """Update by an array a column: text and plan of the statement do not grow with the rows."""
    quote = connection.ops.quote_name
    named = [(quote(field.column), f"v{i}") for i, field in enumerate(fields)]
    arrays = ", ".join(f"%s::{field.rel_db_type(connection)}[]" for field in fields)
    values = ", ".join(f"{name} = v.{value}" for name, value in named[matched:])
    sql = (
        f"UPDATE {quote(table)} AS t SET {values} "  # noqa: S608  # names of our models
        f"FROM unnest({arrays}) AS v({', '.join(v for _, v in named)}) "
        f"WHERE {' AND '.join(f't.{n} = v.{v}' for n, v in named[:matched])}"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, columns)
        return max(0, int(cursor.rowcount))
