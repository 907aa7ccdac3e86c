"""Output into a file that takes nothing more (/dev/full) is lost and ends no program."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadmaster.outputs import LossyFile, say

ROOT = Path(__file__).parents[2]
TALKS = "import sys; print('x' * 10_000); print('y', file=sys.stderr)"
TRAINS = """
import loadmaster.training
for step in loadmaster.training.steps(range(20), save=lambda path: None, load=lambda path: None):
    pass
"""


def run(program: str, **environment: str) -> int:
    """Exit code of a Python program whose output goes to /dev/full."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=env, stdout=full, stderr=full, timeout=60).returncode


def test_a_program_of_ours_loses_lines_where_another_fails() -> None:
    assert run(TALKS) != 0
    ours = "from loadmaster.outputs import lose_what_finds_no_room as lose; lose(); "
    assert run(ours + TALKS) == 0


def test_what_we_say_in_a_program_of_somebody_else_does_not_make_its_end_fail() -> None:
    assert run("import sys; print('x', file=sys.stderr, flush=True)") != 0
    assert run("from loadmaster.outputs import say; say('x')") == 0


def test_a_training_goes_on_without_room_for_its_progress_and_its_complaint(
    tmp_path: Path,
) -> None:
    (tmp_path / "progress.jsonl").symlink_to("/dev/full")
    assert run(TRAINS, LOADMASTER_RUN_DIR=str(tmp_path)) == 0


def test_a_training_goes_on_whose_progress_cannot_even_be_opened(tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").mkdir()
    assert run(TRAINS, LOADMASTER_RUN_DIR=str(tmp_path)) == 0


def test_other_errors_than_a_lack_of_room_are_errors() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with LossyFile(writing, "w") as file, pytest.raises(BrokenPipeError) as broken:
        file.write(b"x")
    assert broken.value.errno == errno.EPIPE


def test_a_line_reaches_whoever_took_the_place_of_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say("no room")
    assert capsys.readouterr().err == "no room\n"
