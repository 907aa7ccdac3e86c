"""Tells the simulations of a worker that it is being stopped, so that they leave at once and go on
elsewhere.

Celery tells the worker's main process only; the pool's processes share a byte of memory with it.
"""

from __future__ import annotations

import mmap
from typing import Any

from celery.signals import worker_shutting_down

_FLAG = mmap.mmap(-1, 1)
"""Anonymous memory, shared with every process that is forked after this module is imported."""


@worker_shutting_down.connect
def begin_stopping(**_: Any) -> None:
    """The worker takes no more tasks and waits for those it has."""
    _FLAG[0] = 1


def is_stopping() -> bool:
    """Return True if the worker of this process is being stopped."""
    return _FLAG[0] == 1
