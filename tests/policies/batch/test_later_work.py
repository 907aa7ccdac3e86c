"""Work of later jobs, measured from round to round."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from policies.batch import later_work
from policies.batch.later_work import LaterWork
from policies.contract.snapshot import Floats


def seconds(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def at(now_s: float, waiting_s: Sequence[float], memory: Mapping[str, Any]) -> LaterWork:
    return LaterWork(now_s, seconds(*waiting_s), memory)


def memory_at(
    now_s: float, waiting_s: Sequence[float], running: Mapping[float, float]
) -> dict[str, Any]:
    """Return the first memory of a cluster: shares of running jobs by arrival."""
    first = at(now_s, waiting_s, {})
    return first.remembered(seconds(*running.keys()), seconds(*running.values()))


def test_work_is_that_of_jobs_that_came_later() -> None:
    memory = memory_at(10.0, [5.0], {4.0: 0.25, 5.0: 0.25, 6.0: 0.5})
    work_s, waited_s = at(30.0, [5.0], memory).of(seconds(5.0))
    assert work_s.tolist() == [0.5 * 20.0]
    assert waited_s.tolist() == [20.0]


def test_work_adds_up_over_rounds() -> None:
    memory = memory_at(10.0, [5.0], {6.0: 0.5})
    memory = at(20.0, [5.0], memory).remembered(seconds(7.0), seconds(1.0))
    work_s, _ = at(25.0, [5.0], memory).of(seconds(5.0))
    assert work_s.tolist() == [0.5 * 10.0 + 1.0 * 5.0]


def test_a_new_job_has_lost_nothing_yet() -> None:
    memory = memory_at(10.0, [5.0], {6.0: 0.5})
    work_s, waited_s = at(30.0, [5.0, 29.0], memory).of(seconds(29.0))
    assert (work_s.tolist(), waited_s.tolist()) == ([0.0], [0.0])


def test_a_job_that_comes_back_has_the_work_of_the_next_later_one() -> None:
    memory = memory_at(10.0, [5.0], {6.0: 0.5})
    work_s, _ = at(30.0, [3.0, 5.0], memory).of(seconds(3.0, 5.0))
    assert work_s.tolist() == [10.0, 10.0]


def test_a_clock_set_back_takes_no_work_away() -> None:
    memory = memory_at(10.0, [5.0], {6.0: 0.5})
    work_s, _ = at(8.0, [5.0], memory).of(seconds(5.0))
    assert work_s.tolist() == [0.0]


def test_memory_is_bounded_and_no_job_has_too_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals_s = [float(i) for i in range(10)]
    running = {arrival_s + 0.5: 0.1 for arrival_s in arrivals_s}
    exact, _ = at(30.0, arrivals_s, memory_at(20.0, arrivals_s, running)).of(seconds(*arrivals_s))
    monkeypatch.setattr(later_work, "MOST_ARRIVALS", 4)
    memory = memory_at(20.0, arrivals_s, running)
    assert len(memory["later_work"]["arrival_s"]) <= 4
    bounded, _ = at(30.0, arrivals_s, memory).of(seconds(*arrivals_s))
    assert (bounded <= exact).all()
    assert bounded[0] == exact[0]
