"""Putting off the search for garbage."""

import gc
from collections.abc import Iterator

import pytest

from foundation.garbage import not_collected, seldom_collected


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_looked_for_meanwhile_and_then_as_before_whatever_happens(
    *, enabled: bool
) -> None:
    (gc.enable if enabled else gc.disable)()
    with pytest.raises(ZeroDivisionError):
        _fail_within()
    assert gc.isenabled() is enabled


def _fail_within() -> None:
    with not_collected():
        assert not gc.isenabled()
        raise ZeroDivisionError


def test_collections_are_as_frequent_afterwards_as_before() -> None:
    before = gc.get_threshold()
    with seldom_collected():
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before
