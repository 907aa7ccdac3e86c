"""When a web process collects garbage: Python's full collections look at every object there is, and
nothing is answered meanwhile.

With 10,000 agents connected one takes half a second, and Python would make one every few seconds of
1,000 heartbeats each. What is freed by counting references, nearly everything, and what dies young
are not concerned.
"""

from __future__ import annotations

import gc
import threading

FULL_EVERY_S = 600.0
YOUNG = (10_000, 50)
"""Allocations between young collections, and those between older ones."""

NEVER = 2**31 - 1


def collect_seldom(every_s: float = FULL_EVERY_S) -> threading.Event:
    """From now on collect fully every so many seconds only, until the event is set."""
    over = threading.Event()
    before = gc.get_threshold()
    gc.set_threshold(*YOUNG, NEVER)
    threading.Thread(
        target=_collect, args=(over, every_s, before), name="garbage", daemon=True
    ).start()
    return over


def _collect(over: threading.Event, every_s: float, before: tuple[int, int, int]) -> None:
    while not over.wait(every_s):
        gc.collect()
    gc.set_threshold(*before)
