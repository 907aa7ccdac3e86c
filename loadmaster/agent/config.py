"""The agent's settings: command line, then environment, then a YAML file."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from loadmaster.agent.logs import FORMATS
from loadmaster.agent.runtimes.mounts import AllowedMount, allowed_mounts
from loadmaster.features import RUNTIMES
from loadmaster.protocol import MOST_SLOTS
from loadmaster.strict_yaml import LARGEST, DocumentError, read_fields
from loadmaster.wire import WireError, from_json, one_of

DEFAULT_STATE_DIR = "~/.local/state/loadmaster-agent"
FROM_ENVIRONMENT = (
    "server", "token", "token_file", "state_dir", "rack", "emulate", "checkpoints", "ca",
    "runtime", "docker", "address", "log_format", "gpu_type", "slots_per_gpu",
    "isolation", "users", "mounts", "processes",
)  # fmt: skip
ENVIRONMENT = {
    "name": "LOADMASTER_NODE_NAME",
    **{setting: f"LOADMASTER_{setting.upper()}" for setting in FROM_ENVIRONMENT},
}
"""Variables of the environment, by the setting they give."""


ISOLATIONS = ("auto", "none")
"""Settings of isolation: as good as the machine can, or by decision of its operator none."""

USERS = "2000300000-2000399999"
"""Users of teams by default: above those that systems, directories and containers give out."""


FEWEST_PROCESSES = 16
MOST_PROCESSES = 4_000_000
"""Bounds of the limit of a job's processes: a script needs some, the kernel knows no more."""


class ConfigError(ValueError):
    """A setting is missing or wrong; the message names it and the remedy."""


def _server(text: str) -> str:
    address = urlsplit(text)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ValueError(f"give the server's address, https://loadmaster.example say, not {text!r}")
    return text


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _real(path: Path) -> Path:
    """Follow links: isolated jobs find their folders at the same place as the agent."""
    return path.expanduser().resolve()


def _text(given: Any) -> Any:
    """Refuse a token that YAML reads as a number, without showing it."""
    if not isinstance(given, str):
        raise ValueError("must be a text: put it in quotes")
    return given


def _number(given: Any) -> Any:
    return int(given) if isinstance(given, str) and given.isdecimal() else given


def _docker_options(given: Any) -> Mapping[str, Any]:
    """The options from a YAML mapping, from `NAME=VALUE;NAME=VALUE`, or from a list of such."""
    if isinstance(given, Mapping):
        return given
    words = given.split(";") if isinstance(given, str) else list(given or ())
    pairs = [str(word).partition("=") for word in words if str(word).strip()]
    for name, equals, _ in pairs:
        if not equals:
            raise ValueError(f"write NAME=VALUE, pull=never say, not {name!r}")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _users(text: str) -> str:
    """Check a range of users, FIRST-LAST."""
    found = re.fullmatch(r"(\d{1,10})-(\d{1,10})", text)
    first, last = map(int, found.groups()) if found else (0, 0)
    if not 1000 <= first < last < 2**32 - 1:
        raise ValueError(f"give the first and the last number of users, {USERS} say, not {text!r}")
    return text


def users_of(text: str) -> range:
    """The users of a range that has been checked."""
    first, last = map(int, text.split("-"))
    return range(first, last + 1)


EMPTY_IS_NONE = BeforeValidator(lambda value: value or None)


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Settings of an agent at its start; `loadmaster agent --help` explains each."""

    server: Annotated[str, AfterValidator(_server)]
    state_dir: Annotated[Path, AfterValidator(_real)]
    token: Annotated[str, BeforeValidator(_text)] = ""
    name: str = ""
    rack: str = ""
    emulate: Annotated[Path | None, EMPTY_IS_NONE] = None
    checkpoints: Annotated[Annotated[Path, AfterValidator(_absolute)] | None, EMPTY_IS_NONE] = None
    runtime: Annotated[str, one_of(*RUNTIMES)] = RUNTIMES[0]
    docker: Annotated[Mapping[str, Any], BeforeValidator(_docker_options)] = field(
        default_factory=dict
    )
    insecure: bool = False
    ca: str = ""
    stop_jobs_on_exit: bool = False
    log_format: Annotated[str, one_of(*FORMATS)] = FORMATS[0]
    address: str = ""
    gpu_type: str = ""
    slots_per_gpu: Annotated[int, Field(ge=1, le=MOST_SLOTS), BeforeValidator(_number)] = 1
    mps: bool = True
    isolation: Annotated[str, one_of(*ISOLATIONS)] = ISOLATIONS[0]
    users: Annotated[str, AfterValidator(_users)] = USERS
    processes: Annotated[
        int, Field(ge=FEWEST_PROCESSES, le=MOST_PROCESSES), BeforeValidator(_number)
    ] = 16384
    mounts: Annotated[tuple[AllowedMount, ...], BeforeValidator(allowed_mounts)] = ()

    @property
    def verify(self) -> bool | str:
        """Verification of the server's certificate: a CA file, none, or the default."""
        return self.ca or not self.insecure


def read_config(options: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> AgentConfig:
    """The settings: command-line options, then the environment, then the file `config`.

    A None among the options is one not given. LOADMASTER_TOKEN, which is often a person's token,
    counts only if no other setting names a token. Raises ConfigError for a missing or wrong one.
    """
    given = {key: value for key, value in options.items() if value is not None and key != "config"}
    named = {key: environ[name] for key, name in ENVIRONMENT.items() if environ.get(name)}
    persons_token = named.pop("token", "")
    from_file = _read_file(options.get("config"))
    values = {**from_file, **named, **given}
    values["token"] = _enrolment_token(given, named, from_file) or persons_token
    values.pop("token_file", None)
    values["state_dir"] = values.get("state_dir") or DEFAULT_STATE_DIR
    values = {name: value for name, value in values.items() if value is not None}
    values.setdefault("server", "")  # its own check words the remedy
    try:
        return from_json(AgentConfig, values)
    except WireError as error:
        raise ConfigError(f"--{error.path.replace('_', '-')}: {error.problem}") from None


def _enrolment_token(*sources: Mapping[str, Any]) -> Any:
    """The token of the first source that has one, itself or in a file; empty if none has."""
    for source in sources:
        if token := source.get("token"):
            return token
        if token_file := source.get("token_file"):
            return _read_token(Path(token_file))
    return ""


def _read_file(path: Any) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        fields = read_fields(Path(path), LARGEST, example="rack: r1", may_be_empty=True)
    except DocumentError as error:
        raise ConfigError(f"--config: {error}") from None
    settings = {name.replace("-", "_"): value for name, value in fields.items()}
    if len(settings) < len(fields):
        raise ConfigError(f"--config: {path}: a setting is given with - and with _; remove one")
    return settings


def _read_token(path: Path) -> str:
    try:
        return path.expanduser().read_text().strip()
    except OSError as error:
        raise ConfigError(f"--token-file: {path} cannot be read: {error}") from error
