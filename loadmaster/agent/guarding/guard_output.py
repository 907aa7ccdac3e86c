"""Output of a job, which its guard writes to files; the standard library alone."""

from __future__ import annotations  # containers may have Python 3.9

import ctypes
import os
import threading
from pathlib import Path
from typing import BinaryIO

PIECE = 65536
"""Most bytes that are read from a pipe at once."""

DRAIN_S = 5.0
"""Longest wait in seconds for the last output of a job, once all its processes have ended."""

LIBC = ctypes.CDLL(None)
PUNCH_HOLE = 3
"""FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE: free room inside a file, which reads as zeros."""

BLOCK = 4096
"""Bytes of a block of the disk; room is freed in whole blocks."""

MARGIN = 2_000_000
"""Bytes before the tail that stay, as the agent may be reading there."""

FREED_AT_ONCE = 2_000_000
"""Fewest bytes for which room is freed."""


class Output:
    """One output stream of a job: a pipe, and a thread that copies from it to a file.

    Bytes for which the disk has no room are lost. Of a long stream the file keeps the first `head`
    and the last `tail` bytes, at their places; with a tail of 0 it keeps all.
    """

    def __init__(self, path: Path, head: int = 0, tail: int = 0) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._tail = tail
        self._freed_to = head
        """End of the room that has been freed in the file; before that, the end of the head."""
        self._lost = 0
        """Bytes that were lost since the last one that was written."""
        self._source, self.sink = os.pipe()
        self._thread = threading.Thread(target=self._copy, daemon=True)

    def begin(self) -> None:
        """Start to copy. The job has `sink` by now, so this process's copy of it is closed."""
        os.close(self.sink)
        self._thread.start()

    def end(self) -> None:
        """Wait until all is copied, for DRAIN_S at most."""
        self._thread.join(DRAIN_S)

    def _copy(self) -> None:
        """Copy until no process has the pipe's other end."""
        while True:
            piece = os.read(self._source, PIECE)
            if not piece:
                break
            # After a loss the reader of the file is told of it first.
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
        """Append a piece to the file; return False if the disk has no room for all of it."""
        try:
            self._file = self._file or self._path.open("ab", buffering=0)
            end = os.fstat(self._file.fileno()).st_size
            if self._file.write(piece) == len(piece):
                self._freed_to = free_middle(self._file.fileno(), self._freed_to, self._tail)
                return True
            self._file.truncate(end)  # a full disk has taken a part of it
        except OSError:
            pass
        return False


def open_named(path: str) -> BinaryIO:
    """Open a file that a job names for its output, and empty it. Raises OSError.

    A named pipe that nobody reads is an error: opening it would wait for a reader.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


def free_middle(descriptor: int, freed_to: int, tail: int) -> int:
    """Free the room of a long file from byte `freed_to` to its last `tail` bytes and MARGIN.

    Return the end of the freed room: `freed_to` as long as there is too little to free. A file
    system that cannot free room inside a file keeps it.
    """
    size = os.fstat(descriptor).st_size
    begin = -(-freed_to // BLOCK) * BLOCK  # rounded up
    end = (size - tail - MARGIN) // BLOCK * BLOCK
    if not tail or end - begin < FREED_AT_ONCE:
        return freed_to
    LIBC.fallocate(descriptor, PUNCH_HOLE, ctypes.c_long(begin), ctypes.c_long(end - begin))
    return end
