"""Removal of what runs leave, by a thread of its own: jobs decide how much and how deep it is."""

import heapq
import itertools
import logging
import os
import secrets
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

AGAIN_S = 60.0
LONGEST_S = 3600.0
"""A folder that cannot be removed is tried again after a minute, then after twice as long."""

logger = logging.getLogger(__name__)


class Remover:
    """Removes folders one after the other in a thread, which begins with the first of them."""

    def __init__(self) -> None:
        self._folders: list[tuple[float, float, Path]] = []
        self._lock, self._woken = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, folder: Path) -> None:
        """Remove a folder soon, and without waiting for it."""
        with self._lock:
            heapq.heappush(self._folders, (0.0, AGAIN_S, folder))
            if self._thread is None:
                thread = threading.Thread(target=self._go_on, name="removal", daemon=True)
                with suppress(RuntimeError):  # no thread to be had: the next call tries again
                    thread.start()
                    self._thread = thread
        self._woken.set()

    def _go_on(self) -> None:
        while True:
            self._woken.clear()
            self._woken.wait(self.work(time.monotonic()))

    def work(self, now_s: float) -> float | None:
        """Remove what is due; the seconds until more is, or None if nothing is left."""
        while True:
            with self._lock:
                if not self._folders or self._folders[0][0] > now_s:
                    return self._folders[0][0] - now_s if self._folders else None
                _, wait_s, folder = heapq.heappop(self._folders)
            try:
                remove_tree(folder)
            except OSError as error:
                if wait_s == AGAIN_S:
                    logger.warning("%s stays: it cannot be removed: %s", folder, error)
                later = (now_s + wait_s, min(2 * wait_s, LONGEST_S), folder)
                with self._lock:
                    heapq.heappush(self._folders, later)


def remove_tree(folder: Path) -> None:
    """Remove a folder, if it is there, with all that is in it.

    No link is followed, no other file system entered, and a folder closed to its owner is opened.
    What is in the way does not keep the rest. Raises OSError if something stays.
    """
    try:
        top = _opened(str(folder))
    except FileNotFoundError:
        return
    try:
        _Tree(top).empty()
    finally:
        os.close(top)
    folder.rmdir()


class _Tree:
    """Content of the folder `top`; folders in its folders move up, so that none is ever deep."""

    def __init__(self, top: int) -> None:
        self._top, self._device = top, os.fstat(top).st_dev
        prefix = secrets.token_hex(8)
        self._names = (f"{prefix}-{number}" for number in itertools.count())
        self._done = 0
        self._error: OSError | None = None

    def empty(self) -> None:
        """Remove everything, by passes over what is there; OSError after one that gains nothing."""
        before = -1
        while self._done > before:
            before, self._error = self._done, None
            self._clear(self._top)
        if self._error:
            raise self._error

    def _clear(self, folder: int) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=folder)
                    elif folder == self._top:
                        self._remove(entry.name)
                    else:
                        self._move_up(entry.name, folder)
                    self._done += 1
                except OSError as error:
                    self._error = self._error or error  # the first is what keeps its folders

    def _remove(self, name: str) -> None:
        inner = _opened(name, self._top, self._device)
        try:
            self._clear(inner)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=self._top)

    def _move_up(self, name: str, folder: int) -> None:
        os.close(_opened(name, folder, self._device))  # one that is closed cannot be moved
        os.rename(name, next(self._names), src_dir_fd=folder, dst_dir_fd=self._top)


def _opened(name: str, within: int | None = None, device: int | None = None) -> int:
    """Descriptor of a folder that is not a link, opened to its owner, on this device."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    found = os.open(name, flags, dir_fd=within)
    try:
        path, status = Path(f"/proc/self/fd/{found}"), os.fstat(found)
        if device not in (None, status.st_dev):
            raise OSError(f"{name} is on another file system")
        if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            with suppress(PermissionError):  # another's: it may be empty
                path.chmod(stat.S_IRWXU)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(found)
