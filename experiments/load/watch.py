"""Memory and processor time of the programs of a run, from the process tree."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import psutil

PARTS = {
    "web": "controlplane.serve",
    "nice": "web.nice_process",
    "worker": "celery -A controlplane worker",
    "beat": "celery -A controlplane beat",
    "valkey": "valkey",
    "solver": "policies serve",
    "agents": "loadmaster.agent",
    "postgres": "postgres",
}
"""Part -> what its processes have in their command lines."""

EVERY_S = 5.0
"""Seconds between two looks, each of which costs some hundredths of a second."""


class Watch:
    """Reads all parts now and then while it is open.

    `figures` afterwards: {part: {"rss_mb": most seen, "cpu": mean processors, "starved": mean
    threads that waited for one}}; `stolen`: mean processors that were wanted here while the host of
    this machine gave them to others.
    """

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, float]] = {}
        self.stolen = 0.0
        self._rss: dict[str, float] = defaultdict(float)
        self._cpu_s: dict[tuple[str, int], tuple[float, float]] = {}
        self._starved_s: dict[tuple[str, int], tuple[float, float]] = {}
        self._underway = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_now_and_then, daemon=True)

    def __enter__(self) -> Watch:
        self._began_s, self._stolen_s = time.monotonic(), _stolen_s()
        self._look()
        self._underway = True
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._look()
        took_s = max(time.monotonic() - self._began_s, 1e-9)
        self.stolen = round((_stolen_s() - self._stolen_s) / took_s, 3)
        used, starved = _by_part(self._cpu_s), _by_part(self._starved_s)
        self.figures = {
            part: {
                "rss_mb": round(most),
                "cpu": round(used[part] / took_s, 2),
                "starved": round(starved[part] / took_s, 2),
            }
            for part, most in sorted(self._rss.items())
        }

    def _look_now_and_then(self) -> None:
        while not self._over.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        now: dict[str, float] = defaultdict(float)
        for process in _family():
            self._note(process, now)
        for part, rss_mb in now.items():
            self._rss[part] = max(self._rss[part], rss_mb)

    def _note(self, process: psutil.Process, now: dict[str, float]) -> None:
        try:
            part = "generator" if process.pid == os.getpid() else _part(_line(process))
            if not part:
                return
            now[part] += process.memory_info().rss / 1e6
            times, starved_s = process.cpu_times(), _starved_s(process.pid)
        except (psutil.Error, OSError):
            return  # it has ended meanwhile
        for found, now_s in (
            (self._cpu_s, times.user + times.system),
            (self._starved_s, starved_s),
        ):
            # Whoever was not there at the first look began since, and all that it has used counts.
            first_s, _ = found.get((part, process.pid), (0.0 if self._underway else now_s, now_s))
            found[part, process.pid] = (first_s, now_s)


def _part(line: str) -> str:
    return next((name for name, sign in PARTS.items() if sign in line), "")


def _by_part(found: Mapping[tuple[str, int], tuple[float, float]]) -> dict[str, float]:
    """Seconds by part, of what grew from first to last for each of its processes."""
    grown: dict[str, float] = defaultdict(float)
    for (part, _), (first_s, last_s) in found.items():
        grown[part] += max(0.0, last_s - first_s)
    return grown


def _stolen_s() -> float:
    """Processor seconds that the host gave to others; 0 where the system does not tell."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def _starved_s(pid: int) -> float:
    """Seconds that the process' threads have waited for a processor."""
    waits = [
        int(path.read_text().split()[1]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    ]
    return sum(waits) / 1e9


def _family() -> list[psutil.Process]:
    """This process, its descendants, and those of its own database server."""
    own = psutil.Process()
    folder = re.search(r"host=(/[^&]+)", os.environ.get("DATABASE_URL", ""))
    servers = [
        p
        for p in psutil.process_iter()
        if folder and _name(p) == "postgres" and _is_of(p, folder[1])
    ]
    return [
        own,
        *own.children(recursive=True),
        *servers,
        *(c for p in servers for c in p.children()),
    ]


def _line(process: psutil.Process) -> str:
    """Command line; for a child of Python's process pools, that of the program."""
    line = " ".join(process.cmdline())
    parent = process.parent() if "multiprocessing" in line else None
    return " ".join(parent.cmdline()) if parent is not None else line


def _line_of_any(process: psutil.Process) -> str:
    try:
        return _line(process)
    except psutil.Error:
        return ""


def _is_of(process: psutil.Process, folder: str) -> bool:
    try:
        return any(folder in part for part in process.cmdline())
    except psutil.Error:
        return False


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def web_processes() -> list[psutil.Process]:
    """The web server's processes below this one, the one that started the others last."""
    children, parts = (
        psutil.Process().children(recursive=True),
        (PARTS["web"], PARTS["nice"]),
    )
    found = [p for p in children if any(part in _line_of_any(p) for part in parts)]
    return sorted(found, key=lambda p: PARTS["web"] in " ".join(p.cmdline()))
