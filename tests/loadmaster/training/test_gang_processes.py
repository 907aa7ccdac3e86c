"""A gang of two processes: stopped, resumed, killed, crashed; it begins and ends as one, and none
of it is left waiting.
"""

import signal
import time
from pathlib import Path

import pytest

from tests.builders_gangs import GangLaunches, gang_job
from tests.builders_training import end_of, until

LOST = "rank {} was lost before its gang had ended"


@pytest.fixture
def gang(tmp_path: Path) -> GangLaunches:
    return GangLaunches(tmp_path)


def steps_of(gang: GangLaunches, event: str) -> list[object]:
    """The steps at which each rank told that event last."""
    return [launches.events(event)[-1]["step"] for launches in gang.ranks]


def begun(gang: GangLaunches) -> None:
    until(lambda: all(launches.events("progress") for launches in gang.ranks), "the first step")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stop_that_one_rank_hears_ends_both_on_the_same_step_and_the_next_launch_goes_on_there(
    gang: GangLaunches, rank: int
) -> None:
    gang.steps = 100
    gang.ranks[0].steps = gang.ranks[1].steps = 100
    processes = gang.start(gang_job())
    begun(gang)
    gang.ranks[rank].write_term(stop=True, reason="migrate")
    assert [end_of(process)[0] for process in processes] == [75, 75]
    left = [launches.lines()[-1] for launches in gang.ranks]
    assert [line["event"] for line in left] == ["preempted"] * 2
    assert [line["reason"] for line in left] == ["migrate"] * 2
    assert left[0]["step"] == left[1]["step"] == left[0]["saved_step"] == left[1]["saved_step"]
    assert not gang.ranks[1].events("checkpoint"), "a checkpoint is written once"
    processes = gang.start(gang_job(in_step="pass"))
    assert [end_of(process)[0] for process in processes] == [0, 0]
    assert steps_of(gang, "start") == [left[0]["step"]] * 2
    assert gang.done() == [list(range(100))] * 2


def test_sigterm_to_one_rank_ends_both(gang: GangLaunches) -> None:
    processes = gang.start(gang_job())
    begun(gang)
    processes[1].send_signal(signal.SIGTERM)
    assert [end_of(process)[0] for process in processes] == [75, 75]
    assert len(set(steps_of(gang, "preempted"))) == 1


def test_a_term_that_was_prolonged_for_rank_0_alone_so_far_is_prolonged(gang: GangLaunches) -> None:
    processes = gang.start(gang_job(in_step="time.sleep(0.005)"))
    begun(gang)
    gang.ranks[1].write_term(term_ends_boot_s=0.0)
    assert [end_of(process)[0] for process in processes] == [0, 0]
    assert gang.done() == [list(range(60))] * 2


def test_a_term_that_is_over_ends_both_on_the_same_step(gang: GangLaunches) -> None:
    processes = gang.start(gang_job())
    begun(gang)
    gang.ranks[0].write_term(term_ends_boot_s=time.clock_gettime(time.CLOCK_BOOTTIME) + 0.1)
    assert [end_of(process)[0] for process in processes] == [75, 75]
    assert [launches.lines()[-1]["reason"] for launches in gang.ranks] == ["term"] * 2
    assert len(set(steps_of(gang, "preempted"))) == 1


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_ends_the_other_with_its_name_and_the_next_launch_uses_the_checkpoint(
    gang: GangLaunches, killed: int
) -> None:
    processes = gang.start(
        gang_job(in_step="time.sleep(0.01)"), LOADMASTER_CHECKPOINT_EVERY_S="0.1"
    )
    until(lambda: gang.ranks[0].events("checkpoint"), "a checkpoint")
    processes[killed].kill()
    code, stderr = end_of(processes[1 - killed])
    assert code in (
        1,
        77,
    ), "it notices the loss at a boundary, or the other one is missing in the middle of a step"
    assert LOST.format(killed) in stderr
    last = gang.ranks[1 - killed].lines()[-1]
    assert (last["event"], last["reason"]) == ("fell", LOST.format(killed))
    end_of(processes[killed])
    processes = gang.start(gang_job(in_step="pass"))
    assert [end_of(process)[0] for process in processes] == [0, 0]
    begins = steps_of(gang, "start")
    assert begins[0] == begins[1] != 0
    assert gang.done() == [list(range(60))] * 2


def test_a_rank_that_crashes_is_to_blame_itself_and_the_other_one_names_it(
    gang: GangLaunches,
) -> None:
    processes = gang.start(
        gang_job(in_step="assert not (rank == 1 and step == 20), 'no such label'")
    )
    ends = [end_of(process) for process in processes]
    assert ends[1][0] == 1
    assert "no such label" in ends[1][1]
    assert not gang.ranks[1].events("fell")
    assert ends[0][0] in (1, 77)
    assert gang.ranks[0].lines()[-1]["reason"] == LOST.format(1)


@pytest.mark.slow
def test_a_rank_that_would_wait_for_a_killed_one_for_ever_is_ended(gang: GangLaunches) -> None:
    processes = gang.start(gang_job(), PATIENT="1")
    begun(gang)
    processes[1].kill()
    code, stderr = end_of(processes[0])
    assert (code, gang.ranks[0].lines()[-1]["event"]) == (77, "fell")
    assert LOST.format(1) in stderr
    end_of(processes[1])


@pytest.mark.slow
def test_a_rank_that_cannot_see_the_checkpoint_of_rank_0_says_what_is_missing(
    gang: GangLaunches, tmp_path: Path
) -> None:
    ends = [
        end_of(process)[0]
        for process in gang.start(gang_job(in_step="pass"), LOADMASTER_STEPS_QUOTA="5")
    ]
    assert ends == [0, 0]
    gang.blind = tmp_path / "elsewhere"
    processes = gang.start(gang_job(in_step="pass"))
    code, stderr = end_of(processes[1])
    assert code == 1
    assert "all nodes of a gang need one folder of checkpoints" in stderr
    assert end_of(processes[0])[0] in (1, 77)


def test_ranks_that_a_launcher_started_by_hand_write_one_checkpoint_too(gang: GangLaunches) -> None:
    names = (
        "LOADMASTER_GANG",
        "LOADMASTER_RANK",
        "LOADMASTER_WORLD_SIZE",
        "LOADMASTER_FENCE",
        "LOADMASTER_RUN_DIR",
    )
    by_hand = dict.fromkeys(names, "")
    for steps in ("7", "15"):
        processes = gang.start(gang_job(in_step="pass"), LOADMASTER_STEPS=steps, **by_hand)
        assert [end_of(process)[0] for process in processes] == [0, 0]
    assert gang.done() == [list(range(15))] * 2
