"""Server and token of client and command line: as given, else of the last login."""

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
    write_json(path, asdict(account))
    return path


def credentials(url: str = "", token: str = "") -> Account:
    """Server and token as given, else of the last login; LoadmasterError without a server."""
    kept = read_account() or Account("", "")
    server = url or kept.url
    if not server:
        raise LoadmasterError(
            "log in first: loadmaster login https://your.server (or set LOADMASTER_URL and"
            " LOADMASTER_TOKEN)"
        )
    is_kept = kept.url.rstrip("/") == server.rstrip("/")
    return Account(server, token or (kept.token if is_kept else ""))
