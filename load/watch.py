"""What the programs of a run use: memory and processor time by part, read from the process tree."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import defaultdict
from types import TracebackType

import psutil

PARTS = {
    "web": "controlplane.serve", "worker": "celery -A controlplane worker", "beat": "celery -A controlplane beat",
    "valkey": "valkey", "solver": "policies serve", "agents": "loadmaster.agent", "postgres": "postgres",
}  # fmt: skip
"""Part -> what its processes have in their command lines."""

EVERY_S = 0.5


class Watch:
    """Reads all parts now and then while it is open. `figures` afterwards: {part: {"rss_mb": most, "cpu": mean processors}}."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, float]] = {}
        self._rss: dict[str, float] = defaultdict(float)
        self._cpu_s: dict[tuple[str, int], tuple[float, float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        took_s = max(time.monotonic() - self._began_s, 1e-9)
        used: dict[str, float] = defaultdict(float)
        for (part, _), (first_s, last_s) in self._cpu_s.items():
            used[part] += last_s - first_s
        self.figures = {p: {"rss_mb": round(self._rss[p]), "cpu": round(used[p] / took_s, 2)} for p in sorted(self._rss)}

    def _look(self) -> None:
        while not self._over.wait(EVERY_S):
            now: dict[str, float] = defaultdict(float)
            for process in _family():
                self._note(process, now)
            for part, rss_mb in now.items():
                self._rss[part] = max(self._rss[part], rss_mb)

    def _note(self, process: psutil.Process, now: dict[str, float]) -> None:
        try:
            line = " ".join(process.cmdline())
            part = next(
                (name for name, sign in PARTS.items() if sign in line), "generator" if process.pid == psutil.Process().pid else ""
            )
            if not part:
                return
            now[part] += process.memory_info().rss / 1e6
            times = process.cpu_times()
        except psutil.Error:
            return  # it has ended meanwhile
        used_s = times.user + times.system
        first_s, _ = self._cpu_s.get((part, process.pid), (used_s, used_s))
        self._cpu_s[part, process.pid] = (first_s, used_s)


def _family() -> list[psutil.Process]:
    """This process, its descendants, and those of the database server that was started for it alone."""
    own = psutil.Process()
    folder = re.search(r"host=(/[^&]+)", os.environ.get("DATABASE_URL", ""))
    servers = [p for p in psutil.process_iter() if folder and _name(p) == "postgres" and _is_of(p, folder[1])]
    return [own, *own.children(recursive=True), *servers, *(c for p in servers for c in p.children())]


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
    """The web server's processes below this one."""
    return [p for p in psutil.Process().children(recursive=True) if PARTS["web"] in " ".join(p.cmdline())]
