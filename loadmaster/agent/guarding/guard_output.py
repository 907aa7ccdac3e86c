"""The guard's side of a job's output; the standard library alone."""

from __future__ import annotations  # containers may have Python 3.9

import ctypes
import os
import threading
from pathlib import Path
from typing import BinaryIO

PIECE = 65536
DRAIN_S = 5.0
"""Time for the last of a job's output, once all its processes are gone."""


LIBC = ctypes.CDLL(None)
PUNCH_HOLE = 3
"""FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE: free room inside a file, which reads as zeros."""

BLOCK = 4096
MARGIN = 2_000_000
"""Bytes before the tail that stay, as the agent may be reading there."""

FREED_AT_ONCE = 2_000_000


class Output:
    """A stream of the job's: a pipe that a thread empties into a file; what has no room is lost.

    Of a long one the file keeps `head` and `tail` bytes, at their places; a tail of 0: all of it.
    """

    def __init__(self, path: Path, head: int = 0, tail: int = 0) -> None:
        self._path = path
        self._freed, self._tail = head, tail
        self._file: BinaryIO | None = None
        self._lost = 0
        self._source, self.sink = os.pipe()
        self._thread = threading.Thread(target=self._empty, daemon=True)

    def begin(self) -> None:
        """Empty the pipe from now on, of which the job has the other end."""
        os.close(self.sink)
        self._thread.start()

    def end(self) -> None:
        """Wait for the last of it."""
        self._thread.join(DRAIN_S)

    def _empty(self) -> None:
        while piece := os.read(self._source, PIECE):
            if self._lost:
                note = f"\n[loadmaster: {self._lost} bytes found no room on the node's disk]\n"
                if self._write(note.encode()):
                    self._lost = 0
            if self._lost or not self._write(piece):
                self._lost += len(piece)
        os.close(self._source)
        if self._file:
            self._file.close()

    def _write(self, piece: bytes) -> bool:
        """Append a piece; what a full disk takes of one is taken back."""
        try:
            self._file = self._file or self._path.open("ab", buffering=0)
            end = os.fstat(self._file.fileno()).st_size
            if self._file.write(piece) == len(piece):
                self._freed = free_middle(self._file.fileno(), self._freed, self._tail)
                return True
            self._file.truncate(end)
        except OSError:
            pass
        return False


def open_named(path: str) -> BinaryIO:
    """Open a file of the user's from its beginning; a pipe that nobody reads is an error."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


def free_middle(descriptor: int, freed: int, tail: int) -> int:
    """Free the room of a long file between byte `freed` and its last `tail`, if it is worth while.

    Return up to where it is free now. Nothing happens on file systems that cannot.
    """
    begin, size = -(-freed // BLOCK) * BLOCK, os.fstat(descriptor).st_size
    end = (size - tail - MARGIN) // BLOCK * BLOCK
    if not tail or end - begin < FREED_AT_ONCE:
        return freed
    LIBC.fallocate(descriptor, PUNCH_HOLE, ctypes.c_long(begin), ctypes.c_long(end - begin))
    return end
