"""Host folders that a job may have: links are followed, folders of the agent are refused.

A job may put a link into a folder that it writes to, so paths are checked again right before use
(`moved`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOME = "/loadmaster"
"""Folder of a container in which the agent mounts its own files."""

ENGINE_SOCKETS = ("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock")
"""Sockets by which a job could command the Engine."""


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
    """Read folders from a list, or a text with commas; ValueError names the first wrong one."""
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

    A job gets only its own folder in `shared`, and none in `private`, even if a folder is allowed.
    """

    allowed: tuple[AllowedMount, ...] = ()
    private: tuple[Path, ...] = ()
    shared: Path | None = None

    def is_private(self, real: Path) -> bool:
        """Return True if a folder is private, or holds or is in one that is.

        `real`: its path, links followed.
        """
        closed = [path.resolve() for path in self.private]
        if self.shared:
            closed.append(self.shared.resolve())
        return any(real.is_relative_to(path) or path.is_relative_to(real) for path in closed)


def private_folders(state: Path, engine: str = "") -> tuple[Path, ...]:
    """Return the agent's folder and the Engine's sockets.

    `engine`: address of the Engine; "" for the one of the environment.
    """
    folders = [state]
    for socket in ENGINE_SOCKETS:
        folders.append(Path(socket))
    address = engine or os.environ.get("DOCKER_HOST", "")
    scheme, _, path = address.partition("://")
    if scheme in ("unix", "http+unix") and path:
        folders.append(Path(f"/{path.lstrip('/')}"))
    return tuple(folders)


def job_mounts(requests: Iterable[str], rules: MountRules) -> tuple[Mount, ...]:
    """Return the mounts that a job requests (`source:target[:ro]`), links in sources followed.

    Raises ValueError for one that is not allowed; the text names the field and the remedy.
    """
    mounts = []
    for index, request in enumerate(requests):
        mounts.append(_job_mount(f"mounts[{index}]", request, rules))
    return tuple(mounts)


def _job_mount(field: str, request: str, rules: MountRules) -> Mount:
    """Return a mount that a job requests in this field. Raises ValueError."""
    # 1. Its form.
    source, _, rest = request.partition(":")
    target, _, mode = rest.partition(":")
    if not source.startswith("/") or not target.startswith("/") or mode not in ("", "ro", "rw"):
        raise ValueError(f"{field}: {request!r} must be /source:/target or /source:/target:ro")

    # 2. Its place in the container.
    is_below_home = f"{target.rstrip('/')}/".startswith(f"{HOME}/")
    if target == "/" or is_below_home or ".." in Path(target).parts:
        remedy = f"choose one other than / and outside {HOME}"
        raise ValueError(f"{field}: the target {target} is reserved; {remedy}")

    # 3. The folder of the host.
    real = Path(source).resolve()
    writable = mode != "ro"
    allowed = [item for item in rules.allowed if real.is_relative_to(item.path)]
    if not allowed:
        text = f"this node does not let jobs mount {source}"
        raise ValueError(f"{field}: {text}; ask its operator to allow it, or leave it out")
    if rules.is_private(real):
        text = f"{source} contains, or is in, a folder of the agent or the Docker Engine"
        raise ValueError(f"{field}: {text}; mount another folder")
    if writable and not any(item.writable for item in allowed):
        text = f"this node lets jobs mount {source} read-only"
        raise ValueError(f"{field}: {text}; write {source}:{target}:ro")
    if not real.exists():
        raise ValueError(f"{field}: {source} does not exist on this node")
    return Mount(str(real), target, writable)


def checkpoint_problem(folder: str, job: str, own: Path, rules: MountRules) -> str:
    """Return why a job may not have its checkpoints in a folder; "" if it may.

    It always may in its own folder below `rules.shared`, and in `own`, the launch's.
    """
    real = Path(folder).resolve()
    if real == own.resolve() or (rules.shared and real == rules.shared.resolve() / job):
        return ""
    writable = [item.path for item in rules.allowed if item.writable]
    is_below = any(real.is_relative_to(path) and real != path for path in writable)
    if is_below and not rules.is_private(real):
        return ""
    return (
        f"checkpoint_place: this node does not let jobs write to {folder}; leave it out to use a"
        " folder of the job, or ask the node's operator to allow it"
    )


def moved(paths: Iterable[str]) -> str:
    """Return the first of these paths that now leads elsewhere by a link; "" if none does."""
    for path in paths:
        if Path(path).resolve() != Path(path):
            return path
    return ""


def make_folder(path: Path) -> bool:
    """Make a folder and those above it; return True if it is new.

    No link is followed: raises OSError if there is one on the way.
    """
    is_new = False
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in path.parts[1:]:
            try:
                os.mkdir(name, dir_fd=folder)
                is_new = True
            except FileExistsError:
                is_new = False
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(name, flags, dir_fd=folder)
            os.close(folder)
            folder = below
    finally:
        os.close(folder)
    return is_new
