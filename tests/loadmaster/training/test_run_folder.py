import errno
import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from loadmaster.training.run_folder import (
    JobEnvironment,
    JobEnvironmentError,
    ProgressLog,
    TermWatch,
    process_age_s,
)


@pytest.fixture
def term(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Term":
    monkeypatch.setattr("loadmaster.training.run_folder.TERM_CHECK_S", 0.0)
    return Term(tmp_path)


def test_a_term_that_is_closed_for_a_while_changes_nothing(
    term: "Term", monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the agent's folder may be while an agent starts."""
    term.write(stop=True, reason="preempt")

    def refuse(*_: object, **__: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, "closed")

    with monkeypatch.context() as closed:
        closed.setattr(Path, "stat", refuse)
        assert term.watch.reason() is None
    assert term.watch.reason() == "preempt"


class Term:
    """The agent's side of a term with fence 3, and the job's watch on it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "term.json"
        self.watch = TermWatch(folder, 3)

    def write(self, **term: object) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(
            json.dumps(
                {
                    "version": 1,
                    "fence": 3,
                    "stop": False,
                    "reason": None,
                    "term_until_s": None,
                    **term,
                }
            )
        )
        new.replace(self.path)


def test_without_a_run_folder_nothing_ends_a_job() -> None:
    assert TermWatch(None, None).reason() is None


def test_a_launch_goes_on_before_its_term_is_written_and_while_it_lasts(term: Term) -> None:
    assert term.watch.reason() is None
    term.write(term_until_s=time.time() + 1000)
    assert term.watch.reason() is None


def test_a_launch_ends_when_the_agent_says_so_and_knows_why(term: Term) -> None:
    term.write()
    assert term.watch.reason() is None
    term.write(stop=True, reason="migrate")
    assert term.watch.reason() == "migrate"


def test_a_term_in_the_past_ends_a_launch_until_it_is_prolonged(term: Term) -> None:
    term.write(term_until_s=time.time() - 1)
    assert term.watch.reason() == "term"
    term.write(term_until_s=time.time() + 1000)
    assert term.watch.reason() is None


def test_a_term_of_an_older_launch_means_nothing_and_one_of_a_newer_launch_ends_this_one(
    term: Term,
) -> None:
    term.write(fence=2, stop=True)
    assert term.watch.reason() is None
    term.write(fence=4)
    assert term.watch.reason() == "stop"


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 1, "fence": "x"}',
        '{"version": 2, "fence": 3, "stop": false}',
    ],
)
def test_what_is_not_a_term_changes_nothing(term: Term, damage: str) -> None:
    term.write(stop=True, reason="cancel")
    assert term.watch.reason() == "cancel"
    term.path.write_text(damage)
    assert term.watch.reason() == "cancel"


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def test_a_term_ends_by_the_boot_clock_whatever_the_wall_clock_says(term: Term) -> None:
    term.write(term_until_s=0.0, term_ends_boot_s=boot_s() + 1000.0)
    assert term.watch.reason() is None
    term.write(term_until_s=9e9, term_ends_boot_s=boot_s() - 1.0)
    assert term.watch.reason() == "term"


def test_a_term_prolonged_in_the_last_moment_is_prolonged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    term = Term(tmp_path)
    term.write(term_ends_boot_s=boot_s() + 0.05)
    assert term.watch.reason() is None
    monkeypatch.setattr("loadmaster.training.run_folder.TERM_CHECK_S", 1000.0)
    term.write(term_ends_boot_s=boot_s() + 1000.0)
    time.sleep(0.1)
    assert term.watch.reason() is None, "before it ends it looks once more"


def test_a_term_that_was_over_and_is_prolonged_late_is_over_no_more(term: Term) -> None:
    term.write(term_ends_boot_s=boot_s() - 1.0)
    assert term.watch.reason() == "term"
    term.write(term_ends_boot_s=boot_s() + 1000.0)
    assert term.watch.reason() is None


def test_the_file_is_not_looked_at_more_often_than_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmaster.training.run_folder.TERM_CHECK_S", 1000.0)
    term = Term(tmp_path)
    assert term.watch.reason() is None
    term.write(stop=True)
    assert term.watch.reason() is None


def test_sigterm_ends_a_launch_and_is_given_back_afterwards(term: Term) -> None:
    former = signal.getsignal(signal.SIGTERM)
    term.watch.catch_sigterm()
    os.kill(os.getpid(), signal.SIGTERM)
    assert term.watch.reason() == "SIGTERM"
    term.watch.release_sigterm(leaving=False)
    assert signal.getsignal(signal.SIGTERM) == former


def test_a_process_on_its_way_out_ignores_sigterm_so_that_its_exit_code_tells(term: Term) -> None:
    former = signal.getsignal(signal.SIGTERM)
    term.watch.catch_sigterm()
    try:
        term.watch.release_sigterm(leaving=True)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, former)


def test_a_job_that_trains_in_a_thread_leaves_signals_alone(term: Term) -> None:
    former = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=term.watch.catch_sigterm)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == former


def test_each_event_is_a_line_of_json_without_numbers_that_are_none(tmp_path: Path) -> None:
    log = ProgressLog(tmp_path / "made")
    log.write("start", step=0, loss=None)
    log.write("progress", step=1, loss=float("nan"), metrics={"accuracy": 0.5, "gap": float("inf")})
    log.close()
    first, second = [
        json.loads(line) for line in (tmp_path / "made" / "progress.jsonl").read_text().splitlines()
    ]
    assert (first["event"], first["step"], first["loss"]) == ("start", 0, None)
    assert (second["loss"], second["metrics"]) == (None, {"accuracy": 0.5, "gap": None})
    assert first["at_s"] <= second["at_s"]


def test_without_a_run_folder_no_progress_is_written() -> None:
    log = ProgressLog(None)
    log.write("start")
    assert not log.is_open
    log.close()


def test_a_line_torn_by_a_full_disk_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ProgressLog(tmp_path)
    log.write("start")
    write = os.write

    def half(descriptor: int, content: bytes) -> int:
        return write(descriptor, content[: len(content) // 2])

    def full(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for failing in (half, full, full):
        monkeypatch.setattr(os, "write", failing)
        log.write("progress")
    monkeypatch.setattr(os, "write", write)
    log.write("end")
    log.close()
    lines = (tmp_path / "progress.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert [json.loads(line)["event"] for line in (lines[0], lines[-1])] == ["start", "end"]
    assert capsys.readouterr().err.count("progress cannot be written") == 1


def test_the_environment_of_a_plain_script_is_empty() -> None:
    assert JobEnvironment.read({"PATH": "/bin", "LOADMASTER_STEPS": ""}) == JobEnvironment()


def test_the_environment_of_a_launch_is_read_whole() -> None:
    environ = {
        "LOADMASTER_RUN_DIR": "/run/a",
        "LOADMASTER_CHECKPOINT_DIR": "/checkpoints/a",
        "LOADMASTER_FENCE": "4",
        "LOADMASTER_STEPS": "300",
        "LOADMASTER_STEPS_QUOTA": "20",
        "LOADMASTER_CHECKPOINT_EVERY_S": "15",
        "LOADMASTER_EMULATED_STEP_S": "0.05",
        "LOADMASTER_RANK": "1",
        "LOADMASTER_WORLD_SIZE": "2",
    }
    assert JobEnvironment.read(environ) == JobEnvironment(
        Path("/run/a"), Path("/checkpoints/a"), 4, 300, 20, 15.0, 0.05, 1, 2
    )


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"LOADMASTER_FENCE": "three"},
            "LOADMASTER_FENCE must be a whole number of 0 or more, not 'three'",
        ),
        ({"LOADMASTER_STEPS": "-1"}, "LOADMASTER_STEPS must be a whole number"),
        ({"LOADMASTER_STEPS": "٣"}, "LOADMASTER_STEPS must be a whole number"),
        (
            {"LOADMASTER_CHECKPOINT_EVERY_S": "0"},
            "LOADMASTER_CHECKPOINT_EVERY_S must be a number of seconds above 0",
        ),
        ({"LOADMASTER_EMULATED_STEP_S": "nan"}, "LOADMASTER_EMULATED_STEP_S must be"),
        ({"LOADMASTER_EMULATED_STEP_S": "fast"}, "LOADMASTER_EMULATED_STEP_S must be"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(environ: Mapping[str, str], message: str) -> None:
    with pytest.raises(JobEnvironmentError, match=message):
        JobEnvironment.read(environ)


def test_the_age_of_this_process_is_known_and_grows() -> None:
    first = process_age_s()
    time.sleep(0.03)
    assert 0.0 < first < process_age_s()
