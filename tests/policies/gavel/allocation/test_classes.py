"""Grouping like jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.gavel.allocation.classes import Classes, classes_of

rows = st.lists(
    st.tuples(
        st.integers(-5, 5),
        st.sampled_from([0.0, -1.5, 0.1 + 0.2, 0.3, 1e300]),
        st.booleans(),
        st.sampled_from([0, 2**62]),
    ),
    max_size=30,
)


def of_rows(jobs: list[tuple[int, float, bool, int]]) -> Classes:
    kind, weight, shares, entity = ([job[i] for job in jobs] for i in range(4))
    return classes_of(
        np.array(kind, dtype=np.int64),
        np.array(weight, dtype=np.float64),
        np.array(shares, dtype=np.bool_),
        np.array(entity, dtype=np.int64),
    )


def test_jobs_alike_in_all_columns_are_one_class() -> None:
    found = classes_of(np.array([7, 3, 7, 7]), np.array([1.0, 1.0, 1.0, 2.0]))
    assert (found.of.tolist(), found.first.tolist(), found.count.tolist()) == (
        [1, 0, 1, 2],
        [1, 0, 3],
        [1, 2, 1],
    )


def test_a_column_may_have_several_values_of_each_job() -> None:
    allowed = np.array([[True, False], [True, True], [True, False]])
    assert classes_of(np.zeros(3, dtype=np.int64), allowed).of.tolist() == [0, 1, 0]


def test_a_column_that_numbers_jobs_makes_each_its_own_class() -> None:
    assert classes_of(np.zeros(5, dtype=np.int64), np.arange(5)).count.tolist() == [1] * 5


def test_no_jobs_have_no_classes() -> None:
    found = classes_of(np.zeros(0, dtype=np.int64), np.zeros((0, 3), dtype=np.bool_))
    assert (len(found.of), len(found.first), len(found.count)) == (0, 0, 0)


def test_grouping_by_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="column"):
        classes_of()


def test_many_wide_columns_do_not_overflow() -> None:
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, 2**50, 100) for _ in range(4)]
    twice = [np.concatenate([c, c]) for c in columns]
    found = classes_of(*twice)
    assert found.count.tolist() == [2] * 100
    assert (found.of[:100] == found.of[100:]).all()


@given(rows)
def test_classes_are_those_of_a_plain_grouping(jobs: list[tuple[int, float, bool, int]]) -> None:
    found = of_rows(jobs)
    assert [jobs[i] for i in found.first[found.of]] == jobs
    assert len(found.first) == len(set(jobs))
    assert found.count.tolist() == [jobs.count(jobs[i]) for i in found.first]
    assert found.first.tolist() == [jobs.index(jobs[i]) for i in found.first]
    assert [jobs[i] for i in found.first] == sorted(set(jobs))
