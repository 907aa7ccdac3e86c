"""Turns to ask policies: one at a time, some of each user, and nobody waits for long."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from controlplane.studies.what_if import turns
from controlplane.studies.what_if.turns import BusyError, Turns

ADA, EVE, GRACE = 1, 2, 3


def test_one_question_is_asked_at_a_time() -> None:
    asking = Turns()
    asking.take(ADA)
    with pytest.raises(BusyError, match="others are asking"):
        asking.take(GRACE, 0.01)
    asking.end(ADA)
    asking.take(GRACE, 0.01)
    asking.end(GRACE)


def test_a_flood_of_one_user_is_refused_at_once_and_another_user_has_the_next_turn() -> None:
    asking, refused = Turns(), 0
    asking.take(EVE)
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(asking.take, EVE, 60.0)
        while asking._asking[EVE] < turns.EACH:
            threading.Event().wait(0.01)
        for _ in range(260):
            with pytest.raises(BusyError, match="2 questions of yours"):
                asking.take(EVE, 60.0)
            refused += 1
        other = pool.submit(asking.take, ADA, 60.0)
        asking.end(EVE)
        second.result(60.0)
        asking.end(EVE)
        other.result(60.0)
    asking.end(ADA)
    assert refused == 260
    assert not asking._asking


def test_few_wait_whoever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MOST", 2)
    asking = Turns()
    asking.take(ADA)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asking.take, EVE, 60.0)
        while asking._asking.total() < turns.MOST:
            threading.Event().wait(0.01)
        with pytest.raises(BusyError, match="others are asking"):
            asking.take(GRACE, 60.0)
        asking.end(ADA)
        waiting.result(60.0)
    asking.end(EVE)
