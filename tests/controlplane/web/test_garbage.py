"""A web process makes full collections seldom, and still makes them."""

import gc
import time
import weakref

from controlplane.serve import collect_seldom


class Ring:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.own = self


def test_full_collections_come_by_the_clock_alone_and_find_what_lived_long() -> None:
    before = gc.get_threshold()
    over = collect_seldom(every_s=0.2)
    try:
        assert gc.get_threshold()[2] > 10**6
        old = Ring()
        gc.collect()  # which makes it old
        gone = weakref.ref(old)
        del old
        until_s = time.monotonic() + 10.0
        while gone() is not None and time.monotonic() < until_s:
            time.sleep(0.05)
        assert gone() is None
    finally:
        over.set()
    until_s = time.monotonic() + 10.0
    while gc.get_threshold() != before and time.monotonic() < until_s:
        time.sleep(0.05)
    assert gc.get_threshold() == before


def test_no_collection_looks_at_what_was_there_before_the_first_request() -> None:
    old = Ring()
    over = collect_seldom(every_s=0.2)
    try:
        assert gc.get_freeze_count() > 10_000
        assert not any(found is old for found in gc.get_objects())
    finally:
        over.set()
    until_s = time.monotonic() + 10.0
    while gc.get_freeze_count() and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not gc.get_freeze_count()
