"""Bulk statements: inserts and updates of many rows at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

from django.db import connection, connections, models, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import CharField, DateTimeField, Field, FloatField, IntegerField, Model

M = TypeVar("M", bound=models.Model)
T = TypeVar("T")

PLAIN: dict[type[models.Field[Any, Any]], type] = {
    models.CharField: str,
    models.TextField: str,
    models.BooleanField: bool,
    models.FloatField: float,
    models.IntegerField: int,
    models.BigIntegerField: int,
    models.PositiveIntegerField: int,
    models.PositiveBigIntegerField: int,
    models.ForeignKey: int,
}
"""Fields whose values of this very type go to the database unchanged, as does None."""

MOST_ROWS = 500
"""Most rows of a statement that carries their values."""


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield parts of at most `size` items, in order."""
    for first in range(0, len(items), size):
        yield items[first : first + size]


def insert(model: type[M], rows: Iterable[M]) -> None:
    """Insert rows whose references are saved; nothing is read back, and no signal is sent."""
    rows = list(rows)
    if not rows:
        return
    connection = connections[router.db_for_write(model)]

    # 1. The fields to write: the database makes generated ones and automatic keys.
    fields = []
    for field in model._meta.concrete_fields:
        if not field.generated and not isinstance(field, models.AutoField):
            fields.append(field)

    # 2. Their values, prepared column by column, then turned into rows.
    columns = [_column(field, rows, connection) for field in fields]
    values = list(zip(*columns, strict=True))

    # 3. The statement.
    quote = connection.ops.quote_name
    names = ", ".join(quote(str(field.column)) for field in fields)
    table = quote(model._meta.db_table)
    into = f"INSERT INTO {table} ({names}) VALUES "  # noqa: S608  # names of our models
    placeholders = f"({', '.join(['%s'] * len(fields))})"
    _insert_values(connection, into, placeholders, values)

    # 4. Django's own mark of saved rows.
    for row in rows:
        row._state.adding = False
        row._state.db = connection.alias


def _column(
    field: models.Field[Any, Any], rows: Collection[models.Model], connection: BaseDatabaseWrapper
) -> list[Any]:
    """Return the values of a field for the database, one for each row."""
    plain_type = PLAIN.get(type(field))
    values = []
    for row in rows:
        value = field.pre_save(row, True)
        if value is not None and type(value) is not plain_type:
            value = field.get_db_prep_save(value, connection)
        values.append(value)
    return values


def _insert_values(
    connection: BaseDatabaseWrapper, into: str, placeholders: str, values: list[tuple[Any, ...]]
) -> None:
    """Execute the INSERT `into` with these rows of values; `placeholders`: those of one row."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":  # prepares the statement once
            cursor.executemany(into + placeholders, values)
            return
        for batch in batches(values, MOST_ROWS):
            statement = into + ", ".join([placeholders] * len(batch))
            cursor.execute(statement, list(chain.from_iterable(batch)))


def update_rows(
    model: type[Model], match: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> int:
    """Set `columns` where `match` fields are as given (compare-and-swap); return the row count.

    A row lists `match` values, then `columns` values. A field may be matched and set.
    """
    if not rows:
        return 0
    fields: list[Field[Any, Any]] = []
    for name in (*match, *columns):
        field = model._meta.get_field(name)
        if isinstance(field, Field):  # as all of them are
            fields.append(field)
    raw_columns = zip(*rows, strict=True)
    values = [_prepared(field, raw) for field, raw in zip(fields, raw_columns, strict=True)]
    if connection.vendor == "postgresql":
        return _update_at_once(model._meta.db_table, fields, len(match), values)
    return _update_one_by_one(model._meta.db_table, fields, len(match), values)


def _prepared(field: Field[Any, Any], values: Sequence[Any]) -> list[Any]:
    """Return the values of a field as the database takes them."""
    # 1. Numbers and texts go unchanged.
    if isinstance(field, (FloatField, IntegerField, CharField)):
        return list(values)
    if all(isinstance(value, str) for value in values):
        return list(values)

    # 2. The same few times recur in many rows: prepare each once.
    if isinstance(field, DateTimeField):
        prepared = {value: field.get_db_prep_save(value, connection) for value in set(values)}
        return [prepared[value] for value in values]
    return [field.get_db_prep_save(value, connection) for value in values]


def _update_one_by_one(
    table: str, fields: Sequence[Any], matched: int, columns: list[list[Any]]
) -> int:
    """Update row by row; the first `matched` fields and columns are compared, the others set."""
    quote = connection.ops.quote_name
    equations = [f"{quote(field.column)} = %s" for field in fields]
    settings = ", ".join(equations[matched:])
    conditions = " AND ".join(equations[:matched])
    sql = f"UPDATE {quote(table)} SET {settings} WHERE {conditions}"  # noqa: S608  # our models
    parameters = list(zip(*columns[matched:], *columns[:matched], strict=True))
    with connection.cursor() as cursor:
        cursor.executemany(sql, parameters)
        return max(0, int(cursor.rowcount))


def _update_at_once(
    table: str, fields: Sequence[Any], matched: int, columns: list[list[Any]]
) -> int:
    """Update with an array for each column: the statement's length does not grow with the rows.

    The first `matched` fields and columns are compared, the others set.
    """
    # 1. The arrays become columns v0, v1, ... of a table v, one for each field.
    quote = connection.ops.quote_name
    names = [quote(field.column) for field in fields]
    aliases = [f"v{index}" for index in range(len(fields))]
    arrays = ", ".join(f"%s::{field.rel_db_type(connection)}[]" for field in fields)

    # 2. What to compare and what to set.
    pairs = list(zip(names, aliases, strict=True))
    conditions = " AND ".join(f"t.{name} = v.{alias}" for name, alias in pairs[:matched])
    settings = ", ".join(f"{name} = v.{alias}" for name, alias in pairs[matched:])
    sql = (
        f"UPDATE {quote(table)} AS t SET {settings} "  # noqa: S608  # names of our models
        f"FROM unnest({arrays}) AS v({', '.join(aliases)}) WHERE {conditions}"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, columns)
        return max(0, int(cursor.rowcount))
