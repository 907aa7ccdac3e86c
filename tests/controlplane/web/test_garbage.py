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
    old = Ring()
    gc.collect()  # which makes it old
    gone = weakref.ref(old)
    over = collect_seldom(every_s=0.2)
    try:
        assert gc.get_threshold()[2] > 10**6
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
