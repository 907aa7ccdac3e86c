"""The journal survives crashes, torn lines and full disks with a whole state."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster.agent import journal as journal_module
from loadmaster.agent.journal import Entry, Journal, JournalError
from loadmaster.agent.runtimes.base import StopBy
from loadmaster.protocol import AssignmentState, ReasonClass
from loadmaster.wire import WireError
from tests.power_loss import PowerLoss


def an_entry(assignment: str = "a1", fence: int = 1) -> Entry:
    return Entry(
        assignment, fence, AssignmentState.PREPARING, devices=("gpu-0",), stop=StopBy.PREEMPT
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def reopened(journal: Journal, path: Path) -> Journal:
    journal.close()
    return Journal(path)


def no_room(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_was_put_is_known_after_a_restart(path: Path) -> None:
    journal = Journal(path)
    moved = an_entry().moved(
        AssignmentState.FAILED, 12.5, exit_code=1, reason_class=ReasonClass.USER, reason="no"
    )
    journal.put(an_entry())
    journal.put(moved)
    secret = journal.session_secret
    journal = reopened(journal, path)
    assert dict(journal.entries) == {"a1": moved}
    assert journal.session_secret == secret
    journal.close()


def test_what_was_forgotten_leaves_its_fence(path: Path) -> None:
    journal = Journal(path)
    journal.put(an_entry(fence=3))
    journal.forget(an_entry(fence=3))
    journal = reopened(journal, path)
    assert dict(journal.entries) == {}
    assert journal.ends["a1"] == 3
    journal.close()


def test_only_so_many_ends_are_remembered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "REMEMBERED_ENDS", 3)
    journal = Journal(path)
    for number in range(5):
        journal.forget(an_entry(f"a{number}"))
    assert list(journal.ends) == ["a2", "a3", "a4"]
    journal.close()


def test_a_torn_last_line_is_as_if_never_written(path: Path) -> None:
    journal = Journal(path)
    journal.put(an_entry())
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"entry":{"assignment":"a2"')
    journal = Journal(path)
    assert list(journal.entries) == ["a1"]
    journal.put(an_entry("a3"))
    journal = reopened(journal, path)
    assert list(journal.entries) == ["a1", "a3"]
    journal.close()


@pytest.mark.parametrize(
    "line", [b"garbage", b'{"entry": {"assignment": 1}}', b'{"other": 1}', b"[]"]
)
def test_a_damaged_line_in_the_middle_is_named(path: Path, line: bytes) -> None:
    path.write_bytes(b'{"secret":"s"}\n' + line + b'\n{"secret":"s"}\n')
    with pytest.raises(JournalError, match="line 2"):
        Journal(path)
    path.unlink()
    Journal(path).close()


@pytest.mark.parametrize("details", [{"reason": "\ud800"}, {"steps": "three"}])
def test_what_could_not_be_read_again_is_not_written(path: Path, details: dict[str, Any]) -> None:
    journal = Journal(path)
    journal.put(an_entry())
    before = path.read_bytes()
    for store in (journal.put, journal.note):
        with pytest.raises(WireError):
            store(an_entry().moved(AssignmentState.FAILED, 1.0, **details))
    assert path.read_bytes() == before
    assert not journal.is_failing
    journal = reopened(journal, path)
    assert dict(journal.entries) == {"a1": an_entry()}
    journal.close()


@pytest.mark.parametrize("launched", [False, True])
def test_an_end_that_cannot_be_read_leaves_a_launch_that_is_never_repeated(
    path: Path, launched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As agents before wrote it: what runs is adopted, what ended is looked at again."""
    journal = Journal(path)
    entry = replace(an_entry(), launched=launched)
    ended = entry.moved(AssignmentState.FAILED, 1.0, reason="broken")
    journal.put(an_entry("a2"))
    journal.put(ended)
    text = path.read_text().replace('"broken"', '"\\ud800"')
    path.write_text(text + text.splitlines()[1] + "\n")
    journal = reopened(journal, path)
    again = replace(entry, state=AssignmentState.RUNNING, launched=True, seq=ended.seq)
    assert dict(journal.entries) == {"a2": an_entry("a2"), "a1": again}
    assert "line 3: lm-a1-1 is looked at again" in caplog.text
    journal.close()


def test_a_full_disk_leaves_the_older_state_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path)
    journal.put(an_entry())

    def half(descriptor: int, raw: bytes, write: Callable[[int, bytes], int] = os.write) -> int:
        return write(descriptor, raw[: len(raw) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(JournalError, match="full"):
            journal.put(an_entry("a2"))
    assert journal.is_failing
    assert list(journal.entries) == ["a1"]
    journal.put(an_entry("a3"))
    assert not journal.is_failing
    journal = reopened(journal, path)
    assert list(journal.entries) == ["a1", "a3"]
    journal.close()


def test_what_has_happened_is_noted_even_on_a_full_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path)
    journal.put(an_entry())
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", no_room)
        journal.note(an_entry().moved(AssignmentState.RUNNING, 1.0))
    assert journal.entries["a1"].state is AssignmentState.RUNNING
    journal = reopened(journal, path)
    assert journal.entries["a1"].state is AssignmentState.PREPARING
    journal.close()


def test_a_long_journal_is_rewritten_short(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_ABOVE_LINES", 10)
    journal = Journal(path)
    for number in range(30):
        journal.put(an_entry(fence=number))
    assert len(path.read_bytes().splitlines()) < 15
    journal = reopened(journal, path)
    assert journal.entries["a1"].fence == 29
    journal.close()


def test_a_rewriting_that_fails_keeps_the_long_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_ABOVE_LINES", 10)
    monkeypatch.setattr(journal_module, "write_whole", no_room)
    journal = Journal(path)
    for number in range(30):
        journal.put(an_entry(fence=number))
    journal = reopened(journal, path)
    assert journal.entries["a1"].fence == 29
    journal.close()


def test_what_was_put_survives_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it comes: also just after the journal was begun, or rewritten short."""
    monkeypatch.setattr(journal_module, "COMPACT_ABOVE_LINES", 4)
    for last in range(15):
        folder = tmp_path / str(last)
        folder.mkdir()
        with PowerLoss(folder, monkeypatch):
            journal = Journal(folder / "journal.jsonl")
            for fence in range(last + 1):
                journal.put(an_entry(fence=fence))
            journal.close()
        journal = Journal(folder / "journal.jsonl")
        assert [entry.fence for entry in journal.entries.values()] == [last]
        journal.close()


def test_one_agent_per_state_folder(path: Path) -> None:
    journal = Journal(path)
    with pytest.raises(JournalError, match=r"another agent uses .* --state-dir"):
        Journal(path)
    reopened(journal, path).close()


def test_the_journal_is_private(path: Path) -> None:
    Journal(path).close()
    assert path.stat().st_mode & 0o077 == 0


def test_moves_are_told_in_order() -> None:
    entry = an_entry().moved(AssignmentState.RUNNING, 1.0).moved(AssignmentState.STOPPING, 2.0)
    assert [move.seq for move in entry.unsent] == [1, 2]
    assert [move.seq for move in entry.acknowledged(1).unsent] == [2]


def test_an_end_tells_how_long_the_launch_ran_if_its_start_is_unsent() -> None:
    running = an_entry().moved(AssignmentState.RUNNING, 1.0, image_digest="sha256:1")
    ended = running.moved(AssignmentState.SUCCEEDED, 3.5, exit_code=0)
    assert ended.has_ended
    (end,) = ended.unsent
    assert (end.seq, end.to, end.ran_s) == (2, AssignmentState.SUCCEEDED, 2.5)
    assert (end.exit_code, end.image_digest) == (0, "sha256:1")
    (told,) = running.acknowledged(1).moved(AssignmentState.SUCCEEDED, 3.5).unsent
    assert told.ran_s is None


def test_only_what_the_agent_acts_on_waits_for_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    journal.note(an_entry().moved(AssignmentState.RUNNING, 1.0))
    journal.forget(an_entry())
    assert synced == []
    journal.put(an_entry(fence=9))
    assert len(synced) == 1
    journal = reopened(journal, path)
    assert list(journal.entries) == ["a1"]
    journal.close()
