"""The agent's settings: command line, then environment, then a YAML file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from loadmaster.agent.logs import FORMATS
from loadmaster.protocol import MOST_SLOTS, RUNTIMES

DEFAULT_STATE_DIR = "~/.local/state/loadmaster-agent"
ENVIRONMENT = {
    "server": "LOADMASTER_SERVER",
    "token": "LOADMASTER_TOKEN",
    "token_file": "LOADMASTER_TOKEN_FILE",
    "state_dir": "LOADMASTER_STATE_DIR",
    "name": "LOADMASTER_NODE_NAME",
    "rack": "LOADMASTER_RACK",
    "emulate": "LOADMASTER_EMULATE",
    "checkpoints": "LOADMASTER_CHECKPOINTS",
    "ca": "LOADMASTER_CA",
    "runtime": "LOADMASTER_RUNTIME",
    "docker": "LOADMASTER_DOCKER",
    "address": "LOADMASTER_ADDRESS",
    "log_format": "LOADMASTER_LOG_FORMAT",
    "slots_per_gpu": "LOADMASTER_SLOTS_PER_GPU",
}


class ConfigError(ValueError):
    """A setting is missing or wrong; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Settings of an agent at its start.

    `token` is the enrolment token, needed once: the node's own token is then kept in `state_dir`.
    `emulate` names the YAML file of emulated devices, `ca` a file of certificate authorities;
    `insecure` accepts any certificate. `checkpoints` is where this node sees the folder that all
    nodes share: without it a job that moves to another node begins anew there. `docker` holds the
    options of the docker runtime by name (see `runtimes.docker.options`), `log_format` is one of
    `logs.FORMATS`. `address` is where other nodes reach this one; empty: its own on the way to the
    server. `slots_per_gpu` is how many jobs may share each GPU until an operator says so on the
    server, `mps` whether those that do go through NVIDIA's MPS where the machine has it.
    """

    server: str
    state_dir: Path
    token: str = ""
    name: str = ""
    rack: str = ""
    emulate: Path | None = None
    checkpoints: Path | None = None
    runtime: str = "process"
    docker: Mapping[str, Any] = field(default_factory=dict)
    insecure: bool = False
    ca: str = ""
    stop_jobs_on_exit: bool = False
    log_format: str = FORMATS[0]
    address: str = ""
    slots_per_gpu: int = 1
    mps: bool = True

    @property
    def verify(self) -> bool | str:
        """Verification of the server's certificate: a CA file, none, or the default."""
        return self.ca or not self.insecure


def read_config(options: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> AgentConfig:
    """The settings from command-line options (None: not given), the environment and the file that
    the option `config` names.

    Raises:
        ConfigError: a setting is missing, unknown or wrong.
    """
    given = {key: value for key, value in options.items() if value is not None and key != "config"}
    named = {key: environ[name] for key, name in ENVIRONMENT.items() if environ.get(name)}
    values = {**_read_file(options.get("config")), **named, **given}
    token_file = values.pop("token_file", None)
    if token_file and not values.get("token"):
        values["token"] = _read_token(Path(token_file))
    return _checked(values)


def _read_file(path: Any) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        data = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--config: {path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"--config: {path} must map settings to values")
    return {str(key).replace("-", "_"): value for key, value in data.items()}


def _read_token(path: Path) -> str:
    try:
        return path.expanduser().read_text().strip()
    except OSError as error:
        raise ConfigError(f"--token-file: {path} cannot be read: {error}") from error


def _checked(values: dict[str, Any]) -> AgentConfig:
    known = {item.name for item in fields(AgentConfig)}
    if unknown := set(values) - known:
        raise ConfigError(
            f"unknown settings: {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}"
        )
    server = str(values.get("server") or "")
    address = urlsplit(server)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigError(
            f"--server: give the server's address, https://loadmaster.example say, not {server!r}"
        )
    if values.get("runtime", RUNTIMES[0]) not in RUNTIMES:
        raise ConfigError(
            f"--runtime: must be one of {', '.join(RUNTIMES)}, not {values['runtime']!r}"
        )
    if values.get("log_format", FORMATS[0]) not in FORMATS:
        raise ConfigError(
            f"--log-format: must be one of {', '.join(FORMATS)}, not {values['log_format']!r}"
        )
    emulate = values.get("emulate")
    shared = values.get("checkpoints")
    paths = {
        "state_dir": Path(values.get("state_dir") or DEFAULT_STATE_DIR).expanduser().absolute(),
        "emulate": Path(emulate) if emulate else None,
        "checkpoints": Path(shared).expanduser().absolute() if shared else None,
    }
    others = {
        "docker": _docker_options(values.get("docker")),
        "slots_per_gpu": _slots(values.get("slots_per_gpu", 1)),
    }
    return AgentConfig(**{**values, **paths, "server": server, **others})


def _slots(given: Any) -> int:
    if isinstance(given, bool) or not str(given).isdecimal() or not 1 <= int(given) <= MOST_SLOTS:
        raise ConfigError(
            f"--slots-per-gpu: must be a whole number from 1 to {MOST_SLOTS}, not {given!r}"
        )
    return int(given)


def _docker_options(given: Any) -> Mapping[str, Any]:
    """The options from a YAML mapping, from `NAME=VALUE;NAME=VALUE`, or from a list of such."""
    if isinstance(given, Mapping):
        return given
    words = given.split(";") if isinstance(given, str) else list(given or ())
    pairs = [str(word).partition("=") for word in words if str(word).strip()]
    for name, equals, _ in pairs:
        if not equals:
            raise ConfigError(f"--docker: write NAME=VALUE, pull=never say, not {name!r}")
    return {name.strip(): value.strip() for name, _, value in pairs}
