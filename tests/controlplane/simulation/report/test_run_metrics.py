from math import isnan, nan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.simulation.report.run_metrics import (
    METRICS,
    averages,
    interval,
    metrics_of,
    relative,
    slowdowns,
    utilisation_of,
    utilisation_quantiles,
)
from controlplane.simulation.world.outcome import Utilisation
from tests.builders_outcomes import an_outcome


def test_every_metric_is_there_under_its_name() -> None:
    assert list(metrics_of(an_outcome())) == [metric.name for metric in METRICS]


def test_costs_add_up() -> None:
    found = metrics_of(an_outcome())
    assert found["total_cost"] == pytest.approx(0.9)
    assert (found["energy_kwh"], found["emissions_kg"]) == (2.0, 1.0)


def test_averages_are_over_completed_jobs_only() -> None:
    found = metrics_of(an_outcome())
    assert (found["completed"], found["unfinished"]) == (2.0, 1.0)
    assert found["jct_mean_s"] == 150.0
    assert found["wait_mean_s"] == 25.0


def test_late_jobs_are_those_completed_after_their_due_dates() -> None:
    found = metrics_of(an_outcome())
    assert (found["late"], found["tardiness_mean_s"]) == (1.0, 50.0)


def test_quantiles_of_the_completion_time_lie_between_their_neighbours() -> None:
    found = metrics_of(an_outcome())
    assert found["jct_p50_s"] == 150.0
    assert found["jct_p90_s"] == pytest.approx(190.0)
    assert found["jct_p99_s"] == pytest.approx(199.0)


def test_the_bounded_slowdown_takes_no_job_for_shorter_than_ten_seconds() -> None:
    slowdown, bounded = slowdowns(an_outcome())
    assert slowdown[:2].tolist() == [25.0, 2.0]
    assert bounded[:2].tolist() == [10.0, 2.0]
    assert isnan(slowdown[2])
    assert isnan(bounded[2])


def test_the_bounded_slowdown_is_never_below_one() -> None:
    outcome = an_outcome(completion_s=np.array([101.0, 350.0, nan]))
    assert slowdowns(outcome)[1][0] == 1.0


def test_gpus_in_use_are_averaged_from_the_first_arrival_over_the_makespan() -> None:
    steps = Utilisation(np.array([100.0, 200.0, 300.0, 350.0]), np.array([1, 2, 0, 0]), 2)
    assert metrics_of(an_outcome(utilisation=steps))["utilisation"] == pytest.approx(
        (100 * 1 + 100 * 2) / 250 / 2
    )


def test_use_over_time_has_its_quantiles_by_hand() -> None:
    steps = Utilisation(np.array([100.0, 200.0, 300.0]), np.array([1, 2, 0]), 2)
    found = metrics_of(an_outcome(utilisation=steps, makespan_s=250.0))
    names = ("utilisation_p10", "utilisation_p50", "utilisation_p90")
    assert [found[name] for name in names] == [0.0, 0.5, 1.0]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 4)), min_size=1, max_size=8))
def test_quantiles_of_use_average_to_its_mean(spells: list[tuple[int, int]]) -> None:
    lengths_s = np.array([length for length, _ in spells], dtype=np.float64)
    counts = np.array([count for _, count in spells], dtype=np.int64)
    ends_s = 100.0 + np.cumsum(lengths_s)
    steps = Utilisation(ends_s - lengths_s, counts, 4)
    total_s = int(lengths_s.sum())
    outcome = an_outcome(utilisation=steps, makespan_s=float(total_s))
    levels = (np.arange(total_s) + 0.5) / total_s
    found = utilisation_quantiles(outcome, levels.tolist())
    assert found == sorted(found)
    assert np.mean(found) == pytest.approx(utilisation_of(outcome))


def test_changed_rounds_are_a_part_of_all_rounds() -> None:
    found = metrics_of(an_outcome(rounds=10, rounds_changed=3))
    assert found["part_of_rounds_changed"] == 0.3
    assert isnan(metrics_of(an_outcome(rounds=0))["part_of_rounds_changed"])


def test_averages_between_edges_count_what_is_before_and_after_the_steps() -> None:
    steps = Utilisation(np.array([10.0, 20.0]), np.array([4, 1]), 4)
    assert averages(steps, np.array([0.0, 10.0, 15.0, 25.0, 35.0])).tolist() == [0.0, 4.0, 2.5, 1.0]


def test_nothing_done_gives_no_average_rather_than_an_error() -> None:
    never = np.array([nan, nan, nan])
    found = metrics_of(an_outcome(completion_s=never, first_start_s=never, makespan_s=0.0))
    assert isnan(found["jct_mean_s"])
    assert isnan(found["utilisation"])
    assert found["completed"] == 0.0


def test_an_interval_is_students_for_few_seeds() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.n) == (2.0, 3)
    assert found.half_width == pytest.approx(4.302653 / sqrt(3))


def test_one_value_has_no_interval_and_none_has_no_mean() -> None:
    assert interval([5.0]).half_width is None
    assert isnan(interval([nan]).mean)
    assert interval([nan, 5.0]).n == 1


def test_policies_are_compared_seed_by_seed() -> None:
    found = relative({1: 110.0, 2: 220.0, 9: 1.0}, {1: 100.0, 2: 200.0, 3: 7.0})
    assert found.mean == pytest.approx(0.1)
    assert found.half_width == pytest.approx(0.0)
    assert found.n == 2
