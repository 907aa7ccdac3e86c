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
"""User and group of jobs where neither the agent, an option nor the image names others."""

FORBIDDEN_NETWORKS = ("host", "container:")
"""Networks, or beginnings of their names, that would show a job the machine's connections."""

OWN_NETWORK = "loadmaster"
"""Default network of jobs, in which none reaches another; the Engine makes it when needed."""

NO_METADATA = "loadmaster-no-metadata"
"""Second network of such jobs, with the addresses of a cloud's metadata, and nobody in it."""

NAMELESS_NETWORKS = (OWN_NETWORK, "bridge", "default", "none")
"""Networks in which containers cannot find each other by name."""

_USER = re.compile(r"(\d{1,9})(?::(\d{1,9}))?")
"""USER or USER:GROUP, as numbers."""


class OptionError(ValueError):
    """A bad option of the docker runtime; the message names it and the remedy."""


def _check_not_bool(value: Any) -> Any:
    """Refuse true and false, which Python would take for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


NUMBER = BeforeValidator(_check_not_bool)


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
    def read(cls, settings: Mapping[str, Any]) -> DockerOptions:
        """Read settings by name, from YAML or as text; OptionError names the first wrong one."""
        values = {str(name).replace("-", "_"): value for name, value in settings.items()}
        try:
            options = from_json(cls, values)
        except WireError as error:
            raise OptionError(f"docker.{error}") from None
        options._check()
        return options

    def _check(self) -> None:
        """Check user and network. Raises OptionError."""
        if self.user not in ("", "image") and not _USER.fullmatch(self.user):
            text = 'must be a number such as 1000, or 1000:1000, or "image"'
            raise OptionError(f"docker.user: {text}, not {self.user!r}")
        if os.getuid() and self.identity() != (os.getuid(), os.getgid()):
            text = "only an agent that runs as root can run jobs as another user; leave it out"
            raise OptionError(f"docker.user: {text}")
        if not self.network or self.network.startswith(FORBIDDEN_NETWORKS):
            text = f"name a network of the Engine, bridge or none, not {self.network!r}"
            raise OptionError(f"docker.network: {text}")

    @property
    def has_names(self) -> bool:
        """True if containers resolve each other's names: in user-defined networks."""
        return self.network not in NAMELESS_NETWORKS

    def identity(self) -> tuple[int, int] | None:
        """Return numbers of user and group of every job; None if the image decides."""
        if self.user == "image":
            return None
        numbers = _USER.fullmatch(self.user)
        if numbers:
            return int(numbers[1]), int(numbers[2] or numbers[1])
        if os.getuid() == 0:
            return JOB_USER, JOB_USER
        return os.getuid(), os.getgid()
