"""Full disks: a small ext4 of the server, or of the nodes, has no room for a while. Needs root."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from experiments.chaos.engine import Field
from experiments.chaos.schedule import DISK, SERVER, Blow
from experiments.chaos.system import System

PIECES = (1 << 20, 1 << 16, 1 << 12, 1 << 9, 1)
MEGABYTES = 512
CLONE_NEWNS = 0x20000
"""Flag of unshare(2): a mount namespace of one's own."""
AGAIN_S = 1.0
"""Interval of filling again: programs remove files meanwhile."""


class DiskError(Exception):
    """No small file system can be mounted; the message has what the system said."""


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A mounted file system; `folder` is its root."""

    folder: Path

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    def fill(self) -> None:
        """Take all room that is left."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in PIECES:
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size) == size:
                        pass

    def make_room(self) -> None:
        """Give back what was taken."""
        self._ballast.unlink(missing_ok=True)


def keep_mounts_private() -> None:
    """Mount for this process and its children alone from here on, where the system allows it.

    The kernel then unmounts everything with the last of them, also after a kill -9.
    """
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0:
        with contextlib.suppress(DiskError):  # mounting fails as well then, and says so
            _run("mount", "--make-rprivate", "/")


@contextmanager
def mounted(image: Path, folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mount the ext4 of an image, made if it is not there yet. Raises DiskError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_mount():  # a run that was killed has left it
        _run("umount", "--lazy", str(folder))
    if not image.exists():
        with image.open("wb") as file:
            os.truncate(file.fileno(), megabytes << 20)
        # Blocks as large disks have them; with smaller ones SQLite is not safe (check W009).
        _run("mkfs.ext4", "-q", "-m", "0", "-b", "4096", str(image))
    _run("mount", "-o", "loop", str(image), str(folder))
    try:
        yield SmallDisk(folder)
    finally:
        _run("umount", "--lazy", str(folder))


@contextmanager
def small_disks(place: Path, folders: dict[str, Path]) -> Iterator[dict[str, SmallDisk]]:
    """Mount a small disk at each of the folders. Raises DiskError."""
    place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        disks = {}
        for name, folder in folders.items():
            image = place / f"{name}.ext4"
            disks[name] = stack.enter_context(mounted(image, folder, MEGABYTES))
            disks[name].make_room()
        yield disks


class Filling:
    """The field of `Run` that fills disks, and leaves other blows to another field."""

    def __init__(self, disks: dict[str, SmallDisk], system: System, others: Field) -> None:
        self._disks, self._system, self._others = disks, system, others
        self._room_at_s: dict[str, float] = {}
        self._filled_s = 0.0

    def strike(self, blow: Blow) -> str | None:
        """Fill the disk of the blow's target unless it is full already."""
        if blow.part != DISK:
            return self._others.strike(blow)
        if blow.target in self._room_at_s:
            return None
        self._disks[blow.target].fill()
        if blow.target == SERVER:
            self._system.note_full()
        self._room_at_s[blow.target] = time.monotonic() + blow.hold_s
        return f"filled the disk of the {blow.target} for {blow.hold_s:.1f} s"

    def mend(self) -> None:
        """Make room on disks whose time has come, and fill the others again."""
        self._others.mend()
        now_s = time.monotonic()
        for name in [name for name, at_s in self._room_at_s.items() if at_s <= now_s]:
            self._disks[name].make_room()
            if name == SERVER:
                self._system.note_room()
            del self._room_at_s[name]
        if now_s - self._filled_s >= AGAIN_S:
            self._filled_s = now_s
            for name in self._room_at_s:
                self._disks[name].fill()


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise DiskError(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        raise DiskError(f"{' '.join(command)}: {done.stderr.strip()}")
