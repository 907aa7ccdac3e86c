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
from loadmaster.agent.runtimes.cgroups import Resource
from loadmaster.agent.runtimes.mounts import AllowedMount, allowed_mounts
from loadmaster.features import RUNTIMES
from loadmaster.protocol import MOST_SLOTS
from loadmaster.strict_yaml import LARGEST, DocumentError, read_fields
from loadmaster.wire import WireError, from_json, one_of

DEFAULT_STATE_DIR = "~/.local/state/loadmaster-agent"

FROM_ENVIRONMENT = (
    "server", "token", "token_file", "state_dir", "rack", "emulate", "checkpoints", "ca",
    "runtime", "docker", "address", "log_format", "gpu_type", "slots_per_gpu",
    "isolation", "users", "mounts", "processes", "cgroups",
)  # fmt: skip  # a long list of names
ENVIRONMENT = {
    "name": "LOADMASTER_NODE_NAME",
    **{setting: f"LOADMASTER_{setting.upper()}" for setting in FROM_ENVIRONMENT},
}
"""Name of the environment's variable for each setting that can be given there."""

ISOLATIONS = ("auto", "none")
"""Settings of isolation: the best that works on the machine, or none."""

USERS = "2000300000-2000399999"
"""Default users of teams: above those that systems, directories and containers give out."""

FEWEST_PROCESSES = 16
MOST_PROCESSES = 4_000_000
"""Bounds of the limit of a job's processes: a script needs some, a kernel has no more."""


LIMITED = ",".join(Resource)
NOTHING = "none"
"""Settings of the limits by cgroups: the default, and none of them."""


class ConfigError(ValueError):
    """A setting is missing or wrong; the message names it and the remedy."""


def _server(text: str) -> str:
    """Check the server's address."""
    address = urlsplit(text)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ValueError(
            f"give the server's address, such as https://loadmaster.example, not {text!r}"
        )
    return text


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _real(path: Path) -> Path:
    """Follow links: isolated jobs find their folders at the same place as the agent."""
    return path.expanduser().resolve()


def _text(value: Any) -> Any:
    """Refuse a token that YAML reads as a number, without showing it."""
    if not isinstance(value, str):
        raise ValueError("must be a text: put it in quotes")
    return value


def _number(value: Any) -> Any:
    """Turn the text of a number, from the environment, into that number."""
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value


def _docker_options(value: Any) -> Mapping[str, Any]:
    """Read options from a YAML mapping, a text `NAME=VALUE;NAME=VALUE`, or a list of NAME=VALUE."""
    if isinstance(value, Mapping):
        return value
    items = value.split(";") if isinstance(value, str) else list(value or ())
    options = {}
    for item in items:
        if not str(item).strip():
            continue
        name, equals, setting = str(item).partition("=")
        if not equals:
            raise ValueError(f"write NAME=VALUE, such as pull=never, not {name!r}")
        options[name.strip()] = setting.strip()
    return options


def _cgroups(value: Any) -> tuple[Resource, ...]:
    """Read what cgroups limit from a list, a text with commas, or `none`."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise ValueError(f"must be a list such as {LIMITED}, or {NOTHING}, not {value!r}")
    names = [str(item).strip() for item in items]
    if names == [NOTHING]:
        return ()
    for name in names:
        if name not in set(Resource):
            raise ValueError(f"name some of {LIMITED}, or {NOTHING}, not {name!r}")
    return tuple(resource for resource in Resource if resource in names)


def _users(text: str) -> str:
    """Check a range of users, FIRST-LAST."""
    if re.fullmatch(r"\d{1,10}-\d{1,10}", text):
        users = users_of(text)
        first = users.start
        last = users.stop - 1
        if 1000 <= first < last < 2**32 - 1:
            return text
    raise ValueError(f"give the first and the last user id, such as {USERS}, not {text!r}")


def users_of(text: str) -> range:
    """Return the numbers of users from FIRST to LAST; the text has been checked."""
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1)


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
    cgroups: Annotated[tuple[Resource, ...], BeforeValidator(_cgroups)] = tuple(Resource)
    mounts: Annotated[tuple[AllowedMount, ...], BeforeValidator(allowed_mounts)] = ()

    @property
    def verify(self) -> bool | str:
        """Setting of httpx for the server's certificate: a CA file, or True or False."""
        return self.ca or not self.insecure


def read_config(options: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> AgentConfig:
    """Read the settings from the command-line options, the environment and the file `config`.

    An earlier source replaces a later one. An option that is None was not given. Raises ConfigError
    for a setting that is missing or wrong.
    """
    # 1. Read the sources.
    from_options = {}
    for key, value in options.items():
        if value is not None and key != "config":
            from_options[key] = value
    from_environment = {}
    for key, name in ENVIRONMENT.items():
        if environ.get(name):
            from_environment[key] = environ[name]
    from_file = _read_file(options.get("config"))

    # 2. LOADMASTER_TOKEN is often a person's own token, so it counts only if no source names one.
    persons_token = from_environment.pop("token", "")
    token = _enrolment_token(from_options, from_environment, from_file) or persons_token

    # 3. Put them together, and check them.
    values = {**from_file, **from_environment, **from_options, "token": token}
    values.pop("token_file", None)
    values["state_dir"] = values.get("state_dir") or DEFAULT_STATE_DIR
    values = {name: value for name, value in values.items() if value is not None}
    values.setdefault("server", "")  # for which `_server` names the remedy
    try:
        return from_json(AgentConfig, values)
    except WireError as error:
        raise ConfigError(f"--{error.path.replace('_', '-')}: {error.problem}") from None


def _enrolment_token(*sources: Mapping[str, Any]) -> Any:
    """Return the token of the first source that has one, itself or in a file; "" if none has."""
    for source in sources:
        token = source.get("token")
        if token:
            return token
        token_file = source.get("token_file")
        if token_file:
            return _read_token(Path(token_file))
    return ""


def _read_file(path: Any) -> dict[str, Any]:
    """Read the settings of a YAML file; none without a file. Raises ConfigError."""
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
    """Read a token from its file. Raises ConfigError."""
    try:
        return path.expanduser().read_text().strip()
    except OSError as error:
        raise ConfigError(f"--token-file: {path} cannot be read: {error}") from error
