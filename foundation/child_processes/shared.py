"""Child process that answers questions of several processes, one at a time.

A question is a function of a module with its arguments. It comes through a socket in a folder that
only this user can enter, pickled, as both sides are this program.
"""

from __future__ import annotations

import base64
import gc
import logging
import os
import pickle
import shutil
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from math import ceil, inf
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from foundation.child_processes.child import ChildProcess, python_module
from foundation.child_processes.limits import set_up_child
from foundation.child_processes.messages import LineChannel, reserve_pipes

RESTART_S = 0.5
"""Seconds between the end of the child and its next start."""

ENDING_S = 5.0
"""Longest time in seconds between the end of a process' first thread and of the process."""

PAUSE_S = 0.05
"""Seconds between two tries to reach a child that is being started."""

TRIES = 200
"""Number of those tries."""

MOST_WAITING = 64
"""Connections that may wait to be accepted."""

TAKEN = b"taken"
"""Word to the asker that the question may come."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class ChildGoneError(Exception):
    """Child that ended over a question, or cannot be reached."""


class SharedChild:
    """Child of one process, which also that process' children ask.

    `module` runs as the child and calls `answer_questions`. `variable` of the environment, which
    children inherit, has the path of the socket. `name` is used in logs.
    """

    def __init__(self, module: str, variable: str, name: str) -> None:
        self.module = module
        self.variable = variable
        self.name = name
        self._starting = threading.Lock()

    def start(self) -> None:
        """Keep the child running for this process and its children, until this process ends."""
        folder = Path(tempfile.mkdtemp(prefix="loadmaster-"))
        os.environ[self.variable] = str(folder / "questions")
        threading.Thread(target=self._keep_running, name=self.module, daemon=True).start()

    def ask(self, question: Callable[..., T], *arguments: object) -> T:
        """Return `question(*arguments)`, worked out by the child, or raise what it raises.

        Questions wait for each other. Raises ChildGoneError.
        """
        # 1. The first question starts the child, unless this process' parent has started it.
        with self._starting:
            if self.variable not in os.environ:
                self.start()

        # 2. The child's alarm is the deadline: it ends the child, and so the connection.
        answer: T
        try:
            with self._connection() as connection:
                connection.send(_line_of((question, arguments)), inf)
                answer, error = _value_of(connection.receive(inf))
        except (OSError, EOFError, ValueError) as failure:
            raise ChildGoneError(repr(failure)) from failure
        if error is not None:
            raise error
        return answer

    def answer_questions(
        self,
        *,
        nice: int,
        memory_bytes: int,
        spare_s: int,
        prepare: Callable[[], float],
    ) -> NoReturn:
        """Answer one question after the other as the child, until the parent ends.

        `prepare` is called before each question and returns its time limit in seconds; it may take
        `spare_s` itself, and so much is added to the limit.
        """
        # 1. End with the parent, after the folder is removed.
        path = Path(os.environ[self.variable])
        parent = os.getppid()
        signal.signal(signal.SIGTERM, lambda *_: _end(parent, path.parent))
        set_up_child(nice=nice, memory_bytes=memory_bytes, death_signal=signal.SIGTERM)
        reserve_pipes()

        # 2. Answer. The alarm's signal ends a process that takes too long.
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(MOST_WAITING)
            while True:
                try:
                    with _Connection(listener.accept()[0]) as asker:
                        signal.alarm(spare_s)
                        asker.send(TAKEN, inf)
                        limit_s = prepare()
                        signal.alarm(spare_s + ceil(limit_s))
                        asker.send(_answer_to(asker.receive(inf)), inf)
                except (OSError, EOFError, ValueError) as error:
                    log.warning("the asker of a question to %s has gone: %r", self.name, error)
                signal.alarm(0)
                gc.collect()

    def _keep_running(self) -> None:
        """Start the child again and again."""
        while True:
            try:
                with ChildProcess(python_module(self.module), os.environ) as child:
                    log.warning("%s ended: status %d", self.name, child.wait())
            except OSError as error:
                log.warning("%s does not start: %s", self.name, error)
            time.sleep(RESTART_S)

    def _connection(self) -> _Connection:
        """Connect and return once the child takes the question; it may be being started anew.

        Raises OSError or EOFError if it does not within TRIES.
        """
        tries = 0
        while True:
            plain = socket.socket(socket.AF_UNIX)
            try:
                plain.connect(os.environ[self.variable])
                connection = _Connection(plain)
                connection.receive(inf)
            except (OSError, EOFError):
                plain.close()
                tries += 1
                if tries > TRIES:
                    raise
                time.sleep(PAUSE_S)
            else:
                return connection


class _Connection(LineChannel):
    """Channel through a socket. Also a context manager, which closes the socket."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected.fileno(), connected.fileno())
        self.close = connected.close

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answer_to(line: bytes) -> bytes:
    """Line with (answer, error) of the question in a line."""
    try:
        question, arguments = _value_of(line)
        return _line_of((question(*arguments), None))
    except Exception as error:  # the asker raises it
        error.add_note(traceback.format_exc())
        return _line_of((None, error))


def _line_of(value: object) -> bytes:
    return base64.b64encode(pickle.dumps(value))


def _value_of(line: bytes) -> Any:
    return pickle.loads(base64.b64decode(line))  # noqa: S301  # written by this program


def _end(parent: int, folder: Path) -> NoReturn:
    """End, and remove the folder if the parent has ended, whose threads end one after another."""
    until_s = time.monotonic() + ENDING_S
    while os.getppid() == parent and time.monotonic() < until_s:
        time.sleep(0.01)
    if os.getppid() != parent:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)
