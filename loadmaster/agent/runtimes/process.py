"""The process runtime: a job is a command on the host, in a folder of its own, under a guard that outlives the agent."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from loadmaster.agent import guard
from loadmaster.agent.clock import Clock, SystemClock
from loadmaster.agent.files import private_folder, write_json, write_whole
from loadmaster.agent.runtimes.base import (
    PROGRESS,
    Exit,
    Launch,
    LaunchError,
    RunId,
    RunState,
    RunStatus,
    StopBy,
    StopOrder,
    Term,
    Usage,
)
from loadmaster.protocol import LaunchSpec
from loadmaster.wire import WireError, dumps, loads

_FILES = {"stdout": "stdout.log", "stderr": "stderr.log", PROGRESS: "progress.jsonl"}
GB = 1e9
LEASE_FILE_SIZE = 256


class ProcessRuntime:
    """Runs jobs as processes below `runs`; see `guard` for the files of a run's folder.

    `term.json` and `spec.json` are the agent's own: the first is read by the training library, the second by an agent that adopts
    the run (it holds secrets: its mode is 0600, and it goes with the folder).
    """

    name = "process"

    def __init__(self, runs: Path, clock: Clock | None = None) -> None:
        self._runs = private_folder(runs)
        self._clock = clock or SystemClock()
        self._guards: dict[RunId, int] = {}
        self._usage: dict[RunId, tuple[float, float]] = {}

    def folder(self, run: RunId) -> Path:
        """The run's private folder, LOADMASTER_RUN_DIR."""
        return self._runs / run.name

    def prepare(self, launch: Launch) -> None:
        folder = self.folder(launch.run)
        try:
            private_folder(folder / "work")
            private_folder(folder)
            if checkpoints := launch.environment.get("LOADMASTER_CHECKPOINT_DIR"):
                Path(checkpoints).mkdir(parents=True, exist_ok=True)
            write_whole(folder / "spec.json", dumps(launch.spec), durable=True)
            write_json(folder / "launch.json", self._launch(launch), durable=True)
            self._write_term(launch.run, {"term_until_s": launch.spec.term_until_s, "grace_s": launch.spec.grace_s})
        except OSError as error:
            raise LaunchError(f"the run's folder cannot be made: {error}") from error

    def _launch(self, launch: Launch) -> dict[str, Any]:
        folder = self.folder(launch.run)
        environment = launch.environment | {"LOADMASTER_RUN_DIR": str(folder)}
        return {
            "argv": list(launch.spec.command),
            "environment": environment,
            "cwd": str(folder / "work"),
            "grace_s": launch.grace_s,
            "boot_id": launch.boot_id,
        }

    def start(self, run: RunId, lease_until_s: float) -> None:
        folder = self.folder(run)
        launch = guard.read_json(folder / "launch.json")
        if launch is None:
            return  # it was started before: the guard takes this file away
        try:
            self._write_lease(run, lease_until_s, str(launch["boot_id"]))
            self._guards[run] = self._spawn(folder)
        except OSError as error:
            raise LaunchError(f"the guard cannot be started: {error}") from error

    def _spawn(self, folder: Path) -> int:
        argv = [sys.executable, "-I", "-S", str(Path(guard.__file__).resolve()), str(folder)]
        log = str(folder / "guard.log")
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        return os.posix_spawn(sys.executable, argv, {}, file_actions=actions, setsid=True, setsigmask=[])

    def renew(self, run: RunId, lease_until_s: float) -> None:
        lease = guard.read_json(self.folder(run) / "lease.json")
        if lease:
            self._write_lease(run, lease_until_s, str(lease["boot_id"]))

    def _write_lease(self, run: RunId, lease_until_s: float, boot_id: str) -> None:
        path = self.folder(run) / "lease.json"
        text = json.dumps({"deadline_s": lease_until_s, "boot_id": boot_id}).encode().ljust(LEASE_FILE_SIZE)
        try:
            write_whole(path, text)
        except OSError:  # a full disk: what is there already can be overwritten in place, and a torn lease counts as the one before
            with path.open("r+b") as file:
                file.write(text)

    def update(self, run: RunId, term: Term) -> None:
        self._write_term(run, {"term_until_s": term.until_s})

    def _write_term(self, run: RunId, change: dict[str, Any]) -> None:
        path = self.folder(run) / "term.json"
        term = {"version": 1, "fence": run.fence, "stop": False, "reason": None, "term_until_s": None, "grace_s": 30.0}
        write_json(path, term | (guard.read_json(path) or {}) | change)

    def stop(self, run: RunId, order: StopOrder) -> None:
        folder = self.folder(run)
        if not folder.exists():
            return
        now_s = self._clock.boot_s()
        wait_s = order.grace_s / 2 if order.by is StopBy.PREEMPT else 0.0
        try:
            write_json(
                folder / "stop.json", {"by": order.by.value, "term_at_s": now_s + wait_s, "kill_at_s": now_s + order.grace_s}
            )
        except OSError:  # a full disk: the guard takes a signal for an order too
            self._signal_guard(folder)
        with contextlib.suppress(OSError):  # a full disk: the signals come all the same
            self._write_term(run, {"stop": True, "reason": order.by.value, "grace_s": order.grace_s})

    def _signal_guard(self, folder: Path) -> None:
        owner = guard.read_json(folder / "guard.pid")
        if owner and self._is_guarded(folder):
            os.kill(int(owner["pid"]), signal.SIGTERM)

    def poll(self, run: RunId) -> RunStatus:
        folder = self.folder(run)
        if not (folder / "spec.json").exists() and not (folder / "guard.pid").exists():
            return RunStatus(RunState.ABSENT)
        if run in self._guards and self._reap(run):
            return self.abandon(run)
        return self._status(folder, run in self._guards or self._is_guarded(folder))

    def _status(self, folder: Path, guarded: bool) -> RunStatus:
        ended = guard.read_json(folder / "exit.json")
        if ended:
            return RunStatus(RunState.ENDED, _exit(ended))
        if guarded:
            lease = guard.read_json(folder / "lease.json") or {}
            return RunStatus(RunState.RUNNING, lease_until_s=lease.get("deadline_s"))
        return RunStatus(RunState.PREPARED)

    def _is_guarded(self, folder: Path) -> bool:
        try:
            descriptor = os.open(folder / "guard.pid", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _reap(self, run: RunId) -> bool:
        """Whether the guard this agent started is gone."""
        try:
            gone, _ = os.waitpid(self._guards[run], os.WNOHANG)
        except ChildProcessError:
            gone = 1
        if gone:
            del self._guards[run]
        return bool(gone)

    def abandon(self, run: RunId) -> RunStatus:
        """Hold the guard's lock while settling what became of the run, so that no late guard can start it."""
        folder = self.folder(run)
        if not folder.exists():
            return RunStatus(RunState.ABSENT)
        descriptor = os.open(folder / "guard.pid", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not (folder / "exit.json").exists():
                self._settle(folder)
        except BlockingIOError:
            pass  # its guard lives
        finally:
            os.close(descriptor)
        return self._status(folder, self._is_guarded(folder))

    def _settle(self, folder: Path) -> None:
        started = (folder / "job.json").exists()
        for process in _processes_of(folder):
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        error = "the run's guard was killed" if started else "the agent or its guard ended before the job was started"
        guard.write_exit(folder, {"started": started, "stopped_by": None, "killed": started, "error": error})

    def list(self) -> tuple[RunId, ...]:
        found = (RunId.parse(path.name) for path in sorted(self._runs.iterdir()) if path.is_dir())
        return tuple(run for run in found if run)

    def spec(self, run: RunId) -> LaunchSpec | None:
        try:
            return loads(LaunchSpec, (self.folder(run) / "spec.json").read_bytes())
        except (OSError, WireError):
            return None

    def read(self, run: RunId, stream: str, offset: int, limit: int) -> bytes:
        try:
            with (self.folder(run) / _FILES[stream]).open("rb") as file:
                file.seek(offset)
                return file.read(limit)
        except FileNotFoundError:
            return b""

    def size(self, run: RunId, stream: str) -> int:
        try:
            return (self.folder(run) / _FILES[stream]).stat().st_size
        except FileNotFoundError:
            return 0

    def note(self, run: RunId, text: str | None) -> str:
        path = self.folder(run) / "shipping.json"
        if text is not None:
            with contextlib.suppress(OSError):  # a full disk: an older note only makes a restarted agent ship a piece again
                write_whole(path, text.encode())
            return text
        try:
            return path.read_text()
        except OSError:
            return ""

    def usage(self, run: RunId, *, exact: bool = False) -> Usage | None:
        owner = guard.read_json(self.folder(run) / "guard.pid")
        if not owner or not self._is_guarded(self.folder(run)):
            return None
        cpu_s, memory = _consumption(int(owner["pid"]), _pss if exact else _rss)
        now_s = self._clock.boot_s()
        before_cpu_s, before_s = self._usage.get(run, (0.0, now_s))
        self._usage[run] = (cpu_s, now_s)
        cores = max(0.0, cpu_s - before_cpu_s) / (now_s - before_s) if now_s > before_s else 0.0
        return Usage(cores, memory / GB)

    def remove(self, run: RunId) -> None:
        self._usage.pop(run, None)
        shutil.rmtree(self.folder(run), ignore_errors=True)


def _exit(data: dict[str, Any]) -> Exit:
    stopped_by = data.get("stopped_by")
    found = Exit(ended_at_s=float(data["ended_at_s"]), started=bool(data.get("started")), error=str(data.get("error", "")))
    return replace(
        found,
        exit_code=data.get("exit_code"),
        stopped_by=StopBy(stopped_by) if stopped_by else None,
        killed=bool(data.get("killed")),
        oom=bool(data.get("oom")),
    )


def _consumption(guard_pid: int, memory_of: Callable[[psutil.Process], int]) -> tuple[float, int]:
    """CPU seconds of all processes below the guard (with those that have ended and been waited for), and their bytes."""
    cpu_s, memory = 0.0, 0
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(guard_pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                cpu_s += times.user + times.system + times.children_user + times.children_system
                memory += memory_of(process)
    return cpu_s, memory


def _rss(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _pss(process: psutil.Process) -> int:
    return int(process.memory_full_info().pss)


def _processes_of(folder: Path) -> list[psutil.Process]:
    """Every process that carries this run's folder in its environment, whoever its parent is."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("LOADMASTER_RUN_DIR") == str(folder):
                found.append(process)
    return found
