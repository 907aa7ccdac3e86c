"""Small files that are written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Replace a file in one step, private to the user; a failure (a full disk, say) leaves the older content.

    `durable` waits until content and name are on the disk.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a folder's names durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, data: dict[str, Any], *, durable: bool = False) -> None:
    """`write_whole` of a JSON object."""
    write_whole(path, json.dumps(data).encode(), durable=durable)


def private_folder(path: Path) -> Path:
    """Make a folder nobody else may look into, and return it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path
