"""Standard output and error that lose what a full disk does not take, instead of failing.

A program whose output goes to a file on a full disk would fail at its next line, or end with exit
code 120 as Python cannot empty its buffers. Nothing but the standard library.
"""

import contextlib
import errno
import io
import sys
from typing import Any

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a disk that takes nothing more."""


class LossyFile(io.FileIO):
    """File that drops what finds no room."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return memoryview(data).nbytes


def lose_what_finds_no_room() -> None:
    """Let standard output and error of this process drop lines on a full disk."""
    output, errors = _lossy(1), _lossy(2)
    vars(sys).update(stdout=output, __stdout__=output, stderr=errors, __stderr__=errors)


def _lossy(descriptor: int) -> io.TextIOWrapper:
    raw = io.BufferedWriter(LossyFile(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, errors="backslashreplace", line_buffering=True)


def say(text: str) -> None:
    """Print a line of ours to the standard error of somebody else's program; it may be lost.

    It passes by the program's buffer: what stays there would make its end fail.
    """
    with contextlib.suppress(OSError, ValueError):
        file = LossyFile(sys.stderr.fileno(), "w", closefd=False)
        file.write(f"{text}\n".encode(errors="backslashreplace"))
        return
    with contextlib.suppress(OSError, ValueError):  # it is no file: a notebook's, or a test's
        print(text, file=sys.stderr, flush=True)
