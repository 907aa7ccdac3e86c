"""The real Docker Engine, by its HTTP interface."""

import contextlib
import io
import os
import socket
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound, TLSParameterError
from docker.types import DeviceRequest, IPAMConfig, IPAMPool, LogConfig, Mount
from docker.utils import parse_repository_tag

from loadmaster.agent.runtimes.base import GB, RunId
from loadmaster.agent.runtimes.docker import port
from loadmaster.agent.runtimes.docker.options import (
    NO_METADATA,
    OWN_NETWORK,
    DockerOptions,
    OptionError,
)
from loadmaster.agent.runtimes.docker.plan import (
    ASSIGNMENT,
    FENCE,
    OWNER,
    ContainerPlan,
)
from loadmaster.agent.runtimes.docker.pulling import PullProgress
from loadmaster.agent.runtimes.limits import CPU_PERIOD_US, quota_us

USUAL_SOCKET = "unix:///var/run/docker.sock"
TIMEOUT_S = 30
"""Longest wait in seconds for an answer."""

PULL_SILENCE_S = 300
"""Longest time in seconds between two messages of a pull."""

NAME_TAKEN = 409
"""Status of an answer: the name is taken, or the container is not in the state for the call."""

LINK_LOCAL = "169.254.0.0/16"
"""Addresses at which clouds serve the metadata of a machine, credentials included."""

LARGEST_FILE = 1024 * 1024
"""Most bytes of the archive in which the Engine sends a file of a container."""

LAST_WORDS_LINES = 5
_NEVER = "0001-01-01T00:00:00Z"
"""Time of an event that has not happened yet."""


class DockerEngine:
    """The Engine at an address, with the registry credentials of the node.

    `host`: its address; "" for the one of the environment, or else USUAL_SOCKET.
    """

    def __init__(self, host: str = "") -> None:
        self._host = host
        self._api = self._connect(TIMEOUT_S)
        self._images: Any = self._api  # its calls for images have no types

    def _connect(self, timeout_s: int) -> docker.APIClient:
        """Return a new connection. Raises EngineDownError, and OptionError for bad variables."""
        settings = {"base_url": self._host} if self._host else _from_environment()
        address = str(settings.get("base_url") or USUAL_SOCKET)
        try:
            _try_socket(address)
            return docker.APIClient(version="auto", timeout=timeout_s, **settings)
        except (DockerException, requests.RequestException, OSError) as error:
            raise port.EngineDownError(f"no Docker Engine answers at {address}: {error}") from error

    def close(self) -> None:
        self._api.close()

    def runs(self, owner: str) -> dict[RunId, port.Container]:
        with _translated():
            containers = self._api.containers(all=True, filters={"label": f"{OWNER}={owner}"})
        runs: dict[RunId, port.Container] = {}
        for container in containers:
            labels = container["Labels"]
            run = RunId.parse(f"lm-{labels.get(ASSIGNMENT, '')}-{labels.get(FENCE, '')}")
            if run:
                runs[run] = port.Container(container["State"], labels)
        return runs

    def inspect(self, name: str) -> port.Container | None:
        try:
            with _translated():
                data = self._api.inspect_container(name)
        except _GoneError:
            return None
        state = data["State"]
        return port.Container(
            state=state["Status"],
            labels=data["Config"]["Labels"] or {},
            exit_code=state["ExitCode"],
            oom=bool(state["OOMKilled"]),
            error=state["Error"],
            ended_at_s=_seconds(state["FinishedAt"]),
            image=data["Image"],
        )

    def find(self, reference: str) -> port.Image | None:
        try:
            with _translated():
                data: dict[str, Any] = self._images.inspect_image(reference)
        except _GoneError:
            return None
        config = data.get("Config") or {}
        variables = {}
        for item in config.get("Env") or ():
            name, _, value = item.partition("=")
            variables[name] = value
        return port.Image(
            data["Id"],
            tuple(data.get("RepoDigests") or ()),
            config.get("User") or "",
            config.get("WorkingDir") or "",
            variables.get("PATH", ""),
        )

    def pull(
        self, reference: str, tell: Callable[[float], None], is_off: Callable[[], bool]
    ) -> None:
        repository, tag = parse_repository_tag(reference)
        progress = PullProgress()
        client = self._connect(PULL_SILENCE_S)
        try:
            with _translated():
                for event in client.pull(repository, tag or "latest", stream=True, decode=True):
                    if "error" in event:
                        raise port.ImageMissingError(str(event["error"]))
                    tell(progress.update(event))
                    if is_off():
                        return  # the connection is closed: the Engine gives the pull up
        except _GoneError as error:
            raise port.ImageMissingError(str(error)) from error
        finally:
            client.close()

    def create(self, plan: ContainerPlan, options: DockerOptions) -> None:
        try:
            with _translated():
                if options.network == OWN_NETWORK:
                    self._make_networks()
                self._api.create_container(
                    plan.image,
                    list(plan.entrypoint[1:]),
                    name=plan.name,
                    entrypoint=list(plan.entrypoint[:1]),
                    user=plan.user,
                    working_dir=plan.working_dir,
                    environment=plan.environment,
                    labels=plan.labels,
                    stop_timeout=plan.stop_timeout_s,
                    host_config=self._api.create_host_config(**host_config(plan, options)),
                )
        except _GoneError as error:
            raise port.ImageMissingError(str(error)) from error

    def _make_networks(self) -> None:
        """Make the two networks of jobs that reach neither each other nor a cloud's metadata.

        The second one takes the addresses of the metadata inside the containers. The machine gets
        no address in it, so the machine itself still reaches the metadata.
        """
        # 1. Settings of both.
        bridge = "com.docker.network.bridge"
        apart = {f"{bridge}.enable_icc": "false"}
        settings: dict[str, dict[str, Any]] = {
            OWN_NETWORK: {"options": apart},
            NO_METADATA: {
                "internal": True,
                "ipam": IPAMConfig(pool_configs=[IPAMPool(subnet=LINK_LOCAL)]),
                "options": {**apart, f"{bridge}.inhibit_ipv4": "true"},
            },
        }

        # 2. Make those that are missing. The Engine lists all names that begin with OWN_NETWORK.
        present = {network["Name"] for network in self._api.networks(names=[OWN_NETWORK])}
        for name, options in settings.items():
            if name in present:
                continue
            with contextlib.suppress(port.NameTakenError), _translated():  # made by another agent
                self._api.create_network(name, driver="bridge", check_duplicate=True, **options)

    def start(self, name: str) -> None:
        with _translated():
            container = self._api.inspect_container(name)
            is_in_own = container["HostConfig"]["NetworkMode"] == OWN_NETWORK
            if is_in_own and NO_METADATA not in container["NetworkSettings"]["Networks"]:
                self._api.connect_container_to_network(name, NO_METADATA)
            self._api.start(name)

    def kill(self, name: str, signal: str = "SIGKILL") -> None:
        # 409: it does not run
        with contextlib.suppress(_GoneError, port.NameTakenError), _translated():
            self._api.kill(name, signal)

    def terminate(self, name: str) -> None:
        self.kill(name, "SIGTERM")

    def remove(self, name: str) -> None:
        # 409: it is being removed already
        with contextlib.suppress(_GoneError, port.NameTakenError), _translated():
            self._api.remove_container(name, v=True, force=True)

    def read_file(self, name: str, path: str) -> bytes | None:
        # 1. The Engine sends an archive that holds the file. A link is followed by its target.
        try:
            with _translated():
                stream, status = self._api.get_archive(name, path)
                with contextlib.closing(stream):
                    target = str(status.get("linkTarget") or "")
                    if target and target != path:
                        return self.read_file(name, target)
                    content = b"".join(_at_most(stream, LARGEST_FILE))
        except _GoneError:
            return None

        # 2. Take the file from it, if it is one of modest size.
        with (
            contextlib.suppress(tarfile.TarError),
            tarfile.open(fileobj=io.BytesIO(content)) as archive,
        ):
            member = archive.next()
            if member and member.isfile() and member.size < LARGEST_FILE // 2:
                file = archive.extractfile(member)
                return file.read() if file else b""
        return b""

    def last_words(self, name: str) -> str:
        with contextlib.suppress(_GoneError), _translated():
            words = bytes(self._api.logs(name, tail=LAST_WORDS_LINES))
            return words.decode(errors="replace").strip()
        return ""

    def stats(self, name: str) -> port.Stats | None:
        with contextlib.suppress(_GoneError, port.NameTakenError), _translated():
            return stats_of(self._api.stats(name, stream=False, one_shot=True))
        return None

    def cores(self, name: str) -> float | None:
        with contextlib.suppress(_GoneError), _translated():
            config = self._api.inspect_container(name)["HostConfig"]
            if config["CpuQuota"] > 0:
                return float(config["CpuQuota"] / (config["CpuPeriod"] or CPU_PERIOD_US))
        return None

    def limit_cores(self, name: str, cores: float) -> None:
        with _translated():
            self._api.update_container(name, cpu_period=CPU_PERIOD_US, cpu_quota=quota_us(cores))


def _from_environment() -> dict[str, Any]:
    """Return address and certificates that DOCKER_HOST and other variables name.

    Raises OptionError if the certificates are missing.
    """
    try:
        return dict(docker.utils.kwargs_from_env())
    except TLSParameterError as error:
        place = os.environ.get("DOCKER_CERT_PATH") or "~/.docker, as it is not set"
        raise OptionError(
            f"DOCKER_CERT_PATH: {place}: it must name a folder with cert.pem, key.pem and ca.pem;"
            " correct it, or unset it and DOCKER_TLS_VERIFY"
        ) from error


def _try_socket(address: str) -> None:
    """Connect to the Engine's socket once, for an error clearer than the library's."""
    scheme, _, path = address.partition("://")
    if scheme in ("unix", "http+unix"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(f"/{path.lstrip('/')}")


class _GoneError(port.EngineRefusedError):
    """The container or image does not exist."""


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise the library's failures as those of `port`."""
    try:
        yield
    except (NotFound, ImageNotFound) as error:
        raise _GoneError(str(error.explanation or error)) from error
    except APIError as error:
        text = str(error.explanation or error)
        if error.status_code == NAME_TAKEN:
            raise port.NameTakenError(text) from error
        raise port.EngineRefusedError(text) from error
    except (DockerException, requests.RequestException) as error:
        raise port.EngineDownError(str(error)) from error


def host_config(plan: ContainerPlan, options: DockerOptions) -> dict[str, Any]:
    """Return limits and rights of a container: no privileges or capabilities, only its mounts."""
    # 1. Settings of every container.
    mounts = []
    for mount in plan.mounts:
        read_only = not mount.writable
        mounts.append(Mount(mount.target, mount.source, type="bind", read_only=read_only))
    config: dict[str, Any] = {
        "mounts": mounts,
        "network_mode": options.network,
        "ipc_mode": "private",
        "privileged": False,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "pids_limit": options.pids,
        "shm_size": round(options.shm_gb * GB),
        "restart_policy": {"Name": "no"},
        "log_config": LogConfig(type="json-file", config={"max-size": "64k", "max-file": "1"}),
    }

    # 2. Limits of this one. A CPU quota, unlike `nano_cpus`, can be changed while the job runs.
    if plan.memory_bytes:
        config["mem_limit"] = plan.memory_bytes
        config["memswap_limit"] = plan.memory_bytes
    if plan.cpu_quota_us:
        config["cpu_period"] = CPU_PERIOD_US
        config["cpu_quota"] = plan.cpu_quota_us
    if plan.gpus:
        config["device_requests"] = [
            DeviceRequest(driver="nvidia", device_ids=list(plan.gpus), capabilities=[["gpu"]])
        ]
    if options.read_only:
        config["read_only"] = True
        config["tmpfs"] = {"/tmp": "rw,nosuid,nodev,mode=1777"}  # noqa: S108  # its own
    return config


def stats_of(data: dict[str, Any]) -> port.Stats | None:
    """Return a container's use by the Engine's statistics; None if it does not run.

    File cache that the kernel can drop at once (inactive) does not count.
    """
    memory = data.get("memory_stats") or {}
    if "usage" not in memory:
        return None
    details = memory.get("stats") or {}
    inactive = details.get("total_inactive_file", details.get("inactive_file", 0))
    cpu_ns = data["cpu_stats"]["cpu_usage"]["total_usage"]
    throttled_ns = (data["cpu_stats"].get("throttling_data") or {}).get("throttled_time", 0)
    return port.Stats(cpu_ns / 1e9, max(0, memory["usage"] - inactive), throttled_ns / 1e9)


def _seconds(text: str) -> float:
    """Return the Unix seconds of a time of the Engine; 0 for an event that has not happened."""
    if text == _NEVER:
        return 0.0
    return datetime.fromisoformat(text[:19]).replace(tzinfo=UTC).timestamp()


def _at_most(stream: Iterator[bytes], limit: int) -> Iterator[bytes]:
    """Yield pieces of a stream until they hold `limit` bytes or more."""
    remaining = limit
    for piece in stream:
        yield piece
        remaining -= len(piece)
        if remaining <= 0:
            return
