"""Counters of HTTP requests by route and status, of all web processes of this machine.

Each process writes its counters to files of prometheus-client in LOADMASTER_METRICS_DIR, or else in
LOADMASTER_HOME/metrics/<host>, and any process sums them up. Each machine is scraped by itself.
While the disk is full, requests of new routes or statuses are not counted.
"""

import logging
import mmap
import os
import socket
from functools import cache
from pathlib import Path

from django.conf import settings
from prometheus_client import CollectorRegistry, Counter, Histogram, values
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

log = logging.getLogger(__name__)

FOLDER = Path(
    os.environ.get("LOADMASTER_METRICS_DIR")
    or Path(settings.LOADMASTER_HOME) / "metrics" / socket.gethostname()
)
FIRST_BYTES = 1 << 16
"""Room that a new file reserves."""

LARGEST_FRAME = 32
"""Most bytes of an entry without its key: lengths, padding, value, time."""


class ReservedFile(MmapedDict):
    """File of counters whose room is reserved before it is written. Raises OSError without room.

    The library would map a file with holes: a write into a hole on a full disk ends a process by
    SIGBUS.
    """

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        if not read_mode:
            _reserve(Path(filename))
        super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]  # of the library

    def _init_value(self, key: str) -> None:
        while self._used + len(key.encode()) + LARGEST_FRAME > self._capacity:
            os.posix_fallocate(self._f.fileno(), 0, 2 * self._capacity)
            self._capacity *= 2
            self._m = mmap.mmap(self._f.fileno(), self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]  # of the library


def _reserve(path: Path) -> None:
    """Create a file at its full size, or fill the holes of an older one.

    A new one gets its name when it is whole, as other processes read it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = path if path.exists() else path.with_suffix(".new")
    with written.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, max(FIRST_BYTES, file.tell()))
    written.replace(path)


# The library reads these when it is first imported: set here, they hold in any order of imports.
os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(FOLDER)
values.MmapedDict = ReservedFile  # type: ignore[attr-defined]  # it offers no other way
values.ValueClass = values.MultiProcessValue()

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

REQUESTS = Counter(
    "loadmaster_http_requests",
    "HTTP requests answered",
    ["method", "route", "status"],
    registry=None,
)
LATENCY = Histogram(
    "loadmaster_http_request_seconds",
    "Seconds to an answer's head",
    ["route"],
    buckets=BUCKETS,
    registry=None,
)


def count_request(method: str, route: str, status: int, took_s: float) -> None:
    """Count an answer; unknown methods count as one."""
    try:
        counter, seconds = _metrics_of(method if method in METHODS else "OTHER", route, status)
        counter.inc()
        seconds.observe(took_s)
    except OSError as error:
        _log_once(str(error))


@cache
def _log_once(error: str) -> None:
    """Log, once for each error, that requests are not counted."""
    log.warning("some requests are not counted, as there is no room in %s: %s", FOLDER, error)


@cache
def _metrics_of(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    """Return the counter and the histogram of these requests."""
    return REQUESTS.labels(method, route, str(status)), LATENCY.labels(route)


def http_registry() -> CollectorRegistry:
    """Return the sums over this machine's processes, also ended ones: counters only grow."""
    registry = CollectorRegistry()
    if FOLDER.is_dir():
        MultiProcessCollector(registry, str(FOLDER))
    return registry
