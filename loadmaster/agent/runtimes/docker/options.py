"""Docker runtime options of an operator. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field

from loadmaster.agent.runtimes.mounts import AllowedMount, allowed_mounts
from loadmaster.wire import WireError, from_json, one_of

JOB_USER = 1000
FORBIDDEN_NETWORKS = ("host", "container:")
OWN_NETWORK = "loadmaster"
"""Network of jobs by default, in which none reaches another; the Engine makes it when needed."""

NO_METADATA = "loadmaster-no-metadata"
"""Second network of such a job, without anybody: it has the addresses of a cloud's metadata."""

NAMELESS_NETWORKS = (OWN_NETWORK, "bridge", "default", "none")
_USER = re.compile(r"(\d{1,9})(?::(\d{1,9}))?")


class OptionError(ValueError):
    """A bad option of the docker runtime; the message names it and the remedy."""


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


NUMBER = BeforeValidator(_number)


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """Options of the docker runtime, all with safe defaults; docs/agent.md explains each."""

    __pydantic_config__: ClassVar = ConfigDict(
        extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False
    )

    host: str = ""
    user: str = ""
    pull: Annotated[str, one_of("missing", "always", "never")] = "missing"
    mounts: Annotated[tuple[AllowedMount, ...], BeforeValidator(allowed_mounts)] = ()
    network: str = OWN_NETWORK
    pids: Annotated[int, Field(ge=1), NUMBER] = 4096
    shm_gb: Annotated[float, Field(gt=0, le=1e6), NUMBER] = 1.0
    read_only: bool = False
    limit_cores: bool = True

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> DockerOptions:
        """Read settings by name, from YAML or as text; OptionError names the first wrong one."""
        values = {str(name).replace("-", "_"): value for name, value in given.items()}
        try:
            return _checked(from_json(cls, values))
        except WireError as error:
            raise OptionError(f"docker.{error}") from None

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
        text = 'must be a number such as 1000, or 1000:1000, or "image"'
        raise OptionError(f"docker.user: {text}, not {options.user!r}")
    if os.getuid() and options.identity() != (os.getuid(), os.getgid()):
        text = "only an agent that runs as root can run jobs as another user; leave it out"
        raise OptionError(f"docker.user: {text}")

    if not options.network or options.network.startswith(FORBIDDEN_NETWORKS):
        raise OptionError(
            f"docker.network: name a network of the Engine, bridge or none, not {options.network!r}"
        )
    return options
