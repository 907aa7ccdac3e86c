"""Reasons for waiting in words, from details as they are stored."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controlplane.loop.rounds import RejectCode
from jobs.wording.explanation import explain, reason_for_waiting
from jobs.wording.facts import Facts
from jobs.wording.reasons import ARRAY_LIMIT, BEGINS_LATER, REASONS, RESTING
from policies.contract.plan import WaitCode

NAMES = {"a": "digits", "b": "bert", "c": "gpt", "n": "volta", "m": "ampere"}
OWN_CODES = {"", RESTING, BEGINS_LATER, ARRAY_LIMIT}
CODES = {str(code) for code in (*WaitCode, *RejectCode)} | OWN_CODES
LATER_S = datetime(2027, 1, 15, 22, 0, tzinfo=UTC).timestamp()
LONGEST = {
    "nodes": ["n", "m", "o", "p"], "jobs": ["x", "y", "z"], "watts": 12345.6, "gpus": 2,
    "price": 1e-4, "worth": 1e-9,
    "from_s": LATER_S, "retry_s": LATER_S, "why": "exit code 1",
    "missing": ["zone=a", "ssd", "rack=7"], "offered": ["zone=b", "nvme", "rack=8"],
    "lacks": [["memory_gb", 1024.0, 512.0], ["cores", 4.0, 2.0]],
    "conditions": {"x": "afternotok"}, "needs": ["cores", "several", "types"],
}  # fmt: skip


def test_every_code_has_a_sentence_and_a_remedy() -> None:
    assert set(REASONS) == CODES
    assert all(reason.remedy(Facts()) for reason in REASONS.values())


@pytest.mark.parametrize("code", sorted(CODES))
@pytest.mark.parametrize("detail", [{}, LONGEST, {"nodes": ["n"], "jobs": ["a", "x"]}, ["bad"]])
def test_a_sentence_has_at_most_fifteen_words(code: str, detail: object) -> None:
    said = reason_for_waiting("queued", code, detail, NAMES)
    assert said.endswith(".")
    assert said[0].isupper() or said.startswith(tuple(NAMES.values()))
    assert len(said.split()) <= 15, said


def test_a_job_that_runs_or_is_over_has_no_reason() -> None:
    assert reason_for_waiting("running", "no_capacity", {}, {}) == ""
    assert reason_for_waiting("completed", "", {}, {}) == ""


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ({"jobs": ["a"]}, "It waits for GPUs held by digits."),
        ({"jobs": ["a", "x"]}, "It waits for GPUs held by digits and 1 other."),
        ({"jobs": ["x"]}, "It waits for GPUs held by a job of another team."),
        (
            {"jobs": ["x", "y"]},
            "It waits for GPUs held by 2 jobs of other teams.",
        ),
        ({"nodes": ["n"], "jobs": ["a", "b"]}, "It waits for volta, held by digits and bert."),
        (
            {"nodes": ["n", "m", "o"], "jobs": ["a", "b", "c"]},
            "It waits for volta and 2 others, held by digits and 2 others.",
        ),
        ({"jobs": ["a"], "needs": ["cores"]}, "It waits for cores held by digits."),
        ({"jobs": "nonsense"}, "All GPUs that it could use are taken."),
        (["nonsense"], "All GPUs that it could use are taken."),
        ({"needs": ["cores"]}, "All cores that it could use are taken."),
    ],
)
def test_what_stands_in_the_way_is_named_as_far_as_the_reader_may_know(
    detail: object, said: str
) -> None:
    assert reason_for_waiting("queued", "no_capacity", detail, NAMES) == said


def test_the_full_lists_name_everything_that_the_reader_may_know() -> None:
    told = explain("queued", "no_capacity", {"nodes": ["n", "m"], "jobs": ["a", "b", "x"]}, NAMES)
    assert told.lists == (("Nodes", "volta, ampere"), ("Jobs", "digits, bert, 1 of other teams"))


@pytest.mark.parametrize(
    ("now", "end"),
    [
        (datetime(2027, 1, 15, 7, 0, tzinfo=UTC), " until 22:00 UTC."),
        (datetime(2027, 1, 14, 7, 0, tzinfo=UTC), " until 2027-01-15 22:00 UTC."),
        (datetime(2027, 1, 15, 23, 0, tzinfo=UTC), " for it."),
    ],
)
def test_a_time_is_told_only_while_it_lies_ahead(now: datetime, end: str) -> None:
    detail = {"watts": 120.4, "from_s": LATER_S}
    said = reason_for_waiting("queued", "power_cap", detail, {}, now)
    assert said.startswith("The cluster's power cap is 120 W too low for it")
    assert said.endswith(end)


def test_a_job_that_rests_tells_its_last_failure_on_request() -> None:
    told = explain("queued", RESTING, {"why": "exit code 1", "retry_s": LATER_S}, {})
    assert told.sentence == "It pauses after a failure until 2027-01-15 22:00 UTC."
    assert told.lists == (("Last failure", "exit code 1"),)


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({}, "It waits for digits to complete."),
        ({"a": "afterok"}, "It waits for digits to complete."),
        ({"a": "afternotok"}, "It waits for digits to fail."),
        ({"a": "afterany"}, "It waits for digits to end."),
        ({"a": "after"}, "It waits for digits to start."),
        ({"a": "after+1"}, "It waits until 1 minute after the start of digits."),
        ({"a": "after+20"}, "It waits until 20 minutes after the start of digits."),
        ({"a": "singleton"}, "It waits for digits to end."),
    ],
)
def test_a_dependency_is_told_by_its_condition(conditions: dict[str, str], said: str) -> None:
    detail = {"jobs": ["a"], "conditions": conditions}
    assert reason_for_waiting("queued", "dependency", detail, NAMES) == said


def test_dependencies_of_which_one_suffices_are_told_with_or() -> None:
    detail: dict[str, Any] = {"jobs": ["a", "b"], "one_suffices": True}
    said = reason_for_waiting("queued", "dependency", detail, NAMES)
    assert said == "It waits for digits or bert to complete."
    detail["conditions"] = {"b": "after+5"}
    said = reason_for_waiting("queued", "dependency", detail, NAMES)
    assert said == ("It waits for digits to complete or until 5 minutes after the start of bert.")


def test_dependencies_of_two_conditions_are_told_apart() -> None:
    detail = {"jobs": ["a", "b", "x"], "conditions": {"b": "afternotok"}}
    said = reason_for_waiting("queued", "dependency", detail, NAMES)
    assert said == "It waits for digits and 1 other to complete and for bert to fail."


@pytest.mark.parametrize(
    ("needs", "remedy"),
    [
        ([], "Nothing to do: it starts by itself."),
        (["cores"], "Nothing to do: it starts by itself."),
        (["types"], "Wait, or clone it with other allowed_types."),
        (["several"], "Wait, or clone it with fewer GPUs."),
        (["cores", "several"], "Wait, or clone it with fewer cores."),
        (["several", "types"], "Wait, or clone it with other allowed_types or fewer GPUs."),
    ],
)
def test_a_remedy_names_only_what_the_job_asks_for(needs: list[str], remedy: str) -> None:
    assert explain("queued", "no_capacity", {"needs": needs}, NAMES).remedy == remedy


@pytest.mark.parametrize(
    ("lack", "said", "remedy"),
    [
        (
            ["cores", 1.0, 0.0],
            "It needs 1 core, and nodes that suit it have none.",
            "Clone it without, or add a node that has it.",
        ),
        (
            ["gpus", 8.0, 4.0],
            "It needs 8 GPUs, and nodes that suit it have at most 4.",
            "Clone it with at most 4 GPUs, or add a larger node.",
        ),
        (
            ["units", 3.0, 1.0],
            "It needs 3 units, and nodes that suit it have at most 1.",
            "Clone it with at most 1 unit, or add more nodes.",
        ),
    ],
)
def test_a_job_that_is_too_large_is_told_what_would_do(
    lack: list[object], said: str, remedy: str
) -> None:
    told = explain("queued", "no_node_fits", {"lacks": [lack]}, NAMES)
    assert (told.sentence, told.remedy) == (said, remedy)


def test_a_list_that_was_cut_is_not_counted() -> None:
    detail = {"jobs": ["a", *"tuvwxyz"]}
    said = reason_for_waiting("queued", "no_capacity", detail, NAMES)
    assert said == "It waits for GPUs held by digits and others."


def test_a_new_job_waits_for_the_next_decision() -> None:
    assert reason_for_waiting("queued", "", {}, {}) == "It waits for the next decision."
    assert reason_for_waiting("held", "", {}, {}) == "Held until it is released."
    assert reason_for_waiting("queued", "made_up", {}, {}) == "Made up."


def test_the_documentation_says_what_helps_for_every_code() -> None:
    text = (Path(__file__).parents[2] / "docs/jobs.md").read_text()
    assert [code for code in REASONS if code and f"`{code}`" not in text] == []


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([], "It waits for a node that is lost."),
        (["n"], "It waits for volta, which is lost."),
        (["n", "m"], "It waits for volta and ampere, which are lost."),
    ],
)
def test_lost_nodes_are_named_in_the_right_number(nodes: list[str], said: str) -> None:
    assert reason_for_waiting("queued", "nodes_lost", {"nodes": nodes}, NAMES) == said
