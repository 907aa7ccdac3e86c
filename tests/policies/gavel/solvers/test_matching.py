from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.contract.policy import SolverFailedError
from policies.contract.snapshot import Floats
from policies.gavel.solvers.matching import Machines, match

run_times = st.one_of(st.just(float("inf")), st.floats(0.5, 1000.0))


def least_total_s(times_s: Floats, ready_s: list[float]) -> float:
    """Of every assignment of jobs to single machines, each in its best order (the shortest
    first).
    """
    totals = []
    for chosen in product(range(len(ready_s)), repeat=len(times_s)):
        queues = [
            sorted(times_s[j, m] for j in range(len(times_s)) if chosen[j] == m)
            for m in range(len(ready_s))
        ]
        ends = [
            float(ready + sum(queue[: i + 1]))
            for ready, queue in zip(ready_s, queues, strict=True)
            for i in range(len(queue))
        ]
        totals.append(sum(ends))
    return min(totals)


@given(
    times=st.lists(
        st.lists(run_times, min_size=2, max_size=2).filter(lambda t: min(t) < 2000.0),
        min_size=1,
        max_size=5,
    ),
    gpus=st.lists(st.integers(1, 2), min_size=2, max_size=2),
    ready=st.lists(st.sampled_from([0.0, 0.0, 3.0, 500.0]), min_size=2, max_size=2),
)
@settings(max_examples=150, deadline=None)
def test_no_schedule_has_a_lower_total_completion_time(
    times: list[list[float]], gpus: list[int], ready: list[float]
) -> None:
    times_s = np.array(times)
    found = match(times_s, Machines(np.array(gpus), np.array(ready)))
    single = [ready_s for ready_s, count in zip(ready, gpus, strict=True) for _ in range(count)]
    on_single = np.repeat(times_s, gpus, axis=1)
    assert found.total_s == pytest.approx(least_total_s(on_single, single), rel=1e-6)


@given(jobs=st.integers(1, 40), gpus=st.integers(1, 6), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_a_place_is_used_once_for_each_gpu_and_none_is_skipped(
    jobs: int, gpus: int, seed: int
) -> None:
    times_s = np.random.default_rng(seed).uniform(1.0, 9.0, (jobs, 1))
    place = match(times_s, Machines(np.array([gpus]), np.zeros(1))).from_end
    used = [int(np.count_nonzero(place == k)) for k in range(1, int(place.max()) + 1)]
    assert used[:-1] == [gpus] * (len(used) - 1)
    assert 1 <= used[-1] <= gpus


def test_long_queues_are_as_deep_as_they_need_to_be() -> None:
    """All jobs run well on one GPU alone, though there are many others."""
    times_s = np.full((40, 11), 1000.0)
    times_s[:, 0] = 1.0
    found = match(times_s, Machines(np.ones(11, dtype=np.int64), np.zeros(11)))
    assert found.total_s == pytest.approx(40 * 41 / 2)
    assert found.machine.tolist() == [0] * 40


def test_of_equal_jobs_the_first_runs_first() -> None:
    assert match(np.full((4, 1), 7.0), Machines(np.array([1]), np.zeros(1))).from_end.tolist() == [
        4,
        3,
        2,
        1,
    ]


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_job_that_runs_nowhere_is_no_matching(bad: float) -> None:
    with pytest.raises(SolverFailedError, match="cannot run on any machine"):
        match(np.array([[1.0, 2.0], [bad, bad]]), Machines(np.array([1, 1]), np.zeros(2)))
