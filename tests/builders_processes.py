"""Other processes on the tests' database. SQLite's test database lives in memory, so that they get
a copy of it on disk.
"""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import psutil
from django.db import connection

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 60.0

PRELUDE = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
from django.conf import settings
settings.DATABASES["default"]["NAME"] = sys.argv[1]
import django
django.setup()
"""


class Worker:
    """A process that runs a script once it is told to; `sys.argv[2:]` are the arguments, `ready()`
    waits for the word.

    As a context it is gone at the end, whatever happened inside.
    """

    def __init__(self, database: str, script: str, *arguments: object) -> None:
        ready = "def ready():\n    print('ready', flush=True)\n    sys.stdin.readline()\n"
        command = [sys.executable, "-c", PRELUDE + ready + script, database, *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=dict(os.environ), stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()

    def wait_until_ready(self) -> None:
        """It has reached `ready()`."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()

    def go(self) -> None:
        """Let it go on from `ready()`."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """(exit code, what it printed after `ready()`)."""
        output, errors = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode in (0, 9), errors
        return self.process.returncode, output


@contextmanager
def shared_database(folder: Path) -> Iterator[str]:
    """The name under which other processes open the tests' database; what they write is there
    afterwards.
    """
    if connection.vendor != "sqlite":
        yield str(connection.settings_dict["NAME"])
        return
    path = folder / "db.sqlite3"
    copy = sqlite3.connect(path)
    connection.connection.backup(copy)
    # A file outside of WAL is put into it by whoever opens it, and of two at the same time SQLite
    # refuses one without waiting.
    copy.execute("PRAGMA journal_mode=WAL")
    copy.close()
    yield str(path)
    copy = sqlite3.connect(path)
    copy.backup(connection.connection)
    copy.close()


def at_once(folder: Path, script: str, *arguments: tuple[object, ...]) -> list[tuple[int, str]]:
    """Run a script in as many processes as there are sets of arguments, all from `ready()` on at
    the same time.
    """
    with shared_database(folder) as name, ExitStack() as started:
        workers = [started.enter_context(Worker(name, script, *given)) for given in arguments]
        for worker in workers:
            worker.wait_until_ready()
        for worker in workers:
            worker.go()
        return [worker.end() for worker in workers]


def is_running(process: psutil.Process) -> bool:
    """Return True unless the process has ended, be it as a zombie or while it is looked at."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
