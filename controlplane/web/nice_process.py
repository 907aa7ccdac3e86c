"""Nice process that answers long questions for all web processes of a server.

A question is a function of a module with its arguments. A process runs Python in one thread at a
time, so a long question in a web process would slow everybody's pages down. Questions come through
a socket in a folder that only this user can enter.
"""

import gc
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from functools import cache
from math import ceil
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TypeVar

from loadmaster.outputs import lose_what_finds_no_room
from policies.host.lifetime import be_nice, die_with, keep_little_memory, take_no_more_than_a_half

SOCKET = "LOADMASTER_NICE_PROCESS"
"""Environment variable with the socket's path, also for children of this process."""

SPARE_S = 60
"""Seconds that a question may take beside a policy's decision: for imports and a new solver."""

RESTART_S = 0.5
"""Seconds between the end of the process and its next start."""

ENDING_S = 5.0
"""Longest time in seconds between the end of a process' first thread and of the process."""

PAUSE_S = 0.05
"""Seconds between two tries to reach a process that is being started."""

TRIES = 200
"""Most tries to reach it."""

NICE = 10
"""Niceness of the process."""

MOST_WAITING = 64
"""Most connections that wait to be accepted."""

TAKEN = b"taken"
"""Message to the asker that the question may be sent."""

ROOT = Path(__file__).resolve().parents[2]
"""Folder in which the process starts."""

T = TypeVar("T")

log = logging.getLogger(__name__)
_starting = threading.Lock()
"""Held while the process is started."""


def ask(question: Callable[..., T], *arguments: object) -> T:
    """Return `question(*arguments)`, or raise what it raises.

    `question`: a function of a module. It has a database connection of its own. Questions wait for
    each other. Raises NoAnswerError if the process ends meanwhile.
    """
    # 1. Start the process with the first question, unless a parent has started it.
    with _starting:
        if SOCKET not in os.environ:
            start()

    # 2. Ask. The process ends if it lacks time or memory.
    answer: T
    try:
        with _connect() as connection:
            connection.send((question, arguments))
            answer, error = connection.recv()
    except (OSError, EOFError) as failure:
        log.warning("a long question has no answer: %r", failure)
        from controlplane.web.rest.errors import NoAnswerError  # Django takes memory

        text = "the answer took too much time or memory: try again, or ask for less"
        raise NoAnswerError(text) from failure
    if error is not None:
        raise error
    return answer


def start() -> None:
    """Keep a nice process running for this process and its children, until this one ends."""
    os.environ[SOCKET] = str(Path(tempfile.mkdtemp(prefix="loadmaster-")) / "questions")
    threading.Thread(target=_keep_running, name="nice process", daemon=True).start()


def _keep_running() -> None:
    """Start the nice process again whenever it ends; Linux ends it with this thread."""
    command = [sys.executable, "-m", __name__, str(os.getpid())]
    while True:
        try:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True
            )
            log.warning("the process for long questions ended: status %d", process.wait())
        except OSError as error:
            log.warning("the process for long questions does not start: %s", error)
        time.sleep(RESTART_S)


def _connect() -> Connection:
    """Return a connection once the process takes the question, which may be starting again.

    Raises OSError or EOFError after TRIES.
    """
    tries = 0
    while True:
        try:
            connection = Client(os.environ[SOCKET], "AF_UNIX")
            connection.recv_bytes()
        except (OSError, EOFError):
            tries += 1
            if tries > TRIES:
                raise
            time.sleep(PAUSE_S)
        else:
            return connection


def main() -> None:
    """Answer one question after the other, and end with the parent, whose pid is the argument."""
    # 1. Be nice, and end with the parent.
    signal.signal(signal.SIGTERM, _end)
    die_with(int(sys.argv[1]), signal.SIGTERM)
    be_nice(NICE)
    lose_what_finds_no_room()

    # 2. Answer. The alarm's signal ends the process if it takes too long.
    Path(os.environ[SOCKET]).unlink(missing_ok=True)
    with Listener(os.environ[SOCKET], "AF_UNIX", MOST_WAITING) as listener:
        while True:
            try:
                with listener.accept() as connection:
                    signal.alarm(SPARE_S)
                    connection.send_bytes(TAKEN)
                    _prepare()
                    connection.send_bytes(_answer(connection))
            except (OSError, EOFError) as error:
                log.warning("the asker of a long question has gone: %r", error)
            signal.alarm(0)
            gc.collect()


def _end(*_: object) -> None:
    """End; if the parent has ended, remove the folder. Its threads may still be ending."""
    parent = int(sys.argv[1])
    until_s = time.monotonic() + ENDING_S
    while os.getppid() == parent and time.monotonic() < until_s:
        time.sleep(0.01)
    if os.getppid() != parent:
        shutil.rmtree(Path(os.environ[SOCKET]).parent, ignore_errors=True)
    os._exit(0)


def _answer(connection: Connection) -> bytes:
    """Return the pickled (answer, error) of the question that is sent."""
    from django.conf import settings
    from django.db import close_old_connections  # imported late, as Django takes memory

    close_old_connections()
    # A decision that has begun may end after the question's time: allow for twice as much.
    signal.alarm(SPARE_S + ceil(2 * settings.WHAT_IF_TIMEOUT_S))
    try:
        question, arguments = connection.recv()
        return pickle.dumps((question(*arguments), None))
    except Exception as error:  # the asker raises it
        error.add_note(traceback.format_exc())
        return pickle.dumps((None, error))


@cache
def _prepare() -> None:
    """Set up Django before the first question."""
    import django

    take_no_more_than_a_half()
    keep_little_memory()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup(set_prefix=False)


if __name__ == "__main__":
    main()
