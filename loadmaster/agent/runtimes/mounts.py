"""Host folders that a job may have: links are followed, the agent's own are refused.

A job may change a folder that it writes to, so all is checked again right before use (`moved`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOME = "/loadmaster"
"""The folder of a container that holds what the agent mounts."""

ENGINE_SOCKETS = ("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock")


@dataclass(frozen=True, slots=True)
class AllowedMount:
    """A host folder that jobs may have, with those below; `writable` or read-only."""

    path: Path
    writable: bool = False

    @classmethod
    def parse(cls, text: str) -> AllowedMount:
        """Parse `/folder`, `/folder:ro` or `/folder:rw`; ValueError names what is wrong."""
        path, _, mode = text.partition(":")
        if not path.startswith("/") or path == "/" or mode not in ("", "ro", "rw"):
            raise ValueError(f"write /folder or /folder:rw (not the root itself), not {text!r}")
        return cls(Path(path).resolve(), mode == "rw")


def allowed_mounts(value: Any) -> tuple[AllowedMount, ...]:
    """The folders of a list, or of a text with commas; ValueError names the first wrong one."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise ValueError(f"must be a list of folders such as /data or /scratch:rw, not {value!r}")
    return tuple(AllowedMount.parse(item.strip()) for item in items if item.strip())


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class MountRules:
    """Folders of a host: `allowed` to jobs, `private` to the agent, `shared` for all checkpoints.

    Of `shared` each job gets its own folder alone; of `private` nothing, whatever is allowed.
    """

    allowed: tuple[AllowedMount, ...] = ()
    private: tuple[Path, ...] = ()
    shared: Path | None = None

    def is_private(self, real: Path) -> bool:
        """Return True if a folder, its links followed, would show a job what is not for it."""
        kept = (path.resolve() for path in (*self.private, self.shared) if path)
        return any(real.is_relative_to(path) or path.is_relative_to(real) for path in kept)


def private_folders(state: Path, engine: str = "") -> tuple[Path, ...]:
    """The agent's folder and the Engine's sockets; `engine`: an unusual address."""
    given = engine or os.environ.get("DOCKER_HOST", "")
    scheme, _, path = given.partition("://")
    named = (f"/{path.lstrip('/')}",) if scheme in ("unix", "http+unix") and path else ()
    return (state, *(Path(socket) for socket in (*ENGINE_SOCKETS, *named)))


def job_mounts(wanted: Iterable[str], places: MountRules) -> tuple[Mount, ...]:
    """The mounts a job asks for (`source:target[:ro]`), with real paths for sources.

    Raises ValueError for one that is not allowed; the text names the field and the remedy.
    """
    return tuple(_job_mount(f"mounts[{index}]", text, places) for index, text in enumerate(wanted))


def _job_mount(where: str, text: str, places: MountRules) -> Mount:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source.startswith("/") or not target.startswith("/") or mode not in ("", "ro", "rw"):
        raise ValueError(f"{where}: {text!r} must be /source:/target or /source:/target:ro")
    is_ours = f"{target.rstrip('/')}/".startswith(f"{HOME}/")
    if target == "/" or is_ours or ".." in Path(target).parts:
        remedy = f"choose another one than / and what is below {HOME}"
        raise ValueError(f"{where}: the target {target} is not to be had; {remedy}")
    real = Path(source).resolve()
    writable = mode != "ro"
    within = [item for item in places.allowed if real.is_relative_to(item.path)]
    if not within:
        text = f"this node does not let jobs mount {source}"
        raise ValueError(f"{where}: {text}; ask its operator to allow it, or leave it out")
    if places.is_private(real):
        text = f"{source} holds or is in what is the agent's or the Engine's own"
        raise ValueError(f"{where}: {text}; mount another folder")
    if writable and not any(item.writable for item in within):
        text = f"this node lets jobs mount {source} read-only"
        raise ValueError(f"{where}: {text}; write {source}:{target}:ro")
    if not real.exists():
        raise ValueError(f"{where}: {source} does not exist on this node")
    return Mount(str(real), target, writable)


def checkpoint_problem(folder: str, job: str, own: Path, places: MountRules) -> str:
    """Reason why a job may not have its checkpoints in a folder, or empty.

    Its folder among those of all jobs, and the launch's `own`, it has without asking.
    """
    real = Path(folder).resolve()
    if real == own.resolve() or (places.shared and real == places.shared.resolve() / job):
        return ""
    writable = (item.path for item in places.allowed if item.writable)
    is_below = any(real.is_relative_to(path) and real != path for path in writable)
    if is_below and not places.is_private(real):
        return ""
    return (
        f"checkpoint_place: this node does not let jobs write to {folder}; leave it out to have a"
        " folder of the job's own, or ask the node's operator to allow it"
    )


def moved(paths: Iterable[str]) -> str:
    """The first of these real paths that is now a link to elsewhere, or empty."""
    return next((path for path in paths if Path(path).resolve() != Path(path)), "")


def make_folder(path: Path) -> bool:
    """Create folders; True if new. OSError if any is a link: none is followed."""
    new = False
    at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.parts[1:]:
            try:
                os.mkdir(part, dir_fd=at)
                new = True
            except FileExistsError:
                new = False
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(part, flags, dir_fd=at)
            os.close(at)
            at = below
    finally:
        os.close(at)
    return new
