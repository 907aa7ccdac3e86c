"""What the runtime asks of a Docker Engine, and how the Engine's answers and failures look. The
port; `engine` is the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from loadmaster.agent.runtimes.base import RunId
from loadmaster.agent.runtimes.docker.options import DockerOptions
from loadmaster.agent.runtimes.docker.plan import ContainerPlan


class EngineDownError(Exception):
    """The Engine does not answer: what was asked may or may not have been done."""


class EngineRefusedError(Exception):
    """The Engine answered that it cannot or will not."""


class NameTakenError(EngineRefusedError):
    """A container of that name exists."""


class ImageMissingError(EngineRefusedError):
    """The image is not there, or cannot be had."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image on the node: its id, the digests registries know it by (`repository@sha256:...`),
    and what it sets itself.
    """

    id: str
    digests: tuple[str, ...] = ()
    user: str = ""
    working_dir: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """A container's state ("created", "running", "exited", ...); the rest is known once it has
    ended.
    """

    state: str
    labels: dict[str, str]
    exit_code: int = 0
    oom: bool = False
    error: str = ""
    ended_at_s: float = 0.0
    image: str = ""

    @property
    def runs(self) -> bool:
        return self.state in ("running", "paused", "restarting")

    @property
    def has_ended(self) -> bool:
        return self.state in ("exited", "dead", "removing")


@dataclass(frozen=True, slots=True)
class Stats:
    """CPU seconds used since the start, and bytes in use without the file cache that could be
    dropped.
    """

    cpu_s: float
    memory: int


class Engine(Protocol):
    """What the runtime asks of an Engine. Every call may raise EngineDownError or
    EngineRefusedError.
    """

    def runs(self, owner: str) -> dict[RunId, Container]:
        """Every container of an agent, by its labels; ended ones without the details."""
        ...

    def inspect(self, name: str) -> Container | None:
        """A container with all details, or None."""
        ...

    def find(self, reference: str) -> Image | None:
        """An image on the node, by name, id or digest."""
        ...

    def pull(
        self, reference: str, tell: Callable[[float], None], is_off: Callable[[], bool]
    ) -> None:
        """Fetch an image, telling the fraction that is there, until it is or nobody wants it any
        more.
        """
        ...

    def create(self, plan: ContainerPlan, options: DockerOptions) -> None:
        """Make a container, not yet started."""
        ...

    def start(self, name: str) -> None:
        """Start a created container."""
        ...

    def kill(self, name: str) -> None:
        """SIGKILL to all of a container; one that does not run is fine."""
        ...

    def terminate(self, name: str) -> None:
        """SIGTERM to a container's first process; one that does not run is fine."""
        ...

    def remove(self, name: str) -> None:
        """Remove a container, running or not; one that is gone is fine."""
        ...

    def read_file(self, name: str, path: str) -> bytes | None:
        """A file of a container, links followed within a folder; None if there is none."""
        ...

    def last_words(self, name: str) -> str:
        """The last lines that a container's first process said."""
        ...

    def stats(self, name: str) -> Stats | None:
        """What a container uses, or None if it does not run."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
