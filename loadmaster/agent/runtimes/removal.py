"""Removal of the folders of runs, in a thread: a job may have left many files, in deep folders."""

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
    """Removes folders one after the other, in a thread that starts with the first of them."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, float, Path]] = []
        """Heap of the time of the next try, the wait after its failure, and the folder."""
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, folder: Path) -> None:
        """Remove a folder soon, without waiting for that."""
        with self._lock:
            heapq.heappush(self._queue, (0.0, AGAIN_S, folder))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="removal", daemon=True)
                with suppress(RuntimeError):  # the system has no thread: the next call tries again
                    thread.start()
                    self._thread = thread
        self._woken.set()

    def _run(self) -> None:
        while True:
            self._woken.clear()
            wait_s = self.work(time.monotonic())
            self._woken.wait(wait_s)

    def work(self, now_s: float) -> float | None:
        """Remove the folders whose time has come.

        Return the seconds until the next one's, None if no folder is left.
        """
        while True:
            with self._lock:
                if not self._queue:
                    return None
                next_s, wait_s, folder = self._queue[0]
                if next_s > now_s:
                    return next_s - now_s
                heapq.heappop(self._queue)
            try:
                remove_tree(folder)
            except OSError as error:
                if wait_s == AGAIN_S:
                    logger.warning("%s stays: it cannot be removed: %s", folder, error)
                next_try = (now_s + wait_s, min(2 * wait_s, LONGEST_S), folder)
                with self._lock:
                    heapq.heappush(self._queue, next_try)


def remove_tree(folder: Path) -> None:
    """Remove a folder, if it is there, with its content.

    Links are not followed, and other file systems not entered. Folders that their owner may not
    read are made readable. An entry that cannot be removed does not keep the others; it raises
    OSError in the end.
    """
    try:
        top = _open_folder(str(folder))
    except FileNotFoundError:
        return
    try:
        _Tree(top).empty()
    finally:
        os.close(top)
    folder.rmdir()


class _Tree:
    """Content of a folder, by its descriptor `top`.

    Folders in its folders are moved up into `top`, so that the depth of the tree does not matter.
    """

    def __init__(self, top: int) -> None:
        self._top = top
        self._device = os.fstat(top).st_dev
        prefix = secrets.token_hex(8)
        self._names = (f"{prefix}-{number}" for number in itertools.count())
        """New names for folders that are moved up."""
        self._done = 0
        """Number of entries that were removed or moved up."""
        self._error: OSError | None = None
        """First failure of this pass."""

    def empty(self) -> None:
        """Remove everything, by passes over the content until one changes nothing.

        Raises OSError if something is left then.
        """
        before = -1
        while self._done > before:
            before = self._done
            self._error = None
            self._clear(self._top)
        if self._error:
            raise self._error

    def _clear(self, folder: int) -> None:
        """Remove the entries of `top`; of another folder the files, and move its folders up."""
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=folder)
                    elif folder == self._top:
                        self._remove_folder(entry.name)
                    else:
                        self._move_up(entry.name, folder)
                    self._done += 1
                except OSError as error:
                    # Later failures follow from the first: a folder stays if an entry of it does.
                    self._error = self._error or error

    def _remove_folder(self, name: str) -> None:
        """Clear and remove a folder of `top`. Raises OSError."""
        folder = _open_folder(name, self._top, self._device)
        try:
            self._clear(folder)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=self._top)

    def _move_up(self, name: str, folder: int) -> None:
        """Move a folder in `folder` to `top`. Raises OSError."""
        os.close(_open_folder(name, folder, self._device))  # one without rights cannot be moved
        os.rename(name, next(self._names), src_dir_fd=folder, dst_dir_fd=self._top)


def _open_folder(name: str, within: int | None = None, device: int | None = None) -> int:
    """Open a folder, after giving its owner all rights to it; return the descriptor.

    `within`: descriptor of the folder in which it is. Raises OSError if it is a link, or not on
    this `device`.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags, dir_fd=within)
    try:
        path = Path(f"/proc/self/fd/{handle}")
        status = os.fstat(handle)
        if device not in (None, status.st_dev):
            raise OSError(f"{name} is on another file system")
        if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            with suppress(PermissionError):  # another user's; it may be empty
                path.chmod(stat.S_IRWXU)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)
