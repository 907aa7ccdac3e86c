"""Expressions of job arrays: indices, limits, and what is wrong with bad ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.submission.array_expression import MAX_ELEMENTS, MAX_INDEX, array_indices
from jobs.submission.fields import FieldError


@pytest.mark.parametrize(
    ("text", "indices", "at_once", "step"),
    [
        ("7", [7], None, 1),
        (7, [7], None, 1),
        ("0-4", [0, 1, 2, 3, 4], None, 1),
        ("0-9:4%2", [0, 4, 8], 2, 4),
        ("1,3,5-9", [1, 3, 5, 6, 7, 8, 9], None, 1),
        (" 5-6 , 1 % 1 ", [1, 5, 6], 1, 1),
        ("3-3:7", [3], None, 1),
        ("1,2,1", [1, 2], None, 1),
        ("0-3,3,2-4%2", [0, 1, 2, 3, 4], 2, 1),
    ],
)
def test_an_expression_gives_indices_in_order_and_a_limit(
    text: object, indices: list[int], at_once: int | None, step: int
) -> None:
    spec = array_indices(text)
    assert (list(spec.indices), spec.at_once, spec.step) == (indices, at_once, step)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no indices"),
        ("%3", "has no indices"),
        (",", "no index and no range"),
        ("1,,2", "no index and no range"),
        ("-3", "no index and no range"),
        ("-1-3", "no index and no range"),
        ("a-b", "no index and no range"),
        ("1.5", "no index and no range"),
        ("0-5:-1", "no index and no range"),
        ("٣", "no index and no range"),
        ("1111111111", "no index and no range"),
        ("0-5:0", "step 0"),
        ("9-3", "write 3-9"),
        ("0-3%0", "at least 1"),
        ("0-3%", "at least 1"),
        ("0-3%-1", "at least 1"),
        ("0-3%2%3", "at least 1"),
        (f"0-{MAX_ELEMENTS}", f"has {MAX_ELEMENTS + 1} elements"),
        ("0-6000,10000-16000", "elements"),
        (str(MAX_INDEX + 1), "the highest is"),
        ("1," * 600, "characters"),
        (True, "must be text"),
        (1.5, "must be text"),
        ([1, 2], "must be text"),
        (-1, "no index and no range"),
    ],
)
def test_a_bad_expression_is_refused_with_a_remedy(text: object, said: str) -> None:
    with pytest.raises(FieldError, match=said):
        array_indices(text)


@given(st.sets(st.integers(0, MAX_INDEX), min_size=1, max_size=60), st.integers(1, 99))
def test_any_set_of_indices_can_be_written(indices: set[int], at_once: int) -> None:
    spec = array_indices(",".join(map(str, indices)) + f"%{at_once}")
    assert spec.indices == tuple(sorted(indices))
    assert spec.at_once == at_once
