"""Forecasts of starts: intervals from the errors of earlier ones, scores, and small moves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.forecasts.calibration import (
    LEAST_SCORED,
    PRIOR,
    SMALLEST_S,
    Calibration,
    Interval,
    Score,
    StartedJob,
    has_moved,
)

NOTHING = Calibration([], [])


def test_without_scores_the_interval_is_wide_and_the_start_is_the_schedules() -> None:
    low, start, high = NOTHING.interval(1000.0, 1990.0)
    assert (low, start, high) == pytest.approx(
        tuple(1000.0 + 1000.0 * factor - SMALLEST_S for factor in PRIOR)
    )


def test_forecasts_that_were_too_early_by_half_move_the_next_one_later() -> None:
    actual = [2.0 * (1000.0 + SMALLEST_S) - SMALLEST_S] * LEAST_SCORED
    found = Calibration([1000.0] * LEAST_SCORED, actual).interval(0.0, 1000.0)
    assert found == pytest.approx((2010.0, 2010.0, 2010.0))


def test_waits_of_another_length_count_only_as_long_as_too_few_are_alike() -> None:
    short, long = [100.0] * LEAST_SCORED, [100_000.0] * LEAST_SCORED
    found = Calibration(short + long, [*short, *(3.0 * s for s in long)])
    assert found.interval(0.0, 100.0).high_s == pytest.approx(100.0)
    assert found.interval(0.0, 100_000.0).start_s == pytest.approx(300_000.0, rel=1e-3)
    alone = Calibration(short[:-1], short[:-1])
    assert alone.interval(0.0, 100.0) == NOTHING.interval(0.0, 100.0)


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), max_size=60),
    st.floats(0, 1e9),
    st.floats(-1e9, 1e9),
)
def test_no_part_of_an_interval_lies_before_now_and_they_are_in_order(
    waits: list[tuple[float, float]], now_s: float, wait_s: float
) -> None:
    calibration = Calibration([e for e, _ in waits], [a for _, a in waits])
    low, start, high = calibration.interval(now_s, now_s + wait_s)
    assert now_s <= low <= start <= high


def test_four_of_five_jobs_start_inside_when_errors_stay_as_they_were() -> None:
    rng = np.random.default_rng(1)
    expected = rng.lognormal(7.0, 1.0, 2000)
    actual = expected * rng.lognormal(0.5, 0.8, 2000)
    calibration = Calibration(expected[:1000].tolist(), actual[:1000].tolist())
    intervals = [calibration.interval(0.0, e) for e in expected[1000:].tolist()]
    told = [StartedJob(0.0, i, a) for i, a in zip(intervals, actual[1000:], strict=True)]
    score = Score.of(told)
    assert score is not None
    assert 0.75 <= score.inside <= 0.85


def test_a_score_tells_hits_the_median_error_and_the_drift_by_the_wait() -> None:
    inside = StartedJob(0.0, Interval(50.0, 100.0, 150.0), 100.0)
    late = StartedJob(0.0, Interval(50.0, 100.0, 150.0), 200.0)
    early = StartedJob(0.0, Interval(80.0, 100.0, 150.0), 50.0)
    score = Score.of([inside, late, early])
    assert score is not None
    assert (score.jobs, score.error) == (3, 0.5)
    assert score.inside == pytest.approx(1 / 3)
    assert score.drift == pytest.approx(50.0 / 350.0)
    assert Score.of([]) is None


@pytest.mark.parametrize(
    ("before_s", "after_s", "moved"),
    [
        (None, None, False),
        (None, 100.0, True),
        (100.0, None, True),
        (1100.0, 1190.0, False),
        (1100.0, 1300.0, True),
        (5.0, 5.5, False),
    ],
)
def test_a_forecast_is_stored_anew_only_if_it_moved_by_more_than_a_tenth_of_the_wait(
    before_s: float | None, after_s: float | None, moved: bool
) -> None:
    assert has_moved(0.0, before_s, after_s) is moved
