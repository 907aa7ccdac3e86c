"""Journals of batch jobs show whether seats, arrays and dependencies were kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.chaos.checks import invariants as named
from experiments.chaos.checks.batch import check_batch
from experiments.chaos.jobs.forms import TURN, Forms, turn_of

Life = tuple[float, float]


def ran(
    folder: Path, job: str, life: Life, fence: int = 1, rank: int = 0, how: str = "done"
) -> None:
    """Write the journal of one launch; `how`: "" for one that was killed."""
    name = f"{job}-{fence}-{rank}"
    start = {
        "event": "start", "launch": name, "job": job, "rank": rank, "fence": fence, "devices": [],
        "checkpoints": "", "boot_id": "b", "born_s": life[0], "boot_s": life[0], "lock_free": True,
    }  # fmt: skip
    end = {"event": "end", "how": how} if how else {"event": "beat"}
    with (folder / f"{job}.jsonl").open("a") as file:
        for line in (start, {"launch": name, "boot_s": life[1], **end}):
            file.write(json.dumps(line) + "\n")


def wrong(folder: Path, *jobs: dict[str, Any], **ended: float) -> tuple[str, ...]:
    found = check_batch(folder, jobs, ended).invariants
    return tuple(text for invariant in found for text in invariant.wrong)


def checked(folder: Path, *jobs: dict[str, Any]) -> dict[str, int]:
    """How often each invariant was checked."""
    found = check_batch(folder, jobs, {}).invariants
    return {invariant.name: invariant.checked for invariant in found}


def test_a_job_of_two_seats_is_done_when_one_launch_has_done_both(tmp_path: Path) -> None:
    job = {"id": "j", "seats": 2}
    ran(tmp_path, "j", (1, 2))
    ran(tmp_path, "j", (3, 4), fence=2, rank=1)
    assert wrong(tmp_path, job) == ("job j was submitted and never completed",)
    ran(tmp_path, "j", (3, 5), fence=2)
    found = check_batch(tmp_path, [job], {})
    assert (found.jobs, found.launches, wrong(tmp_path, job)) == (1, 3, ())
    assert checked(tmp_path, job) == {
        named.ONE_PROCESS: 1, named.JOB_LOST: 1, named.LAUNCHED_ONCE: 3
    }  # fmt: skip


def test_a_seat_that_lives_beside_a_newer_launch_is_wrong(tmp_path: Path) -> None:
    ran(tmp_path, "j", (1, 5), rank=1, how="")
    ran(tmp_path, "j", (4, 6), fence=2)
    assert wrong(tmp_path, {"id": "j"}) == ("job j: launch j-1-1 lived 0.99 s beside j-2-0",)


@pytest.mark.parametrize(("second", "third", "holds"), [(2, 3, True), (2, 2.5, False)])
def test_no_more_elements_than_the_limit_are_alive_at_once(
    tmp_path: Path, second: float, third: float, holds: bool
) -> None:
    for element, born_s in (("a", 1.0), ("b", second), ("c", third)):
        ran(tmp_path, element, (born_s, born_s + 2))
    found = wrong(tmp_path, {"id": "x", "elements": ["a", "b", "c"], "at_once": 2})
    assert found == (() if holds else ("array x: 3 elements at once, not 2 at most",))


def test_a_job_may_begin_after_all_that_it_waits_for_have_ended(tmp_path: Path) -> None:
    array = {"id": "x", "elements": ["a", "b"], "at_once": 2}
    job = {"id": "j", "after": ["x", "limited"]}
    ran(tmp_path, "a", (1, 2))
    ran(tmp_path, "b", (1, 4))
    ran(tmp_path, "j", (5, 6))
    assert wrong(tmp_path, array, job, limited=4.5) == ()
    assert wrong(tmp_path, array, job, limited=7.01) == (
        "job j began 2.00 s before job limited had ended",
    )
    ran(tmp_path, "j", (3.5, 3.6), fence=0, how="")
    assert wrong(tmp_path, array, job, limited=3) == ("job j began 0.49 s before job x had ended",)


def test_a_job_that_waits_for_the_impossible_never_runs(tmp_path: Path) -> None:
    job = {"id": "j", "never": True}
    assert wrong(tmp_path, job) == ()
    ran(tmp_path, "j", (1, 2))
    assert wrong(tmp_path, job) == ("job j ran, though it waits for the success of a failed one",)


def test_a_job_that_nobody_submitted_is_wrong(tmp_path: Path) -> None:
    ran(tmp_path, "j", (1, 2))
    assert wrong(tmp_path) == ("job j ran but was never submitted",)


def test_each_form_comes_after_those_that_it_waits_for(tmp_path: Path) -> None:
    forms, latest = Forms(tmp_path, 5, 3, 8.0, TURN), dict[str, str]()
    for number in range(2 * len(TURN)):
        name, form = forms.of(number, latest)
        assert set(form.facts.get("after", ())) <= set(latest.values())
        latest[name] = f"{name}-{number}"
    assert set(latest) == set(TURN)


def test_forms_are_chosen_with_those_that_they_wait_for() -> None:
    assert turn_of(["never", "spread_limited"]) == ("spread_limited", "never")
    with pytest.raises(ValueError, match="after waits for limited, spread"):
        turn_of(["after", "array"])
    with pytest.raises(ValueError, match="no form slwo"):
        turn_of(["slwo"])


def test_two_processes_of_one_fence_are_wrong(tmp_path: Path) -> None:
    ran(tmp_path, "j", (1, 2))
    with (tmp_path / "j.jsonl").open() as file:
        again = file.read().replace('"j-1-0"', '"other"').replace(".0", ".5")
    with (tmp_path / "j.jsonl").open("a") as file:
        file.write(again)
    assert "job j: fence 1 was used by j-1-0 and other" in wrong(tmp_path, {"id": "j"})
