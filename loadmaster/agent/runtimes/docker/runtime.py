"""The Docker runtime: containers by name and label, with the guard as first process."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadmaster.agent import guard
from loadmaster.agent.clock import Clock
from loadmaster.agent.files import private_folder, read_object, write_json, write_whole
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
    Usage,
)
from loadmaster.agent.runtimes.docker.options import DockerOptions
from loadmaster.agent.runtimes.docker.places import (
    Places,
    checkpoint_problem,
    job_mounts,
    moved,
    private_places,
)
from loadmaster.agent.runtimes.docker.plan import (
    Wanted,
    job_environment,
    launch_data,
    launch_script,
)
from loadmaster.agent.runtimes.docker.port import (
    Container,
    Engine,
    EngineDownError,
    EngineRefusedError,
)
from loadmaster.agent.runtimes.docker.preparing import MOVED, Preparation, Task
from loadmaster.agent.runtimes.docker.verdict import end_of, start_failure
from loadmaster.agent.runtimes.docker.watch import Watch
from loadmaster.agent.runtimes.folders import FILES, RunFolders, exit_of
from loadmaster.protocol import CONTAINER, ReasonClass
from loadmaster.wire import WireError, from_json

GB = 1e9
OVERDUE_S = 5.0
START_PAUSE_S = 0.5
LEAVING_S = 10.0
NAMELESS = (
    "in the network {} containers do not find one another, so no gang can run over it: give the"
    " agents a network that they share (--docker network=NAME; docs/agent.md, Gangs)"
)
NEVER_STARTED = "the agent or its guard ended before the job was started"

logger = logging.getLogger(__name__)


class DockerRuntime(RunFolders):
    """Runs jobs as containers. Whatever may take the Engine long is done in threads; `poll` only
    looks.

    A run's folder holds `run/` (lease, stop order, term, progress: read-only in the container but
    for the last), `guard/` (the launch with its secrets until it is started, output, exit), `work/`
    (the job's home), `bin/` (the guard), and for the agent alone `spec.json`, `wanted.json`,
    `end.json` (the end as it will be told). `runs` lies in the agent's state folder, of which no
    job may mount anything. What containers may write is not trusted: no link in it is followed, and
    that a run has ended only the Engine says.
    """

    name = "docker"
    limits_memory = True
    order_mode = 0o644

    def __init__(
        self,
        runs: Path,
        engine: Engine,
        owner: str,
        options: DockerOptions,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(runs, clock)
        self._engine, self._owner, self._options = engine, owner, options
        self._private = private_places(runs.parent, options.host)
        self._preparations: dict[RunId, Preparation] = {}
        self._starting: set[RunId] = set()
        self._removing: set[RunId] = set()
        self._shells: dict[str, tuple[str, ...]] = {}
        self._usage: dict[RunId, tuple[float, float]] = {}
        self._watch = Watch(engine, owner, self._clock, self._keep_house)
        self._watch.begin()

    def close(self) -> None:
        until_s = self._clock.boot_s() + LEAVING_S
        while (
            self._starting and self._clock.boot_s() < until_s
        ):  # else the next agent would settle them as never started
            _wait(START_PAUSE_S / 10)
        self._watch.close()
        with contextlib.suppress(EngineDownError, EngineRefusedError, OSError):
            self._clear_away()
        self._engine.close()

    def orders(self, run: RunId) -> Path:
        return self.folder(run) / "run"

    def stream(self, run: RunId, stream: str) -> Path:
        return self.folder(run) / ("run" if stream == PROGRESS else "guard") / FILES[stream]

    def environment(self) -> dict[str, str]:
        return {}

    def address(self, own: str) -> str:
        """The launch's own name where the network has names; no host port is published."""
        return CONTAINER if self._options.has_names else ""

    def trouble(self) -> str:
        return self._watch.trouble()

    def objection(self, launch: Launch) -> tuple[ReasonClass, str] | None:
        if not launch.spec.image:
            return ReasonClass.USER, "image: is missing; name the image the job runs in"
        if launch.spec.world_size > 1 and not self._options.has_names:
            return ReasonClass.NODE, NAMELESS.format(self._options.network)
        places = self._places(launch)
        try:
            job_mounts(launch.spec.mounts, places)
        except ValueError as error:
            return ReasonClass.USER, str(error)
        if place := launch.environment.get("LOADMASTER_CHECKPOINT_DIR"):
            problem = checkpoint_problem(
                place, launch.spec.job, self.folder(launch.run) / "checkpoints", places
            )
            return (ReasonClass.USER, problem) if problem else None
        return None

    def _places(self, launch: Launch) -> Places:
        return Places(self._options.mounts, self._private, launch.checkpoints)

    def prepare(self, launch: Launch) -> None:
        folder = self.folder(launch.run)
        wanted = self._wanted(launch)
        try:
            self._make_folders(folder)
            environment = job_environment(launch.environment)
            write_json(
                folder / "guard" / "launch.json",
                launch_data(launch.spec, environment, wanted),
                durable=True,
            )
            write_whole(
                folder / "guard" / "launch.sh",
                launch_script(launch.spec.command, environment).encode(),
                durable=True,
            )
            write_json(folder / "wanted.json", asdict(wanted), durable=True)
            self._write_spec(launch)
        except OSError as error:
            raise LaunchError(f"the run's folder cannot be made: {error}") from error
        self._begin_preparing(launch.run)

    def _wanted(self, launch: Launch) -> Wanted:
        """With real paths: what they are now is what is mounted, or nothing."""
        place = launch.environment.get("LOADMASTER_CHECKPOINT_DIR", "")
        real = Path(place).resolve()
        shared = launch.checkpoints.resolve() if launch.checkpoints else None
        try:
            mounted = tuple(
                mount.source for mount in job_mounts(launch.spec.mounts, self._places(launch))
            )
        except ValueError as error:
            raise LaunchError(str(error)) from error
        return Wanted(
            launch.grace_s,
            launch.boot_id,
            launch.gpus,
            checkpoints=str(real) if place else "",
            owns_checkpoints=real.is_relative_to(self.folder(launch.run).resolve())
            or real.parent == shared,
            mounted=mounted,
            shared=str(shared or ""),
        )

    def _make_folders(self, folder: Path) -> None:
        private_folder(folder)
        for name in ("guard", "work"):
            private_folder(folder / name)
        for name in ("run", "bin"):
            (folder / name).mkdir(exist_ok=True)
            (folder / name).chmod(0o755)
        for name in ("guard.py", "guard.sh"):
            write_whole(
                folder / "bin" / name, (Path(guard.__file__).parent / name).read_bytes(), mode=0o644
            )
        (folder / "run" / FILES[PROGRESS]).touch(0o600)

    def _begin_preparing(self, run: RunId) -> Preparation | None:
        """The run's preparation, begun if missing; None if its folder lacks the request."""
        if run not in self._preparations:
            spec, data = self.spec(run), guard.read_json(self.folder(run) / "wanted.json")
            try:
                wanted = from_json(Wanted, data)
            except WireError:
                return None
            if spec is None:
                return None
            task = Task(
                run, spec, wanted, self.folder(run), self._owner, self._options, self._private
            )
            preparation = Preparation(
                self._engine, task, self._shells, self._watch.look, self._watch.wake
            )
            self._preparations[run] = preparation
            preparation.start()
        return self._preparations[run]

    def start(self, run: RunId, lease_until_s: float) -> None:
        folder = self.folder(run)
        if self._has_begun(run) or (folder / "end.json").exists():
            return
        wanted = guard.read_json(folder / "wanted.json") or {}
        try:
            self._write_lease(run, lease_until_s, str(wanted.get("boot_id")))
        except OSError as error:
            raise LaunchError(f"the lease cannot be written: {error}") from error
        if run not in self._starting:
            self._note_start(run)
            self._starting.add(run)
            threading.Thread(
                target=self._start, args=(run,), name=f"start {run.name}", daemon=True
            ).start()

    def _start(self, run: RunId) -> None:
        """Start the container once; retries until the lease ends if the Engine is silent."""
        try:
            while True:
                try:
                    container = self._engine.inspect(run.name)
                    if container and container.state == "created":
                        if self._has_moved(run):
                            self._give_up(
                                run,
                                Exit(
                                    self._clock.wall_s(),
                                    started=False,
                                    error=MOVED,
                                    blame=ReasonClass.USER,
                                ),
                            )
                            return
                        self._engine.start(run.name)
                    self._watch.look()
                    return
                except EngineDownError as error:
                    if self._clock.boot_s() >= (self._lease_until_s(run) or 0.0):
                        self._give_up(
                            run,
                            Exit(
                                self._clock.wall_s(),
                                started=False,
                                stopped_by=StopBy.LEASE,
                                error=str(error),
                            ),
                        )
                        return
                    _wait(START_PAUSE_S)
        except EngineRefusedError as error:
            self._give_up(run, start_failure(self._clock.wall_s(), str(error)))
        finally:
            self._starting.discard(run)

    def _has_moved(self, run: RunId) -> bool:
        """True if a mount source moved since creation; the Engine follows it at the start."""
        wanted = guard.read_json(self.folder(run) / "wanted.json") or {}
        return bool(moved(filter(None, [wanted.get("checkpoints"), *wanted.get("mounted", ())])))

    def _give_up(self, run: RunId, ended: Exit) -> None:
        """It was not started and never will be, unless its guard has begun after all."""
        if self._claim(run):
            self._write_end(run, ended)

    def _claim(self, run: RunId) -> bool:
        """Take the guard's place, so that none can begin; False if one has."""
        try:
            path = self.folder(run) / "guard" / "guard.pid"
            os.close(
                os.open(
                    path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
                )
            )
        except FileExistsError:
            return False
        except FileNotFoundError:
            return True  # it was never prepared
        return True

    def _has_begun(self, run: RunId) -> bool:
        return os.path.lexists(self.folder(run) / "guard" / "guard.pid")

    def _write_end(self, run: RunId, ended: Exit) -> RunStatus:
        with contextlib.suppress(
            OSError
        ):  # a full disk, or a folder that is gone: it is worked out again at the next look
            write_json(self.folder(run) / "end.json", asdict(ended), durable=True)
        return RunStatus(RunState.ENDED, ended)

    def _signal_guard(self, run: RunId) -> None:
        threading.Thread(
            target=self._quietly, args=(self._engine.terminate, run), daemon=True
        ).start()

    def _quietly(self, call: Any, run: RunId) -> None:
        try:
            call(run.name)
        except (EngineDownError, EngineRefusedError) as error:
            logger.warning("%s: %s", run.name, error)

    def stop(self, run: RunId, order: StopOrder) -> None:
        super().stop(run, order)
        if (
            not self.orders(run).exists() and run in self._watch.containers()
        ):  # a stray whose folder is gone: nobody guards it
            threading.Thread(
                target=self._quietly, args=(self._engine.kill, run), daemon=True
            ).start()

    def poll(self, run: RunId) -> RunStatus:
        if run in self._removing:
            return RunStatus(RunState.ABSENT)
        if ended := self._ended(run):
            return RunStatus(RunState.ENDED, ended)
        preparation = self._preparations.get(run)
        if preparation and preparation.done is None and not self._has_begun(run):
            return self._preparing(
                run
            )  # whatever is made and removed meanwhile to look into the image
        container = self._watch.containers().get(run)
        if run in self._starting or (container and container.runs):
            return RunStatus(RunState.RUNNING, lease_until_s=self._lease_until_s(run))
        if container and container.has_ended:
            return self._write_end(
                run,
                end_of(
                    container,
                    read_object(self.folder(run) / "guard" / "exit.json"),
                    self._has_begun(run),
                ),
            )
        if container is None and self._has_begun(run):
            return self._vanished(run)
        return self._preparing(run)

    def _ended(self, run: RunId) -> Exit | None:
        data = guard.read_json(self.folder(run) / "end.json")
        return exit_of(data) if data else None

    def _vanished(self, run: RunId) -> RunStatus:
        told = read_object(self.folder(run) / "guard" / "exit.json")
        gone = Container(
            "exited", {}, error="the run's container is gone", ended_at_s=self._clock.wall_s()
        )
        return self._write_end(run, end_of(gone, told, True))

    def _preparing(self, run: RunId) -> RunStatus:
        preparation = self._begin_preparing(run)
        if preparation is None:
            return RunStatus(
                RunState.PREPARED if run in self._watch.containers() else RunState.ABSENT
            )
        if preparation.error:
            error = preparation.error
            self._claim(run)
            return self._write_end(
                run, Exit(self._clock.wall_s(), started=False, error=str(error), blame=error.blame)
            )
        if preparation.done is None:
            return RunStatus(RunState.PREPARING, prepared_fraction=preparation.fraction)
        return RunStatus(RunState.PREPARED, image_digest=preparation.done)

    def abandon(self, run: RunId) -> RunStatus:
        """As the contract says; whoever creates `guard.pid` first decides."""
        status = self.poll(run)
        if (
            status.state not in (RunState.PREPARED, RunState.PREPARING)
            or not self.folder(run).exists()
        ):
            return status
        if not self._claim(run):
            return RunStatus(
                RunState.RUNNING, lease_until_s=self._lease_until_s(run)
            )  # it has begun since the last look
        self._call_off(run)
        return self._write_end(run, Exit(self._clock.wall_s(), started=False, error=NEVER_STARTED))

    def _call_off(self, run: RunId) -> None:
        if preparation := self._preparations.pop(run, None):
            preparation.off.set()

    def list(self) -> tuple[RunId, ...]:
        return tuple(sorted({*super().list(), *self._watch.containers()} - self._removing))

    def usage(self, run: RunId, *, exact: bool = False) -> Usage | None:
        stats = self._watch.stats(run)
        if stats is None:
            return None
        now_s = self._clock.boot_s()
        before_cpu_s, before_s = self._usage.get(run, (0.0, now_s))
        self._usage[run] = (stats.cpu_s, now_s)
        cores = (
            max(0.0, stats.cpu_s - before_cpu_s) / (now_s - before_s) if now_s > before_s else 0.0
        )
        return Usage(cores, stats.memory / GB)

    def remove(self, run: RunId) -> None:
        self._call_off(run)
        self._usage.pop(run, None)
        self._removing.add(run)
        self._watch.wake()

    def _keep_house(self) -> None:
        self._enforce()
        self._clear_away()

    def _clear_away(self) -> None:
        for run in tuple(self._removing):
            try:
                self._engine.remove(run.name)
            except EngineRefusedError as error:  # tried again at the next look
                logger.debug("%s cannot be removed yet: %s", run.name, error)
                continue
            self._watch.look()
            shutil.rmtree(self.folder(run), ignore_errors=True)
            self._removing.discard(run)

    def _enforce(self) -> None:
        """Kill what the guard should have ended; the guard comes from the job's image."""
        now_s = self._clock.boot_s()
        for run, container in self._watch.containers().items():
            if container.runs and now_s > self._latest_end_s(run) + OVERDUE_S:
                logger.warning(
                    "%s has outlived its lease or an order to stop and is killed", run.name
                )
                self._quietly(self._engine.kill, run)

    def _latest_end_s(self, run: RunId) -> float:
        lease, order = (
            guard.read_json(self.orders(run) / name) or {} for name in ("lease.json", "stop.json")
        )
        wanted = guard.read_json(self.folder(run) / "wanted.json") or {}
        ends = [float(order.get("kill_at_s", "inf"))]
        if "deadline_s" in lease and lease.get("boot_id") == wanted.get("boot_id"):
            ends.append(float(lease["deadline_s"]) + float(wanted.get("grace_s", 30.0)))
        return min(ends)


def _wait(seconds: float) -> None:
    """Let time pass in a thread of its own."""
    threading.Event().wait(seconds)
