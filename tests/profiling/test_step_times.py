"""How fast a launch went, whatever came between its steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.speeds import pace


def steady(step_s: float, steps: int = 20) -> list[tuple[int, float]]:
    return [(i, i * step_s) for i in range(1, steps + 1)]


@given(step_s=st.floats(1e-4, 100.0), steps=st.integers(3, 50))
def test_a_steady_launch_has_its_steps_pace(step_s: float, steps: int) -> None:
    seen = pace(steady(step_s, steps))
    assert seen is not None
    assert seen.steps_per_s == pytest.approx(1 / step_s, rel=1e-6)
    assert seen.steps == steps - 1


def test_a_slow_first_step_does_not_count() -> None:
    seen = pace([(s, 30.0 + e) for s, e in steady(0.5)])
    assert seen is not None
    assert seen.steps_per_s == pytest.approx(2.0)


def test_a_checkpoint_or_a_stall_does_not_count() -> None:
    seen = pace([(s, e + (100.0 if s > 10 else 0.0)) for s, e in steady(0.5)])
    assert seen is not None
    assert seen.steps_per_s == pytest.approx(2.0)


def test_samples_that_lie_apart_count_with_their_steps() -> None:
    seen = pace([(1, 1.0), (101, 101.0), (103, 203.0)])
    assert seen is not None
    assert seen.steps_per_s == pytest.approx(1.0)


def test_the_same_step_told_twice_adds_nothing() -> None:
    seen = pace([*steady(0.5), (20, 25.0), (5, 2.5)])
    assert seen == pace(steady(0.5))


def test_a_noisy_launch_says_that_it_is() -> None:
    elapsed, samples = 0.0, []
    for i in range(1, 21):
        elapsed += 0.1 if i % 2 else 1.0
        samples.append((i, elapsed))
    noisy, calm = pace(samples), pace(steady(0.5))
    assert noisy is not None
    assert calm is not None
    assert noisy.spread > 0.5 > calm.spread


@pytest.mark.parametrize(
    "samples",
    [[], [(1, 1.0)], [(0, 0.0), (1, 5.0)], [(1, 1.0), (2, 1.0)], [(1, float("nan")), (2, 1.0)]],
)
def test_a_launch_that_did_not_get_past_its_warm_up_has_no_pace(
    samples: list[tuple[int, float]],
) -> None:
    assert pace(samples) is None
