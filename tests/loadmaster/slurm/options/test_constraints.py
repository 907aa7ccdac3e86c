"""Constraints on labels of nodes: and, or, brackets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.slurm.options.constraints import labels, satisfied
from loadmaster.slurm.options.values import ValueFormatError

NAMES = st.sampled_from("abcd")


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", []), ("a", ["a"]), ("a&b", ["a", "b"]), ("a,b", ["a", "b"]),
        ("v100|a100", ["a100|v100"]), ("[a100|v100]", ["a100|v100"]), ("(a)", ["a"]),
        ("a&(b|c)", ["a", "b|c"]), ("a|b&c", ["a|b", "c"]), ("a&b|c", ["a|c", "b|c"]),
        ("a&a", ["a"]), ("(a&b)|(c&d)", ["a|c", "a|d", "b|c", "b|d"]),
    ],
)  # fmt: skip
def test_an_expression_becomes_labels_and_alternatives(text: str, entries: list[str]) -> None:
    assert labels(text) == entries


@pytest.mark.parametrize(
    "text",
    [
        "a*2",
        "[a*1&b*2]",
        "!a",
        "a&&b",
        "a&",
        "(a",
        "a)",
        "()",
        "a b",
        "|a",
        "(a]",
        "(" * 5000,
        "a&" * 900,
    ],
)
def test_counts_and_broken_expressions_are_refused(text: str) -> None:
    with pytest.raises(ValueFormatError):
        labels(text)


Tree = str | tuple[Any, str, Any]


@given(
    st.recursive(NAMES, lambda inner: st.tuples(inner, st.sampled_from("&|"), inner), max_leaves=10)
)
def test_entries_hold_where_the_expression_does(tree: Tree) -> None:
    for offered in ("", "a", "ab", "abc", "bd", "acd", "abcd"):
        assert satisfied(labels(_text(tree)), offered) == _holds(tree, offered)


def _text(tree: Tree) -> str:
    if isinstance(tree, str):
        return tree
    left, operator, right = tree
    return f"({_text(left)}{operator}{_text(right)})"


def _holds(tree: Tree, offered: str) -> bool:
    if isinstance(tree, str):
        return tree in offered
    left, operator, right = tree
    if operator == "&":
        return _holds(left, offered) and _holds(right, offered)
    return _holds(left, offered) or _holds(right, offered)
