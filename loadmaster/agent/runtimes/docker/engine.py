"""A real Docker Engine by its HTTP interface, with its failures told apart."""

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
    CPU_PERIOD_US,
    FENCE,
    OWNER,
    ContainerPlan,
)
from loadmaster.agent.runtimes.docker.pulling import PullProgress

USUAL_SOCKET = "unix:///var/run/docker.sock"
TIMEOUT_S = 30
PULL_SILENCE_S = 300
NAME_TAKEN = 409
LINK_LOCAL = "169.254.0.0/16"
LARGEST_FILE = 1024 * 1024
LAST_WORDS_LINES = 5
_NEVER = "0001-01-01T00:00:00Z"


class DockerEngine:
    """An Engine by its HTTP API, with the registry credentials of the node."""

    def __init__(self, host: str = "") -> None:
        self._host = host
        self._api = self._connect(TIMEOUT_S)
        self._images: Any = self._api  # its calls for images have no types

    def _connect(self, timeout_s: int) -> docker.APIClient:
        given = {"base_url": self._host} if self._host else _from_environment()
        where = str(given.get("base_url") or USUAL_SOCKET)
        try:
            _try_socket(where)
            return docker.APIClient(version="auto", timeout=timeout_s, **given)
        except (DockerException, requests.RequestException, OSError) as error:
            raise port.EngineDownError(f"no Docker Engine answers at {where}: {error}") from error

    def close(self) -> None:
        self._api.close()

    def runs(self, owner: str) -> dict[RunId, port.Container]:
        with _translated():
            found = self._api.containers(all=True, filters={"label": f"{OWNER}={owner}"})
        runs: dict[RunId, port.Container] = {}
        for item in found:
            labels = item["Labels"]
            name = f"lm-{labels.get(ASSIGNMENT, '')}-{labels.get(FENCE, '')}"
            if run := RunId.parse(name):
                runs[run] = port.Container(item["State"], labels)
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
        variables = dict(item.partition("=")[::2] for item in config.get("Env") or ())
        digests = tuple(data.get("RepoDigests") or ())
        return port.Image(
            data["Id"],
            digests,
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
        """Make the networks of jobs that reach neither one another nor a cloud's metadata.

        Of the second one the machine has no address, so its own way there stays.
        """
        bridge = "com.docker.network.bridge"
        apart = {f"{bridge}.enable_icc": "false"}
        pool = IPAMConfig(pool_configs=[IPAMPool(subnet=LINK_LOCAL)])
        hidden: dict[str, Any] = {"internal": True, "ipam": pool}
        hidden["options"] = {**apart, f"{bridge}.inhibit_ipv4": "true"}
        known = {network["Name"] for network in self._api.networks(names=[OWN_NETWORK])}
        for name, given in ((OWN_NETWORK, {"options": apart}), (NO_METADATA, hidden)):
            if name not in known:  # the Engine finds all names that begin so
                with contextlib.suppress(port.NameTakenError), _translated():  # by another agent
                    self._api.create_network(name, driver="bridge", check_duplicate=True, **given)

    def start(self, name: str) -> None:
        with _translated():
            found = self._api.inspect_container(name)
            is_own = found["HostConfig"]["NetworkMode"] == OWN_NETWORK
            if is_own and NO_METADATA not in found["NetworkSettings"]["Networks"]:
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
        try:
            with _translated():
                stream, found = self._api.get_archive(name, path)
                with contextlib.closing(stream):
                    target = str(found.get("linkTarget") or "")
                    if target and target != path:
                        return self.read_file(name, target)
                    content = b"".join(_at_most(stream, LARGEST_FILE))
        except _GoneError:
            return None
        with (
            contextlib.suppress(tarfile.TarError),
            tarfile.open(fileobj=io.BytesIO(content)) as archive,
        ):
            member = archive.next()
            file = archive.extractfile(member) if member and member.isfile() else None
            return file.read() if file and member and member.size < LARGEST_FILE // 2 else b""
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


def _from_environment() -> dict[str, Any]:
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
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(TIMEOUT_S)
            door.connect(f"/{path.lstrip('/')}")


class _GoneError(port.EngineRefusedError):
    """The container or image does not exist."""


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """The library's failures in our words."""
    try:
        yield
    except (NotFound, ImageNotFound) as error:
        raise _GoneError(str(error.explanation or error)) from error
    except APIError as error:
        kind = port.NameTakenError if error.status_code == NAME_TAKEN else port.EngineRefusedError
        raise kind(str(error.explanation or error)) from error
    except (DockerException, requests.RequestException) as error:
        raise port.EngineDownError(str(error)) from error


def host_config(plan: ContainerPlan, options: DockerOptions) -> dict[str, Any]:
    """Limits and rights of a container: no privileges, no capabilities, only its mounts."""
    limits: dict[str, Any] = {}
    if plan.memory_bytes:
        limits |= {"mem_limit": plan.memory_bytes, "memswap_limit": plan.memory_bytes}
    if plan.cpu_quota_us:  # not nano_cpus: a quota can be changed while the job runs
        limits |= {"cpu_period": CPU_PERIOD_US, "cpu_quota": plan.cpu_quota_us}
    if plan.gpus:
        limits["device_requests"] = [
            DeviceRequest(driver="nvidia", device_ids=list(plan.gpus), capabilities=[["gpu"]])
        ]
    if options.read_only:
        own_tmp = {"/tmp": "rw,nosuid,nodev,mode=1777"}  # noqa: S108  # the container's own
        limits |= {"read_only": True, "tmpfs": own_tmp}
    binds = [Mount(m.target, m.source, type="bind", read_only=not m.writable) for m in plan.mounts]
    return {
        "mounts": binds,
        "network_mode": options.network,
        "ipc_mode": "private",
        "privileged": False,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "pids_limit": options.pids,
        "shm_size": round(options.shm_gb * GB),
        "restart_policy": {"Name": "no"},
        "log_config": LogConfig(type="json-file", config={"max-size": "64k", "max-file": "1"}),
        **limits,
    }


def stats_of(data: dict[str, Any]) -> port.Stats | None:
    """The Engine's statistics; None if it does not run. Inactive file cache is excluded."""
    memory, cpu = data.get("memory_stats") or {}, data.get("cpu_stats") or {}
    if "usage" not in memory:
        return None
    details = memory.get("stats") or {}
    cold = details.get("total_inactive_file", details.get("inactive_file", 0))
    return port.Stats(cpu["cpu_usage"]["total_usage"] / 1e9, max(0, memory["usage"] - cold))


def _seconds(text: str) -> float:
    """Unix seconds of an Engine's time; 0 for one that has not been."""
    if text == _NEVER:
        return 0.0
    return datetime.fromisoformat(text[:19]).replace(tzinfo=UTC).timestamp()


def _at_most(stream: Iterator[bytes], limit: int) -> Iterator[bytes]:
    for piece in stream:
        yield piece
        limit -= len(piece)
        if limit <= 0:
            return
