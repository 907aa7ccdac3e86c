"""Suspension of Python's cyclic garbage collection while a round reads its objects.

A round over ten thousand nodes makes half a million objects that stay until it ends; looking
through them again and again takes a fifth to a third of its time (measured).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def not_collected() -> Iterator[None]:
    """Suspend cyclic garbage collection; reference counting goes on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
