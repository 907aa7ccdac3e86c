"""Trials: whether jobs can be isolated here, and how."""

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadmaster.agent.runtimes import isolation
from loadmaster.agent.runtimes.isolation import (
    NoIsolationError,
    UndecidedError,
    working_isolation,
)
from tests.builders_agent import until
from tests.builders_isolation import BUBBLEWRAP, IS_ROOT, USERS, an_isolation

TEAMS = USERS if IS_ROOT else None
HANGS = "/bin/sh -c 'sleep 60; : {}' & wait"
NO_PROCESSES = "echo 'bwrap: Creating new namespace failed: Resource temporarily unavailable' >&2"
FORBIDDEN = "echo 'bwrap: Creating new namespace failed: No space left on device' >&2"


@pytest.fixture
def played(state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of bubblewrap, still to be written."""
    monkeypatch.setenv("PATH", str(state.parent))
    return state.parent / "bwrap"


def processes() -> Iterator[psutil.Process]:
    return psutil.process_iter(["cmdline"])


def plays(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\nexit 1\n")
    program.chmod(0o755)


class TestTrials:
    """The best isolation that works is taken."""

    def test_a_trial_says_whether_jobs_can_be_isolated(self, state: Path) -> None:
        assert an_isolation(state).problem() == ""
        assert "no-such" in an_isolation(state, program="/no-such/bwrap").problem()
        assert [path.name for path in state.iterdir()] == ["runs"]
        assert list((state / "runs").iterdir()) == []

    def test_the_best_isolation_that_works_is_chosen(
        self, state: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        users = USERS if IS_ROOT else None
        assert working_isolation(state, users) == an_isolation(state)
        monkeypatch.setenv("PATH", str(state))
        if IS_ROOT:
            assert working_isolation(state, users) == an_isolation(state, program="")
        with pytest.raises(NoIsolationError, match=r"bubblewrap .bwrap. is not installed"):
            working_isolation(state, None)
        assert state.stat().st_mode & 0o777 == 0o700

    def test_users_that_cannot_get_to_the_agents_folder_are_no_isolation(self, state: Path) -> None:
        state.parent.chmod(0o700)
        if IS_ROOT:
            assert "Permission denied" in an_isolation(state).problem()
            assert "can't cd" in an_isolation(state, program="").problem()
        else:
            assert an_isolation(state).problem() == ""


class TestTrialsThatCannotBeMade:
    """They say nothing of the machine, on which jobs may be running."""

    def test_one_that_hangs_is_ended_whole(
        self, state: Path, played: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(isolation, "TRIAL_S", 0.5)
        plays(played, HANGS.format(state))
        with pytest.raises(TimeoutError):
            an_isolation(state, program=str(played)).problem()
        words = f"sleep 60; : {state}"
        until(lambda: all(words not in (p.info["cmdline"] or ()) for p in processes()))

    @pytest.mark.parametrize("script", [HANGS, NO_PROCESSES])
    def test_a_passing_failure_chooses_nothing_weaker(
        self, state: Path, played: Path, script: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(isolation, "TRIAL_S", 0.5)
        plays(played, script)
        with pytest.raises(UndecidedError, match="bubblewrap"):
            working_isolation(state, TEAMS)
        assert working_isolation(state, TEAMS, (), "bubblewrap").program == str(played)
        if IS_ROOT:
            assert working_isolation(state, TEAMS, (), "users") == an_isolation(state, program="")

    def test_on_a_full_disk_what_worked_before_is_trusted(
        self, state: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
        assert working_isolation(state, TEAMS, (), "bubblewrap") == an_isolation(state)
        for before in (None, ""):  # none yet, or one of an older agent
            with pytest.raises(UndecidedError, match="No space left"):
                working_isolation(state, TEAMS, (), before)

    def test_a_failure_that_lasts_is_not_tried_again_for_ever(
        self, state: Path, played: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Old versions of bubblewrap say so where a user may have no namespace."""
        plays(played, FORBIDDEN)
        with pytest.raises(NoIsolationError, match="namespace failed"):
            working_isolation(state, None)
        if IS_ROOT:
            assert working_isolation(state, TEAMS, (), "") == an_isolation(state, program="")

        def refuse(*_: object) -> None:
            raise PermissionError(errno.EPERM, "not owner")

        monkeypatch.setattr(isolation, "make_own", refuse)
        with pytest.raises(NoIsolationError, match="not owner"):
            working_isolation(state, None)

    def test_a_node_that_had_bubblewrap_is_not_isolated_by_users_alone(
        self, state: Path, played: Path
    ) -> None:
        with pytest.raises(NoIsolationError, match="not installed"):
            working_isolation(state, TEAMS, (), "bubblewrap")
        plays(played, "echo no user namespaces >&2")
        with pytest.raises(NoIsolationError, match="no user namespaces") as refused:
            working_isolation(state, TEAMS, (), "bubblewrap")
        assert not isinstance(refused.value, UndecidedError)

    @pytest.mark.skipif(not IS_ROOT, reason="users of teams need root")
    def test_users_alone_are_told_with_the_reason(
        self, state: Path, played: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        plays(played, "echo no user namespaces >&2")
        assert working_isolation(state, TEAMS) == an_isolation(state, program="")
        assert "no user namespaces" in caplog.text

    def test_a_machine_that_closes_no_namespaces_keeps_its_sandbox_and_says_so(
        self, state: Path, played: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        refuses = """
case " $* " in
*" --help "*) echo "  --disable-userns  Disable"; exit;;
*" --disable-userns "*) echo "cannot disable user namespaces" >&2; exit 1;;
esac
"""
        plays(played, f'{refuses}\nexec {BUBBLEWRAP} "$@"')
        found = working_isolation(state, TEAMS)
        assert (found.program, found.closes_namespaces) == (str(played), False)
        assert "jobs can make user namespaces of their own: cannot disable" in caplog.text
