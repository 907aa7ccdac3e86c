"""Server and token of the command line: options, environment, then the login file."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Account:
    """A server and a token there."""

    url: str
    token: str


def config_file() -> Path:
    """Where the account is kept: $XDG_CONFIG_HOME/loadmaster/account.json."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "loadmaster" / "account.json"


def read_account() -> Account | None:
    """The account logged in to, if there is one."""
    try:
        data = json.loads(config_file().read_text())
        return Account(str(data["url"]), str(data["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_account(account: Account) -> Path:
    """Keep the account, readable by its owner only from the first byte on."""
    path = config_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": account.url, "token": account.token}, file)
    temporary.replace(path)
    return path


def forget_account() -> None:
    """Remove the file."""
    with suppress(FileNotFoundError):
        config_file().unlink()
