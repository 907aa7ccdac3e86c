"""An agent that starts while its predecessor is still leaving."""

import threading
from pathlib import Path

import pytest

from loadmaster.agent import start
from loadmaster.agent.config import AgentConfig
from loadmaster.agent.journal import Journal, JournalHeldError


class Patience(threading.Event):
    """Never set; whoever waits for it lets the former agent go."""

    def __init__(self, former: Journal) -> None:
        super().__init__()
        self.former = former

    def wait(self, timeout: float | None = None) -> bool:
        self.former.close()
        return False


def test_an_agent_waits_for_the_journal_of_one_that_is_leaving(tmp_path: Path) -> None:
    former = Journal(tmp_path / "journal.jsonl")
    secret = former.session_secret
    journal = start._journal(tmp_path / "journal.jsonl", Patience(former))
    assert journal.session_secret == secret
    journal.close()


def test_an_agent_whose_folder_stays_taken_gives_up_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(start, "LEAVING_S", 0.0)
    former = Journal(tmp_path / "journal.jsonl")
    assert (
        start.serve(AgentConfig("http://127.0.0.1:9", tmp_path), threading.Event())
        == start.EXIT_CONFIG
    )
    assert "another agent uses" in caplog.text
    former.close()


def test_an_agent_that_is_told_to_leave_waits_no_longer(tmp_path: Path) -> None:
    former, leave = Journal(tmp_path / "journal.jsonl"), threading.Event()
    leave.set()
    with pytest.raises(JournalHeldError):
        start._journal(tmp_path / "journal.jsonl", leave)
    former.close()
