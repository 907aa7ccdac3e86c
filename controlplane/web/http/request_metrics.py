"""Counters of HTTP requests by route and status, of all web processes of this machine.

prometheus-client's multiprocess files, in LOADMASTER_METRICS_DIR or LOADMASTER_HOME/metrics/<host>:
any process sums them up. Processes elsewhere are scraped there.
"""

import os
import socket
from functools import cache
from pathlib import Path

from django.conf import settings
from prometheus_client import CollectorRegistry, Counter, Histogram, values
from prometheus_client.multiprocess import MultiProcessCollector

FOLDER = Path(
    os.environ.get("LOADMASTER_METRICS_DIR")
    or Path(settings.LOADMASTER_HOME) / "metrics" / socket.gethostname()
)
FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
# The library decides when it is first imported, by whomever; so that the order of imports does not
# matter, it is told here.
os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(FOLDER)
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
    count, seconds = _of(method if method in METHODS else "OTHER", route, status)
    count.inc()
    seconds.observe(took_s)


@cache
def _of(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    return REQUESTS.labels(method, route, str(status)), LATENCY.labels(route)


def http_registry() -> CollectorRegistry:
    """Sum over this machine's processes, the ended ones included: counters only grow."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(FOLDER))
    return registry
