"""The lease guard: the parent of one job; outlives the agent, stops the job at its lease's end.

Run as a file (`python -I -S guard.py RUN_DIR`, with its other modules beside it) with the standard
library alone, as the subreaper of all processes of the job. It shares RUN_DIR with the agent:
- `launch.json` (read once, then removed, for it holds secrets): argv, environment, cwd, grace_s,
  boot_id, walltime_s, deadline_s (CLOCK_BOOTTIME; null: none), signal {number, before_s, to} before
  them, outputs (files by stream), log_ends (bytes of head and tail that are kept of a long one),
  most_processes (null: no limit), `orders` (folder of lease.json and stop.json); in a container
  `container`; of an isolated job `user` (its number; null: the guard's), `groups`, `sandbox`
  (program and words of bubblewrap); of a job in a cgroup `cgroups` (files by which it joins) and
  `oom_counters` (files with the number of its processes killed for memory).
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

if __name__ == "__main__":  # run as a file: its other modules lie beside it, without a package
    sys.path.insert(0, str(Path(__file__).parent))
    import guard_processes as processes  # type: ignore[import-not-found]  # as above
    from guard_orders import Lease, Stopping, boot_s, read_json  # type: ignore[import-not-found]
    from guard_output import Output, open_named  # type: ignore[import-not-found]  # as above
else:
    from loadmaster.agent.guarding import guard_processes as processes
    from loadmaster.agent.guarding.guard_orders import Lease, Stopping, boot_s, read_json
    from loadmaster.agent.guarding.guard_output import Output, open_named

POLL_S = 0.1
"""Longest time in seconds between two looks at lease, orders and processes."""

EXIT_FILE_SIZE = 2048
"""Bytes of `exit.json`, padded with spaces so that its room can be reserved."""

REAPED_AT_ONCE = 1000
"""Most ended processes that are reaped before the next look at lease and orders."""

FREEZES = range(2, 20)
"""Rounds of killing in which all processes of the job's user are stopped first.

Later rounds do without: a process that cannot end must not stop the user's other jobs for ever.
"""

STUCK_S = 20.0
"""Seconds after which processes that do not end are named in the guard's log."""

ALREADY_LAUNCHED = 17
"""Exit code of a guard whose launch has another owner."""

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
"""Operations of prctl(2)."""

CGROUP_OOM_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Files with the number of processes killed for memory: cgroup version 2, version 1."""

LIBC = ctypes.CDLL(None)
"""The C library, for prctl(2)."""

WOKEN_BY = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals for which the guard waits; all but SIGCHLD order it to stop the job."""


class NotPreparedError(Exception):
    """The job's process cannot be prepared on this node, whatever its command is."""


def own(folder: Path) -> int | None:
    """Create and lock `guard.pid`; return its descriptor, None if the launch has an owner."""
    # 1. The file is there once: of two guards one creates it.
    try:
        descriptor = os.open(
            folder / "guard.pid", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600
        )
    except FileExistsError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # an agent that looks holds it for a moment only
    if (folder / "exit.json").exists():  # the agent has settled the launch meanwhile
        return None

    # 2. Tell the agent which process this is.
    owner = {"pid": os.getpid(), "started_ticks": processes.started_ticks("self")}
    with contextlib.suppress(OSError):  # on a full disk the lock alone shows that the guard lives
        os.write(descriptor, json.dumps(owner).encode())
        os.fsync(descriptor)
    return descriptor


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
    """Write a file and wait for the disk. Raises OSError. `flags`: more flags of open(2)."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def oom_kills(paths: tuple[str, ...] = ("/proc/vmstat",)) -> int:
    """Return the number of processes killed for memory so far, from the first file that has it.

    0 if none has it.
    """
    for path in paths:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(path).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


class Guard:
    """Starts a job, waits for its end, and ends it at its lease's end, its limits or an order."""

    def __init__(self, folder: Path) -> None:
        """Read `launch.json` in the run's folder. Raises ValueError if that cannot be read."""
        launch = read_json(folder / "launch.json")
        if launch is None:
            raise ValueError(f"{folder / 'launch.json'} cannot be read")
        self._folder = folder
        self._launch = launch
        self._grace_s = float(launch["grace_s"])
        orders = Path(launch.get("orders", folder))
        self._lease = Lease(orders / "lease.json", str(launch["boot_id"]))
        self._stopping = Stopping(orders, self._lease, self._grace_s)
        self._job = 0
        """Pid of the process that the guard starts: the job's first one, or bubblewrap's."""
        self._status: int | None = None
        """Its wait status, None while it runs."""
        self._first_status: int | None = None
        """Wait status of the job's first process, in a sandbox that the guard had to end."""
        self._warn_at_s = inf
        """Time of the signal before the end, on the boot clock."""
        self._outputs: list[Output] = []
        self._sandbox: processes.Sandbox | None = None
        self._termed = False
        self._killed = False
        """Whether the guard has sent SIGTERM, and SIGKILL, to the job while it ran."""

    def run(self) -> dict[str, Any]:
        """Start the job and wait for its end; return the content of `exit.json`."""
        # 1. The launch holds secrets, and is in memory now.
        for name in ("launch.json", "launch.sh"):
            (self._folder / name).unlink(missing_ok=True)

        # 2. Start the job, unless its lease has run out.
        if boot_s() >= self._lease.deadline_s():
            error = "the lease had run out before the job was started"
            return {"started": False, "stopped_by": "lease", "error": error}
        counters = self._oom_counters()
        killed_before = oom_kills(counters)
        try:
            with contextlib.ExitStack() as opened:
                entrances = self._open_entrances(opened)
                self._job = self._spawn(entrances)
        except NotPreparedError as error:
            return {"started": False, "stopped_by": None, "error": str(error)}
        except (OSError, ValueError) as error:
            text = f"the command cannot be started: {error}"
            return {"started": False, "stopped_by": None, "error": text}

        # 3. Its limits count from here, and so does the signal before them.
        self._stopping.limits_s = self._limits_s()
        warning = self._launch.get("signal")
        if warning:
            first_end_s = min(self._stopping.limits_s.values(), default=inf)
            self._warn_at_s = first_end_s - warning["before_s"]

        # 4. Watch it until it ends, and end the processes that it leaves.
        while self._status is None:
            self._watch()
        self._sweep()

        # 5. Free its shared memory, and write the last of its output. A sandbox frees its own.
        user = self._launch.get("user")
        if user is not None and not self._sandbox:
            processes.free_memory(user)
        for output in self._outputs:
            output.end()
        return self._result(oom=oom_kills(counters) > killed_before)

    def _limits_s(self) -> dict[str, float]:
        """Return the ends of a job that starts now, on the boot clock, by the limit's name."""
        limits_s = {}
        walltime_s = self._launch.get("walltime_s")
        if walltime_s is not None:
            limits_s["walltime"] = boot_s() + float(walltime_s)
        deadline_s = self._launch.get("deadline_s")
        if deadline_s is not None:
            limits_s["deadline"] = float(deadline_s)
        return limits_s

    def _oom_counters(self) -> tuple[str, ...]:
        """Return files that count processes killed for memory: the job's, else the machine's."""
        own = tuple(self._launch.get("oom_counters", ()))
        if own:
            return own
        return CGROUP_OOM_FILES if self._launch.get("container") else ("/proc/vmstat",)

    def _open_entrances(self, opened: contextlib.ExitStack) -> list[int]:
        """Open the files by which the job joins its cgroup; return their descriptors.

        The guard stays outside, so that a job without memory does not end its guard. Raises
        NotPreparedError.
        """
        entrances = []
        for path in self._launch.get("cgroups", ()):
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            except OSError as error:
                raise NotPreparedError(f"the job's cgroup cannot be joined: {error}") from error
            opened.callback(os.close, descriptor)
            entrances.append(descriptor)
        return entrances

    def _spawn(self, entrances: list[int]) -> int:
        """Start the job, or bubblewrap with the job in it, and return the pid of that process.

        `entrances`: descriptors by which it joins its cgroup. Raises OSError, ValueError or
        NotPreparedError.
        """
        # 1. The command. In a container the job also gets the variables of the image.
        launch = self._launch
        arguments = launch["argv"]
        cwd = launch["cwd"]
        environment = dict(launch["environment"])
        if launch.get("container"):
            environment = {**os.environ, **environment}
        passed: tuple[int, ...] = ()

        # 2. In a sandbox bubblewrap gives the job its folder and its variables.
        sandbox = launch.get("sandbox")
        if sandbox:
            self._sandbox = processes.Sandbox(sandbox["program"], sandbox["words"], environment)
            arguments = [*self._sandbox.command, "--", *arguments]
            cwd = "/"
            environment = {}
            passed = self._sandbox.passed

        # 3. Start it as the job's user, with its output to files or pipes.
        become_job = functools.partial(_become_job, entrances, launch, self._most_processes())
        with contextlib.ExitStack() as opened:
            stdout, stderr = self._streams(opened)
            try:
                job = subprocess.Popen(
                    arguments,
                    cwd=cwd,
                    env=environment,
                    pass_fds=passed,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                    preexec_fn=become_job,
                )
            except subprocess.SubprocessError as error:
                text = "the job's process cannot join its cgroup or become its user"
                raise NotPreparedError(text) from error
        job.returncode = 0  # it is reaped by `_reap`, as are the other processes of the job
        if self._sandbox:
            self._sandbox.begin(job.pid, launch.get("most_processes"), launch.get("user"))
        for output in self._outputs:
            output.begin()

        # 4. Tell the agent of it.
        description = {
            "pid": job.pid,
            "started_ticks": processes.started_ticks(job.pid),
            "started_at_s": time.time(),
        }
        with contextlib.suppress(OSError):  # on a full disk the job runs all the same
            (self._folder / "job.tmp").write_text(json.dumps(description))
            (self._folder / "job.tmp").replace(self._folder / "job.json")
        return job.pid

    def _most_processes(self) -> int | None:
        """Return the limit of processes for the job's user; None without one, or in a sandbox.

        The user's other processes count too, so they are added. A sandbox has a limit of its own.
        """
        most: int | None = self._launch.get("most_processes")
        if most is None or self._sandbox:
            return None
        user = self._launch.get("user")
        others: int = processes.threads_of(os.getuid() if user is None else user)
        return most + others

    def _streams(self, opened: contextlib.ExitStack) -> tuple[Any, Any]:
        """Return stdout and stderr of the job: files that it names, or pipes to the run's folder.

        If it names a file for stdout alone, stderr goes there too.
        """
        files: dict[str, BinaryIO] = {}
        for name, path in self._launch.get("outputs", {}).items():
            files[name] = opened.enter_context(open_named(path))
        if set(files) == {"stdout"}:
            files["stderr"] = files["stdout"]
        return self._stream("stdout", files), self._stream("stderr", files)

    def _stream(self, name: str, files: dict[str, BinaryIO]) -> Any:
        """Return the job's file for a stream, or else the write end of a new pipe."""
        if name in files:
            return files[name]
        head, tail = self._launch.get("log_ends", (0, 0))
        self._outputs.append(Output(self._folder / f"{name}.log", head, tail))
        return self._outputs[-1].sink

    def _watch(self) -> None:
        """Wait for a signal for at most POLL_S, then do what the job's state asks for."""
        # 1. A signal to the guard is an order to stop.
        received = signal.sigtimedwait(WOKEN_BY, POLL_S)
        now_s = boot_s()
        if received and received.si_signo != signal.SIGCHLD:
            self._stopping.order("signal", now_s, now_s + self._grace_s)

        # 2. A sandbox ends with the job's first process.
        if self._sandbox:
            self._sandbox.let_go(now_s)
            if self._first_status is None and self._sandbox.outlives_job(now_s):
                self._end_sandbox(self._sandbox)

        # 3. Carry out orders to stop if the job still runs.
        self._reap()
        self._stopping.look(now_s)
        if self._status is None:
            self._enforce(now_s)

    def _end_sandbox(self, sandbox: processes.Sandbox) -> None:
        """End a sandbox whose process 1 does not end with the job's first process."""
        status = sandbox.first_status()
        self._first_status = int(signal.SIGKILL) if status is None else status
        processes.signal_all([sandbox.init() or self._job, self._job], signal.SIGKILL)

    def _enforce(self, now_s: float) -> None:
        """Send SIGKILL, SIGTERM or the signal before the end, if it is time for it."""
        if now_s >= self._stopping.kill_at_s:
            self._killed = True
            processes.signal_all([self._job, *processes.descendants(os.getpid())], signal.SIGKILL)
        elif now_s >= self._stopping.term_at_s and not self._termed:
            self._termed = True
            self._terminate()
        elif now_s >= self._warn_at_s and not self._termed:
            self._warn_at_s = inf
            warning = self._launch["signal"]
            processes.signal_all(self._receivers(warning["to"]), warning["number"])

    def _terminate(self) -> None:
        """Send SIGTERM to the job's process group.

        Bubblewrap does not get it: all processes in the sandbox would end with it.
        """
        inside = self._processes() if self._sandbox else []
        if self._sandbox and inside:
            # Without a process in the group of bubblewrap, the job has groups of its own.
            self._sandbox.hold(self._job)
            processes.signal_all(processes.in_group(inside, self._job) or inside, signal.SIGTERM)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._job, signal.SIGTERM)

    def _processes(self) -> list[int]:
        """Return the pids of all processes of the job, bubblewrap's left out."""
        sandbox = self._sandbox
        pids: list[int] = sandbox.processes() if sandbox else processes.descendants(os.getpid())
        return pids

    def _receivers(self, to: str) -> list[int]:
        """Return the pids that get the signal before the end: of the first, the steps, or all."""
        if to == "first":
            return self._processes()[:1] if self._sandbox else [self._job]
        if to == "all":
            return self._processes()
        return [pid for pid in self._processes() if processes.is_of_step(pid)]

    def _reap(self) -> bool:
        """Reap ended children; return True if others are left. Orphans of the job become such."""
        try:
            for _ in range(REAPED_AT_ONCE):
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
        # 1. SIGTERM, if anything is left.
        begun_s = boot_s()
        if self._reap():
            processes.signal_all(processes.descendants(os.getpid()), signal.SIGTERM)

        # 2. SIGKILL after LEFT_S, again and again, as a process may fork meanwhile.
        kills = 0
        log_after_s = STUCK_S
        while self._reap():
            waited_s = boot_s() - begun_s
            if self._killed or waited_s >= processes.LEFT_S:
                user = None
                if not self._sandbox and kills in FREEZES:
                    user = self._launch.get("user")
                processes.kill_below(os.getpid(), user)
                kills += 1
            if waited_s >= log_after_s:
                log_after_s = inf
                left = processes.descendants(os.getpid())
                with contextlib.suppress(OSError):
                    print(f"processes do not end, so their run goes on: {left}", file=sys.stderr)
            signal.sigtimedwait({signal.SIGCHLD}, POLL_S)

    def _result(self, *, oom: bool) -> dict[str, Any]:
        """Return the content of `exit.json`. `oom`: the kernel killed a process for memory."""
        # 1. The exit code; the error of a sandbox in which the job never ran.
        code = os.waitstatus_to_exitcode(self._status or 0)
        if self._first_status is not None:
            code = os.waitstatus_to_exitcode(self._first_status)
        elif self._sandbox and not (self._termed or self._killed):
            problem = self._sandbox.problem(code, self._folder / "stderr.log")
            if problem:
                return {"started": False, "stopped_by": None, "error": problem}

        # 2. The author of its stop.
        by = self._stopping.by
        if by in self._stopping.limits_s and not self._termed:
            by = None  # it ended by itself in the moment in which its time was over

        # 3. Memory. In a cgroup the counter is the job's own: if the kernel has killed another
        # process of the job, the first one fails for that reason.
        was_killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
        is_of_job = was_killed or bool(self._launch.get("oom_counters"))
        return {
            "started": True,
            "exit_code": code,
            "stopped_by": by,
            "termed": self._termed,
            "killed": self._killed,
            "oom": oom and is_of_job and not self._killed,
            "error": "",
        }


def _become_user(launch: dict[str, Any]) -> None:
    """Become the user that a launch names, if it names one, with its groups alone."""
    user = launch.get("user")
    if user is not None:
        os.setgroups(launch.get("groups", []))
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def _become_job(entrances: list[int], launch: dict[str, Any], most_processes: int | None) -> None:
    """Prepare the child before its program starts: cgroup, user, signals, limits.

    It dies with the guard. If the node runs out of memory, the kernel kills it first.
    """
    # 1. Join the cgroup with the guard's rights, then become the job's user.
    for entrance in entrances:
        os.write(entrance, b"0")
    _become_user(launch)

    # 2. Both of these end with a change of the user.
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    LIBC.prctl(PR_SET_DUMPABLE, 1)

    # 3. Signals and limits.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WOKEN_BY)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    if most_processes is not None:
        processes.limit_processes(most_processes)


def main(folder: Path) -> int:
    """Guard the launch in `folder` from its start to its end; return the guard's exit code."""
    # 1. Own the launch.
    descriptor = own(folder)  # its lock lasts as long as the process
    if descriptor is None:
        return ALREADY_LAUNCHED

    # 2. Get the job's orphans as children, and the signals only where the guard waits for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, WOKEN_BY)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    LIBC.prctl(PR_SET_DUMPABLE, 0)  # the job, of the same user, may not trace and so stop its guard

    # 3. Run the job, and record how it ended.
    with contextlib.suppress(OSError):  # a full disk may have room at the job's end
        reserve_exit(folder)
    write_exit(folder, Guard(folder).run())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
