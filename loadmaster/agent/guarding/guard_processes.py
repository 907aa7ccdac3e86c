"""Processes of a job as its guard sees them, in a bubblewrap sandbox or not.

This module uses only the standard library. A job's variables reach bubblewrap by a file in memory:
every user can read a command line, and in bubblewrap's own environment LD_PRELOAD would act outside
the sandbox.
"""

from __future__ import annotations  # containers may have Python 3.9

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

NEVER_RAN = 1
"""Exit code of bubblewrap if it could not set up the sandbox, or not start the command."""

LONGEST_WORDS = 500
"""Characters of bubblewrap's last error line that are kept."""

LEFT_S = 1.0
"""Seconds that other processes of a stopping job get after the job's first process has ended."""

SET_UP_S = 10.0
"""Longest wait in seconds for bubblewrap to report the pid of the sandbox's process 1."""

OUTLIVED_S = 3.0
"""Seconds in which the sandbox's process 1 must end after the job's first process."""

FROZEN_S = 5.0
"""Longest time in seconds to stop all processes of a user and to kill the job's among them."""

IPC_RMID = 0
"""Command of shmctl(2) that removes a segment."""

REMOVED_AT_ONCE = 100
"""Folders per call of `rm`: a command line has a limit."""

STATE, PARENT, START_TICKS, WAIT_STATUS = 0, 1, 19, 49
"""Positions in `_stat_fields`: state, ppid, starttime and exit_code of proc_pid_stat(5)."""


class Sandbox:
    """Bubblewrap's two processes around a job's: the outer one, which the guard starts, and `init`.

    `init` is process 1 in the sandbox; the kernel kills all others there when it ends. It starts
    the job's first process once the guard has limited the sandbox's processes.
    """

    def __init__(self, program: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
        # 1. Bubblewrap reads its arguments from a file in memory, each ended by a NUL.
        arguments = [*words]
        for name, value in environment.items():
            arguments += ["--setenv", name, value]
        arguments_fd = os.memfd_create("sandbox")
        with open(arguments_fd, "wb", closefd=False) as file:
            for argument in arguments:
                file.write(os.fsencode(argument) + b"\0")
        os.lseek(arguments_fd, 0, os.SEEK_SET)

        # 2. It writes its status, lines of JSON, to a pipe; before the job it waits for another.
        self._status_fd, status_write_fd = os.pipe()
        os.set_blocking(self._status_fd, False)
        self._status_text = b""
        block_fd, self._unblock_fd = os.pipe()

        self.passed = (arguments_fd, status_write_fd, block_fd)
        """Descriptors that bubblewrap inherits."""
        self.command = [
            program,
            "--args", str(arguments_fd),
            "--json-status-fd", str(status_write_fd),
            "--block-fd", str(block_fd),
        ]  # fmt: skip  # options with their values
        """Words before those of the job's command."""

        # 3. State of a stop: the outer process while SIGSTOP holds it, and the job's first process.
        self._held: tuple[int, int] | None = None
        self._first_ended_s = inf

        # 4. State of a running job: pid and start of its first process.
        self._first: tuple[int, int] | None = None
        self._outlived_s = inf
        self._is_limited = True

    def begin(self, outer: int, most_processes: int | None, user: int | None) -> None:
        """Limit the sandbox's processes once bubblewrap (`outer`) runs, then let the job start.

        The limit is set in the sandbox's user namespace, where only processes of this job count.
        If it cannot be set, the sandbox is killed before the job starts.
        """
        # Bubblewrap has inherited these; the status pipe ends only if the guard has no copy.
        for descriptor in self.passed:
            os.close(descriptor)
        if most_processes is not None:
            init = self._wait_for_init()
            if init is not None:
                self._is_limited = _limit_as(user, init, most_processes)
                if not self._is_limited:
                    signal_all([init, outer], signal.SIGKILL)
        os.close(self._unblock_fd)

    def _wait_for_init(self) -> int | None:
        """Return the pid of process 1 once bubblewrap reports it; None if it ends before that."""
        until_s = time.monotonic() + SET_UP_S
        while True:
            init = self.init()
            if init is not None or time.monotonic() >= until_s:
                return init
            length = len(self._status_text)
            select.select([self._status_fd], [], [], SET_UP_S)
            init = self.init()
            if init is None and len(self._status_text) == length:
                return None  # bubblewrap has closed its end

    def _status(self) -> dict[str, int]:
        """Return all fields that bubblewrap has reported so far: `child-pid`, `exit-code`."""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._status_fd, 4096):
                self._status_text += piece
        status: dict[str, int] = {}
        for line in self._status_text.splitlines():
            with contextlib.suppress(ValueError):  # a line that is not yet whole
                status.update(json.loads(line))
        return status

    def init(self) -> int | None:
        """Return the pid, outside, of the sandbox's process 1; None before bubblewrap reports."""
        return self._status().get("child-pid")

    def processes(self) -> list[int]:
        """Return the pids of all processes of the job, its first process first."""
        init = self.init()
        return descendants(init) if init else []

    def hold(self, outer: int) -> None:
        """Stop bubblewrap's outer process, which else ends the sandbox with its first process.

        So the job's other processes have time to end by themselves, until `let_go`.
        """
        inside = self.processes()
        if inside:
            self._held = outer, inside[0]
            os.kill(outer, signal.SIGSTOP)

    def let_go(self, now_s: float) -> None:
        """Let bubblewrap go on LEFT_S after the first process ended, or once none is left."""
        if self._held is None:
            return
        outer, first = self._held
        inside = self.processes()
        if first not in inside:
            self._first_ended_s = min(self._first_ended_s, now_s)
        if not inside or now_s >= self._first_ended_s + LEFT_S:
            self._held = None
            os.kill(outer, signal.SIGCONT)

    def outlives_job(self, now_s: float) -> bool:
        """Return True if process 1 still runs OUTLIVED_S after the job's first process ended.

        That happens if the job has stopped process 1, or changed it by ptrace(2).
        """
        if self._first is None:
            self._first = _first_child(self.init())
            return False
        if self._held is not None or _is_alive(*self._first):
            self._outlived_s = inf
            return False
        self._outlived_s = min(self._outlived_s, now_s + OUTLIVED_S)
        return now_s >= self._outlived_s

    def first_status(self) -> int | None:
        """Return the wait status of the job's first process while it is a zombie, else None."""
        if self._first is None:
            return None
        pid, ticks = self._first
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = _stat_fields(pid)
            if fields[STATE] == "Z" and int(fields[START_TICKS]) == ticks:
                return int(fields[WAIT_STATUS])
        return None

    def problem(self, code: int, errors: Path) -> str:
        """Return why the job never ran, "" if it did: by bubblewrap's exit code and last error.

        `errors` is the file of the job's standard error, to which bubblewrap writes too.
        """
        if not self._is_limited:
            return "the sandbox cannot be set up: its processes cannot be limited"
        if code != NEVER_RAN or "exit-code" in self._status():
            return ""
        lines = [""]
        with contextlib.suppress(OSError):
            lines += errors.read_text(errors="replace").strip().splitlines()
        message = lines[-1].removeprefix("bwrap: ")[-LONGEST_WORDS:]
        if message.startswith("execvp "):
            return f"the command cannot be started: {message.removeprefix('execvp ')}"
        if not message:
            message = "bubblewrap does not say why"
        return f"the sandbox cannot be set up: {message}"


def started_ticks(pid: int | str) -> int:
    """Return the start of a process in clock ticks since boot; with the pid it is unique."""
    return int(_stat_fields(pid)[START_TICKS])


def _first_child(init: int | None) -> tuple[int, int] | None:
    """Return pid and start in clock ticks of the oldest child of process 1, dead or alive."""
    if init is None:
        return None
    with contextlib.suppress(OSError, IndexError, ValueError):
        children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
        first = int(children[0])
        return first, started_ticks(first)
    return None


def _is_alive(pid: int, ticks: int) -> bool:
    """Return True if the process that started at that time has not ended."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = _stat_fields(pid)
        return fields[STATE] not in "ZX" and int(fields[START_TICKS]) == ticks
    return False


def threads_of(user: int) -> int:
    """Return the number of threads of a user's processes."""
    threads = 0
    for pid in _all_pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            status = Path(f"/proc/{pid}/status").read_bytes()
            if _uid_line(user) in status:
                threads += int(status.partition(b"\nThreads:\t")[2].split()[0])
    return threads


def _all_pids() -> list[int]:
    """Return the pids of all processes that /proc shows."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _uid_line(user: int) -> bytes:
    """Return the beginning of the line in /proc/PID/status of a process whose real user this is."""
    return b"\nUid:\t%d\t" % user


def _limit_as(user: int | None, pid: int, most: int) -> bool:
    """Limit the processes of another process' user namespace; return True if that was done.

    A process of that `user` does so: root may lack CAP_SYS_RESOURCE.
    """
    helper = os.fork()
    if helper == 0:
        try:
            if user is not None:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            allowed = _within_hard(most, resource.prlimit(pid, resource.RLIMIT_NPROC)[1])
            resource.prlimit(pid, resource.RLIMIT_NPROC, (allowed, allowed))
            os._exit(0)
        finally:  # it must not return into the guard
            os._exit(1)
    return os.waitpid(helper, 0)[1] == 0


def limit_processes(most: int) -> None:
    """Limit the processes and threads of this process' user, those of others there included."""
    allowed = _within_hard(most, resource.getrlimit(resource.RLIMIT_NPROC)[1])
    resource.setrlimit(resource.RLIMIT_NPROC, (allowed, allowed))


def _within_hard(most: int, hard: int) -> int:
    """Return a limit that the hard limit, which may be infinite, allows."""
    if hard == resource.RLIM_INFINITY:
        return most
    return min(most, hard)


def _stat_fields(pid: int | str) -> list[str]:
    """Return the fields of /proc/PID/stat after the program's name, which may be no text."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()


def descendants(root: int, *, ended: bool = False) -> list[int]:
    """Return the pids of all processes below `root`; zombies only with `ended`."""
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        with contextlib.suppress(OSError):
            fields = _stat_fields(pid)
            if ended or fields[STATE] not in "ZX":
                children.setdefault(int(fields[PARENT]), []).append(pid)
    below: list[int] = []
    waiting = [root]
    while waiting:
        offspring = children.get(waiting.pop(), [])
        below += offspring
        waiting += offspring
    return below


def kill_below(root: int, user: int | None = None) -> None:
    """Kill all processes below `root`, and their process groups.

    A process that forks all the time escapes a list of pids, but not the signal to its group.
    Zombies that `root` has not reaped name their groups too. With `user`, the owner of the
    processes, all of that user's processes are stopped first: then a change of group does not help
    a process either.
    """
    if os.getpid() == 1:  # of a container, where all others are the job's
        signal_all([-1], signal.SIGKILL)
        return
    if user is not None and _kill_frozen(root, user):
        return
    below = descendants(root, ended=True)
    groups = {_group(pid) for pid in below} - {0, _group(root)}
    signal_all([*(-group for group in groups), *below], signal.SIGKILL)


def _kill_frozen(root: int, user: int) -> bool:
    """Stop all processes of a user, and kill those below `root`; False if that fails.

    A helper process of that user does so: a signal to -1 reaches all processes of its sender's
    user at once. They may stop or kill the helper in turn, so the guard sends it SIGCONT until it
    ends.
    """
    try:
        helper = os.fork()
    except OSError:  # no process or memory is left
        return False

    # 1. The helper. It must not return into the guard, whatever fails.
    if helper == 0:
        exit_code = 1
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            try:
                signal_all([-1], signal.SIGSTOP)  # all at once, forks in progress too, not itself
                below = [pid for pid in descendants(root) if pid != os.getpid()]
                signal_all(below, signal.SIGKILL)
                exit_code = 0
            finally:
                signal_all([-1], signal.SIGCONT)
        finally:
            os._exit(exit_code)

    # 2. The guard waits for it, and kills it after FROZEN_S.
    until_s = time.monotonic() + FROZEN_S
    while True:
        pid, status = os.waitpid(helper, os.WNOHANG)
        if pid == helper:
            return status == 0
        is_late = time.monotonic() >= until_s
        os.kill(helper, signal.SIGKILL if is_late else signal.SIGCONT)
        time.sleep(0.002)


def free_memory(user: int, place: str = "/dev/shm") -> None:  # noqa: S108  # no file of ours
    """Free the shared memory of a user who has no process left: files, folders, segments."""
    # 1. List the memory first: what a process makes that starts after step 2 is not in the list.
    files = _files_of(user, place)
    segments = _segments_of(user)

    # 2. Free nothing while a process of the user runs.
    for pid in _all_pids():
        with contextlib.suppress(OSError):
            if _uid_line(user) in Path(f"/proc/{pid}/status").read_bytes():
                return

    # 3. Free what was listed. A file that was replaced since has another inode.
    folders = []
    for path, status in files.items():
        if stat.S_ISDIR(status.st_mode):
            folders.append(str(path))
            continue
        with contextlib.suppress(OSError):  # gone meanwhile
            if path.lstat().st_ino == status.st_ino:
                path.unlink()
    for first in range(0, len(folders), REMOVED_AT_ONCE):
        _remove(folders[first : first + REMOVED_AT_ONCE], user)
    for segment in segments:
        ctypes.CDLL(None).shmctl(segment, IPC_RMID, None)


def _files_of(user: int, place: str) -> dict[Path, os.stat_result]:
    """Return files and folders in a folder that a user owns, with their status."""
    files = {}
    with contextlib.suppress(OSError):  # there is no such place
        for path in Path(place).iterdir():
            with contextlib.suppress(OSError):  # gone meanwhile
                status = path.lstat()
                if status.st_uid == user:
                    files[path] = status
    return files


def _segments_of(user: int) -> list[int]:
    """Return the ids (`shmid`) of the System V memory segments that a user has created."""
    try:
        lines = Path("/proc/sysvipc/shm").read_text().splitlines()
    except OSError:  # a kernel without them
        return []
    segments = []
    for line in lines[1:]:
        fields = line.split()
        shmid, creator = fields[1], fields[9]
        if creator == str(user):
            segments.append(int(shmid))
    return segments


def _remove(folders: list[str], user: int) -> None:
    """Remove folders with that user's rights, however deep or closed they are."""
    own: Any = {"user": user, "group": user, "extra_groups": []}
    # Nobody may enter a folder without its x bits: `rm` needs them, so `chmod` goes first.
    for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf", "--one-file-system"]):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [*command, "--", *folders],
                **own,
                cwd="/",
                timeout=60,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )


def _group(pid: int) -> int:
    """Return the process group of a process, 0 if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return 0


def in_group(pids: list[int], group: int) -> list[int]:
    """Return those of the processes that still exist and are in this process group."""
    return [pid for pid in pids if _group(pid) == group]


def is_of_step(pid: int) -> bool:
    """Return True if `srun` started the process, or one above it."""
    with contextlib.suppress(OSError):
        return b"\0SLURM_STEP_ID=" in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to those of the processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
