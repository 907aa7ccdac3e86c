"""Turns to ask policies: one at a time, some of each user, and nobody waits for long."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from controlplane.studies.what_if import turns
from controlplane.studies.what_if.turns import BusyError, Turns

ADA, EVE, GRACE = 1, 2, 3


def test_one_question_is_asked_at_a_time() -> None:
    asking = Turns()
    with (
        asking.of(ADA),
        pytest.raises(BusyError, match="others are asking"),
        asking.of(GRACE, 0.01),
    ):
        pass
    with asking.of(GRACE, 0.01):
        pass


def until(asking: Turns, user: int, over: threading.Event) -> None:
    with asking.of(user, 60.0):
        assert over.wait(60.0)


def test_a_flood_of_one_user_is_refused_at_once_and_another_user_has_the_next_turn() -> None:
    asking, refused, over = Turns(), 0, threading.Event()
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(until, asking, EVE, over) for _ in range(turns.EACH)]
        while asking._asking[EVE] < turns.EACH:
            threading.Event().wait(0.01)
        for _ in range(260):
            with pytest.raises(BusyError, match="you have 2 what-ifs"), asking.of(EVE, 60.0):
                pass
            refused += 1
        asked.append(pool.submit(until, asking, ADA, over))
        over.set()
        for question in asked:
            question.result(60.0)
    assert refused == 260
    assert not asking._asking


def test_few_wait_whoever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MOST", 2)
    asking, over = Turns(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(until, asking, user, over) for user in (ADA, EVE)]
        while asking._asking.total() < turns.MOST:
            threading.Event().wait(0.01)
        with pytest.raises(BusyError, match="others are asking"), asking.of(GRACE, 60.0):
            pass
        over.set()
        for question in asked:
            question.result(60.0)
