"""Absurd reports of jobs: what is left makes sense, and nothing of it stops anything."""

from itertools import pairwise
from math import isfinite

from hypothesis import given
from hypothesis import strategies as st

from loadmaster.samples import ProgressSample
from profiling.reports import FASTEST, Launch, Reached, check
from profiling.speeds import pace

NOW_S = 1_700_000_000.0
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
SAMPLES = st.builds(
    ProgressSample,
    at_s=FLOATS | st.floats(NOW_S - 1000.0, NOW_S + 100.0),
    event=st.sampled_from(["start", "progress", "checkpoint"]),
    step=st.integers() | st.integers(0, 100),
    launch_steps=st.integers() | st.integers(0, 100),
    elapsed_s=FLOATS | st.floats(0.0, 100.0),
    steps_per_s=st.none() | FLOATS,
    setup_s=st.none() | FLOATS,
)


@given(st.lists(SAMPLES, max_size=8), st.none() | st.floats(NOW_S - 1000.0, NOW_S))
def test_what_is_left_of_any_reports_makes_sense(
    samples: list[ProgressSample], accepted_s: float | None
) -> None:
    left = check(samples, Launch(NOW_S, accepted_s)).samples
    assert all(0.0 <= s.at_s <= NOW_S + 60.0 and s.launch_steps >= 0 for s in left)
    assert all(isfinite(s.elapsed_s) for s in left)
    assert all(s.steps_per_s is None or 0.0 <= s.steps_per_s <= FASTEST for s in left)
    seen = pace((s.launch_steps, s.elapsed_s) for s in left)
    assert seen is None or isfinite(seen.steps_per_s)


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0.0, 50.0)), max_size=8))
def test_new_reports_never_go_backwards(told: list[tuple[int, float]]) -> None:
    samples = [
        ProgressSample(NOW_S - 100.0 + n, "progress", steps, steps, elapsed_s)
        for n, (steps, elapsed_s) in enumerate(told)
    ]
    left = check(samples, Launch(NOW_S, None)).samples
    assert all(a.step <= b.step and a.elapsed_s <= b.elapsed_s for a, b in pairwise(left))


def test_what_a_new_session_sends_again_is_no_nonsense() -> None:
    again = ProgressSample(NOW_S - 50.0, "progress", 10, 10, 5.0)
    checked = check([again], Launch(NOW_S, None, 0, Reached(NOW_S - 10.0, 50, 50, 45.0)))
    assert checked.samples == [again]
    assert not checked.messages
