"""Intervals of unknown run times: how often they cover the next one, and their words."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.forecasts.intervals import LEAST_JOBS, Group, interval_of, unknown_run_time

RUN_TIMES_S = st.floats(0.0, 1e8) | st.integers(0, 100).map(float)
MINUTE, HOUR = 60.0, 3600.0


def covered(run_s: Sequence[float], held_out_s: Sequence[float]) -> float:
    """Fraction of the held-out run times in the interval of the others."""
    interval = interval_of(run_s)
    assert interval is not None
    low_s, high_s = interval
    return sum(low_s <= each_s <= high_s for each_s in held_out_s) / len(held_out_s)


@given(st.lists(RUN_TIMES_S, min_size=LEAST_JOBS + 1, max_size=120))
def test_interval_covers_four_of_five_held_out_run_times(run_s: list[float]) -> None:
    # Each run time is held out in turn, as if it were the next one.
    hits = 0.0
    for i, held_out_s in enumerate(run_s):
        others_s = run_s[:i] + run_s[i + 1 :]
        hits += covered(others_s, [held_out_s])
    assert hits / len(run_s) >= 0.8


@given(st.lists(RUN_TIMES_S, min_size=LEAST_JOBS + 1, max_size=120, unique=True))
def test_interval_is_no_wider_than_its_share_asks(run_s: list[float]) -> None:
    assert covered(run_s, run_s) <= 0.8 + 4.0 / len(run_s)


@given(
    st.lists(st.tuples(st.floats(0.0, 12.0), st.floats(0.1, 3.0)), min_size=1, max_size=4),
    st.integers(0, 2**32),
)
def test_interval_of_a_mixture_covers_a_second_sample(
    programs: list[tuple[float, float]], seed: int
) -> None:
    # Programs with log-normal run times; both samples are drawn from the same mixture.
    random = Random(seed)
    run_s = [random.lognormvariate(*random.choice(programs)) for _ in range(2200)]
    assert covered(run_s[:200], run_s[200:]) == pytest.approx(0.8, abs=0.13)


@given(st.lists(RUN_TIMES_S, max_size=LEAST_JOBS - 1))
def test_fewer_than_twenty_run_times_give_no_interval(run_s: list[float]) -> None:
    assert interval_of(run_s) is None


def test_words_name_the_span_and_its_source() -> None:
    run_s = [4 * MINUTE] * 10 + [2 * HOUR] * 47
    found = unknown_run_time([(Group.CLUSTER, run_s)], until="")
    assert found.words == "between 4 min and 2 h, as 80% of 57 jobs on this cluster"


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (Group.USER, "about 1 min, as 80% of 20 similar jobs of its user"),
        (Group.TEAM, "about 1 min, as 80% of 20 similar jobs of its team"),
    ],
)
def test_words_name_the_comparable_jobs(group: Group, words: str) -> None:
    assert unknown_run_time([(group, [MINUTE] * 20)], until="").words == words


def test_first_group_with_enough_jobs_gives_the_interval() -> None:
    histories = [
        (Group.USER, [1.0] * 19),
        (Group.TEAM, [2.0] * 20),
        (Group.CLUSTER, [3.0] * 99),
    ]
    found = unknown_run_time(histories, until="")
    assert (found.group, found.low_s, found.high_s, found.jobs) == (Group.TEAM, 2.0, 2.0, 20)


def test_without_enough_jobs_the_words_say_unknown() -> None:
    found = unknown_run_time([(Group.CLUSTER, [1.0] * 19)], until="until a first run")
    assert (found.low_s, found.high_s, found.group) == (None, None, None)
    assert found.words == "unknown until a first run"


def test_running_job_is_compared_with_jobs_that_ran_longer() -> None:
    run_s = [MINUTE] * 100 + [3 * HOUR] * 30
    found = unknown_run_time([(Group.CLUSTER, run_s)], until="", ran_s=HOUR)
    assert found.words == "about 3 h, as 80% of 30 jobs on this cluster that ran over 1 h"


def test_job_that_outlived_nearly_all_has_no_interval() -> None:
    run_s = [MINUTE] * 100 + [3 * HOUR] * 19
    found = unknown_run_time([(Group.CLUSTER, run_s)], until="until a first run", ran_s=HOUR)
    assert found.words == "unknown until a first run"
