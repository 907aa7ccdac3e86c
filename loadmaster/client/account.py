"""Server and token of client and command line: given ones, else those of the last login."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from loadmaster.client.rest import LoadmasterError
from loadmaster.files import write_json


@dataclass(frozen=True, slots=True)
class Account:
    """A server and a token there."""

    url: str
    token: str


def config_file() -> Path:
    """Path of the account's file: $XDG_CONFIG_HOME/loadmaster/account.json."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "loadmaster" / "account.json"


def read_account() -> Account | None:
    """Return the account of the last login; None without one."""
    try:
        data = json.loads(config_file().read_text())
        return Account(str(data["url"]), str(data["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_account(account: Account) -> Path:
    """Keep the account, readable by its owner only from the first byte on."""
    path = config_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(path, asdict(account))
    return path


def credentials(url: str = "", token: str = "") -> Account:
    """Return the given server and token, or those of the last login in place of empty ones.

    A token is used for its own server alone. Raises LoadmasterError without a server.
    """
    last_login = read_account() or Account("", "")
    server = url or last_login.url
    if not server:
        raise LoadmasterError(
            "log in first: loadmaster login https://your.server (or set LOADMASTER_URL and"
            " LOADMASTER_TOKEN)"
        )
    if not token and last_login.url.rstrip("/") == server.rstrip("/"):
        token = last_login.token
    return Account(server, token)
