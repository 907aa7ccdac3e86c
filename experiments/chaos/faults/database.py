"""PostgreSQL as a part of the system: killed by SIGKILL, and started again as it was."""

import os
import shlex
import signal
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from experiments.chaos.parts import BACK_AFTER_S, Part

NAME = "database"


class Postgres(Part):
    """A server that ran before the others did, until its first kill as no child of ours."""

    @property
    def is_alive(self) -> bool:
        """Return True if it runs; the one that was there is thought to run until it is killed."""
        if self.process is None:
            return self.back_at_s is None
        return self.process.poll() is None

    def kill(self, back_after_s: float) -> None:
        """SIGKILL its postmaster; its other processes must find out by themselves."""
        self.note_away()
        data = Path(self.argv[self.argv.index("-D") + 1])
        os.kill(int((data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        self.back_at_s = time.monotonic() + back_after_s

    def look(self) -> None:
        """Start it when it is time, again and again while others still hold its memory."""
        if self.works_since(0) or self.is_alive:
            return
        if self.back_at_s is None:
            self.back_at_s = time.monotonic() + BACK_AFTER_S
        elif time.monotonic() >= self.back_at_s:
            self.start()


def postgres(url: str, log: Path) -> Postgres | None:
    """Return the server whose socket's folder DATABASE_URL names; None if it is no such one."""
    folder = parse_qs(urlsplit(url).query).get("host", [""])[0]
    options = Path(folder) / "data" / "postmaster.opts"
    if not folder or not options.exists():
        return None
    owner, argv = options.stat(), shlex.split(options.read_text())
    if owner.st_uid != os.getuid():
        ids = (f"--reuid={owner.st_uid}", f"--regid={owner.st_gid}", "--clear-groups")
        argv = ["setpriv", *ids, *argv]
    log.touch()
    return Postgres(NAME, argv, {}, log, started_s=0.0, at_work_s=time.monotonic())
