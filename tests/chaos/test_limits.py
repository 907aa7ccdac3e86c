"""Journals of batch jobs show whether their guards ended them at the walltime."""

import json
from pathlib import Path

from experiments.chaos.checks import invariants as named
from experiments.chaos.checks.limits import Limited, check_limits

JOB = {"id": "j", "walltime_s": 5.0}


def a_journal(folder: Path, born_s: float, lived_s: float, name: str = "a", how: str = "") -> None:
    """Write what a launch leaves that was born and last alive then."""
    start = {
        "event": "start", "launch": name, "job": "j", "rank": 0, "devices": [], "checkpoints": "",
        "assignment": name, "fence": ord(name), "boot_id": "b", "born_s": born_s, "boot_s": born_s,
        "lock_free": True,
    }  # fmt: skip
    lines = [start, {"event": "beat", "launch": name, "boot_s": born_s + lived_s}]
    if how:
        lines.append({**lines[-1], "event": "end", "how": how})
    with (folder / "j.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def checked(folder: Path) -> Limited:
    away = {"web": [(104.0, 106.0)], "agent-0": [(0.0, 50.0)]}
    nodes = {"a": "agent-0", "b": "agent-0"}
    return check_limits(folder, [JOB], 2.0, away, nodes=nodes)


def wrong(found: Limited) -> tuple[str, ...]:
    return tuple(text for invariant in found.invariants for text in invariant.wrong)


def test_a_launch_that_ends_at_its_walltime_is_right_and_counted_while_a_part_is_away(
    tmp_path: Path,
) -> None:
    a_journal(tmp_path, 100.0, 5.1)
    found = checked(tmp_path)
    assert (found.jobs, found.launches, found.ended, found.on_silent_node) == (1, 1, 1, 0)
    assert (found.while_away, found.first_end_s) == ({"web": 1, "agent-0": 0}, {"j": 105.1})
    assert {one.name: one.checked for one in found.invariants} == {
        named.WALLTIMES: 1, named.JOB_LOST: 1, named.ONE_PROCESS: 0, named.LAUNCHED_ONCE: 1
    }  # fmt: skip
    assert wrong(found) == ()


def test_an_end_while_the_agent_of_its_own_node_is_away_is_counted(tmp_path: Path) -> None:
    a_journal(tmp_path, 40.0, 5.1)
    assert checked(tmp_path).on_silent_node == 1


def test_a_launch_may_end_sooner_if_another_one_runs_until_the_walltime(tmp_path: Path) -> None:
    a_journal(tmp_path, 100.0, 2.0)
    a_journal(tmp_path, 110.0, 6.9, "b")
    found = checked(tmp_path)
    assert (found.launches, found.ended, wrong(found)) == (2, 1, ())


def test_a_job_that_lives_on_ends_by_itself_or_never_gets_so_far_is_wrong(tmp_path: Path) -> None:
    assert wrong(checked(tmp_path)) == ("job j: no launch ran until its walltime of 5 s",)
    a_journal(tmp_path, 100.0, 12.0)
    assert wrong(checked(tmp_path)) == ("job j: launch a lived for 12.0 s, not 10.0 s at most",)
    a_journal(tmp_path, 200.0, 5.1, "b", how="done")
    assert wrong(checked(tmp_path))[-1] == "job j: launch b ended by itself"


def test_two_launches_at_once_and_a_job_that_nobody_submitted_are_wrong(tmp_path: Path) -> None:
    a_journal(tmp_path, 100.0, 5.1)
    a_journal(tmp_path, 103.0, 5.1, "b")
    assert any("alive together" in text for text in wrong(checked(tmp_path)))
    assert "job j ran but was never submitted" in wrong(check_limits(tmp_path, [], 2.0, {}))
