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
    """Fork a guard for every folder that stdin names, until it ends. The guards go on."""
    guard.LIBC.prctl(guard.PR_SET_DUMPABLE, 0)  # no job may trace and so stop it either
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps guards
    for line in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            os._exit(_forked(Path(json.loads(line))))
        os.write(1, b"%d\n" % pid)
    return 0


def _forked(folder: Path) -> int:
    """In the child: guard the launch as a process with a session and a log of its own."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        answers, log = os.dup(1), _log(folder)
        for new, old in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
            os.dup2(new, old)
        code = guard.main(folder)
        with contextlib.suppress(OSError):  # the agent that would be told is gone
            os.write(answers, b"\n")
        return code
    except BaseException:  # it must not return into the loop of `serve`
        sys.excepthook(*sys.exc_info())
        return 1


def _log(folder: Path) -> int:
    try:
        return os.open(folder / "guard.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:  # a full disk
        return os.open(os.devnull, os.O_WRONLY)
