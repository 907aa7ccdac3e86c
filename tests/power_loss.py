"""A folder of which a loss of power leaves only what was synced."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import pytest


class PowerLoss:
    """Keeps what is durable below a folder, as the strictest of file systems would.

    The content of a file is durable once the file is synced, and its name once its folder is. What
    is in the folder at the beginning is durable. In a `with` block at whose end the power fails.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._contents: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._kept: list[int] = []
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._sync)

    def __enter__(self) -> "PowerLoss":
        for path in (self._folder, *self._folder.rglob("*")):
            descriptor = os.open(path, os.O_RDONLY)
            self._sync(descriptor)
            os.close(descriptor)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for folder, names in self._names.items():
            for path in folder.iterdir():
                if path.is_file():
                    path.unlink()
            for name, inode in names.items():
                (folder / name).write_bytes(self._contents.get(inode, b""))
        for descriptor in self._kept:
            os.close(descriptor)

    def _sync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        about = os.fstat(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}")
        if stat.S_ISDIR(about.st_mode):
            folder = path.readlink()
            inodes = {entry.name: entry.inode() for entry in os.scandir(folder) if entry.is_file()}
            self._names[folder] = inodes
        elif about.st_ino not in self._contents:
            self._kept.append(os.dup(descriptor))  # its number is given to no other file meanwhile
        if stat.S_ISREG(about.st_mode):
            with suppress(OSError):  # it has no name any more
                self._contents[about.st_ino] = path.read_bytes()
