"""Small files that are written whole or not at all."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

LARGEST_OBJECT = 1024 * 1024


def write_whole(path: Path, content: bytes, *, durable: bool = False, mode: int = 0o600) -> None:
    """Replace a file in one step, private by default; a failure leaves the older content.

    `durable` waits until content and name are on the disk.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(temporary, flags, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # whatever the umask
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(
    path: Path, data: dict[str, Any], *, durable: bool = False, mode: int = 0o600
) -> None:
    """Write a JSON object by `write_whole`."""
    write_whole(path, json.dumps(data).encode(), durable=durable, mode=mode)


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """Descriptor of an ordinary file in a folder that others may write to, never of a link or pipe.

    Raises FileNotFoundError also for what is there but is no ordinary file.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise FileNotFoundError(error.errno, "is no ordinary file", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "is no ordinary file", str(path))
    return descriptor


def open_real(path: Path) -> int:
    """Descriptor of an ordinary file to read, as `open_plain`, if no folder before it is a link."""
    at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.parts[1:-1]:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(part, flags, dir_fd=at)
            os.close(at)
            at = below
        return open_plain(Path(f"/proc/self/fd/{at}", path.name))
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, "is behind a link", str(path)) from error
    finally:
        os.close(at)


def parse_object(text: bytes) -> dict[str, Any] | None:
    """The JSON object in a text, or None if it is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a small file, or None if there is none that can be read."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            return parse_object(file.read(LARGEST_OBJECT))
    except OSError:
        return None


def free_gb(folder: Path) -> float:
    """Room for this user's files on the folder's disk, in GB."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize / 1e9


def private_folder(path: Path) -> Path:
    """Create a folder that nobody else may look into, and return it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def close_to_others(folder: Path) -> None:
    """Take others' rights to a folder and to the files directly in it, where this user may.

    A folder with the sticky bit, such as /tmp, is everybody's and stays so.
    """
    shared = folder.stat().st_mode & stat.S_ISVTX
    for path in () if shared else open_to_others(folder):
        with suppress(OSError):  # another's file, or a read-only file system
            path.chmod(path.stat().st_mode & 0o700)


def open_to_others(folder: Path) -> Iterator[Path]:
    """The folder and the files directly in it, as far as others have rights to them."""
    for path in (folder, *folder.iterdir()):
        with suppress(OSError):  # gone meanwhile
            status = path.lstat()
            plain = stat.S_ISREG(status.st_mode) or path == folder
            if plain and status.st_mode & 0o077:
                yield path
