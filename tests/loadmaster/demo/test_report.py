"""check-report passes a report that shows what it claims and names what another one fails to
show.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.demo.launches import resumptions, run_time_errors
from loadmaster.demo.report import ReportError, check_report, check_timing


def a_placement(fence: int, from_s: float | None, to_s: float, **values: Any) -> dict[str, Any]:
    return {
        "fence": fence,
        "gpu_type": "V100",
        "gpus": 1,
        "from_s": from_s,
        "to_s": to_s,
        "slots": [{"device": "V100-0", "slot": 0}],
        "outcome": "succeeded",
        "start_steps": 0,
        "resumed_at_step": 0,
        "end_steps": 100,
        "checkpoint_steps": 100,
        "predicted_run_s": to_s - (from_s or 0.0),
        "measured_run_s": to_s - (from_s or 0.0),
        **values,
    }


def a_good_report() -> dict[str, Any]:
    stopped = a_placement(1, 0.0, 10.0, outcome="preempted", end_steps=40, checkpoint_steps=40)
    resumed = a_placement(2, 12.0, 27.0, start_steps=40, resumed_at_step=40)
    job = {
        "name": "J1",
        "kind": "convnet",
        "state": "completed",
        "priority": 3,
        "due_s": 30.0,
        "first_loss": 2.3,
        "final_loss": 0.4,
        "placements": [stopped, resumed],
    }
    return {"version": 2, "jobs": [job]}


def checked(report: dict[str, Any], folder: Path) -> list[str]:
    """Return the broken promises, then the figures that timing spoils."""
    path = folder / "report.json"
    path.write_text(json.dumps(report))
    return [*check_report(path), *check_timing(path)]


def test_a_report_that_holds_has_no_failures(tmp_path: Path) -> None:
    assert checked(a_good_report(), tmp_path) == []


def test_an_unfinished_job_fails_it(tmp_path: Path) -> None:
    report = a_good_report()
    report["jobs"][0]["state"] = "running"
    assert checked(report, tmp_path) == ["J1 is running, not completed"]


@pytest.mark.parametrize("final", [2.3, 5.0, None])
def test_a_loss_that_did_not_fall_fails_it(tmp_path: Path, final: float | None) -> None:
    report = a_good_report()
    report["jobs"][0]["final_loss"] = final
    assert "the loss did not fall" in checked(report, tmp_path)[0]


def test_a_report_without_a_resumption_fails(tmp_path: Path) -> None:
    report = a_good_report()
    report["jobs"][0]["placements"].pop(0)
    assert checked(report, tmp_path) == ["no job was pre-empted or migrated and resumed"]


def test_a_resumption_before_the_last_checkpoint_fails_it(tmp_path: Path) -> None:
    report = a_good_report()
    report["jobs"][0]["placements"][1]["resumed_at_step"] = 39
    assert "before the checkpoint of step 40" in checked(report, tmp_path)[0]


def test_a_launch_stopped_before_its_first_step_is_no_resumption_and_the_next_keeps_the_checkpoint(
    tmp_path: Path,
) -> None:
    report = a_good_report()
    placements = report["jobs"][0]["placements"]
    early = a_placement(
        2,
        12.0,
        18.0,
        start_steps=40,
        end_steps=40,
        resumed_at_step=None,
        outcome="preempted",
        predicted_run_s=None,
    )
    later = {**placements[1], "fence": 3, "from_s": 19.0}
    report["jobs"][0]["placements"] = [placements[0], early, later]
    assert checked(report, tmp_path) == []
    later["resumed_at_step"] = 39
    assert len(checked(report, tmp_path)) == 1


def test_predictions_off_by_more_than_the_papers_figure_only_warn(tmp_path: Path) -> None:
    report = a_good_report()
    for placement in report["jobs"][0]["placements"]:
        placement["predicted_run_s"] = 1.2 * placement["measured_run_s"]
    (warning,) = checked(report, tmp_path)
    assert "median error of predicted run times is 20.0% by measured speeds" in warning
    assert check_report(tmp_path / "report.json") == []


def test_speeds_that_were_estimated_may_be_off_by_more(tmp_path: Path) -> None:
    report = a_good_report()
    first, second = report["jobs"][0]["placements"]
    second["gpus"] = 2
    for placement in (first, second):
        placement["predicted_run_s"] = 1.2 * placement["measured_run_s"]
    assert run_time_errors(report["jobs"]) == []
    assert run_time_errors(report["jobs"], estimated=True) == pytest.approx([0.2, 0.2])
    assert checked(report, tmp_path) == []
    for placement in (first, second):
        placement["predicted_run_s"] = 1.4 * placement["measured_run_s"]
    assert "is 40.0% by estimated speeds of 2 launches, over 30%" in checked(report, tmp_path)[0]


def test_a_slot_held_twice_fails_it(tmp_path: Path) -> None:
    report = a_good_report()
    report["jobs"][0]["placements"][1]["from_s"] = 9.9
    assert "device V100-0 slot 0 was held" in checked(report, tmp_path)[0]


def test_a_profile_run_on_a_held_slot_fails_it_too(tmp_path: Path) -> None:
    report = a_good_report()
    report["jobs"][0]["profile_runs"] = [a_placement(3, 5.0, 6.0)]
    assert "was held" in checked(report, tmp_path)[0]


def test_an_offer_that_was_withdrawn_holds_nothing() -> None:
    report = a_good_report()
    withdrawn = a_placement(5, None, 0.0, outcome="preempted", measured_run_s=None, end_steps=0)
    report["jobs"][0]["placements"].insert(1, withdrawn)
    assert len(resumptions(report["jobs"])) == 1
    assert run_time_errors(report["jobs"]) == [0.0]
    assert run_time_errors(report["jobs"], estimated=True) == [0.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "no demo report"),
        ('{"version": 3}', "no demo report"),
        ('{"version": 2}', "no jobs"),
    ],
)
def test_what_is_no_report_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=says):
        check_report(path)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot be read"):
        check_report(tmp_path / "nowhere.json")


def stopped_after(length_s: float, **follower: Any) -> dict[str, Any]:
    """The good report, whose first launch ran that long; another job then got its GPU."""
    report = a_good_report()
    first, second = report["jobs"][0]["placements"]
    first["to_s"] = length_s
    second["slots"] = [{"device": "T4-0", "slot": 0}]
    other = {**report["jobs"][0], "name": "J2", **follower}
    other["placements"] = [a_placement(1, length_s, 50.0)]
    report["jobs"].append(other)
    return report


def test_more_than_eight_stops_fail_it(tmp_path: Path) -> None:
    report = a_good_report()
    stopped, last = report["jobs"][0]["placements"]
    stopped |= {"resumed_at_step": 40, "start_steps": 40}
    many = [{**stopped, "from_s": 20.0 * i, "to_s": 20.0 * i + 10.0} for i in range(9)]
    last.update(from_s=200.0, to_s=220.0)
    report["jobs"][0]["placements"] = [*many, last]
    assert checked(report, tmp_path) == ["launches were stopped 9 times, over 8"]


def test_a_launch_stopped_after_four_seconds_fails_it(tmp_path: Path) -> None:
    (found,) = checked(stopped_after(4.0, priority=2), tmp_path)
    assert found.startswith("the stopped launch of J1 ran for 4.0 s, under 5 s")
    assert checked(stopped_after(5.5, priority=2), tmp_path) == []


@pytest.mark.parametrize("follower", [{"priority": 4, "due_s": None}, {"priority": 3}])
def test_a_higher_priority_or_a_due_date_may_stop_it_earlier(
    follower: dict[str, Any], tmp_path: Path
) -> None:
    assert checked(stopped_after(4.0, **follower), tmp_path) == []


def test_a_job_that_follows_itself_forces_nothing(tmp_path: Path) -> None:
    report = a_good_report()
    report["jobs"][0]["placements"][0]["to_s"] = 4.0
    (found,) = checked(report, tmp_path)
    assert "J1 ran for 4.0 s" in found
