"""What an operator lets containers do on a node. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

PULL_POLICIES = ("missing", "always", "never")
JOB_USER = 1000
FORBIDDEN_NETWORKS = ("host", "container:")
NAMELESS_NETWORKS = ("bridge", "default", "none")
_USER = re.compile(r"(\d{1,9})(?::(\d{1,9}))?")


class OptionError(ValueError):
    """A bad option of the docker runtime; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class AllowedMount:
    """A host folder that jobs may mount, with those below; `writable` or read-only."""

    path: Path
    writable: bool = False

    @classmethod
    def parse(cls, text: str) -> AllowedMount:
        """Of `/folder`, `/folder:ro` or `/folder:rw`."""
        path, _, mode = text.partition(":")
        if not path.startswith("/") or path == "/" or mode not in ("", "ro", "rw"):
            raise OptionError(
                f"docker.mounts: write /folder or /folder:rw (not the root itself), not {text!r}"
            )
        return cls(Path(path).resolve(), mode == "rw")


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """The options, all with safe defaults.

    Args:
        host: the Engine's address, "unix:///run/docker.sock" say; empty: DOCKER_HOST or the usual
        socket.
        user: "" (the agent's own user, or 1000 where that is root), "UID", "UID:GID", or "image":
        the image's own user unless it
            is root.
        pull: "missing" pulls images that are not on the node, "always" asks the registry at every
        launch for names that are not yet
            resolved, "never" uses what is there.
        mounts: the host folders that jobs may mount.
        network: the Engine's network of all jobs; the host's is not to be had.
        pids: the most processes and threads of a job.
        shm_gb: the size of /dev/shm, which counts as the job's memory.
        read_only: the image's own files cannot be changed; /tmp, the work folder and the mounts
        can.
        limit_cores: a job gets no more than the cores it asked for.
    """

    host: str = ""
    user: str = ""
    pull: str = "missing"
    mounts: tuple[AllowedMount, ...] = ()
    network: str = "bridge"
    pids: int = 4096
    shm_gb: float = 1.0
    read_only: bool = False
    limit_cores: bool = True

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> DockerOptions:
        """Of settings by name, from YAML or as text; OptionError names the first that is wrong."""
        values = {str(name).replace("-", "_"): value for name, value in given.items()}
        known = {item.name for item in fields(cls)}
        if unknown := set(values) - known:
            raise OptionError(
                f"docker.{min(unknown)}: is unknown; known are {', '.join(sorted(known))}"
            )
        readers = {
            "pids": _whole,
            "shm_gb": _size,
            "read_only": _truth,
            "limit_cores": _truth,
            "mounts": _mounts,
        }
        read: dict[str, Any] = {
            name: readers.get(name, _text)(name, value) for name, value in values.items()
        }
        return _checked(cls(**read))

    @property
    def has_names(self) -> bool:
        """True if containers resolve each other's names: in user-defined networks."""
        return self.network not in NAMELESS_NETWORKS

    def identity(self) -> tuple[int, int] | None:
        """User and group of every job, or None if the image decides."""
        if self.user == "image":
            return None
        found = _USER.fullmatch(self.user)
        if not found:
            return (os.getuid(), os.getgid()) if os.getuid() else (JOB_USER, JOB_USER)
        return int(found[1]), int(found[2] or found[1])


def _checked(options: DockerOptions) -> DockerOptions:
    if options.user not in ("", "image") and not _USER.fullmatch(options.user):
        raise OptionError(
            'docker.user: must be a number such as 1000, or 1000:1000, or "image", not'
            f" {options.user!r}"
        )
    if os.getuid() and options.identity() != (os.getuid(), os.getgid()):
        raise OptionError(
            "docker.user: only an agent that runs as root can run jobs as another user; leave"
            " it out"
        )
    if options.pull not in PULL_POLICIES:
        raise OptionError(
            f"docker.pull: must be one of {', '.join(PULL_POLICIES)}, not {options.pull!r}"
        )
    if not options.network or options.network.startswith(FORBIDDEN_NETWORKS):
        raise OptionError(
            f"docker.network: name a network of the Engine, bridge or none, not {options.network!r}"
        )
    return options


def _text(name: str, value: Any) -> str:
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise OptionError(f"docker.{name}: must be text, not {value!r}")
    return str(value)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not str(value).isdigit() or int(value) < 1:
        raise OptionError(f"docker.{name}: must be a whole number of 1 or more, not {value!r}")
    return int(value)


def _size(name: str, value: Any) -> float:
    try:
        size = float(value)
    except (TypeError, ValueError):
        size = 0.0
    if isinstance(value, bool) or not 0.0 < size < 1e6:
        raise OptionError(f"docker.{name}: must be a number of GB above 0, not {value!r}")
    return size


def _truth(name: str, value: Any) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if str(value).lower() not in words:
        raise OptionError(f"docker.{name}: must be true or false, not {value!r}")
    return words[str(value).lower()]


def _mounts(name: str, value: Any) -> tuple[AllowedMount, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise OptionError(
            f"docker.{name}: must be a list of folders such as /data or /scratch:rw, not {value!r}"
        )
    return tuple(AllowedMount.parse(item.strip()) for item in items if item.strip())
