"""Columns that are made when they are asked for look like any other mapping."""

from __future__ import annotations

import pytest

from controlplane.simulation.shown import Lazy


def counted() -> tuple[Lazy[tuple[str, ...]], list[str]]:
    """Columns a and b, and the names of those made so far."""
    made: list[str] = []

    def make(name: str) -> tuple[str, ...]:
        made.append(name)
        return (name,)

    return Lazy(("a", "b"), make), made


def test_a_column_is_made_once_and_only_when_it_is_asked_for() -> None:
    columns, made = counted()
    assert len(columns) == 2
    assert "a" in columns
    assert made == []
    assert columns["b"] is columns["b"]
    assert made == ["b"]


def test_whoever_asks_for_all_columns_gets_all_of_them() -> None:
    wanted = {"a": ("a",), "b": ("b",)}
    assert dict(counted()[0].items()) == wanted
    assert {**counted()[0]} == wanted
    assert dict(counted()[0]) == wanted
    assert list(counted()[0]) == ["a", "b"]
    assert list(counted()[0].values()) == [("a",), ("b",)]


def test_there_is_no_column_of_another_name() -> None:
    columns, made = counted()
    assert columns.get("c") is None
    assert columns.get("a") == ("a",)
    with pytest.raises(KeyError, match="c"):
        columns["c"]
    assert made == ["a"]
