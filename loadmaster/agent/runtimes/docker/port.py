"""Interface to a Docker Engine: its calls, answers and failures. `engine` is the real one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from loadmaster.agent.runtimes.base import RunId
from loadmaster.agent.runtimes.docker.options import DockerOptions
from loadmaster.agent.runtimes.docker.plan import ContainerPlan


class EngineDownError(Exception):
    """The Engine does not answer: it may or may not have done what the call asked for."""


class EngineRefusedError(Exception):
    """The Engine answered that it cannot or will not."""


class NameTakenError(EngineRefusedError):
    """A container of that name exists, or is not in a state for the call."""


class ImageMissingError(EngineRefusedError):
    """The image is not on the node, or cannot be pulled."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image on the node: id, repository digests, and the settings that it brings.

    `user`: name or number, also with a group (USER:GROUP); `path`: its variable PATH.
    """

    id: str
    digests: tuple[str, ...] = ()
    user: str = ""
    working_dir: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """A container. `state`: the Engine's word, such as "created", "running" or "exited".

    Exit code, `oom` (a process was killed for memory), error and end are known once it has ended.
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
    """CPU seconds since the start, and bytes in use without file cache that can be dropped.

    `throttled_s`: CPU seconds that the quota has withheld.
    """

    cpu_s: float
    memory: int
    throttled_s: float = 0.0


class Engine(Protocol):
    """Calls to an Engine. Each may raise EngineDownError or EngineRefusedError."""

    def runs(self, owner: str) -> dict[RunId, Container]:
        """Return all containers with an agent's label; ended ones without details."""

    def inspect(self, name: str) -> Container | None:
        """Return a container with all details; None if there is none of that name."""

    def find(self, reference: str) -> Image | None:
        """Return an image on the node by name, id or digest; None if it is not there."""

    def pull(
        self, reference: str, tell: Callable[[float], None], is_off: Callable[[], bool]
    ) -> None:
        """Pull an image. `tell` is called with its fraction; stop once `is_off` returns True."""

    def create(self, plan: ContainerPlan, options: DockerOptions) -> None:
        """Make a container without starting it. Raises NameTakenError and ImageMissingError."""

    def start(self, name: str) -> None:
        """Start a created container."""

    def kill(self, name: str) -> None:
        """Send SIGKILL to all processes of a container; do nothing if it does not run."""

    def terminate(self, name: str) -> None:
        """Send SIGTERM to a container's first process; do nothing if it does not run."""

    def remove(self, name: str) -> None:
        """Remove a container, running or not; do nothing if it is gone."""

    def read_file(self, name: str, path: str) -> bytes | None:
        """Return the content of a file in a container; None if there is none.

        Links are followed. It is empty for a folder and for a file that is too large.
        """

    def last_words(self, name: str) -> str:
        """Return the last lines of output of a container's first process."""

    def stats(self, name: str) -> Stats | None:
        """Return the resource use of a container, None if it does not run."""

    def cores(self, name: str) -> float | None:
        """Return the cores to which a container is limited; None: no limit, or no container."""

    def limit_cores(self, name: str, cores: float) -> None:
        """Limit a container to so many cores, also while it runs."""

    def close(self) -> None:
        """Close connections."""
