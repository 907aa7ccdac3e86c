"""The Docker runtime: containers by name and label, with the guard as first process."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

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
    StopBy,
    StopOrder,
    Usage,
)
from loadmaster.agent.runtimes.consumption import Consumption
from loadmaster.agent.runtimes.docker import port
from loadmaster.agent.runtimes.docker.options import DockerOptions
from loadmaster.agent.runtimes.docker.plan import (
    ContainerRequest,
    Task,
    job_environment,
    launch_data,
    launch_script,
)
from loadmaster.agent.runtimes.docker.preparing import MOVED, Preparation
from loadmaster.agent.runtimes.docker.scripts import (
    START,
    outputs_in_container,
    outputs_on_host,
    write_script,
)
from loadmaster.agent.runtimes.docker.verdict import end_of, start_failure
from loadmaster.agent.runtimes.docker.watch import Watch
from loadmaster.agent.runtimes.folders import (
    FILES,
    NEVER_STARTED,
    OUTPUTS,
    RunFolders,
    read_exit,
)
from loadmaster.agent.runtimes.limits import check_quota
from loadmaster.agent.runtimes.mounts import (
    MountRules,
    checkpoint_problem,
    job_mounts,
    moved,
    private_folders,
)
from loadmaster.agent.runtimes.programs import NO_SERVER
from loadmaster.features import CORES_LIMIT, MEMORY_LIMIT, PROCESSES_LIMIT
from loadmaster.files import private_folder, read_object, write_json, write_whole
from loadmaster.protocol import CONTAINER, ReasonClass
from loadmaster.wire import WireError, from_json

REQUEST_FILE = "wanted.json"
"""File of a run with its `ContainerRequest`."""

OVERDUE_S = 5.0
"""Seconds after its last end after which a container that still runs is killed."""

START_PAUSE_S = 0.5
"""Seconds between two tries to start a container while the Engine does not answer."""

LEAVING_S = 10.0
"""Longest wait in seconds of a leaving agent for containers that are being started."""

NAMELESS = (
    "in the network {} containers do not find one another, so no gang can run over it: give the"
    " agents a network that they share (--docker network=NAME; docs/agent.md, Gangs)"
)


logger = logging.getLogger(__name__)


GUARD_FILES = (
    "guard.py",
    "guard_orders.py",
    "guard_output.py",
    "guard_processes.py",
    "guard.sh",
)
"""Programs of the guard, which run in each container."""


class DockerRuntime(RunFolders):
    """Runs jobs as containers. Calls that may take the Engine long are made in threads.

    In a run's folder `run/` is read-only in the container but for progress, `guard/` holds launch,
    output and exit, `work/` is the job's home; `spec.json`, `wanted.json` and `end.json` are the
    agent's alone. Containers are not trusted: only the Engine says that a run has ended.
    """

    name = "docker"

    def __init__(
        self,
        runs: Path,
        engine: port.Engine,
        owner: str,
        options: DockerOptions,
        clock: Clock | None = None,
        server: Mapping[str, object] = NO_SERVER,
    ) -> None:
        """Look at the containers of this `owner`, the agent's machine id.

        `server`: how scripts reach the server (`start.server_access`).
        Raises EngineDownError if the Engine does not answer.
        """
        super().__init__(runs, clock)
        self.features = (MEMORY_LIMIT, PROCESSES_LIMIT)
        if options.limit_cores:
            self.features = (*self.features, CORES_LIMIT)
        self._server = server
        self._engine = engine
        self._owner = owner
        self._options = options
        self._private = private_folders(runs.parent, options.host)
        self._preparations: dict[RunId, Preparation] = {}
        self._starting: set[RunId] = set()
        self._removing: set[RunId] = set()
        self._quotas: dict[RunId, float | None] = {}
        """Cores to which containers are limited, as the Engine has told last."""
        self._shells: set[str] = set()
        """Ids of images that are known to have a shell."""
        self._watch = Watch(engine, owner, self._clock, self._maintain)
        self._watch.begin()

    def limits_memory(self, run: RunId) -> bool:
        return True

    def close(self) -> None:
        # The next agent would settle launches that are being started as never started.
        until_s = self._clock.boot_s() + LEAVING_S
        while self._starting and self._clock.boot_s() < until_s:
            time.sleep(START_PAUSE_S / 10)
        self._watch.close()
        with contextlib.suppress(port.EngineDownError, port.EngineRefusedError, OSError):
            self._clear_away()
        self._engine.close()

    def orders(self, run: RunId) -> Path:
        return self.folder(run) / "run"

    def stream(self, run: RunId, stream: str) -> Path:
        return self.folder(run) / ("run" if stream == PROGRESS else "guard") / FILES[stream]

    def address(self, own: str) -> str:
        """Return CONTAINER, for the launch's own name, where containers find each other by name.

        No port of the machine leads to a container, so its own address is of no use.
        """
        return CONTAINER if self._options.has_names else ""

    def trouble(self) -> str:
        return self._watch.trouble()

    def objection(self, launch: Launch) -> tuple[ReasonClass, str] | None:
        if not launch.spec.image:
            return ReasonClass.USER, "image: is missing; name the image the job runs in"
        if launch.spec.world_size > 1 and not self._options.has_names:
            return ReasonClass.NODE, NAMELESS.format(self._options.network)
        rules = self._mount_rules(launch)
        try:
            mounts = job_mounts(launch.spec.mounts, rules)
            outputs_on_host(outputs_in_container(launch.spec), mounts)
        except ValueError as error:
            return ReasonClass.USER, str(error)
        place = launch.environment.get("LOADMASTER_CHECKPOINT_DIR")
        if place:
            own = self.folder(launch.run) / "checkpoints"
            problem = checkpoint_problem(place, launch.spec.job, own, rules)
            if problem:
                return ReasonClass.USER, problem
        return None

    def _mount_rules(self, launch: Launch) -> MountRules:
        return MountRules(self._options.mounts, self._private, launch.checkpoints)

    def prepare(self, launch: Launch) -> None:
        folder = self.folder(launch.run)
        request = self._container_request(launch)
        try:
            self._make_folders(folder)
            environment = job_environment(launch.environment)
            command = launch.spec.command
            if launch.spec.script:
                environment |= self._write_script(folder, launch)
                command = (*START, *command)
            outputs = self._note_outputs(folder, launch)
            data = launch_data(launch.spec, command, environment, request, outputs)
            script = launch_script(command, environment, outputs)
            write_json(folder / "guard" / "launch.json", data, durable=True)
            write_whole(folder / "guard" / "launch.sh", script.encode(), durable=True)
            write_json(folder / REQUEST_FILE, asdict(request), durable=True)
            self._write_spec(launch)
        except OSError as error:
            raise LaunchError(f"the run's folder cannot be made: {error}") from error
        self._begin_preparing(launch.run)

    def _write_script(self, folder: Path, launch: Launch) -> dict[str, str]:
        """Write the launch's script and its programs; return the script's variables."""
        identity = self._options.identity()
        user = identity[0] if identity else None
        return write_script(folder, launch, user, self._server, self._clock.wall_s())

    def _note_outputs(self, folder: Path, launch: Launch) -> dict[str, str]:
        """Note where the job's output files lie on the node; return them as the container's."""
        outputs = outputs_in_container(launch.spec)
        if outputs:
            try:
                mounts = job_mounts(launch.spec.mounts, self._mount_rules(launch))
                write_json(folder / OUTPUTS, outputs_on_host(outputs, mounts))
            except ValueError as error:
                raise LaunchError(str(error)) from error
        return outputs

    def _container_request(self, launch: Launch) -> ContainerRequest:
        """Return the request for a container, with the paths to which links lead now.

        A folder that leads elsewhere when the container is made is not mounted.
        """
        folder = launch.environment.get("LOADMASTER_CHECKPOINT_DIR", "")
        checkpoints = Path(folder).resolve()
        shared = launch.checkpoints.resolve() if launch.checkpoints else None
        try:
            mounts = job_mounts(launch.spec.mounts, self._mount_rules(launch))
        except ValueError as error:
            raise LaunchError(str(error)) from error
        is_in_run = checkpoints.is_relative_to(self.folder(launch.run).resolve())
        return ContainerRequest(
            launch.grace_s,
            launch.boot_id,
            launch.gpus,
            checkpoints=str(checkpoints) if folder else "",
            owns_checkpoints=is_in_run or checkpoints.parent == shared,
            mounted=tuple(mount.source for mount in mounts),
            shared=str(shared or ""),
            limits=launch.limits,
        )

    def _make_folders(self, folder: Path) -> None:
        """Make the folders of a run, with the guard's programs."""
        private_folder(folder)
        for name in ("guard", "work"):
            private_folder(folder / name)
        for name in ("run", "bin"):
            (folder / name).mkdir(exist_ok=True)
            (folder / name).chmod(0o755)
        for name in GUARD_FILES:
            content = (Path(guard.__file__).parent / name).read_bytes()
            write_whole(folder / "bin" / name, content, mode=0o644)
        (folder / "run" / FILES[PROGRESS]).touch(0o600)

    def _begin_preparing(self, run: RunId) -> Preparation | None:
        """Return the run's preparation, which begins now unless an earlier call began it.

        None if the run's folder does not hold the request for a container.
        """
        if run in self._preparations:
            return self._preparations[run]
        folder = self.folder(run)
        spec = self.spec(run)
        try:
            request = from_json(ContainerRequest, guard_orders.read_json(folder / REQUEST_FILE))
        except WireError:
            return None
        if spec is None:
            return None
        task = Task(run, spec, request, folder, self._owner, self._options, self._private)
        preparation = Preparation(self._engine, task, self._shells, self._watch)
        self._preparations[run] = preparation
        preparation.start()
        return preparation

    def start(self, run: RunId, lease_until_s: float) -> None:
        folder = self.folder(run)
        if self._has_begun(run) or (folder / "end.json").exists():
            return
        request = guard_orders.read_json(folder / REQUEST_FILE) or {}
        try:
            self._write_lease(run, lease_until_s, str(request.get("boot_id")))
        except OSError as error:
            raise LaunchError(f"the lease cannot be written: {error}") from error
        if run not in self._starting:
            self._note_start(run)
            self._starting.add(run)
            _in_thread(self._start, run)

    def _start(self, run: RunId) -> None:
        """Start the container; try until the lease ends while the Engine does not answer."""
        try:
            while True:
                try:
                    failure = self._start_created(run)
                    if failure:
                        self._give_up(run, failure)
                    return
                except port.EngineDownError as error:
                    if self._clock.boot_s() >= (self._lease_until_s(run) or 0.0):
                        self._give_up(run, self._not_started(str(error), stopped_by=StopBy.LEASE))
                        return
                    time.sleep(START_PAUSE_S)
        except port.EngineRefusedError as error:
            self._give_up(run, start_failure(self._clock.wall_s(), str(error)))
        finally:
            self._starting.discard(run)

    def _start_created(self, run: RunId) -> Exit | None:
        """Start a container that was created; return the end of one that must not start."""
        container = self._engine.inspect(run.name)
        if container and container.state == "created":
            # The Engine would follow a link that was put there after the container was made.
            request = guard_orders.read_json(self.folder(run) / REQUEST_FILE) or {}
            sources = [request.get("checkpoints"), *request.get("mounted", ())]
            if moved(source for source in sources if source):
                return self._not_started(MOVED, blame=ReasonClass.USER)
            self._engine.start(run.name)
        self._watch.look()
        return None

    def _not_started(self, error: str, **details: Any) -> Exit:
        """Return the end of a run whose job never started."""
        return Exit(self._clock.wall_s(), started=False, error=error, **details)

    def _give_up(self, run: RunId, ended: Exit) -> None:
        """End a run in this way, unless its guard has begun."""
        if self._claim(run):
            self._write_end(run, ended)

    def _claim(self, run: RunId) -> bool:
        """Create the file by which a guard owns the launch, so that no guard can begin.

        Return False if one has begun.
        """
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            os.close(os.open(self.folder(run) / "guard" / "guard.pid", flags, 0o600))
        except FileExistsError:
            return False
        except FileNotFoundError:
            pass  # it was never prepared
        return True

    def _has_begun(self, run: RunId) -> bool:
        """Return True if a guard owns the launch, or the agent has settled it."""
        return os.path.lexists(self.folder(run) / "guard" / "guard.pid")

    def _write_end(self, run: RunId, ended: Exit) -> RunStatus:
        """Record the end of a run, and return its status."""
        # On a full disk, or if the folder is gone, the next poll finds the end again.
        with contextlib.suppress(OSError):
            write_json(self.folder(run) / "end.json", asdict(ended), durable=True)
        return RunStatus(RunState.ENDED, ended)

    def _signal_guard(self, run: RunId) -> None:
        _in_thread(self._try_call, self._engine.terminate, run)

    def _try_call(self, call: Callable[[str], None], run: RunId) -> None:
        """Make a call of the Engine for a run's container; log a failure."""
        try:
            call(run.name)
        except (port.EngineDownError, port.EngineRefusedError) as error:
            logger.warning("%s: %s", run.name, error)

    def stop(self, run: RunId, order: StopOrder) -> None:
        super().stop(run, order)
        # The container of a stray may have lost its folder, and with it the orders to its guard.
        if not self.orders(run).exists() and run in self._watch.containers():
            _in_thread(self._try_call, self._engine.kill, run)

    def poll(self, run: RunId) -> RunStatus:
        # 1. A run that is being removed, or has ended.
        if run in self._removing:
            return RunStatus(RunState.ABSENT)
        folder = self.folder(run)
        ended = read_exit(folder / "end.json")
        if ended:
            return RunStatus(RunState.ENDED, ended)

        # 2. One being prepared, whose containers come and go to look into the image.
        preparation = self._preparations.get(run)
        if preparation and preparation.done is None and not self._has_begun(run):
            return self._preparation_status(run)

        # 3. One that runs, or whose container has ended or is gone.
        container = self._watch.containers().get(run)
        if run in self._starting or (container and container.runs):
            return RunStatus(RunState.RUNNING, lease_until_s=self._lease_until_s(run))
        begun = self._has_begun(run)
        if container is None and begun:
            error = "the run's container is gone"
            container = port.Container("exited", {}, error=error, ended_at_s=self._clock.wall_s())
        if container and container.has_ended:
            report = read_object(folder / "guard" / "exit.json")
            return self._write_end(run, end_of(container, report, begun))

        # 4. One that was prepared, here or by an earlier agent.
        return self._preparation_status(run)

    def _preparation_status(self, run: RunId) -> RunStatus:
        """Return the status of a run that has not begun; begin its preparation if none is known."""
        preparation = self._begin_preparing(run)
        if preparation is None:
            is_made = run in self._watch.containers()
            return RunStatus(RunState.PREPARED if is_made else RunState.ABSENT)
        error = preparation.error
        if error:
            self._claim(run)
            return self._write_end(run, self._not_started(str(error), blame=error.blame))
        if preparation.done is None:
            return RunStatus(RunState.PREPARING, prepared_fraction=preparation.fraction)
        return RunStatus(RunState.PREPARED, image_digest=preparation.done)

    def abandon(self, run: RunId) -> RunStatus:
        """Settle a launch: it has begun if its guard created `guard.pid` before this agent."""
        status = self.poll(run)
        is_waiting = status.state in (RunState.PREPARED, RunState.PREPARING)
        if not is_waiting or not self.folder(run).exists():
            return status
        if not self._claim(run):  # it has begun since the last look
            return RunStatus(RunState.RUNNING, lease_until_s=self._lease_until_s(run))
        self._call_off(run)
        return self._write_end(run, self._not_started(NEVER_STARTED))

    def _call_off(self, run: RunId) -> None:
        """Call off the preparation of a run, if there is one."""
        preparation = self._preparations.pop(run, None)
        if preparation:
            preparation.off.set()

    def list(self) -> tuple[RunId, ...]:
        return tuple(sorted({*super().list(), *self._watch.containers()} - self._removing))

    def usage(self, run: RunId, *, exact: bool = False) -> Usage | None:
        stats = self._watch.stats(run)
        if stats is None:
            return None
        use = Consumption(stats.cpu_s, stats.memory, throttled_s=stats.throttled_s)
        return self._usage_since_last(run, use)

    def quota(self, run: RunId) -> float | None:
        return self._quotas.get(run)

    def set_quota(self, run: RunId, cores: float) -> None:
        check_quota(cores)
        container = self._watch.containers().get(run)
        if container is None or not container.runs:
            raise QuotaError(f"{run.name} has no container that runs")
        _in_thread(self._set_quota, run, cores)

    def _set_quota(self, run: RunId, cores: float) -> None:
        """Limit the cores of a run's container, and read back the limit that holds then."""
        self._try_call(partial(self._engine.limit_cores, cores=cores), run)
        self._try_call(partial(self._read_quota, run), run)

    def _read_quota(self, run: RunId, name: str) -> None:
        """Read the limit of a run's cores from the Engine; `name`: of its container."""
        self._quotas[run] = self._engine.cores(name)

    def remove(self, run: RunId) -> None:
        self._call_off(run)
        self._usage.pop(run, None)
        self._quotas.pop(run, None)
        self._removing.add(run)
        self._watch.wake()

    def _maintain(self) -> None:
        """Enforce limits and remove containers; the watch calls this after each look."""
        self._enforce()
        self._read_new_quotas()
        self._clear_away()

    def _read_new_quotas(self) -> None:
        """Read the quotas of containers that run and whose quota no call has read yet."""
        containers = self._watch.containers()
        for run, container in containers.items():
            if container.runs and run not in self._quotas:
                self._try_call(partial(self._read_quota, run), run)

    def _clear_away(self) -> None:
        """Remove the containers and folders of runs that are to be removed."""
        for run in tuple(self._removing):
            try:
                self._engine.remove(run.name)
            except port.EngineRefusedError as error:  # tried again at the next look
                logger.debug("%s cannot be removed yet: %s", run.name, error)
                continue
            self._watch.look()
            with contextlib.suppress(OSError):  # it is found again, as a stray
                self._remove_folder(run)
            self._removing.discard(run)

    def _enforce(self) -> None:
        """Trim long output, and kill containers that run on after their end.

        Their guards should do both, but they run by programs of the jobs' images.
        """
        now_s = self._clock.boot_s()
        for run, container in self._watch.containers().items():
            if not container.runs:
                continue
            with self._contained(run, "trimming its output"):
                self._trim(run)
            if now_s > self._latest_end_s(run) + OVERDUE_S:
                text = "%s has outlived its lease or an order to stop and is killed"
                logger.warning(text, run.name)
                self._try_call(self._engine.kill, run)

    def _latest_end_s(self, run: RunId) -> float:
        """Return the time on the boot clock at which the guard kills the job at the latest."""
        lease = guard_orders.read_json(self.orders(run) / "lease.json") or {}
        order = guard_orders.read_json(self.orders(run) / "stop.json") or {}
        request = guard_orders.read_json(self.folder(run) / REQUEST_FILE) or {}
        ends = [float(order.get("kill_at_s", "inf"))]
        if "deadline_s" in lease and lease.get("boot_id") == request.get("boot_id"):
            ends.append(float(lease["deadline_s"]) + float(request.get("grace_s", 30.0)))
        return min(ends)


def _in_thread(function: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()
