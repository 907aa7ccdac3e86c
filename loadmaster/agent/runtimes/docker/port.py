"""The port to a Docker Engine, its answers and failures; `engine` is the real one."""

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
    """An image on the node: id, repository digests, and its own settings."""

    id: str
    digests: tuple[str, ...] = ()
    user: str = ""
    working_dir: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """State of a container ("created", "running", "exited"); the rest once it ended."""

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
    """CPU seconds since the start, and bytes in use without droppable file cache."""

    cpu_s: float
    memory: int


class Engine(Protocol):
    """Port to an Engine. Calls may raise EngineDownError or EngineRefusedError."""

    def runs(self, owner: str) -> dict[RunId, Container]:
        """Every container of an agent, by its labels; ended ones without the details."""

    def inspect(self, name: str) -> Container | None:
        """A container with all details, or None."""

    def find(self, reference: str) -> Image | None:
        """An image on the node, by name, id or digest."""

    def pull(
        self, reference: str, tell: Callable[[float], None], is_off: Callable[[], bool]
    ) -> None:
        """Pull an image, reporting the fraction, until done or no longer wanted."""

    def create(self, plan: ContainerPlan, options: DockerOptions) -> None:
        """Make a container, not yet started."""

    def start(self, name: str) -> None:
        """Start a created container."""

    def kill(self, name: str) -> None:
        """SIGKILL to all of a container; one that does not run is fine."""

    def terminate(self, name: str) -> None:
        """SIGTERM to a container's first process; one that does not run is fine."""

    def remove(self, name: str) -> None:
        """Remove a container, running or not; one that is gone is fine."""

    def read_file(self, name: str, path: str) -> bytes | None:
        """A file of a container, links followed within a folder; None if there is none."""

    def last_words(self, name: str) -> str:
        """The last lines that a container's first process said."""

    def stats(self, name: str) -> Stats | None:
        """Resource use of a container, or None if it does not run."""

    def close(self) -> None:
        """Let go of connections."""
