"""Processes of a job as its guard sees them, in a bubblewrap sandbox or not.

Nothing but the standard library. A job's variables reach bubblewrap by a file in memory: its
command line is open to all, and in its own environment LD_PRELOAD would act outside the sandbox.
"""

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

LEFT_S = 1.0
"""Time for what is left of a job that is to stop, once its first process has ended."""

SET_UP_S = 10.0
"""Longest time in which bubblewrap tells its process 1."""

OUTLIVED_S = 3.0
"""Time after the end of a job's first process in which process 1 of its sandbox ends too."""

FROZEN_S = 5.0
"""Longest time in which all of a user's processes are stopped and the job's killed."""

IPC_RMID = 0
"""Order of shmctl(2) that removes a segment."""

REMOVED_AT_ONCE = 100


class Sandbox:
    """Bubblewrap's two processes around a job's: the outer one, which the guard starts, and `init`.

    `init` is process 1 in the sandbox; the kernel kills all others there when it ends. It starts
    the job's first process once the guard has limited the sandbox's processes.
    """

    def __init__(self, program: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
        given = [*words]
        for name, value in environment.items():
            given += ["--setenv", name, value]
        self._words = os.memfd_create("sandbox")
        with open(self._words, "wb", closefd=False) as file:
            file.write(b"".join(os.fsencode(word) + b"\0" for word in given))
        os.lseek(self._words, 0, os.SEEK_SET)
        self._told, self._tell = os.pipe()
        os.set_blocking(self._told, False)
        self._text = b""
        self._held: tuple[int, int] | None = None
        self._ended_s = inf
        self._first: tuple[int, int] | None = None
        self._outlived_s = inf
        self._is_limited = True
        self._blocked, self._unblock = os.pipe()
        self.passed = (self._words, self._tell, self._blocked)
        """Descriptors that bubblewrap inherits."""
        self.command = [program, "--args", str(self._words), "--json-status-fd", str(self._tell)]
        """Words before those of the job's command."""
        self.command += ["--block-fd", str(self._blocked)]

    def begin(self, outer: int, most_processes: int | None, user: int | None) -> None:
        """Leave to bubblewrap, which has been started, its ends of what they share.

        The limit is set in its user namespace, where only the processes of this job count. Where
        that fails the sandbox is killed before the job starts.
        """
        for descriptor in self.passed:
            os.close(descriptor)
        if most_processes is not None and (init := self._wait_for_init()):
            self._is_limited = _limit_as(user, init, most_processes)
            if not self._is_limited:
                signal_all([init, outer], signal.SIGKILL)
        os.close(self._unblock)

    def _wait_for_init(self) -> int | None:
        """Process 1 once bubblewrap tells it; None if it ends without."""
        until_s = time.monotonic() + SET_UP_S
        while (init := self.init()) is None and time.monotonic() < until_s:
            length = len(self._text)
            select.select([self._told], [], [], SET_UP_S)
            init = self.init()
            if init is None and len(self._text) == length:
                return None  # bubblewrap has closed its end
        return init

    def _read(self) -> dict[str, int]:
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._told, 4096):
                self._text += piece
        found: dict[str, int] = {}
        for line in self._text.splitlines():
            with contextlib.suppress(ValueError):
                found |= json.loads(line)
        return found

    def init(self) -> int | None:
        """Process 1 of the sandbox, by its number outside; None while there is none."""
        return self._read().get("child-pid")

    def processes(self) -> list[int]:
        """Every process of the job, its first one first."""
        init = self.init()
        return descendants(init) if init else []

    def hold(self, outer: int) -> None:
        """Stop bubblewrap's outer process, which ends the sandbox with the first process there."""
        if inside := self.processes():
            self._held = outer, inside[0]
            os.kill(outer, signal.SIGSTOP)

    def let_go(self, now_s: float) -> None:
        """Let bubblewrap go on, once the first process is gone and the others have had time."""
        if self._held is None:
            return
        inside, (outer, first) = self.processes(), self._held
        if first not in inside:
            self._ended_s = min(self._ended_s, now_s)
        if not inside or now_s >= self._ended_s + LEFT_S:
            self._held = None
            os.kill(outer, signal.SIGCONT)

    def outlives_job(self, now_s: float) -> bool:
        """Return True if process 1 goes on although the job's first process has ended for a while.

        It does so if the job has stopped or changed it by ptrace(2).
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
        """Wait status of the job's first process, which nobody has reaped; None if it is gone."""
        if self._first is None:
            return None
        pid, ticks = self._first
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = _fields(Path(f"/proc/{pid}/stat"))
            if fields[0] == "Z" and int(fields[19]) == ticks:
                return int(fields[49])
        return None

    def problem(self, code: int, errors: Path) -> str:
        """Reason why the job never ran, by the exit code and the last words; "" if it did."""
        if not self._is_limited:
            return "the sandbox cannot be set up: its processes cannot be limited"
        if code != NEVER_RAN or "exit-code" in self._read():
            return ""
        lines = [""]
        with contextlib.suppress(OSError):
            lines += errors.read_text(errors="replace").strip().splitlines()
        words = lines[-1].removeprefix("bwrap: ")[-LONGEST_WORDS:]
        name = words.removeprefix("execvp ")
        if name != words:
            return f"the command cannot be started: {name}"
        return f"the sandbox cannot be set up: {words or 'bubblewrap does not say why'}"


def started_ticks(pid: int | str) -> int:
    """Start of a process in clock ticks since boot; with the pid it is unique."""
    return int(_fields(Path(f"/proc/{pid}/stat"))[19])


def _first_child(init: int | None) -> tuple[int, int] | None:
    """The oldest child of process 1, dead or alive, and its start in clock ticks."""
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
        fields = _fields(Path(f"/proc/{pid}/stat"))
        return fields[0] not in "ZX" and int(fields[19]) == ticks
    return False


def threads_of(user: int) -> int:
    """Number of threads of a user's processes."""
    threads, line = 0, b"\nUid:\t%d\t" % user
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if not entry.name.isdigit():
                continue
            status = (entry / "status").read_bytes()
            if line in status:
                threads += int(status.partition(b"\nThreads:\t")[2].split()[0])
    return threads


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
            hard = resource.prlimit(pid, resource.RLIMIT_NPROC)[1]
            allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, resource.RLIMIT_NPROC, (allowed, allowed))
            os._exit(0)
        finally:  # it must not return into the guard
            os._exit(1)
    return os.waitpid(helper, 0)[1] == 0


def limit_processes(most: int) -> None:
    """Limit the processes and threads of this process' user, those of others there included."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (allowed, allowed))


def _fields(stat: Path) -> list[str]:
    """Fields of a process's `stat` after its name, which may be no text."""
    return stat.read_bytes().rpartition(b")")[2].decode().split()


def descendants(root: int, *, ended: bool = False) -> list[int]:
    """Every process below `root`; zombies only if those that have `ended` count."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = _fields(entry / "stat")
                if ended or fields[0] not in "ZX":
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def kill_below(root: int, user: int | None = None) -> None:
    """Kill what is below `root`, and its process groups, which what forks on does not escape.

    A group is known by the dead of it too, which `root` has not reaped. With `user`, whose the
    processes are, all of that user's stand still meanwhile: then no change of group helps either.
    """
    if os.getpid() == 1:  # of a container, where all others are the job's
        signal_all([-1], signal.SIGKILL)
    elif user is None or not _kill_frozen(root, user):
        below = descendants(root, ended=True)
        groups = {_group(pid) for pid in below} - {0, _group(root)}
        signal_all([*(-group for group in groups), *below], signal.SIGKILL)


def _kill_frozen(root: int, user: int) -> bool:
    """Kill what is below `root` while the user's processes are stopped; False if that fails.

    A process of that user does so, for it alone can stop all of them at once. As they may stop or
    kill it in turn, it is made to go on.
    """
    try:
        helper = os.fork()
    except OSError:  # no process or memory is left
        return False
    if helper == 0:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            try:
                signal_all([-1], signal.SIGSTOP)  # all at once, forks in progress too, not itself
                below = [pid for pid in descendants(root) if pid != os.getpid()]
                signal_all(below, signal.SIGKILL)
            finally:
                signal_all([-1], signal.SIGCONT)
        finally:
            os._exit(0)
    until_s = time.monotonic() + FROZEN_S
    while (ended := os.waitpid(helper, os.WNOHANG)) == (0, 0):
        is_late = time.monotonic() >= until_s
        os.kill(helper, signal.SIGKILL if is_late else signal.SIGCONT)
        time.sleep(0.002)
    return ended[1] == 0


def free_memory(user: int, place: str = "/dev/shm") -> None:  # noqa: S108
    """Free the shared memory of a user who has no process left: files, folders, segments.

    What a later process of that user makes is not among it, as it is found before that look.
    """
    found, segments, line = _files_of(user, place), _segments_of(user), b"\nUid:\t%d\t" % user
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and line in (entry / "status").read_bytes():
                return
    folders = []
    for path, status in found.items():
        if stat.S_ISDIR(status.st_mode):
            folders.append(str(path))
        else:
            with contextlib.suppress(OSError):  # gone meanwhile
                if path.lstat().st_ino == status.st_ino:
                    path.unlink()
    for first in range(0, len(folders), REMOVED_AT_ONCE):
        _remove(folders[first : first + REMOVED_AT_ONCE], user)
    for segment in segments:
        ctypes.CDLL(None).shmctl(segment, IPC_RMID, None)


def _files_of(user: int, place: str) -> dict[Path, os.stat_result]:
    found = {}
    with contextlib.suppress(OSError):  # there is no such place
        for path in Path(place).iterdir():
            with contextlib.suppress(OSError):  # gone meanwhile
                if (status := path.lstat()).st_uid == user:
                    found[path] = status
    return found


def _segments_of(user: int) -> list[int]:
    """Numbers of the System V segments of memory that a user has made."""
    with contextlib.suppress(OSError):  # a kernel without them
        lines = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
        return [int(fields[1]) for fields in lines if fields[9] == str(user)]
    return []


def _remove(folders: list[str], user: int) -> None:
    """Remove folders with that user's rights, however deep or closed they are."""
    own: Any = {"user": user, "group": user, "extra_groups": []}
    for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf", "--one-file-system"]):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [*command, "--", *folders], **own, cwd="/", timeout=60,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip


def _group(pid: int) -> int:
    """Process group of a process, 0 if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return 0


def in_group(pids: list[int], group: int) -> list[int]:
    """Those of the processes that are still there and in a process group."""
    return [pid for pid in pids if _group(pid) == group]


def is_of_step(pid: int) -> bool:
    """Return True if `srun` started the process, or one above it."""
    with contextlib.suppress(OSError):
        return b"\0SLURM_STEP_ID=" in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
