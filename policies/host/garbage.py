"""Python's search for cyclic garbage, put off while much is read that is no garbage.

A round over ten thousand nodes makes half a million objects that all stay until it ends. Each time
their number has grown by a quarter they are all looked through: a fifth to a third of the round's
time (measured).
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
