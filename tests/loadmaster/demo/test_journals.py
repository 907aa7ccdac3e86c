"""Jobs' own journals: what they write, and what the check finds in them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loadmaster.cli.main import app
from loadmaster.demo.journal_checks import Findings, JournalsError, check_journals
from loadmaster.demo.journals import JobJournal, LaunchFacts

RUN = """
import sys, time
from pathlib import Path
from loadmaster.demo.journals import JobJournal, LaunchFacts
with JobJournal(Path(sys.argv[1]), LaunchFacts("job", "a", int(sys.argv[2]), steps=9)) as journal:
    print("here", flush=True)
    time.sleep(600)
"""


class Written:
    """A folder of journals, written line by line."""

    def __init__(self, folder: Path, **submitted: int) -> None:
        self.folder = folder
        (folder / "submitted.json").write_text(
            json.dumps([{"id": job, "steps": steps} for job, steps in submitted.items()])
        )

    def launch(self, job: str, fence: int, at: tuple[float, float], **told: Any) -> Written:
        """A launch that lives from one second to the other; `resumed`, `steps`, `saved`, `how`,
        `devices`, `lock_free`, ...
        """
        start = {
            "event": "start", "job": job, "rank": 0, "devices": told.get("devices", []),
            "boot_id": told.get("boot", "b"),
            "born_s": at[0], "checkpoints": told.get("checkpoints", "c"),
            "lock_free": told.get("lock_free", True),
        }  # fmt: skip
        resumed = told.get("resumed", 0)
        lines = [start, {"event": "resumed", "step": resumed}]
        lines += [
            {"event": "step", "step": step}
            for step in told.get("steps", range(resumed + 1, resumed + 1))
        ]
        lines += [{"event": "saved", "step": told["saved"]}] if "saved" in told else []
        last = (
            {"event": "end", "how": told["how"]}
            if "how" in told
            else {"event": "beat", "lock_free": True}
        )
        timed = [{**line, "boot_s": at[0] + 0.1} for line in lines] + [{**last, "boot_s": at[1]}]
        with (self.folder / f"{job}.jsonl").open("a") as file:
            file.writelines(
                json.dumps({"launch": f"{job}-{fence}", **line}) + "\n" for line in timed
            )
        return self

    def check(self) -> Findings:
        return check_journals(self.folder)


def test_a_job_that_resumes_at_its_checkpoint_and_ends_has_lost_nothing(tmp_path: Path) -> None:
    written = Written(tmp_path, job=5).launch("job", 1, (1, 2), steps=[1, 2, 3], saved=2)
    found = written.launch("job", 2, (3, 4), resumed=2, steps=[3, 4, 5], how="done").check()
    assert (found.jobs, found.launches, found.steps, found.lost, found.overlaps, found.holds) == (
        1,
        2,
        6,
        (),
        (),
        True,
    )


def test_a_job_that_never_ran_or_never_ended_is_lost(tmp_path: Path) -> None:
    written = Written(tmp_path, none=5, half=5).launch("half", 1, (1, 2), steps=[1, 2])
    assert [text.split()[1] for text in written.check().lost] == ["none", "half"]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"resumed": 1, "steps": [2, 3, 4, 5]}, "although a checkpoint held 2"),
        ({"resumed": 4, "steps": [5]}, "but only 3 were done"),
        ({"resumed": 2, "steps": [3, 5]}, "one after another"),
    ],
)
def test_steps_that_are_repeated_or_missing_are_found(
    tmp_path: Path, second: dict[str, Any], words: str
) -> None:
    written = Written(tmp_path, job=5).launch("job", 1, (1, 2), steps=[1, 2, 3], saved=2)
    found = written.launch("job", 2, (3, 4), how="done", **second).check()
    assert len(found.lost) == 1
    assert words in found.lost[0]


def test_two_launches_alive_together_overlap_unless_of_another_boot_or_checkpoint_folder(
    tmp_path: Path,
) -> None:
    written = Written(tmp_path, job=2).launch("job", 1, (1, 5), steps=[1])
    written.launch("job", 2, (2, 3), boot="other").launch(
        "job", 3, (2, 3), checkpoints="a profile run's"
    )
    assert written.launch("job", 4, (6, 7), resumed=1, steps=[2], how="done").check().overlaps == ()
    found = written.launch("job", 5, (4, 8), resumed=1).check()
    assert len(found.overlaps) == 2, "with the launch before, and with the one after"
    assert not found.holds


def test_a_lock_that_was_taken_is_an_overlap_whatever_the_clocks_say(tmp_path: Path) -> None:
    found = (
        Written(tmp_path, job=1)
        .launch("job", 1, (1, 2), steps=[1], how="done", lock_free=False)
        .check()
    )
    assert "lock was taken" in found.overlaps[0]


def test_a_device_held_by_two_jobs_at_once_is_found(tmp_path: Path) -> None:
    written = Written(tmp_path, a=1, b=1).launch(
        "a", 1, (1, 3), steps=[1], how="done", devices=["gpu-0", "gpu-1"]
    )
    written.launch("b", 1, (2, 4), steps=[1], how="done", devices=["gpu-1"])
    assert [text.split(":")[0] for text in written.check().held_twice] == ["device gpu-1"]


def test_a_job_nobody_submitted_is_found(tmp_path: Path) -> None:
    assert "never submitted" in Written(tmp_path).launch("job", 1, (1, 2)).check().lost[0]


def test_a_damaged_journal_and_a_folder_without_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalsError, match="cannot be read"):
        check_journals(tmp_path)
    Written(tmp_path, job=1)
    (tmp_path / "job.jsonl").write_text('{"launch": "x", "event": "beat", "boot_s": 1}\n')
    with pytest.raises(JournalsError, match="line 1"):
        check_journals(tmp_path)


def test_the_command_prints_counts_and_exits_by_them(tmp_path: Path) -> None:
    written = Written(tmp_path, job=1).launch("job", 1, (1, 2), steps=[1], how="done")
    good = CliRunner().invoke(app, ["check-journals", str(tmp_path)])
    assert (good.exit_code, "LAUNCHES" in good.stdout) == (0, True)
    written.launch("job", 2, (1.5, 3))
    bad = CliRunner().invoke(app, ["check-journals", str(tmp_path), "--json"])
    assert (bad.exit_code, len(json.loads(bad.stdout)["overlaps"])) == (1, 1)
    assert CliRunner().invoke(app, ["check-journals", str(tmp_path / "none")]).exit_code == 2


def journalled(folder: Path, fence: int) -> subprocess.Popen[str]:
    """A process that keeps a journal until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), str(fence)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_two_processes_that_live_together_find_the_lock_taken_and_one_after_the_other_do_not(
    tmp_path: Path,
) -> None:
    Written(tmp_path, job=9)
    first = journalled(tmp_path, 1)
    kill(first)
    second = journalled(tmp_path, 2)
    assert check_journals(tmp_path).overlaps == ()
    third = journalled(tmp_path, 3)
    time.sleep(0.3)  # until the second has beaten again
    found = check_journals(tmp_path).overlaps
    kill(second)
    kill(third)
    assert len(found) == 2, found


def test_a_launch_that_ends_says_how(tmp_path: Path) -> None:
    facts = LaunchFacts.read(
        {
            "LOADMASTER_JOB": "job",
            "LOADMASTER_ASSIGNMENT": "a",
            "LOADMASTER_FENCE": "3",
            "LOADMASTER_DEVICES": "x,y",
        }
    )
    assert (facts.fence, facts.devices) == (3, ("x", "y"))
    journal = JobJournal(tmp_path, facts)
    with journal:
        journal.resumed(0)
        journal.step(1)
    with pytest.raises(SystemExit), JobJournal(tmp_path, facts):
        sys.exit(75)
    lines = [json.loads(line) for line in (tmp_path / "job.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines if line["event"] != "beat"] == [
        "start",
        "resumed",
        "step",
        "end",
        "start",
        "end",
    ]
    assert [line["how"] for line in lines if line["event"] == "end"] == ["done", "SystemExit"]
    assert lines[0]["pid"] == os.getpid()
