"""Errors of predictions, in all, by source and by user."""

import pytest

from profiling.run_times.errors import MOST_USERS, Ended, RunTimeErrors


def test_errors_have_a_sign_and_are_told_by_source_and_user() -> None:
    found = RunTimeErrors.of(
        [
            Ended("ann", "walltime", 100.0, 40.0),
            Ended("ann", "last_two", 10.0, 30.0),
            Ended("bob", "walltime", 50.0, 50.0),
        ]
    )
    assert found.total is not None
    assert (found.total.jobs, found.total.median_s) == (3, 20.0)
    assert found.total.mean_s == pytest.approx(40.0 / 3)
    assert found.total.absolute_s == pytest.approx(80.0 / 3)
    assert found.total.too_short == pytest.approx(1 / 3)
    assert [(row.name, row.jobs, row.mean_s) for row in found.by_source] == [
        ("walltime", 2, 30.0), ("last_two", 1, -20.0),
    ]  # fmt: skip
    assert [(row.name, row.absolute_s) for row in found.by_user] == [("ann", 40.0), ("bob", 0.0)]


def test_without_an_end_there_are_none_and_people_without_a_name_have_no_row() -> None:
    assert RunTimeErrors.of([]) == RunTimeErrors()
    assert RunTimeErrors.of([Ended("", "walltime", 2.0, 1.0)]).by_user == ()
    many = [Ended(f"u{i}", "walltime", 2.0, 1.0) for i in range(MOST_USERS + 5)]
    assert len(RunTimeErrors.of(many).by_user) == MOST_USERS
