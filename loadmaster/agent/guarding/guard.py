"""The lease guard: the parent of one job; outlives the agent, stops the job at its lease's end.

Run as a file (`python -I -S guard.py RUN_DIR`, with its other modules beside it) with the standard
library alone, as the subreaper of whatever the job starts. It shares RUN_DIR with the agent:
- `launch.json` (read once, then removed, for it holds secrets): argv, environment, cwd, grace_s,
  boot_id, walltime_s, deadline_s (CLOCK_BOOTTIME; null: none), signal {number, before_s, to} before
  them, outputs (files by stream), log_ends (bytes of head and tail that are kept of a long one),
  most_processes (null: no limit), `orders` (folder of lease.json and stop.json); in a container
  `container`; of an isolated job `user` (its number; null: the guard's), `groups`, `sandbox`
  (program and words of bubblewrap).
- `guard.pid`: created exclusively and locked for life; its creator owns the launch.
- `lease.json`: {"deadline_s", "boot_id"} on CLOCK_BOOTTIME, rewritten whole at every renewal.
- `stop.json`: {"by", "term_at_s", "kill_at_s"} on CLOCK_BOOTTIME: the agent's order to stop.
- `job.json`: the job's process; `stdout.log`, `stderr.log`; `exit.json`: how it ended.
The job writes its output to pipes, which the guard empties: a full disk loses output, not the job.
"""

from __future__ import annotations  # containers may have Python 3.9

import contextlib
import ctypes
import fcntl
import functools
import json
import os
import signal
import subprocess
import sys
import time
from math import inf
from pathlib import Path
from typing import Any, BinaryIO

if __name__ == "__main__":  # run as a file by itself: the other one lies beside it
    sys.path.insert(0, str(Path(__file__).parent))
    import guard_processes as processes  # type: ignore[import-not-found]
    from guard_output import Output, open_named  # type: ignore[import-not-found]
else:
    from loadmaster.agent.guarding import guard_processes as processes
    from loadmaster.agent.guarding.guard_output import Output, open_named

POLL_S = 0.1
EXIT_FILE_SIZE = 2048
REAPED_AT_ONCE = 1000
FREEZES = range(2, 20)
"""Kills during which all of a user's processes stand still: not for ever, if one cannot end."""
STUCK_S = 20.0
ALREADY_LAUNCHED = 17
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
CGROUP_OOM_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Files with the number of processes killed for memory: cgroup version 2, version 1."""
LIBC = ctypes.CDLL(None)
WOKEN_BY = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def boot_s() -> float:
    """Seconds since the machine's start, suspends included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def own(folder: Path) -> int | None:
    """Descriptor of the locked `guard.pid` created here, or None if the launch has an owner."""
    try:
        descriptor = os.open(
            folder / "guard.pid", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600
        )
    except FileExistsError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # an agent that looks holds it for a moment only
    if (folder / "exit.json").exists():
        return None
    owner = {"pid": os.getpid(), "started_ticks": processes.started_ticks("self")}
    with contextlib.suppress(OSError):  # on a full disk the lock alone says that it lives
        os.write(descriptor, json.dumps(owner).encode())
        os.fsync(descriptor)
    return descriptor


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file, or None if there is none to be read."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def reserve_exit(folder: Path) -> None:
    """Reserve the space of `exit.json`, so that a full disk cannot lose the result.

    The agent does so before the launch if it can.
    """
    if (folder / "exit.tmp").exists():
        return
    _write_durably(folder / "exit.tmp", b" " * EXIT_FILE_SIZE, os.O_TRUNC)


def write_exit(folder: Path, result: dict[str, Any]) -> None:
    """Record durably how the job ended."""
    text = json.dumps({"ended_at_s": time.time(), **result}).encode().ljust(EXIT_FILE_SIZE)
    _write_durably(folder / "exit.tmp", text)
    (folder / "exit.tmp").replace(folder / "exit.json")


def _write_durably(path: Path, content: bytes, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def oom_kills(paths: tuple[str, ...] = ("/proc/vmstat",)) -> int:
    """Processes killed for memory so far; 0 if no file tells."""
    for path in paths:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(path).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


class Lease:
    """The newest readable lease; a file that is gone or torn leaves what was last understood."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._deadline_s = -inf

    def deadline_s(self) -> float:
        data = read_json(self._path)
        if data and data.get("boot_id") == self._boot_id:
            self._deadline_s = float(data.get("deadline_s", self._deadline_s))
        return self._deadline_s


class Stopping:
    """Author of a stop, and times of SIGTERM and SIGKILL; the earliest of all orders holds."""

    def __init__(self, folder: Path, lease: Lease, grace_s: float) -> None:
        self._stop_file = folder / "stop.json"
        self._lease = lease
        self._grace_s = grace_s
        self.by: str | None = None
        """The first order's author, or that of one which came later and was stricter."""
        self.term_at_s = inf
        self.kill_at_s = inf
        self.limits_s: dict[str, float] = {}
        """Moments at which a limit of the job itself ends it, by the limit's name."""

    def look(self, now_s: float) -> None:
        """Take in the agent's order and the lease's end."""
        order = read_json(self._stop_file)
        if order:
            self.order(
                str(order.get("by", "cancel")), float(order["term_at_s"]), float(order["kill_at_s"])
            )
        ends = {"lease": self._lease.deadline_s(), **self.limits_s}
        for by, end_s in ends.items():
            if now_s >= end_s:
                self.order(by, end_s, end_s + self._grace_s)

    def order(self, by: str, term_at_s: float, kill_at_s: float) -> None:
        if self.by is None or kill_at_s < self.kill_at_s:
            self.by = by
        self.term_at_s = min(self.term_at_s, term_at_s)
        self.kill_at_s = min(self.kill_at_s, kill_at_s)


class Guard:
    """Starts the job, waits for its end, and makes that end come when it is due."""

    def __init__(self, folder: Path) -> None:
        launch = read_json(folder / "launch.json")
        if launch is None:
            raise ValueError(f"{folder / 'launch.json'} cannot be read")
        self._folder = folder
        self._launch = launch
        self._grace_s = float(launch["grace_s"])
        orders = Path(launch.get("orders", folder))
        self._lease = Lease(orders / "lease.json", str(launch["boot_id"]))
        self._stopping = Stopping(orders, self._lease, self._grace_s)
        self._job, self._warn_at_s = 0, inf
        self._status: int | None = None
        self._first_status: int | None = None
        """Wait status of the first process in a sandbox that had to be ended."""
        self._outputs: list[Output] = []
        self._sandbox: processes.Sandbox | None = None
        self._termed = self._killed = False

    def run(self) -> dict[str, Any]:
        """The job's whole life; what `exit.json` is to say."""
        for name in ("launch.json", "launch.sh"):
            (self._folder / name).unlink(missing_ok=True)
        if boot_s() >= self._lease.deadline_s():
            error = "the lease had run out before the job was started"
            return {"started": False, "stopped_by": "lease", "error": error}
        counters = CGROUP_OOM_FILES if self._launch.get("container") else ("/proc/vmstat",)
        killed_before = oom_kills(counters)
        try:
            self._job = self._spawn()
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            text = f"the command cannot be started: {error}"
            return {"started": False, "stopped_by": None, "error": text}
        self._stopping.limits_s = limits_s = self._limits_s()
        if wanted := self._launch.get("signal"):
            self._warn_at_s = min(limits_s.values(), default=inf) - wanted["before_s"]
        while self._status is None:
            self._watch()
        self._sweep()
        if (user := self._launch.get("user")) is not None and not self._sandbox:
            processes.free_memory(user)
        for output in self._outputs:
            output.end()
        return self._result(oom=oom_kills(counters) > killed_before)

    def _limits_s(self) -> dict[str, float]:
        """The job's own limits on the boot clock, from its start."""
        walltime_s, deadline_s = self._launch.get("walltime_s"), self._launch.get("deadline_s")
        limits_s = {} if walltime_s is None else {"walltime": boot_s() + float(walltime_s)}
        return limits_s if deadline_s is None else {**limits_s, "deadline": float(deadline_s)}

    def _spawn(self) -> int:
        launch = self._launch
        inherited = dict(os.environ) if launch.get("container") else {}
        command: dict[str, Any] = {"args": launch["argv"], "cwd": launch["cwd"]}
        command["env"] = {**inherited, **launch["environment"]}
        if asked := launch.get("sandbox"):
            box = self._sandbox = processes.Sandbox(
                asked["program"], asked["words"], command["env"]
            )
            argv = [*box.command, "--", *launch["argv"]]
            command |= {"args": argv, "cwd": "/", "env": {}, "pass_fds": box.passed}
        become_job = functools.partial(_become_job, self._most_processes())
        with contextlib.ExitStack() as opened:
            out, err = self._streams(opened)
            job = subprocess.Popen(
                **command,
                **_as_user(launch),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=become_job,
            )
        if self._sandbox:
            self._sandbox.begin(job.pid, launch.get("most_processes"), launch.get("user"))
        for output in self._outputs:
            output.begin()
        times = {"started_ticks": processes.started_ticks(job.pid), "started_at_s": time.time()}
        described = {"pid": job.pid, **times}
        with contextlib.suppress(OSError):  # on a full disk the job runs all the same
            (self._folder / "job.tmp").write_text(json.dumps(described))
            (self._folder / "job.tmp").replace(self._folder / "job.json")
        job.returncode = 0  # it is reaped by `_reap`, with whatever else it leaves behind
        return job.pid

    def _most_processes(self) -> int | None:
        """Limit by the job's user, whose other processes count too; None in a sandbox or without.

        A sandbox has a limit of its own.
        """
        most: int | None = self._launch.get("most_processes")
        if most is None or self._sandbox:
            return None
        user = self._launch.get("user")
        others: int = processes.threads_of(os.getuid() if user is None else user)
        return most + others

    def _streams(self, opened: contextlib.ExitStack) -> tuple[Any, Any]:
        """Open the job's own files, or pipes to the folder's; errors go to its own output."""
        named = self._launch.get("outputs", {})
        files = {name: opened.enter_context(open_named(path)) for name, path in named.items()}
        if set(files) == {"stdout"}:
            files["stderr"] = files["stdout"]
        return self._stream("stdout", files), self._stream("stderr", files)

    def _stream(self, name: str, files: dict[str, BinaryIO]) -> Any:
        if name in files:
            return files[name]
        head, tail = self._launch.get("log_ends", (0, 0))
        self._outputs.append(Output(self._folder / f"{name}.log", head, tail))
        return self._outputs[-1].sink

    def _watch(self) -> None:
        woken = signal.sigtimedwait(WOKEN_BY, POLL_S)
        now_s = boot_s()
        if woken and woken.si_signo != signal.SIGCHLD:
            self._stopping.order("signal", now_s, now_s + self._grace_s)
        if self._sandbox:
            self._sandbox.let_go(now_s)
            if self._first_status is None and self._sandbox.outlives_job(now_s):
                self._end_sandbox(self._sandbox)
        self._reap()
        self._stopping.look(now_s)
        if self._status is None:
            self._enforce(now_s)

    def _end_sandbox(self, box: processes.Sandbox) -> None:
        """End a sandbox whose process 1 does not end with the job's first process."""
        status = box.first_status()
        self._first_status = int(signal.SIGKILL) if status is None else status
        processes.signal_all([box.init() or self._job, self._job], signal.SIGKILL)

    def _enforce(self, now_s: float) -> None:
        if now_s >= self._stopping.kill_at_s:
            self._killed = True
            processes.signal_all([self._job, *processes.descendants(os.getpid())], signal.SIGKILL)
        elif now_s >= self._stopping.term_at_s and not self._termed:
            self._termed = True
            self._terminate()
        elif now_s >= self._warn_at_s and not self._termed:
            self._warn_at_s, wanted = inf, self._launch["signal"]
            processes.signal_all(self._receivers(wanted["to"]), wanted["number"])

    def _terminate(self) -> None:
        """Send SIGTERM to the job's process group, but not to bubblewrap: its end is the job's."""
        if self._sandbox and (inside := self._processes()):
            self._sandbox.hold(self._job)
            processes.signal_all(processes.in_group(inside, self._job) or inside, signal.SIGTERM)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._job, signal.SIGTERM)

    def _processes(self) -> list[int]:
        """Every process of the job, without the guard's and bubblewrap's own."""
        box = self._sandbox
        found: list[int] = box.processes() if box else processes.descendants(os.getpid())
        return found

    def _receivers(self, to: str) -> list[int]:
        """Processes that get the signal before the end."""
        if to == "first":
            return self._processes()[:1] if self._sandbox else [self._job]
        return [pid for pid in self._processes() if to == "all" or processes.is_of_step(pid)]

    def _reap(self) -> bool:
        """Reap what has ended; True if processes are left, as orphans become children of it."""
        try:
            for _ in range(REAPED_AT_ONCE):  # a job that forks on keeps it from nothing else
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._job:
                    self._status = status
        except ChildProcessError:
            return False
        return True

    def _sweep(self) -> None:
        """End all processes of the job: SIGTERM, a pause, then SIGKILL until no child is left."""
        begun_s, kills, tell_s = boot_s(), 0, STUCK_S
        if self._reap():
            processes.signal_all(processes.descendants(os.getpid()), signal.SIGTERM)
        while self._reap():
            waited_s = boot_s() - begun_s
            if self._killed or waited_s >= processes.LEFT_S:
                freeze = not self._sandbox and kills in FREEZES
                processes.kill_below(os.getpid(), self._launch.get("user") if freeze else None)
                kills += 1
            if waited_s >= tell_s:
                left, tell_s = processes.descendants(os.getpid()), inf
                with contextlib.suppress(OSError):
                    print(f"processes do not end, so their run goes on: {left}", file=sys.stderr)
            signal.sigtimedwait({signal.SIGCHLD}, POLL_S)

    def _result(self, *, oom: bool) -> dict[str, Any]:
        code = os.waitstatus_to_exitcode(self._status or 0)
        if self._first_status is not None:
            code = os.waitstatus_to_exitcode(self._first_status)
        elif self._sandbox and not (self._termed or self._killed):
            problem = self._sandbox.problem(code, self._folder / "stderr.log")
            if problem:
                return {"started": False, "stopped_by": None, "error": problem}
        by = self._stopping.by
        if by in self._stopping.limits_s and not self._termed:
            by = None  # it ended by itself in the moment in which its time was over
        was_killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
        return {
            "started": True,
            "exit_code": code,
            "stopped_by": by,
            "termed": self._termed,
            "killed": self._killed,
            "oom": oom and was_killed and not self._killed,
            "error": "",
        }


def _as_user(launch: dict[str, Any]) -> dict[str, Any]:
    """Arguments by which a job runs as a user of its own, if the launch names one."""
    user = launch.get("user")
    if user is None:
        return {}
    return {"user": user, "group": user, "extra_groups": launch.get("groups", [])}


def _become_job(most_processes: int | None) -> None:
    """In the child: die with the guard, take signals, and be the first victim of OOM."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    LIBC.prctl(PR_SET_DUMPABLE, 1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WOKEN_BY)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    if most_processes is not None:
        processes.limit_processes(most_processes)


def main(folder: Path) -> int:
    """Guard the launch in `folder` from its start to its end."""
    owned = own(folder)
    if owned is None:
        return ALREADY_LAUNCHED
    signal.pthread_sigmask(signal.SIG_BLOCK, WOKEN_BY)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    LIBC.prctl(PR_SET_DUMPABLE, 0)  # the job, of the same user, may not trace and so stop its guard
    with contextlib.suppress(OSError):
        reserve_exit(folder)
    write_exit(folder, Guard(folder).run())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
