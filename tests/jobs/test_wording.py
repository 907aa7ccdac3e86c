"""Reasons for waiting in words."""

from __future__ import annotations

import pytest

from jobs.wording import SENTENCES, reason_for_waiting
from policies.plan import WaitCode


def test_every_code_of_a_plan_has_a_sentence() -> None:
    assert set(SENTENCES) == {str(code) for code in WaitCode}


def test_a_job_that_runs_or_is_over_has_no_reason() -> None:
    assert reason_for_waiting("running", "no_capacity", {}, {}) == ""
    assert reason_for_waiting("completed", "", {}, {}) == ""


@pytest.mark.parametrize(
    ("detail", "end"),
    [
        ({"jobs": ["a"]}, ", held by digits."),
        ({"jobs": ["a", "x"]}, ", held by digits and a job of another team."),
        ({"jobs": ["x", "y"]}, ", held by 2 jobs of other teams."),
        ({"nodes": ["n"], "jobs": ["a", "b"]}, ", on volta held by digits and bert."),
        ({"earliest_s": 1_800_000_000.0}, ", earliest start 2027-01-15 08:00:00 UTC."),
        ({"watts": 120.4}, ", 120 W short."),
        ({"earliest_s": float("inf"), "jobs": "nonsense"}, "are taken."),
        (["nonsense"], "are taken."),
    ],
)
def test_what_stands_in_the_way_is_named_as_far_as_the_reader_may_know(detail: object, end: str) -> None:
    said = reason_for_waiting("queued", "no_capacity", detail, {"a": "digits", "b": "bert", "n": "volta"})
    assert said.startswith("All GPUs it could use are taken")
    assert said.endswith(end)


def test_a_new_job_waits_for_the_next_decision() -> None:
    assert reason_for_waiting("queued", "", {}, {}) == "It waits for the next decision."
    assert reason_for_waiting("held", "", {}, {}) == "Held until it is released."
    assert reason_for_waiting("queued", "made_up", {}, {}) == "Made up."
