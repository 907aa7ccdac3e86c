"""An agent that starts while its predecessor is still leaving."""

import os
import threading
from contextlib import closing
from pathlib import Path

import pytest

from loadmaster.agent import start
from loadmaster.agent.config import AgentConfig, ConfigError
from loadmaster.agent.journal import Journal, JournalHeldError
from loadmaster.agent.node.machine import Identity
from loadmaster.agent.runtimes.base import Runtime
from loadmaster.agent.runtimes.cgroups import Cgroups, NoCgroupsError
from loadmaster.agent.runtimes.isolation import Isolation, NoIsolationError, UndecidedError
from loadmaster.features import limits_of

IDENTITY = Identity("m", "b", "h")


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


def test_an_agent_that_finds_the_folder_taken_does_not_close_it_to_the_others_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "LEAVING_S", 0.0)
    with closing(Journal(tmp_path / "journal.jsonl")):
        tmp_path.chmod(0o711)
        start.serve(AgentConfig("http://127.0.0.1:9", tmp_path), threading.Event())
        assert tmp_path.stat().st_mode & 0o777 == 0o711


def test_an_agent_that_is_told_to_leave_waits_no_longer(tmp_path: Path) -> None:
    former, leave = Journal(tmp_path / "journal.jsonl"), threading.Event()
    leave.set()
    with pytest.raises(JournalHeldError):
        start._journal(tmp_path / "journal.jsonl", leave)
    former.close()


def test_an_agent_without_cgroups_claims_no_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> Cgroups:
        raise NoCgroupsError("memory: the agent may write no group of /sys/fs/cgroup")

    monkeypatch.setattr(start, "working_cgroups", refuse)
    config = AgentConfig("http://127.0.0.1:9", tmp_path, isolation="none")
    with closing(start.runtime_of(config, IDENTITY, threading.Event())) as runtime:
        assert limits_of(("process", *runtime.features)) == ()
    assert "the kernel does not limit jobs" in caplog.text
    assert "the agent may write no group of /sys/fs/cgroup" in caplog.text


class TestIsolation:
    """An agent isolates jobs as its machine can, and never less than before by itself."""

    @pytest.fixture
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> Isolation:
            raise NoIsolationError("bubblewrap is not installed")

        monkeypatch.setattr(start, "working_isolation", refuse)

    def runtime(self, state: Path, isolation: str = "auto") -> Runtime:
        config = AgentConfig("http://127.0.0.1:9", state, isolation=isolation, cgroups=())
        return start.runtime_of(config, IDENTITY, threading.Event())

    def test_a_machine_that_cannot_isolate_says_so_and_claims_nothing(
        self, tmp_path: Path, broken: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        with closing(self.runtime(tmp_path)) as runtime:
            assert runtime.features == ()
        assert "serves one team" in caplog.text
        assert "bubblewrap is not installed" in caplog.text

    def test_its_operator_may_share_it(self, tmp_path: Path, broken: None) -> None:
        tmp_path.chmod(0o755)
        with closing(self.runtime(tmp_path, "none")) as runtime:
            assert runtime.features == ("shared",)
        assert tmp_path.stat().st_mode & 0o777 == 0o700

    def test_jobs_of_teams_pass_through_its_folder_while_it_starts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed: list[Path] = []
        change = Path.chmod

        def watched(path: Path, mode: int, **how: bool) -> None:
            closed.extend([path] if path.stat().st_mode & ~mode & 0o001 else [])
            change(path, mode, **how)

        monkeypatch.setattr(Path, "chmod", watched)
        isolation = Isolation(tmp_path, range(60_000, 60_010))
        monkeypatch.setattr(start, "working_isolation", lambda *_: isolation)
        for _ in range(2):
            self.runtime(tmp_path).close()
        assert tmp_path.stat().st_mode & 0o777 == 0o711
        assert closed == []

    def test_a_node_that_isolated_jobs_does_not_start_without(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as working:
            working.setattr(start, "working_isolation", lambda state, *_: Isolation(state))
            with closing(self.runtime(tmp_path)) as runtime:
                assert runtime.features == ("isolated",)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(os, "getuid", lambda: 1000)
        with pytest.raises(ConfigError, match=r"cannot be now.*not installed"):
            self.runtime(tmp_path)
        with closing(self.runtime(tmp_path, "none")) as runtime:
            assert runtime.features == ("shared",)

    def test_a_trial_that_cannot_be_made_is_made_again_and_what_works_is_noted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        known, failures = [], [UndecidedError("it took more than 10 s")]

        def working(state: Path, users: object, mounts: object, before: str | None) -> Isolation:
            known.append(before)
            if failures:
                raise failures.pop()
            return Isolation(state, program="/usr/bin/bwrap")

        monkeypatch.setattr(start, "LOOK_AGAIN_S", 0.0)
        monkeypatch.setattr(start, "working_isolation", working)
        with caplog.at_level("INFO"):
            for _ in range(2):
                self.runtime(tmp_path).close()
        assert known == [None, None, "bubblewrap"]
        assert "tried again: it took more than 10 s" in caplog.text
        assert "jobs are isolated by bubblewrap" in caplog.text

    def test_an_agent_told_to_leave_makes_no_trial_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def never(*_: object) -> Isolation:
            raise UndecidedError("it took more than 10 s")

        monkeypatch.setattr(start, "working_isolation", never)
        leave = threading.Event()
        leave.set()
        config = AgentConfig("http://127.0.0.1:9", tmp_path, cgroups=())
        with pytest.raises(ConfigError, match="took more than 10 s"):
            start.runtime_of(config, IDENTITY, leave)
