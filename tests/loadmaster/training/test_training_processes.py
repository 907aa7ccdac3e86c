"""The iterator in processes of its own: stopped, killed, out of room, superseded, and without an
agent.
"""

import json
import signal
from pathlib import Path

import pytest

from tests.builders_training import Launches, batches_of, end_of, start, toy_job, until

PACE = {"LOADMASTER_EMULATED_STEP_S": "0.02"}


@pytest.fixture
def launches(tmp_path: Path) -> Launches:
    return Launches(tmp_path, steps=20, environ=dict(PACE))


def assert_nothing_lost_nothing_doubled(launches: Launches) -> None:
    assert json.loads(launches.result.read_text()) == batches_of(launches.steps)


def test_a_launch_stopped_by_its_term_saves_and_the_next_goes_on_at_the_very_step(
    launches: Launches,
) -> None:
    launches.steps = 40
    process = launches.start_toy(toy_job())
    until(lambda: launches.events("progress"), "the first step")
    launches.write_term(stop=True, reason="migrate")
    assert end_of(process)[0] == 75
    preempted = launches.lines()[-1]
    assert (preempted["event"], preempted["reason"]) == ("preempted", "migrate")
    assert preempted["saved_step"] == preempted["step"]
    assert not launches.result.exists(), "code after the loop ran although the job is not done"
    assert end_of(launches.start_toy(toy_job()))[0] == 0
    assert launches.events("start")[0]["step"] == preempted["step"]
    assert_nothing_lost_nothing_doubled(launches)


def test_sigterm_means_the_same_as_a_stop(launches: Launches) -> None:
    launches.steps = 40
    process = launches.start_toy(toy_job())
    until(lambda: launches.events("progress"), "the first step")
    process.send_signal(signal.SIGTERM)
    code, stderr = end_of(process)
    assert (code, launches.lines()[-1]["event"]) == (75, "preempted")
    assert "pre-empted (SIGTERM)" in stderr
    assert "Traceback" not in stderr
    assert end_of(launches.start_toy(toy_job()))[0] == 0
    assert_nothing_lost_nothing_doubled(launches)


def test_a_term_that_is_not_prolonged_means_the_same_as_a_stop(launches: Launches) -> None:
    launches.steps = 1000
    process = launches.start_toy(toy_job())
    until(lambda: launches.events("progress"), "the first step")
    launches.write_term(term_until_s=0.0)
    assert end_of(process)[0] == 75
    assert launches.lines()[-1]["reason"] == "term"


def test_a_stop_is_heard_in_the_middle_of_a_long_step_of_the_emulated_device(
    launches: Launches,
) -> None:
    process = launches.start_toy(toy_job(), LOADMASTER_EMULATED_STEP_S="3600")
    until(lambda: launches.events("start"), "the first step")
    launches.write_term(stop=True)
    assert end_of(process)[0] == 75
    assert launches.lines()[-1]["step"] == 1


def test_a_killed_launch_loses_no_more_than_the_steps_after_its_last_checkpoint(
    launches: Launches,
) -> None:
    launches.steps = 60
    process = launches.start_toy(toy_job(), LOADMASTER_CHECKPOINT_EVERY_S="0.1")
    until(lambda: len(launches.events("checkpoint")) >= 2, "the second checkpoint")
    process.kill()
    assert end_of(process)[0] == -signal.SIGKILL
    told = launches.events("checkpoint")[-1]["step"]
    assert isinstance(told, int)
    assert end_of(launches.start_toy(toy_job()))[0] == 0
    resumed = launches.events("start")[0]["step"]
    assert isinstance(resumed, int)
    assert resumed >= told > 0
    assert_nothing_lost_nothing_doubled(launches)


def test_a_launch_killed_while_it_writes_a_checkpoint_leaves_the_one_before_it_whole(
    launches: Launches,
) -> None:
    slow = """if len(used) > 5:
        path.write_text("[[0, 0], [0,")
        Path(os.environ["LOADMASTER_RUN_DIR"], "writing").touch(); time.sleep(60)"""
    process = launches.start_toy(
        toy_job(before_save=slow), LOADMASTER_CHECKPOINT_EVERY_S="0.000001"
    )
    until((launches.run_dir / "writing").exists, "the checkpoint that is too slow")
    process.kill()
    end_of(process)
    assert len(list(launches.checkpoints.glob(".tmp-*"))) == 1
    assert end_of(launches.start_toy(toy_job()))[0] == 0
    assert launches.events("start")[0]["step"] == 5
    assert_nothing_lost_nothing_doubled(launches)
    assert not list(launches.checkpoints.glob(".tmp-*"))


def test_a_torn_checkpoint_costs_the_steps_since_the_one_before_it_and_the_launch_says_so(
    launches: Launches,
) -> None:
    end_of(launches.start_toy(toy_job(), LOADMASTER_STEPS_QUOTA="4"))
    end_of(launches.start_toy(toy_job(), LOADMASTER_STEPS_QUOTA="4"))
    newest = launches.checkpoints / "step-000000000008-fence-2.ckpt"
    newest.write_bytes(newest.read_bytes()[:-3])
    assert end_of(launches.start_toy(toy_job()))[0] == 0
    warning, begin, *_ = launches.lines()
    assert (warning["event"], begin["event"], begin["step"]) == ("warning", "start", 4)
    assert "step 8" in str(warning["message"])
    assert_nothing_lost_nothing_doubled(launches)


def test_a_superseded_launch_ends_at_its_next_checkpoint_and_touches_nothing(
    launches: Launches,
) -> None:
    launches.steps = 2000
    old = launches.start_toy(toy_job(), LOADMASTER_CHECKPOINT_EVERY_S="0.2")
    until(lambda: launches.events("checkpoint"), "a checkpoint of the old launch")
    new = launches.start_toy(toy_job(), LOADMASTER_STEPS_QUOTA="1")
    code, stderr = end_of(old)
    assert code == 76
    assert "fence 2 has taken over" in stderr
    assert end_of(new)[0] == 0
    assert launches.manifest()["fence"] == 2
    assert launches.events("quota")[0]["saved_step"] == launches.events("quota")[0]["step"]


def test_a_launch_whose_disk_fills_up_trains_on_with_the_older_checkpoint_and_a_warning(
    launches: Launches,
) -> None:
    grows = """if len(used) > 3:
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        path.write_bytes(bytes(10000))"""
    code, stderr = end_of(
        launches.start_toy(toy_job(before_save=grows), LOADMASTER_CHECKPOINT_EVERY_S="0.000001")
    )
    assert code == 0, stderr
    assert launches.events("warning")[0]["saved_step"] == 3
    assert "the one of step 3 is kept" in str(launches.events("warning")[0]["message"])
    assert (launches.lines()[-1]["event"], launches.lines()[-1]["saved_step"]) == ("end", 3)
    assert_nothing_lost_nothing_doubled(launches)
    end_of(launches.start_toy(toy_job(), LOADMASTER_STEPS_QUOTA="1"))
    assert launches.events("start")[0]["step"] == 3


def test_a_plain_script_runs_unchanged_and_writes_nothing_but_its_own(tmp_path: Path) -> None:
    process = start("-c", toy_job(total=16), str(tmp_path / "result.json"))
    assert end_of(process) == (0, "")
    assert json.loads((tmp_path / "result.json").read_text()) == batches_of(16)
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_plain_script_dies_of_a_signal_as_it_always_did(
    tmp_path: Path, number: signal.Signals
) -> None:
    started = tmp_path / "started"
    process = start(
        "-c",
        toy_job(total=9, in_step=f"Path({str(started)!r}).touch(); time.sleep(60)"),
        str(tmp_path / "result.json"),
    )
    until(started.exists, "the first step")
    process.send_signal(number)
    assert end_of(process)[0] == -number
    assert not (tmp_path / "result.json").exists()
