"""Reasons for waiting in words."""

from datetime import UTC, datetime

import pytest

from controlplane.loop.rounds import RejectCode
from jobs.wording import NOT_LAUNCHED, SENTENCES, reason_for_waiting
from policies.contract.plan import WaitCode


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
        ({"watts": 120.4}, ", 120 W short."),
        ({"watts": None, "jobs": "nonsense"}, "are taken."),
        (["nonsense"], "are taken."),
    ],
)
def test_what_stands_in_the_way_is_named_as_far_as_the_reader_may_know(
    detail: object, end: str
) -> None:
    said = reason_for_waiting(
        "queued", "no_capacity", detail, {"a": "digits", "b": "bert", "n": "volta"}
    )
    assert said.startswith("All GPUs it could use are taken")
    assert said.endswith(end)


@pytest.mark.parametrize(
    ("now", "end"),
    [
        (datetime(2027, 1, 15, 7, 0, tzinfo=UTC), ", earliest start 08:00 UTC."),
        (datetime(2027, 1, 14, 7, 0, tzinfo=UTC), ", earliest start 08:00 on 2027-01-15 UTC."),
        (datetime(2027, 1, 15, 9, 0, tzinfo=UTC), "tried again."),
    ],
)
def test_a_start_is_told_as_short_as_can_be_and_only_while_it_lies_ahead(
    now: datetime, end: str
) -> None:
    assert reason_for_waiting("queued", "resting", {"retry_s": 1_800_000_000.0}, {}, now).endswith(
        end
    )


def test_a_dependency_names_the_jobs_it_waits_for() -> None:
    assert reason_for_waiting("queued", "dependency", {"jobs": ["a"]}, {"a": "digits"}).endswith(
        "to complete: digits."
    )


def test_every_placement_that_was_not_launched_has_a_sentence() -> None:
    assert set(NOT_LAUNCHED) == {str(code) for code in RejectCode}
    assert "another job is just leaving" in reason_for_waiting(
        "queued", "deferred", {"detail": "x"}, {}
    )


def test_a_new_job_waits_for_the_next_decision() -> None:
    assert reason_for_waiting("queued", "", {}, {}) == "It waits for the next decision."
    assert reason_for_waiting("held", "", {}, {}) == "Held until it is released."
    assert reason_for_waiting("queued", "made_up", {}, {}) == "Made up."
