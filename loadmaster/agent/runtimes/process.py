"""The process runtime: a command in its own folder, under a guard."""

import contextlib
import fcntl
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from loadmaster.agent import admission
from loadmaster.agent.clock import Clock
from loadmaster.agent.guarding import guard, guard_orders
from loadmaster.agent.runtimes.base import (
    PROGRESS,
    Exit,
    Launch,
    LaunchError,
    QuotaError,
    RunId,
    RunState,
    RunStatus,
    Usage,
)
from loadmaster.agent.runtimes.cgroups import Cgroups, GroupLimits, Resource
from loadmaster.agent.runtimes.consumption import Consumption, consumption
from loadmaster.agent.runtimes.folders import (
    FILES,
    NEVER_STARTED,
    OUTPUTS,
    RunFolders,
    exit_of,
    read_exit,
)
from loadmaster.agent.runtimes.isolation import ORDERS, Isolation
from loadmaster.agent.runtimes.limits import check_quota, cores_of, memory_bytes
from loadmaster.agent.runtimes.programs import (
    NO_SERVER,
    PACKAGES,
    PROGRAM,
    PROGRAMS,
    SCRIPT,
    write_access,
)
from loadmaster.agent.runtimes.spawner import GUARD_START_S, Spawner
from loadmaster.features import ISOLATED, limit_features
from loadmaster.files import private_folder, write_json, write_whole
from loadmaster.protocol import ReasonClass
from loadmaster.slurm.programs.server import FOLDER
from loadmaster.slurm.scripts.environment import TASK, variables_on_node
from loadmaster.slurm.scripts.script_bytes import bytes_of
from loadmaster.training.gangs.connection import is_free, parse_address


class ProcessRuntime(RunFolders):
    """Runs jobs as processes. The variable LOADMASTER_RUN_DIR names the folder of a job's orders.

    Without `isolation` that is the run's private folder itself, and a job has the agent's rights.
    """

    name = "process"

    def __init__(
        self,
        runs: Path,
        clock: Clock | None = None,
        isolation: Isolation | None = None,
        server: Mapping[str, object] = NO_SERVER,
        most_processes: int | None = None,
        cgroups: Cgroups | None = None,
    ) -> None:
        """Limit each job to `most_processes` processes and threads; None: no limit.

        `server`: how scripts reach the server (`start.server_access`). `cgroups`: groups of the
        launches, by which the kernel limits them; None: it does not.
        """
        super().__init__(runs, clock)
        self._isolation = isolation
        self._server = server
        self.most_processes = most_processes
        if isolation:
            self.features = (ISOLATED,)
            isolation.open_way()
        self._cgroups = cgroups
        if cgroups:
            self.features = (*self.features, *limit_features(cgroups.limits))
            self._remove_old_cgroups(cgroups)
        self._spawner = Spawner()
        self._guards: dict[RunId, int] = {}
        """Pids of the guards that this agent has started."""
        self._begun_s = self._clock.boot_s()

    def _remove_old_cgroups(self, cgroups: Cgroups) -> None:
        """Remove groups that a killed agent has left, but none of a launch that may still run."""
        for name in cgroups.names():
            run = RunId.parse(name)
            is_over = run is None or read_exit(self.folder(run) / "exit.json") is not None
            if is_over or not (self._runs / name).is_dir():
                cgroups.remove(name)

    def limits_memory(self, run: RunId) -> bool:
        return self._cgroups is not None and self._cgroups.has(run.name, Resource.MEMORY)

    def environment(self) -> dict[str, str]:
        variables = admission.node_environment()
        if self._isolation:  # a job has a home and a folder of temporary files of its own
            variables.pop("HOME", None)
            variables.pop("TMPDIR", None)
        return variables

    def orders(self, run: RunId) -> Path:
        orders_of_isolated = self.folder(run) / ORDERS
        return orders_of_isolated if orders_of_isolated.is_dir() else self.folder(run)

    def stream(self, run: RunId, stream: str) -> Path:
        orders = self.orders(run) if stream == PROGRESS else self.folder(run)
        return orders / FILES[stream]

    def objection(self, launch: Launch) -> tuple[ReasonClass, str] | None:
        """Return why this node cannot run the launch, with the class of the reason, or None."""
        spec = launch.spec

        # 1. The job's folder; one that is closed to the agent counts as missing.
        if spec.folder and not os.path.isdir(spec.folder):  # noqa: PTH112  # Path would raise
            text = (
                f"the folder {spec.folder} does not exist on this node, or its agent has no right"
                " to it; create it, or name another one"
            )
            return ReasonClass.USER, text

        # 2. Files that the job needs in its sandbox, or as its user.
        if self._isolation:
            folder = self.folder(launch.run)
            outputs = _outputs(launch, self._cwd(launch)).values()
            problem = self._isolation.objection(launch, folder, outputs)
            if problem:
                return problem

        # 3. The two ports at which rank 0 of a gang listens: PyTorch's, and the library's.
        if spec.world_size > 1 and spec.rank == 0:
            _, port = parse_address(spec.rendezvous)
            for number in (port, port + 1):
                if not is_free(number):
                    text = f"port {number}, where the gang is to meet, is taken on this machine"
                    return ReasonClass.NODE, text
        return None

    def prepare(self, launch: Launch) -> None:
        folder = self.folder(launch.run)
        try:
            # 1. The folders, and the files that the agent needs.
            self._make_folders(launch)
            guard.reserve_exit(folder)
            self._write_spec(launch)
            cwd = self._cwd(launch)
            outputs = _outputs(launch, cwd)
            if outputs:
                write_json(folder / OUTPUTS, outputs)

            # 2. The launch as the guard reads it.
            variables = {"LOADMASTER_RUN_DIR": str(self.orders(launch.run))}
            variables.update(self._script_variables(launch))
            data = {
                "argv": [*self._script(launch), *launch.spec.command],
                "environment": {**launch.environment, **variables},
                "cwd": str(cwd),
                "outputs": outputs,
                "grace_s": launch.grace_s,
                "boot_id": launch.boot_id,
                "most_processes": self.most_processes,
                "log_ends": (launch.spec.log_head_bytes, launch.spec.log_tail_bytes),
                **asdict(launch.limits),
            }
            if self._isolation:
                data.update(self._isolation.launch_data(launch, folder, data))
            if self._cgroups:
                data["cgroups"] = self._cgroups.entrances(launch.run.name)
                data["oom_counters"] = self._cgroups.oom_counters(launch.run.name)

            # 3. If a loss of power takes this file, the run ends by the node's fault.
            write_json(folder / "launch.json", data)
        except OSError as error:
            raise LaunchError(f"the run's folder cannot be made: {error}") from error

    @property
    def _program_mode(self) -> int:
        """Mode of a run's own programs: an isolated job may be another user."""
        return 0o755 if self._isolation else 0o700

    def _make_folders(self, launch: Launch) -> None:
        """Make the folders of a run and of its checkpoints."""
        folder = self.folder(launch.run)
        if self._isolation:
            self._isolation.lay_out(launch, folder)
            return
        private_folder(folder / "work")
        private_folder(folder)
        checkpoints = launch.environment.get("LOADMASTER_CHECKPOINT_DIR")
        if checkpoints:
            Path(checkpoints).mkdir(parents=True, exist_ok=True)

    def _cwd(self, launch: Launch) -> Path:
        """Return the folder in which the job starts."""
        return Path(launch.spec.folder or self.folder(launch.run) / "work")

    def _script(self, launch: Launch) -> list[str]:
        """Write the launch's script, and return the command that runs it; [] without a script."""
        if not launch.spec.script:
            return []
        path = self.folder(launch.run) / SCRIPT
        write_whole(path, bytes_of(launch.spec.script), durable=True, mode=self._program_mode)
        return [*TASK, str(path)]

    def _script_variables(self, launch: Launch) -> dict[str, str]:
        """Write Slurm's programs for a script, and return the variables that only a node knows.

        PATH begins with the folder of the programs.
        """
        if not launch.spec.script:
            return {}

        # 1. The programs, each a line of shell.
        folder = self.folder(launch.run) / "bin"
        folder.mkdir(exist_ok=True)
        for name in PROGRAMS:
            command = shlex.join([sys.executable, "-I", "-S", "-c", PROGRAM.format(PACKAGES, name)])
            text = f'#!/bin/sh\nexec {command} "$@"\n'
            write_whole(folder / name, text.encode(), mode=self._program_mode)

        # 2. The token with which they call the server, for the job's user.
        user = None
        if self._isolation:
            user = self._isolation.user_of(launch.spec.team)
        access = write_access(folder, self._server, launch.spec)
        if access is not None and user is not None:
            os.chown(access, user, user, follow_symlinks=False)

        # 3. The variables.
        began_s = self._clock.wall_s()
        variables = variables_on_node(launch.gpu_numbers, user, began_s, launch.spec.walltime_s)
        path = f"{folder}:{launch.environment.get('PATH', os.defpath)}"
        return {**variables, FOLDER: str(folder), "PATH": path}

    def start(self, run: RunId, lease_until_s: float) -> None:
        folder = self.folder(run)
        launch = guard_orders.read_json(folder / "launch.json")
        if launch is None:
            return  # it was started before: the guard removes this file
        try:
            self._write_lease(run, lease_until_s, str(launch["boot_id"]))
            self._note_start(run)
            if launch.get("cgroups"):  # an older agent prepared launches without
                self._make_cgroup(run)
            self._guards[run] = self._spawn(folder)
        except OSError as error:
            raise LaunchError(f"the guard cannot be started: {error}") from error

    def _make_cgroup(self, run: RunId) -> None:
        """Make the group of a launch, with its limits. Raises LaunchError."""
        spec = self.spec(run)
        if self._cgroups is None or spec is None:
            return
        limits = GroupLimits(memory_bytes(spec.memory_gb), self.most_processes, cores_of(spec))
        try:
            self._cgroups.make(run.name, limits)
        except OSError as error:
            raise LaunchError(f"the job's cgroup cannot be made: {error}") from error

    def _spawn(self, folder: Path) -> int:
        """Start the guard of a launch and return its pid. Raises OSError."""
        return self._spawner.start(folder)

    def tell_ends(self, wake: Callable[[], None]) -> None:
        self._spawner.on_end = wake

    def close(self) -> None:
        self._spawner.close()
        if self._cgroups:
            self._cgroups.close()

    def _signal_guard(self, run: RunId) -> None:
        owner = guard_orders.read_json(self.folder(run) / "guard.pid")
        if owner and self._is_guarded(self.folder(run)):
            os.kill(int(owner["pid"]), signal.SIGTERM)

    def poll(self, run: RunId) -> RunStatus:
        folder = self.folder(run)
        if not (folder / "spec.json").exists() and not (folder / "guard.pid").exists():
            return RunStatus(RunState.ABSENT)
        if run in self._guards and self._is_guard_gone(run):
            return self.abandon(run)
        is_guarded = run in self._guards or self._is_guarded(folder) or self._may_have_a_guard(run)
        return self._status(run, is_guarded)

    def _may_have_a_guard(self, run: RunId) -> bool:
        """Return True if an agent that ran before this one may have started a guard.

        A guard owns its launch within GUARD_START_S.
        """
        is_new = self._clock.boot_s() < self._begun_s + GUARD_START_S
        owner = guard_orders.read_json(self.folder(run) / "guard.pid")
        return is_new and owner is None and self.started_at_s(run) is not None

    def _status(self, run: RunId, is_guarded: bool) -> RunStatus:
        """Return the status of a run by its `exit.json`; without one by the life of its guard."""
        ended = read_exit(self.folder(run) / "exit.json")
        if ended:
            self._remove_cgroup(run)
            return RunStatus(RunState.ENDED, ended)
        if is_guarded:
            return RunStatus(RunState.RUNNING, lease_until_s=self._lease_until_s(run))
        return RunStatus(RunState.PREPARED)

    def _remove_cgroup(self, run: RunId) -> None:
        """Remove the group of a launch that is over."""
        if self._cgroups:
            self._cgroups.remove(run.name)

    def remove(self, run: RunId) -> None:
        self._remove_cgroup(run)
        super().remove(run)

    def _is_guarded(self, folder: Path) -> bool:
        """Return True if a guard lives: it locks the file `guard.pid` until it ends."""
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

    def _is_guard_gone(self, run: RunId) -> bool:
        """Return True if a guard that this agent started has ended; then forget its pid."""
        folder = self.folder(run)
        if guard_orders.read_json(folder / "guard.pid"):
            is_gone = not self._is_guarded(folder)
        else:  # it has no lock yet, or ended before it had one
            is_gone = not psutil.pid_exists(self._guards[run])
        if is_gone:
            del self._guards[run]
        return is_gone

    def abandon(self, run: RunId) -> RunStatus:
        """End a run whose guard is gone.

        The agent holds the guard's lock meanwhile, so that no late guard starts the job.
        """
        folder = self.folder(run)
        if not folder.exists():
            return RunStatus(RunState.ABSENT)
        descriptor = os.open(folder / "guard.pid", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not (folder / "exit.json").exists():
                return RunStatus(RunState.ENDED, self._settle(run))
        except BlockingIOError:
            pass  # its guard lives
        finally:
            os.close(descriptor)
        return self._status(run, self._is_guarded(folder))

    def _settle(self, run: RunId) -> Exit:
        """Kill the job's processes that a killed guard has left, and write `exit.json` for it."""
        folder = self.folder(run)
        has_started = (folder / "job.json").exists()
        if self._cgroups:
            self._cgroups.kill(run.name)
        for process in _processes_of(self.orders(run)):
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        data: dict[str, Any] = {
            "ended_at_s": self._clock.wall_s(),
            "started": has_started,
            "stopped_by": None,
            "killed": has_started,
            "error": "the run's guard was killed" if has_started else _never_started(folder),
        }
        with contextlib.suppress(OSError):  # on a full disk the next poll settles it again
            guard.write_exit(folder, data)
        return exit_of(data)

    def usage(self, run: RunId, *, exact: bool = False) -> Usage | None:
        owner = guard_orders.read_json(self.folder(run) / "guard.pid")
        if not owner or not self._is_guarded(self.folder(run)):
            return None
        sandboxed = bool(self._isolation and self._isolation.program)
        total = self._consumption_of_cgroup(run)
        if total is None:
            total = consumption(int(owner["pid"]), exact=exact, sandboxed=sandboxed)
        return self._usage_since_last(run, total)

    def _consumption_of_cgroup(self, run: RunId) -> Consumption | None:
        """Return what a run has used by its cgroup, ended processes included; None without one."""
        use = self._cgroups.use(run.name) if self._cgroups else None
        if use is None:
            return None
        return Consumption(use.cpu_s, use.memory, use.memory, use.throttled_s)

    def quota(self, run: RunId) -> float | None:
        return self._cgroups.cores(run.name) if self._cgroups else None

    def set_quota(self, run: RunId, cores: float) -> None:
        check_quota(cores)
        if self._cgroups is None or not self._cgroups.has(run.name, Resource.CORES):
            raise QuotaError(f"{run.name} has no cgroup: it does not run, or cores have no limit")
        try:
            self._cgroups.set_cores(run.name, cores)
        except OSError as error:
            text = f"{run.name}: the kernel does not take a quota of {cores:g} cores: {error}"
            raise QuotaError(text) from error


def _never_started(folder: Path) -> str:
    """Return the error of a run whose guard ended before the job started, by the guard's log."""
    try:
        lines = (folder / "guard.log").read_text(errors="replace").strip().splitlines()
    except OSError:
        return NEVER_STARTED
    return f"{NEVER_STARTED}: {lines[-1]}" if lines else NEVER_STARTED


def _outputs(launch: Launch, cwd: Path) -> dict[str, str]:
    """Return the files that a job names for its output, by stream.

    One that both streams share counts as that of stdout.
    """
    outputs = {}
    if launch.spec.output:
        outputs["stdout"] = os.path.realpath(cwd / launch.spec.output)
    if launch.spec.error_output:
        outputs["stderr"] = os.path.realpath(cwd / launch.spec.error_output)
    if outputs.get("stderr") == outputs.get("stdout"):
        outputs.pop("stderr", None)
    return outputs


def _processes_of(folder: Path) -> list[psutil.Process]:
    """Return all processes on this machine whose LOADMASTER_RUN_DIR is this folder."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("LOADMASTER_RUN_DIR") == str(folder):
                processes.append(process)
    return processes
