"""Ports and networks that an interrupted run must find again for its agents."""

import hashlib
import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

KEPT = "kept.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """The database's URL ("" for SQLite), ports of web and broker, number of the networks."""

    database: str
    port: int
    broker_port: int
    network: int


def keep(folder: Path, database: str) -> Kept:
    """Settings of the run in `folder`; a folder whose database is gone is moved aside."""
    path = folder / KEPT
    if path.exists():
        kept = Kept(**json.loads(path.read_text()))
        if kept.database == database:
            return kept
        folder.rename(_aside(folder))
    folder.mkdir(parents=True, exist_ok=True)
    number = int(hashlib.sha256(str(folder).encode()).hexdigest()[:8], 16) % 10_000
    kept = Kept(database, free_port(), free_port(), number)
    path.write_text(json.dumps(asdict(kept)))
    return kept


def free_port() -> int:
    """A port that nobody listens at just now, as the system gives them out."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _aside(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return aside
