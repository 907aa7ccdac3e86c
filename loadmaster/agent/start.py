"""Start of an agent: enrol the node once, build its parts, run until it is told to leave."""

import logging
import os
import signal
import socket
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadmaster import __version__
from loadmaster.agent.clock import Backoff
from loadmaster.agent.config import AgentConfig, ConfigError, users_of
from loadmaster.agent.executor import Parts
from loadmaster.agent.journal import Journal, JournalError, JournalHeldError
from loadmaster.agent.logs import log_context
from loadmaster.agent.loop import Agent
from loadmaster.agent.node import machine, nvidia
from loadmaster.agent.node.emulated import EmulationError, read_emulation
from loadmaster.agent.node.mps import Mps
from loadmaster.agent.runtimes.base import Runtime
from loadmaster.agent.runtimes.cgroups import Cgroups, NoCgroupsError, working_cgroups
from loadmaster.agent.runtimes.isolation import (
    Isolation,
    NoIsolationError,
    UndecidedError,
    working_isolation,
)
from loadmaster.agent.runtimes.process import ProcessRuntime
from loadmaster.agent.server.client import (
    AgentClient,
    Conflict,
    Duplicate,
    Refused,
    TryAgain,
    Unauthorized,
    WrongProtocol,
)
from loadmaster.features import ISOLATED, SHARED, features_with
from loadmaster.files import private_folder, write_whole
from loadmaster.protocol import ErrorCode, Registration
from loadmaster.wire import WireError, dumps, loads

EXIT_CONFIG = 2
EXIT_TOKEN = 3
EXIT_PROTOCOL = 4

LEAVING_S = 30.0
"""Longest wait in seconds for another agent with the same state folder to leave."""

LOOK_AGAIN_S = 2.0
"""Seconds between two tries."""

logger = logging.getLogger("loadmaster.agent")


def serve(config: AgentConfig, leave: threading.Event | None = None) -> int:
    """Run the agent until SIGTERM, SIGINT or `leave`; return the exit status."""
    leave = leave or _leave_on_signals()
    try:
        _run(config, leave)
    except (ConfigError, EmulationError, JournalError) as error:
        logger.error("%s", error)
        return EXIT_CONFIG
    except Unauthorized as error:
        remedy = f"remove {config.state_dir / 'node.json'} and enrol it anew with --token"
        logger.error("the server refuses this node's token (%s): %s", error.detail, remedy)
        return EXIT_TOKEN
    except WrongProtocol as error:
        logger.error("%s: install the agent of the server's version", error.detail)
        return EXIT_PROTOCOL
    except Duplicate as error:
        remedy = (
            f"give one of the two its own: stop it, remove {config.state_dir}, and enrol it anew"
            " with --token and another --name"
        )
        logger.error("%s: %s", error.detail, remedy)
        return EXIT_CONFIG
    except Refused as error:
        logger.error("the server refuses this node: %s", error.detail)
        return EXIT_CONFIG
    return 0


def _run(config: AgentConfig, leave: threading.Event) -> None:
    """Build the parts of the agent, and run it. Raises the errors that `serve` reports."""
    log_context.hide(config.token)
    state_dir = config.state_dir
    # An existing folder keeps its mode: isolated jobs, of a running agent too, reach their files
    # through it.
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    journal = _journal(state_dir / "journal.jsonl", leave)
    client = AgentClient(config.server, verify=config.verify)
    runtime: Runtime | None = None
    try:
        identity = machine.identity(state_dir)
        runtime = runtime_of(config, identity, leave)
        devices = _devices(config, runtime)
        if _identify(config, client, devices, identity, runtime, leave):
            parts = Parts(
                client=client,
                journal=journal,
                runtime=runtime,
                devices=devices,
                identity=identity,
                state_dir=state_dir,
                checkpoints=config.checkpoints or state_dir / "checkpoints",
                address=config.address or machine.address_towards(config.server),
            )
            Agent(parts).run(leave, stop_jobs=config.stop_jobs_on_exit)
    finally:
        if runtime:
            runtime.close()
        client.close()
        journal.close()


def runtime_of(config: AgentConfig, identity: machine.Identity, leave: threading.Event) -> Runtime:
    """Return the runtime that the settings name.

    Raises ConfigError if it cannot work on this machine, or if the agent is told to leave.
    """
    runs = config.state_dir / "runs"
    if config.runtime == "process":
        return _process_runtime(config, runs, _cgroups(config, identity), leave)
    private_folder(config.state_dir)
    try:
        from loadmaster.agent.runtimes import docker
    except ImportError as error:
        raise ConfigError(
            f"--runtime docker: a library is missing ({error}); pip install 'loadmaster[docker]'"
        ) from error
    try:
        options = docker.DockerOptions.read(config.docker)
        engine = docker.DockerEngine(options.host)
        return docker.DockerRuntime(
            runs, engine, identity.machine_id, options, server=server_access(config)
        )
    except docker.OptionError as error:
        raise ConfigError(f"--docker: {error}") from error
    except docker.EngineDownError as error:
        remedy = (
            "start it (systemctl start docker), add this user to its group (usermod -aG docker"
            " USER), or name it (--docker host=...)"
        )
        raise ConfigError(f"--runtime docker: {error}; {remedy}") from error


def _cgroups(config: AgentConfig, identity: machine.Identity) -> Cgroups | None:
    """Return the groups by which the kernel limits launches; None if the agent can make none."""
    if not config.cgroups:
        return None
    try:
        return working_cgroups(identity.machine_id, config.cgroups)
    except NoCgroupsError as error:
        logger.warning("the kernel does not limit jobs (docs/agent.md): %s", error)
        return None


def _process_runtime(
    config: AgentConfig, runs: Path, cgroups: Cgroups | None, leave: threading.Event
) -> ProcessRuntime:
    """Return a process runtime with the isolation that the machine allows.

    Raises ConfigError if jobs were isolated here before and cannot be isolated now.
    """
    make = partial(
        ProcessRuntime,
        runs,
        server=server_access(config),
        most_processes=config.processes,
        cgroups=cgroups,
    )
    if config.isolation == "none":
        private_folder(config.state_dir)
        runtime = make()
        runtime.features = (SHARED, *runtime.features)
        return runtime

    # Only root can run jobs as other users. The marker keeps the kind of isolation of earlier runs.
    users = users_of(config.users) if os.getuid() == 0 else None
    marker = config.state_dir / "isolated"
    before = marker.read_text() if marker.exists() else None
    try:
        isolation = _isolation(config, users, before, leave)
    except NoIsolationError as error:
        if before is not None:
            remedy = "fix that, or share the node without isolation: --isolation none"
            by = f" by {before}" if before else ""
            raise ConfigError(
                f"jobs were isolated here{by}, and cannot be now: {error}; {remedy}"
            ) from error
        text = "jobs are not isolated, so this node serves one team (docs/agent.md): %s"
        logger.warning(text, error)
        return make()
    logger.info("jobs are isolated by %s", isolation.kind)
    if isolation.kind != before:
        _keep(marker, isolation.kind.encode(), leave)
    return make(isolation=isolation)


def server_access(config: AgentConfig) -> dict[str, object]:
    """Return how the programs of scripts reach the server: address and certificate authorities."""
    ca = Path(config.ca).read_text() if config.ca else ""
    return {"url": config.server, "ca": ca, "insecure": config.insecure}


def _isolation(
    config: AgentConfig, users: range | None, before: str | None, leave: threading.Event
) -> Isolation:
    """Return the isolation that works here; try again while no trial can be made.

    Raises NoIsolationError if none works, and ConfigError if the agent is told to leave.
    """
    while True:
        try:
            return working_isolation(config.state_dir, users, config.mounts, before)
        except UndecidedError as error:
            logger.warning("how jobs can be isolated is not known, and is tried again: %s", error)
            if leave.wait(LOOK_AGAIN_S):
                raise ConfigError(f"left before it was known: {error}") from error


def _journal(path: Path, leave: threading.Event) -> Journal:
    """Open the journal once another agent has left it. Raises JournalHeldError after LEAVING_S."""
    until_s = time.monotonic() + LEAVING_S
    while True:
        try:
            return Journal(path)
        except JournalHeldError as held:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or leave.is_set():
                raise
            logger.info("%s; waiting %.0f s for it to leave", held, left_s)
            leave.wait(min(LOOK_AGAIN_S, left_s))


def _devices(config: AgentConfig, runtime: Runtime) -> machine.Devices:
    """Return the emulated devices, or the machine's GPUs. Raises ConfigError and EmulationError."""
    if config.emulate:
        emulation = read_emulation(config.emulate)
        node = config.name or socket.gethostname()
        return machine.EmulatedDevices(emulation, node, slots=config.slots_per_gpu)

    # Jobs in an IPC namespace of their own do not reach MPS: isolated jobs share by turns.
    mps = None
    can_reach_mps = runtime.name == "process" and ISOLATED not in runtime.features
    if config.mps and can_reach_mps:
        mps = Mps.found(config.state_dir)
    try:
        return nvidia.nvidia_devices(
            config.slots_per_gpu,
            mps,
            gpu_type=config.gpu_type,
            known_path=config.state_dir / "gpus.json",
        )
    except nvidia.MixedTypesError as error:
        raise ConfigError(
            f"--gpu-type: this machine has GPUs of several types, or none of this one ({error});"
            " name one; for each other type start an agent with its own --state-dir and --name"
        ) from error


def _identify(
    config: AgentConfig,
    client: AgentClient,
    devices: machine.Devices,
    identity: machine.Identity,
    runtime: Runtime,
    leave: threading.Event,
) -> bool:
    """Enrol the node unless it is enrolled, and give the client its id and token.

    Return False if the agent is told to leave before. Raises ConfigError.
    """
    path = config.state_dir / "node.json"
    enrolled = recall(path, config.server)
    if enrolled is None:
        if not config.token:
            text = "this node is not enrolled yet; ask an operator for an enrolment token"
            raise ConfigError(f"--token: {text}")
        registration = Registration(
            machine_id=identity.machine_id,
            boot_id=identity.boot_id,
            hostname=identity.hostname,
            devices=devices.reports(),
            cores=machine.cores(),
            memory_gb=machine.memory_gb(),
            agent_version=__version__,
            features=features_with(runtime.name, *runtime.features),
            name=config.name,
            rack=config.rack,
        )
        enrolled = enrol(config, client, registration, path, leave)
    if enrolled:
        log_context.node = enrolled.node
        log_context.hide(enrolled.token)
        client.identify(enrolled.node, enrolled.token)
    return enrolled is not None


def _leave_on_signals() -> threading.Event:
    leave = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: leave.set())
    return leave


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The node's id and token at a server."""

    server: str
    node: str
    token: str


def recall(path: Path, server: str) -> Enrolled | None:
    """Read an earlier enrolment from its file; None if there is none.

    Raises ConfigError if the file is damaged, or of another server.
    """
    if not path.exists():
        return None
    try:
        enrolled = loads(Enrolled, path.read_bytes())
    except WireError as error:
        text = f"{path} is damaged: remove it and enrol the node anew with --token"
        raise ConfigError(text) from error
    if enrolled.server != server:
        owner = f"it belongs to a node of {enrolled.server}"
        raise ConfigError(f"--state-dir: {owner}; give this server's node its own")
    return enrolled


def enrol(
    config: AgentConfig,
    client: AgentClient,
    registration: Registration,
    path: Path,
    leave: threading.Event,
) -> Enrolled | None:
    """Register the machine, with retries, and keep the node's token in the file `path`.

    Return None if the agent is told to leave. Raises Unauthorized if the enrolment token is
    unknown, used up or expired, and Conflict if the machine cannot become this node.
    """
    backoff = Backoff()
    while not leave.is_set():
        try:
            registered = client.register(config.token, registration)
        except (TryAgain, Conflict) as error:
            if isinstance(error, Conflict) and error.code != ErrorCode.SESSION_LIVES:
                raise  # only the session of an agent that has gone ends by itself
            wait_s = backoff.failed("register", time.monotonic())
            logger.warning("cannot register yet, next try in %.1f s: %s", wait_s, error)
            leave.wait(wait_s)
            continue
        enrolled = Enrolled(config.server, registered.node_id, registered.node_token)
        _keep(path, dumps(enrolled), leave)
        return enrolled
    return None


def _keep(path: Path, content: bytes, leave: threading.Event) -> None:
    """Write a file that the next start needs, such as a token that cannot be issued again.

    It is tried again while the disk is full. Raises OSError if the agent is told to leave.
    """
    while True:
        try:
            return write_whole(path, content, durable=True)
        except OSError as error:
            logger.error("%s cannot be written, and is tried again: %s", path, error)
            if leave.wait(LOOK_AGAIN_S):
                raise
