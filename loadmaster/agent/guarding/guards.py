"""The process that forks guards: a fork takes a tenth of Python's start.

It reads run folders from stdin, a JSON string a line, forks a guard for each, and answers with its
pid. An empty line follows when one of them has ended. Nothing but the standard library.
"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from loadmaster.agent.guarding import guard


def serve() -> int:
    """Fork a guard for every folder that stdin names, until stdin ends. The guards go on."""
    guard.LIBC.prctl(guard.PR_SET_DUMPABLE, 0)  # no job may trace and so stop it either
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps guards
    for line in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            os._exit(_guard(Path(json.loads(line))))
        os.write(1, b"%d\n" % pid)
    return 0


def _guard(folder: Path) -> int:
    """Guard a launch in the forked process, with a session and a log of its own.

    Return the exit code of the process.
    """
    try:
        # 1. Become independent of the process that forked this one, except for its stdout.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        answers = os.dup(1)
        log = _open_log(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)

        # 2. Guard the launch, then tell the agent that it has ended.
        code = guard.main(folder)
        with contextlib.suppress(OSError):  # that agent is gone
            os.write(answers, b"\n")
        return code
    except BaseException:  # it must not return into the loop of `serve`
        sys.excepthook(*sys.exc_info())
        return 1


def _open_log(folder: Path) -> int:
    """Open the guard's log in the run's folder and return the descriptor."""
    try:
        return os.open(folder / "guard.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:  # a full disk
        return os.open(os.devnull, os.O_WRONLY)
