"""What a guard does to a hostile job's processes, and to the memory that a job leaves."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadmaster.agent.guarding import guard_processes as processes

USER = 54_321


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], int]]:
    """Signals that the guard's own process sends, which reach nobody."""
    found: list[tuple[list[int], int]] = []
    monkeypatch.setattr(processes, "signal_all", lambda pids, number: found.append((pids, number)))
    return found


@pytest.fixture
def helper_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that the job stops in the worst moment, without rights of its own."""
    for name in ("setgroups", "setresgid", "setresuid"):
        monkeypatch.setattr(os, name, lambda *_: None)

    def stop(pids: list[int], number: int) -> None:
        if number == signal.SIGSTOP:
            os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr(processes, "signal_all", stop)


def test_a_job_that_stops_the_guards_helper_does_not_hold_up_its_guard(helper_stops: None) -> None:
    assert processes._kill_frozen(os.getpid(), USER)


def test_a_helper_that_does_not_end_is_killed(
    helper_stops: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FROZEN_S", 0.0)
    assert not processes._kill_frozen(os.getpid(), USER)


def test_without_a_process_for_the_helper_the_job_is_killed_all_the_same(
    sent: list[tuple[list[int], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setattr(processes, "descendants", lambda *_, **__: [4_000_000])
    processes.kill_below(os.getpid(), USER)
    ((pids, number),) = sent
    assert (pids[-1], number) == (4_000_000, signal.SIGKILL)


def test_helper_that_cannot_become_the_user_leaves_the_kill_to_the_guard(
    sent: list[tuple[list[int], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no CAP_SETUID")

    monkeypatch.setattr(os, "setresuid", refuse)
    monkeypatch.setattr(processes, "descendants", lambda *_, **__: [4_000_000])
    processes.kill_below(os.getpid(), USER)
    ((pids, number),) = sent
    assert (pids[-1], number) == (4_000_000, signal.SIGKILL)


def test_without_a_place_for_shared_memory_there_is_none_to_free(tmp_path: Path) -> None:
    processes.free_memory(USER, str(tmp_path / "shm"))


@pytest.mark.root
class TestMemory:
    """Files, folders and segments in shared memory, of a user and of another one."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Path]:
        place = tmp_path / "shm"
        place.mkdir()
        place.chmod(0o1777)
        for folder in (tmp_path, *tmp_path.parents[:3]):
            folder.chmod(folder.stat().st_mode | 0o011)
        yield place
        subprocess.run(["rm", "-rf", str(place)], check=True)
        for user in (USER, USER + 1):
            processes.free_memory(user, str(place))

    def leave(self, place: Path, user: int) -> None:
        """Leave memory as that user, by a fork: it may not get to this Python."""
        if (pid := os.fork()) == 0:
            status = 1
            with contextlib.suppress(OSError):
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                ctypes.CDLL(None).shmget(0, 4096, 0o1600)
                os.chdir(place)
                Path("file").touch()
                Path("closed/a").mkdir(parents=True)
                Path("closed/a/file").touch()
                Path("closed/a").chmod(0)
                for _ in range(1200):
                    Path("deep").mkdir()
                    os.chdir("deep")
                status = 0
            os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0

    def test_all_that_a_user_left_is_freed_and_nothing_of_others(self, place: Path) -> None:
        self.leave(place, USER)
        assert {path.name for path in place.iterdir()} == {"closed", "file", "deep"}
        assert len(processes._segments_of(USER)) == 1
        processes.free_memory(USER + 1, str(place))
        assert len(list(place.iterdir())) == 3
        processes.free_memory(USER, str(place))
        assert list(place.iterdir()) == []
        assert processes._segments_of(USER) == []

    def test_nothing_is_freed_while_a_process_of_the_user_lives(self, place: Path) -> None:
        self.leave(place, USER)
        with subprocess.Popen(["sleep", "60"], user=USER, group=USER, extra_groups=[]) as other:
            processes.free_memory(USER, str(place))
            assert len(list(place.iterdir())) == 3
            assert processes._segments_of(USER)
            other.kill()
