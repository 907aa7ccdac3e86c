"""Checkpoints of a job in a folder: written whole, checked when read, guarded by the fence.

A checkpoint is written under a temporary name, flushed, renamed, and only then named in the
manifest, so a kill or a full disk leaves the former state whole. The manifest keeps the highest
fence that opened the folder; a launch with a lower one may not use it (`StaleFence`).
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loadmaster.files import sync
from loadmaster.outputs import say

KEPT = 2
"""Checkpoints that stay in the folder: the newest ones."""

LOCK_WAIT_S = 10.0
"""Longest wait in seconds for the folder's lock, or for a checkpoint of another node to appear."""

LOCK_RETRY_S = 0.05
MANIFEST = "manifest.json"
PREVIOUS = "manifest.previous.json"
VERSION = 1
"""Version of the manifest's form."""

_OURS = re.compile(r"^(?:\.tmp-)?step-(?P<step>\d+)-fence-(?P<fence>\d+)\.ckpt")
"""Names of files that this module writes."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EAGAIN})


class CheckpointError(Exception):
    """The folder of checkpoints cannot be used, or the user's save function did not do its part."""


class StaleFence(SystemExit):
    """A newer launch owns the checkpoint folder; this one must end (exit code 76)."""

    EXIT_CODE = 76

    def __init__(self, folder: Path, fence: int, newest: int) -> None:
        super().__init__(self.EXIT_CODE)
        self.fence = fence
        self.newest = newest
        taken = f"a launch with fence {newest} has taken over"
        self.message = f"launch with fence {fence} may not use {folder}: {taken}"

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Position:
    """Position in the job: steps done, epoch, batches of it that were used, and the last loss."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A manifest entry: file name, fence that wrote it, and its checksum."""

    file: str
    fence: int
    size: int
    sha256: str
    position: Position

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "Checkpoint":
        """Return the checkpoint of plain data, as `asdict` makes it."""
        return cls(**{**entry, "position": Position(**entry["position"])})


@dataclass(frozen=True, slots=True)
class Manifest:
    """The highest fence that opened the folder, and its checkpoints from old to new."""

    fence: int = 0
    checkpoints: tuple[Checkpoint, ...] = ()

    def to_json(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1).encode()

    @classmethod
    def from_json(cls, raw: bytes) -> "Manifest":
        """Read a manifest; ValueError, KeyError or TypeError if it is not one."""
        data = json.loads(raw)
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']!r}, this library writes {VERSION}")
        return cls(int(data["fence"]), tuple(Checkpoint.of(entry) for entry in data["checkpoints"]))


class Disk:
    """Port through which bytes become durable; tests swap it."""

    def write(self, path: Path, content: bytes) -> None:
        """Create or replace the file with the content (not yet durable)."""
        path.write_bytes(content)

    def sync(self, path: Path) -> None:
        """Flush a file or a folder to the disk."""
        sync(path)

    def rename(self, source: Path, target: Path) -> None:
        """Give the file its new name in one step, replacing what had it."""
        source.replace(target)


def is_disk_full(error: BaseException) -> bool:
    """Return True if the error or a cause of it is a full disk or a locked folder."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


class CheckpointStore:
    """The checkpoints of one job as one launch sees them; it touches no other files.

    A `fence` of None joins at the highest one; `warn` is told of faults that do not end the job.
    """

    def __init__(
        self,
        folder: Path,
        fence: int | None = None,
        *,
        disk: Disk | None = None,
        warn: Callable[[str], None] | None = None,
        lock_wait_s: float = LOCK_WAIT_S,
    ) -> None:
        self.folder = folder
        self._fence = fence
        self._disk = disk or Disk()
        self._warn = warn or _to_stderr
        self._lock_wait_s = lock_wait_s
        self._checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def saved_step(self) -> int | None:
        """Total steps of the newest checkpoint known to be whole, or None."""
        return self.newest.position.step if self.newest else None

    @property
    def newest(self) -> Checkpoint | None:
        """The newest checkpoint known to be whole."""
        return self._checkpoints[-1] if self._checkpoints else None

    def follow(self, checkpoint: Checkpoint) -> Path:
        """Wait for a checkpoint that another rank found in the folder, and return its file.

        Raises CheckpointError if a folder on the network does not show it whole in time.
        """
        until_s = time.monotonic() + self._lock_wait_s
        while not self._is_whole(checkpoint):
            if time.monotonic() > until_s:
                raise CheckpointError(
                    f"the checkpoint of step {checkpoint.position.step} ({checkpoint.file}), at"
                    f" which its gang begins, is not whole in {self.folder}: all nodes of a gang"
                    " need one folder of checkpoints"
                )
            time.sleep(LOCK_RETRY_S)
        self._checkpoints = (checkpoint,)
        return self.folder / checkpoint.file

    def resume(self, *, own: bool = True) -> tuple[Path, Position] | None:
        """Take the folder over for this fence; return the newest whole checkpoint.

        A full disk delays the take-over to the next save; without `own` the folder is only read.

        Raises:
            StaleFence: a newer launch has the folder.
            CheckpointError: the manifest and the one before it cannot be read.
        """
        manifest = self._take_over() if own else self._read()
        self._checkpoints = manifest.checkpoints
        while self._checkpoints:
            newest = self._checkpoints[-1]
            if self._is_whole(newest):
                return self.folder / newest.file, newest.position
            torn = f"the checkpoint of step {newest.position.step} ({newest.file}) is torn"
            self._warn(f"{torn}; trying the one before it")
            self._checkpoints = self._checkpoints[:-1]
        return None

    def save(self, position: Position, save: Callable[[Path], object]) -> Checkpoint:
        """Write a checkpoint with the user's function and make it the newest.

        Raises StaleFence (a newer launch has the folder), OSError (see `is_disk_full`; the former
        checkpoints stand) or CheckpointError (`save` wrote no file).
        """
        # 1. A launch that a newer one has replaced writes nothing.
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check_fence(self._read())

        # 2. Write the file under a temporary name, flush it, and make it the newest.
        name = f"step-{position.step:012d}-fence-{self._fence or 0}.ckpt"
        temporary = self.folder / f".tmp-{name}"
        try:
            save(temporary)
            _settle_suffix(temporary)
            self._disk.sync(temporary)
            size = temporary.stat().st_size
            sha256 = _sha256(temporary)
            checkpoint = Checkpoint(name, self._fence or 0, size, sha256, position)
            with self._locked():
                self._commit(checkpoint, temporary)
        except (FileNotFoundError, CheckpointError):
            self._check_fence(self._read())  # a newer launch may have swept our file away
            raise
        finally:
            for path in self.folder.glob(f"{temporary.name}*"):
                path.unlink(missing_ok=True)
        return checkpoint

    def _commit(self, checkpoint: Checkpoint, temporary: Path) -> None:
        """Give a checkpoint its name, then name it in the manifest, and remove older ones."""
        fence = self._check_fence(self._read())
        self._disk.rename(temporary, self.folder / checkpoint.file)
        self._disk.sync(self.folder)
        kept = tuple(entry for entry in self._checkpoints if entry.file != checkpoint.file)
        manifest = Manifest(fence, (*kept, checkpoint)[-KEPT:])
        self._write_manifest(manifest)
        self._checkpoints = manifest.checkpoints
        self._sweep(manifest)

    def _take_over(self) -> Manifest:
        """Write this launch's fence into the manifest, and return the manifest.

        On a full disk it stays as it is: the next save takes the folder over.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                former = self._read()
                manifest = replace(former, fence=self._check_fence(former))
                if manifest != former:
                    self._write_manifest(manifest)
                self._sweep(manifest)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._warn(f"could not take over {self.folder} yet: {error}")
            manifest = self._read()
            self._check_fence(manifest)
        return manifest

    def _check_fence(self, manifest: Manifest) -> int:
        """Return this launch's fence, by default the manifest's. Raises StaleFence."""
        fence = manifest.fence if self._fence is None else self._fence
        if fence < manifest.fence:
            raise StaleFence(self.folder, fence, manifest.fence)
        self._fence = fence
        return fence

    def _read(self) -> Manifest:
        """Return the manifest; if it is damaged the one before; in a new folder an empty one.

        Raises CheckpointError if none of them can be read.
        """
        candidates = (self.folder / MANIFEST, self.folder / PREVIOUS)
        paths = [path for path in candidates if path.exists()]
        for path in paths:
            try:
                return Manifest.from_json(path.read_bytes())
            except (ValueError, KeyError, TypeError) as error:
                self._warn(f"{path} cannot be read: {error}")
        if paths:
            remedy = f"restore {MANIFEST}, or empty the folder to begin anew"
            raise CheckpointError(f"no readable manifest in {self.folder}: {remedy}")
        return Manifest()

    def _write_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest durably; the former one stays as the previous one."""
        path = self.folder / MANIFEST
        temporary = self.folder / f".tmp-{MANIFEST}"
        try:
            self._disk.write(temporary, manifest.to_json())
            self._disk.sync(temporary)
            if path.exists():
                self._disk.rename(path, self.folder / PREVIOUS)
            self._disk.rename(temporary, path)
            self._disk.sync(self.folder)
        finally:
            temporary.unlink(missing_ok=True)

    def _is_whole(self, checkpoint: Checkpoint) -> bool:
        """Return True if the file of a checkpoint has the size and hash of its manifest."""
        path = self.folder / checkpoint.file
        try:
            return path.stat().st_size == checkpoint.size and _sha256(path) == checkpoint.sha256
        except FileNotFoundError:
            return False

    def _sweep(self, manifest: Manifest) -> None:
        """Remove checkpoints not in the manifest, but none of a newer fence."""
        named = {entry.file for entry in manifest.checkpoints}
        for path in self.folder.iterdir():
            ours = _OURS.match(path.name)
            if ours and path.name not in named and int(ours["fence"]) <= manifest.fence:
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock, waiting for a frozen holder only so long."""
        with (self.folder / ".lock").open("ab") as file:
            until_s = time.monotonic() + self._lock_wait_s
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until_s:
                        raise
                time.sleep(LOCK_RETRY_S)
            yield


def _settle_suffix(path: Path) -> None:
    """Ensure the file is at `path`: some libraries append a suffix (numpy.savez)."""
    if not path.exists():
        written = list(path.parent.glob(f"{path.name}.*"))
        if len(written) != 1:
            raise CheckpointError(f"save() wrote no file at the path it was given ({path})")
        written[0].replace(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_stderr(message: str) -> None:
    say(f"loadmaster: {message}")
