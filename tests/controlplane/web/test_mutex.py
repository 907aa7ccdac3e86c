"""One at a time by the cache, which may be away."""

from unittest.mock import patch

import pytest
from django.core.cache import cache
from redis.exceptions import ConnectionError as Away

from controlplane.web.storage.lock_holder import new_owner
from controlplane.web.storage.mutex import mutex
from tests.builders_clocks import Machine


@pytest.fixture(autouse=True)
def _empty() -> None:
    cache.clear()


def test_the_second_is_not_alone_until_the_first_is_through() -> None:
    with mutex("sweep", 60) as first, mutex("sweep", 60) as second:
        assert (first, second) == (True, False)
        with mutex("sweep", 60) as third:
            assert not third, "the second that was refused has let a third one in"
    with mutex("sweep", 60) as later:
        assert later


def test_what_has_another_name_is_not_in_the_way() -> None:
    with mutex("sweep", 60), mutex("count", 60) as free:
        assert free


def test_one_that_fails_lets_the_next_one_in() -> None:
    with pytest.raises(ValueError, match="broken"), mutex("sweep", 60):
        raise ValueError("broken")
    with mutex("sweep", 60) as free:
        assert free


def test_one_whose_time_is_over_does_not_let_a_third_beside_the_second() -> None:
    with mutex("sweep", 60):
        cache.delete("mutex:sweep")  # as its expiry does
        with mutex("sweep", 60) as second:
            assert second
            first_has_left = cache.get("mutex:sweep")
    assert first_has_left is not None
    with mutex("sweep", 60):
        cache.set("mutex:sweep", "somebody else", 60)
    assert cache.get("mutex:sweep") == "somebody else"


def test_one_that_the_caches_clock_would_keep_longer_is_taken_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Machine()
    monkeypatch.setattr("controlplane.web.storage.mutex.THIS_MACHINE", here.watch)
    with mutex("sweep", 60):
        cache.touch("mutex:sweep", 3660)  # as after a jump back
        for after_s, is_free in ((0, False), (60, False), (1, True)):
            here.after(after_s)
            with mutex("sweep", 60) as free:
                assert free is is_free


def test_without_a_cache_everybody_is_alone() -> None:
    with patch.object(cache, "add", side_effect=Away("away")), mutex("sweep", 60) as free:
        assert free


def test_one_whose_process_was_killed_lets_the_next_one_in_at_once() -> None:
    place, pid, started, rest = new_owner().split(".")
    cache.set("mutex:sweep", f"{place}.{pid}.{int(started) - 1}.{rest}", 60)
    with mutex("sweep", 60) as free, mutex("sweep", 60) as second:
        assert (free, second) == (True, False)
