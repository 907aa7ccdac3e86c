import math

import pytest

from loadmaster.training.emulation import PacingClock


class FakeTime:
    """A clock that only sleeping and working move."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def work(self, seconds: float) -> None:
        self.now_s += seconds


def paced(step_s: float) -> tuple[PacingClock, FakeTime]:
    time = FakeTime()
    clock = PacingClock(step_s, now=time.now, sleep=time.sleep)
    clock.start()
    return clock, time


def test_a_step_lasts_as_long_as_on_the_emulated_device_whatever_its_work() -> None:
    clock, time = paced(0.2)
    for work_s in (0.01, 0.19, 0.0, 0.1):
        time.work(work_s)
        clock.wait()
    assert time.now_s == pytest.approx(100.8)
    assert clock.overrun_fraction == 0.0


def test_a_late_step_is_caught_up_by_the_next_ones() -> None:
    clock, time = paced(0.1)
    for work_s in (0.25, 0.01, 0.01, 0.01):
        time.work(work_s)
        clock.wait()
    assert time.now_s == pytest.approx(100.4)


def test_no_more_than_three_periods_are_caught_up() -> None:
    clock, time = paced(0.1)
    time.work(60.0)
    clock.wait()
    for _ in range(10):
        clock.wait()
    assert time.now_s == pytest.approx(160.0 + (10 - 3) * 0.1)


def test_the_overrun_fraction_counts_the_steps_whose_work_did_not_fit() -> None:
    clock, time = paced(0.1)
    assert clock.overrun_fraction == 0.0
    for work_s in (0.05, 0.15, 0.05, 0.05):
        time.work(work_s)
        clock.wait()
    assert clock.overrun_fraction == 0.25


def test_work_that_is_exactly_the_period_is_no_overrun() -> None:
    clock, time = paced(0.5)
    time.work(0.5)
    clock.wait()
    assert clock.overrun_fraction == 0.0
    assert time.slept == []


def test_a_long_sleep_is_left_soon_after_the_launch_is_told_to_stop() -> None:
    clock, time = paced(30.0)
    clock.wait(stopped=lambda: time.now_s >= 101.0)
    assert time.now_s == pytest.approx(101.0, abs=0.051)
    assert max(time.slept) <= 0.05


def test_time_outside_of_steps_is_neither_caught_up_nor_an_overrun() -> None:
    clock, time = paced(0.1)
    clock.wait()
    time.work(5.0)  # a checkpoint
    clock.shift(5.0)
    clock.wait()
    assert time.now_s == pytest.approx(105.2)
    assert clock.overrun_fraction == 0.0


def test_starting_twice_does_not_move_the_grid() -> None:
    clock, time = paced(0.1)
    time.work(0.04)
    clock.start()
    clock.wait()
    assert time.now_s == pytest.approx(100.1)


@pytest.mark.parametrize("step_s", [0.0, -1.0, math.nan, math.inf])
def test_a_period_that_is_no_time_is_refused(step_s: float) -> None:
    with pytest.raises(ValueError, match="step_s must be"):
        PacingClock(step_s)


def test_the_pace_changes_from_the_next_step_on() -> None:
    clock, time = paced(0.1)
    clock.wait()
    clock.step_s = 0.3
    clock.wait()
    clock.step_s = 0.1
    clock.wait()
    assert time.now_s == pytest.approx(100.5)
