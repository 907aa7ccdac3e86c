"""Messages between a process and its child: lines of bytes, until a deadline."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable, Mapping
from math import ceil
from pathlib import Path
from time import monotonic
from typing import IO, Any

CHUNK = 1 << 16
"""Bytes that are read or written at once."""

LONGEST_MESSAGE = 256 << 20
"""Most bytes of a received message; a plan with 100,000 jobs has about 20 MiB."""

ENDED_EVERY_S = 0.5
"""Seconds between two looks whether the other side has ended."""


class DeadlineError(Exception):
    """Deadline that passed before a message was sent or received; the message says which."""


def never() -> bool:
    """Return False: the other side's end shows by a closed socket alone."""
    return False


class LineChannel:
    """Channel that sends and receives lines of bytes.

    `reader` and `writer` are descriptors, which may be the same, and become non-blocking.
    `has_ended` tells whether the process at the other end has ended: children of its own may still
    hold its pipe open.
    """

    def __init__(self, reader: int, writer: int, has_ended: Callable[[], bool] = never) -> None:
        self._reader = reader
        self._writer = writer
        self._has_ended = has_ended
        self._received = bytearray()
        for descriptor in (reader, writer):
            os.set_blocking(descriptor, False)

    def send(self, message: bytes, deadline_s: float) -> None:
        """Send a message, which holds no line break, before a moment of `time.monotonic`.

        Raises DeadlineError, and OSError or EOFError if the other side has ended.
        """
        unsent = memoryview(message + b"\n")
        while unsent:
            self._await(self._writer, select.POLLOUT, deadline_s, "it did not read its request")
            sent = os.write(self._writer, unsent[:CHUNK])
            unsent = unsent[sent:]

    def receive(self, deadline_s: float) -> bytes:
        """Return the next message, without its line break.

        The part of a message that has come at the deadline is kept for the next call. Raises
        DeadlineError; EOFError if the other side has ended; ValueError if the message is longer
        than LONGEST_MESSAGE.
        """
        searched = 0
        while True:
            # 1. A whole message has come.
            end = self._received.find(b"\n", searched)
            if end >= 0:
                message = bytes(self._received[:end])
                del self._received[: end + 1]
                return message

            # 2. Wait for more of it.
            searched = len(self._received)
            if searched > LONGEST_MESSAGE:
                raise ValueError(f"its answer is longer than {LONGEST_MESSAGE >> 20} MiB")
            self._await(self._reader, select.POLLIN, deadline_s, "it did not answer")
            received = os.read(self._reader, CHUNK)
            if not received:
                raise EOFError
            self._received += received

    def _await(self, descriptor: int, event: int, deadline_s: float, problem: str) -> None:
        """Wait until the descriptor can be read or written. DeadlineError(problem) or EOFError."""
        poll = select.poll()  # unlike select(), it takes descriptors above 1023
        poll.register(descriptor, event)
        while True:
            # The end is looked for first, as what was written before it is still read.
            ended = self._has_ended()
            left_s = max(0.0, deadline_s - monotonic())
            wait_s = 0.0 if ended else min(left_s, ENDED_EVERY_S)
            if poll.poll(ceil(1000 * wait_s)):
                return
            if ended:
                raise EOFError
            if left_s <= ENDED_EVERY_S:
                raise DeadlineError(problem)


def reserve_pipes() -> tuple[IO[bytes], IO[str]]:
    """Keep the child's standard input and output for messages; return (requests, answers).

    What a policy, a library or their children print goes to standard error, and their input is
    empty.
    """
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, answers


def write_message(answers: IO[str], message: Mapping[str, Any]) -> None:
    """Send a JSON object to the parent."""
    answers.write(json.dumps(message, separators=(",", ":")) + "\n")
    answers.flush()
