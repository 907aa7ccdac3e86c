"""Builders of tests against a real Docker Engine: tiny images, runtimes, launches with names of
their own.

`tests/with-docker` provides the Engine and the base image.
"""

import contextlib
import io
import shutil
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import docker

from loadmaster.agent.guarding import guard_orders
from loadmaster.agent.node.machine import boot_id
from loadmaster.agent.runtimes.base import NO_LIMITS, Exit, Launch, Limits, RunId, RunState
from loadmaster.agent.runtimes.docker import DockerEngine, DockerOptions, DockerRuntime
from loadmaster.agent.runtimes.programs import NO_SERVER
from loadmaster.protocol import LaunchSpec
from tests.builders_agent import a_spec, until

BASE = "loadmaster-base:bookworm"
ROOT = Path(__file__).parents[1]


def sh(script: str) -> tuple[str, ...]:
    """A command that runs a shell script."""
    return ("/bin/sh", "-c", script)


def python3(code: str) -> tuple[str, ...]:
    """A command that runs some Python of the base image."""
    return ("/usr/bin/python3", "-c", code)


def a_docker_spec(**changes: Any) -> LaunchSpec:
    """A job in the base image, its assignment named as no other is: all tests share one Engine."""
    given = {
        "assignment": f"t{uuid.uuid4().hex[:12]}",
        "runtime": "docker",
        "image": BASE,
        "devices": (),
        "command": sh("echo hello"),
    }
    return a_spec(**{**given, **changes})


def options(**changes: Any) -> DockerOptions:
    """Options of an agent whose jobs have no network."""
    return replace(DockerOptions(network="none", pull="never"), **changes)


class Site:
    """A docker runtime with a folder, and what it is asked."""

    def __init__(self, state_dir: Path, **changes: Any) -> None:
        self.state_dir = state_dir
        self.owner = f"test-{uuid.uuid4().hex[:12]}"
        self.options = options(**changes)
        self.runtime = self.another()

    def another(self, server: Mapping[str, object] = NO_SERVER) -> DockerRuntime:
        """A runtime over the same folder and containers, as a restarted agent has it."""
        runs = self.state_dir / "runs"
        return DockerRuntime(runs, DockerEngine(), self.owner, self.options, server=server)

    def prepare(
        self,
        spec: LaunchSpec,
        environment: dict[str, str] | None = None,
        grace_s: float = 1.0,
        limits: Limits = NO_LIMITS,
    ) -> RunId:
        """Prepare a launch and wait until its container is made; its id."""
        run = RunId(spec.assignment, spec.fence)
        checkpoints = self.state_dir / "checkpoints"
        folders = {"LOADMASTER_CHECKPOINT_DIR": str(checkpoints / spec.job)}
        variables = {**(environment or {}), **spec.environment, **spec.secrets, **folders}
        launch = Launch(
            run, spec, variables, grace_s, boot_id(), checkpoints=checkpoints, limits=limits
        )
        assert self.runtime.objection(launch) is None
        self.runtime.prepare(launch)
        until(lambda: self.runtime.poll(run).state is not RunState.PREPARING, within_s=60)
        return run

    def launch(self, spec: LaunchSpec, lease_s: float = 60.0, **given: Any) -> RunId:
        """Prepare and start a launch."""
        run = self.prepare(spec, **given)
        self.runtime.start(run, boot_s() + lease_s)
        return run

    def end(self, run: RunId, within_s: float = 60.0) -> Exit:
        """Wait for a launch's end."""
        until(lambda: self.runtime.poll(run).state is RunState.ENDED, within_s=within_s)
        ended = self.runtime.poll(run).exit
        assert ended is not None
        return ended

    def says(self, run: RunId, text: str) -> None:
        """Wait until the job has said something."""
        until(lambda: text in self.output(run), within_s=60)

    def output(self, run: RunId, stream: str = "stdout") -> str:
        return self.runtime.read(run, stream, 0, 100_000).decode()

    def inspect(self, run: RunId) -> dict[str, Any]:
        """All that the Engine tells of a launch's container."""
        with an_api() as api:
            found: dict[str, Any] = api.inspect_container(run.name)
        return found

    def clear(self) -> None:
        """Leave no container behind."""
        self.runtime.close()
        clear_containers(self.owner)


@contextlib.contextmanager
def an_api() -> Iterator[docker.APIClient]:
    """The Engine's interface itself."""
    api = docker.APIClient(version="auto", **docker.utils.kwargs_from_env())
    try:
        yield api
    finally:
        api.close()


@contextlib.contextmanager
def a_network() -> Iterator[str]:
    """A network of our own making, in which containers have names; over several machines it would
    be an overlay.
    """
    name = f"loadmaster-test-{uuid.uuid4().hex[:8]}"
    with an_api() as api:
        api.create_network(name, driver="bridge")
        yield name
        api.remove_network(name)


def clear_containers(owner: str) -> None:
    """Remove every container of an agent, also those that it was about to remove when it was
    killed.
    """
    with an_api() as api, contextlib.closing(DockerEngine()) as engine:
        for item in api.containers(all=True, filters={"label": f"loadmaster.owner={owner}"}):
            engine.remove(item["Id"])


def boot_s() -> float:
    """The boot clock, as guards read it."""
    return guard_orders.boot_s()


def an_image(files: Mapping[str, bytes | str | None], *, changes: tuple[str, ...] = ()) -> str:
    """A tiny image of its own, of files (bytes), links (text) and folders (None); its name. Remove
    it with `remove_image`.
    """
    name = f"loadmaster-tiny:{uuid.uuid4().hex[:12]}"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path, what in {"tmp": None, **files}.items():
            member = tarfile.TarInfo(path)
            member.mode = 0o755
            if what is None:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            elif isinstance(what, str):
                member.type, member.linkname = tarfile.SYMTYPE, what
                archive.addfile(member)
            else:
                member.size = len(what)
                archive.addfile(member, io.BytesIO(what))
    with an_api() as api:
        api.import_image_from_data(
            content.getvalue(),
            repository=name.partition(":")[0],
            tag=name.partition(":")[2],
            changes=list(changes),
        )
    return name


def remove_image(name: str) -> None:
    with an_api() as api:
        api.remove_image(name, force=True)


def busybox() -> bytes:
    """The static busybox of the base image."""
    name = f"loadmaster-look-{uuid.uuid4().hex[:8]}"
    with an_api() as api:
        api.create_container(BASE, ["/bin/true"], name=name)
        try:
            stream, _ = api.get_archive(name, "/bin/busybox")
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
                file = archive.extractfile("busybox")
                assert file is not None
                return file.read()
        finally:
            api.remove_container(name, force=True)


def an_image_without_python() -> str:
    """An image of nothing but busybox: sh, sleep, kill and friends."""
    tools = ("sh", "sleep", "cat", "echo", "id", "env", "ls", "date", "touch")
    return an_image({"bin/busybox": busybox(), **{f"bin/{tool}": "/bin/busybox" for tool in tools}})


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry of images that the Engine reaches at this address."""

    address: str

    def push(self, name: str, *, word: str) -> str:
        """Name in the registry of a new image, which has `word` in /word and is not kept here."""
        made = an_image({"bin/busybox": busybox(), "bin/sh": "busybox", "word": word.encode()})
        whole = f"{self.address}/{name}"
        repository, _, tag = whole.rpartition(":")
        with an_api() as api:
            api.tag(made, repository, tag, force=True)
            said = api.push(repository, tag)
            assert '"errorDetail"' not in said, said
        for each in (whole, made):
            remove_image(each)
        return whole


@contextlib.contextmanager
def a_registry(folder: Path) -> Iterator[Registry]:
    """Debian's docker-registry in a container, for the Engine of this machine."""
    program = shutil.which("docker-registry")
    assert program, (
        "docker-registry is missing; install it (Debian: apt-get install docker-registry)"
    )
    config = folder / "registry.yml"
    storage = "storage: {filesystem: {rootdirectory: /tmp/registry}}"
    config.write_text(f"version: 0.1\n{storage}\nhttp: {{addr: ':5000'}}\n")
    name = f"loadmaster-registry-{uuid.uuid4().hex[:8]}"
    with an_api() as api:
        host = api.create_host_config(
            port_bindings={5000: ("127.0.0.1", None)},
            binds=[f"{program}:/docker-registry:ro", f"{config}:/registry.yml:ro"],
        )
        serve = ["/docker-registry", "serve", "/registry.yml"]
        api.create_container(BASE, serve, name=name, host_config=host, ports=[5000])
        try:
            api.start(name)
            until(lambda: b"listening on" in api.logs(name), within_s=30)
            yield Registry(f"127.0.0.1:{api.port(name, 5000)[0]['HostPort']}")
        finally:
            api.remove_container(name, force=True, v=True)
