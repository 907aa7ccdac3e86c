"""The iterator in this process: counting, epochs, quotas, what it tells, how it resumes."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadmaster import training
from tests.builders_training import Launches

ALL = list(range(7))


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variables of an agent; and SIGTERM as it was, for a launch on its way out ignores it and
    this process stays.
    """
    former = signal.getsignal(signal.SIGTERM)
    for name in [name for name in os.environ if name.startswith("LOADMASTER_")]:
        monkeypatch.delenv(name)
    yield
    signal.signal(signal.SIGTERM, former)


class Job:
    """A training whose whole state is the list of batches it used."""

    def __init__(self) -> None:
        self.used: list[int] = []

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.used))

    def load(self, path: Path) -> None:
        self.used = json.loads(path.read_text())

    def run(self, loader: list[int] | None = None, **arguments: Any) -> "Job":
        for batch in training.steps(
            ALL if loader is None else loader, save=self.save, load=self.load, **arguments
        ):
            self.used.append(batch)
            training.report(loss=1.0 / len(self.used))
        return self


@pytest.fixture
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["InProcess"]:
    with monkeypatch.context() as environ:
        yield InProcess(tmp_path, environ)


class InProcess(Launches):
    """Launches whose environment is put around this process."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root)
        self._monkeypatch = monkeypatch

    def enter(self, **environ: str) -> None:
        for name, value in self.next_environ(**environ).items():
            self._monkeypatch.setenv(name, value)


def test_a_plain_script_makes_one_pass_over_its_loader_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Job().run().used == ALL
    assert list(tmp_path.iterdir()) == []


def test_epochs_follow_each_other_until_the_total_is_reached() -> None:
    assert Job().run(total=16).used == [*ALL, *ALL, 0, 1]


def test_a_plain_script_with_a_folder_resumes_where_it_was_broken_off(tmp_path: Path) -> None:
    first = Job()
    for batch in training.steps(
        ALL, save=first.save, load=first.load, total=10, every_s=1e-9, checkpoint_dir=tmp_path
    ):
        first.used.append(batch)
        if len(first.used) == 9:
            break
    assert Job().run(total=10, checkpoint_dir=str(tmp_path)).used == [*ALL, 0, 1, 2]


def test_a_job_that_is_done_does_nothing_when_it_is_launched_again(tmp_path: Path) -> None:
    Job().run(total=10, checkpoint_dir=tmp_path)
    again = Job()
    assert (
        list(
            training.steps(ALL, save=again.save, load=again.load, total=10, checkpoint_dir=tmp_path)
        )
        == []
    )
    assert len(again.used) == 10


def test_what_the_agent_asks_goes_before_what_the_script_says(launches: InProcess) -> None:
    launches.enter(LOADMASTER_STEPS="5")
    assert Job().run(total=100).used == ALL[:5]


def test_a_quota_ends_the_launch_with_success_and_the_next_one_goes_on(launches: InProcess) -> None:
    launches.enter(LOADMASTER_STEPS="10", LOADMASTER_STEPS_QUOTA="4")
    with pytest.raises(training.QuotaReached) as reached:
        Job().run()
    assert reached.value.code == 0
    assert [line["event"] for line in launches.lines()] == [
        "start",
        "progress",
        "progress",
        "checkpoint",
        "quota",
    ]
    launches.enter(LOADMASTER_STEPS="10", LOADMASTER_STEPS_QUOTA="")
    assert Job().run().used == [*ALL, 0, 1, 2]
    assert launches.events("start")[0]["step"] == 4
    assert launches.events("end")[0]["launch_steps"] == 6


def test_a_quota_that_ends_with_the_job_is_the_jobs_end(launches: InProcess) -> None:
    launches.enter(LOADMASTER_STEPS="4", LOADMASTER_STEPS_QUOTA="4")
    assert Job().run().used == ALL[:4]
    assert launches.lines()[-1]["event"] == "end"


def test_a_quota_without_a_total_goes_through_as_many_epochs_as_it_needs(
    launches: InProcess,
) -> None:
    launches.enter(LOADMASTER_STEPS="", LOADMASTER_STEPS_QUOTA="9")
    job = Job()
    with pytest.raises(training.QuotaReached):
        job.run()
    assert job.used == [*ALL, 0, 1]


def test_the_lines_of_progress_carry_the_first_and_the_final_loss(launches: InProcess) -> None:
    launches.enter(LOADMASTER_STEPS="8")
    Job().run()
    start, first, *_, last, checkpoint, end = launches.lines()
    assert (start["event"], start["step"], start["loss"]) == ("start", 0, None)
    assert isinstance(start["setup_s"], float)
    assert start["setup_s"] > 0.0
    assert (first["event"], first["step"], first["loss"]) == ("progress", 1, 1.0)
    assert (last["event"], last["step"], last["loss"]) == ("progress", 8, 0.125)
    assert (checkpoint["event"], checkpoint["saved_step"]) == ("checkpoint", 8)
    assert (end["event"], end["loss"], end["overrun_fraction"]) == ("end", 0.125, None)


def test_the_last_loss_is_still_known_after_a_resume(launches: InProcess) -> None:
    launches.enter(LOADMASTER_STEPS="2")
    Job().run()
    launches.enter(LOADMASTER_STEPS="2")
    Job().run()
    assert [(line["event"], line["loss"]) for line in launches.lines()] == [("end", 0.5)]


def test_checkpoints_are_written_every_so_often(launches: InProcess) -> None:
    launches.enter(LOADMASTER_STEPS="4", LOADMASTER_CHECKPOINT_EVERY_S="0.000001")
    Job().run()
    assert [line["step"] for line in launches.events("checkpoint")] == [1, 2, 3, 4]


def test_metrics_can_be_asked_for_and_others_than_the_loss_are_told_too(
    launches: InProcess,
) -> None:
    launches.enter(LOADMASTER_STEPS="1")
    job = Job()
    list(
        training.steps(
            ALL, save=job.save, load=job.load, report=lambda: {"loss": 2.5, "accuracy": 0.75}
        )
    )
    assert launches.lines()[-1]["loss"] == 2.5
    assert launches.lines()[-1]["metrics"] == {"accuracy": 0.75}


def test_a_loss_that_is_not_a_number_is_told_as_none(launches: InProcess) -> None:
    launches.enter(LOADMASTER_STEPS="1")
    job = Job()
    for _ in training.steps(ALL, save=job.save, load=job.load):
        training.report(loss=float("nan"))
    assert launches.lines()[-1]["loss"] is None


def test_reporting_outside_of_the_loop_does_no_harm() -> None:
    training.report(loss=1.0)


def test_the_pace_is_that_of_the_emulated_device_and_its_overruns_are_told(
    launches: InProcess,
) -> None:
    launches.enter(LOADMASTER_STEPS="3", LOADMASTER_EMULATED_STEP_S="0.02")
    Job().run()
    end = launches.lines()[-1]
    assert isinstance(end["overrun_fraction"], float)
    assert 0.0 <= end["overrun_fraction"] <= 1.0


def test_a_launch_told_to_stop_before_its_first_step_does_none_and_saves_nothing(
    launches: InProcess,
) -> None:
    launches.enter()
    launches.write_term(stop=True, reason="cancel")
    job = Job()
    with pytest.raises(training.Preempted) as preempted:
        job.run()
    assert (preempted.value.code, preempted.value.reason, job.used) == (75, "cancel", [])
    assert [(line["event"], line["saved_step"]) for line in launches.lines()] == [
        ("preempted", None)
    ]


def test_a_launch_without_a_place_for_checkpoints_can_still_be_preempted(
    launches: InProcess,
) -> None:
    launches.enter(LOADMASTER_CHECKPOINT_DIR="", LOADMASTER_EMULATED_STEP_S="3600")
    job = Job()
    source = training.steps(ALL, save=job.save, load=job.load)
    assert next(source) == 0
    launches.write_term(stop=True)
    with pytest.raises(training.Preempted):
        next(source)
    assert [
        (line["event"], line["step"], line["saved_step"]) for line in launches.lines()[-1:]
    ] == [("preempted", 1, None)]


def test_a_stale_launch_ends_with_its_own_code_before_it_trains(launches: InProcess) -> None:
    launches.enter()
    Job().run()
    launches.enter(LOADMASTER_FENCE="0")
    job = Job()
    with pytest.raises(training.StaleFence) as stale:
        job.run()
    assert stale.value.code == 76
    assert job.used == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total": -1}, "total must be 0 or more"),
        ({"every_s": 0.0}, "every_s must be above 0"),
        ({"every_s": float("nan")}, "every_s"),
    ],
)
def test_arguments_that_make_no_sense_are_named_at_once(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        training.steps(ALL, save=Job().save, load=Job().load, **arguments)


def test_a_variable_that_makes_no_sense_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_STEPS", "many")
    with pytest.raises(training.JobEnvironmentError, match="LOADMASTER_STEPS"):
        training.steps(ALL, save=Job().save, load=Job().load)


def test_an_error_of_the_users_save_is_not_swallowed(launches: InProcess) -> None:
    def broken(path: Path) -> None:
        raise RuntimeError("the model has no such attribute")

    launches.enter(LOADMASTER_STEPS="1")
    with pytest.raises(RuntimeError, match="no such attribute"):
        list(training.steps(ALL, save=broken, load=Job().load))
