"""`python -m controlplane.serve`: uvicorn with bounded connections and rare garbage collections."""

import argparse
import faulthandler
import gc
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn

from controlplane.web import nice_process
from foundation.child_processes.limits import die_with, keep_little_memory
from loadmaster.outputs import lose_what_finds_no_room

FULL_EVERY_S = 20.0
YOUNG = (10_000, 5)
"""Allocations between collections of the young, and how many of those between older ones.

A collection stops all threads, for as long as it frees: with 50 in place of 5 for 180 ms.
"""

NEVER = 2**31 - 1

STDERR = 2
"""Descriptor of the standard error stream."""


def collect_seldom(every_s: float = FULL_EVERY_S) -> threading.Event:
    """Collect garbage fully only every `every_s`, until the event is set.

    Objects that exist already stay for good: no collection looks at them.
    """
    over = threading.Event()
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*YOUNG, NEVER)
    threading.Thread(
        target=_collect, args=(over, every_s, before), name="garbage", daemon=True
    ).start()
    return over


def _collect(over: threading.Event, every_s: float, before: tuple[int, int, int]) -> None:
    while not over.wait(every_s):
        gc.collect()
    gc.set_threshold(*before)
    gc.unfreeze()


KEEP_ALIVE_S = 75
"""Longer than heartbeats are apart, and than proxies keep connections."""


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM; pending requests are answered within `--grace` seconds."""
    faulthandler.enable(STDERR)  # a crash in a library leaves its stacks in the log
    given = _parser().parse_args(argv)
    lose_what_finds_no_room()
    nice_process.start()
    uvicorn.run(
        "controlplane.serve:application",
        factory=True,
        http="controlplane.web.http.guard:GuardedProtocol",
        ws="none",
        host=given.host,
        port=given.port,
        workers=given.workers,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=given.grace,
        timeout_worker_healthcheck=30,
        server_header=False,
        access_log=False,
    )


def application() -> Callable[..., Any]:
    """Application of a web process; it ends with its parent, which owns the address."""
    if (parent := multiprocessing.parent_process()) is not None and parent.pid is not None:
        die_with(parent.pid)
        faulthandler.enable(STDERR)
        lose_what_finds_no_room()
    keep_little_memory()
    from django.urls import get_resolver

    from controlplane.asgi import application  # sets Django up, which only this function wants

    _ = get_resolver().url_patterns  # all views are there before the first request
    collect_seldom()
    return application


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m controlplane.serve")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at")
    parser.add_argument("--port", type=int, default=8000)
    text = "processes; deploy/entrypoint gives WEB_CONCURRENCY"
    parser.add_argument("--workers", type=_processes, default=1, help=text)
    text = "seconds that open requests have at the end"
    parser.add_argument("--grace", type=int, default=10, help=text)
    return parser


def _processes(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least 1, as WEB_CONCURRENCY, not {text!r}"
        )
    return int(text)


if __name__ == "__main__":
    main()
