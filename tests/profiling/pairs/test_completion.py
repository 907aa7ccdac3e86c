"""What completing a matrix promises, on tables made of few factors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.pairs.completion import (
    CompletionError,
    Settings,
    complete,
    held_out_error,
)
from tests.builders_pairs import a_low_rank_matrix, a_part_of

sizes = st.tuples(st.integers(2, 9), st.integers(2, 9))


@given(
    size=sizes,
    seed=st.integers(0, 99),
    fraction=st.floats(0.0, 1.0),
    rank=st.integers(0, 4),
    c=st.sampled_from([0.1, 0.3, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_what_was_observed_stays_and_all_else_is_finite_and_within_bounds(
    size: tuple[int, int], seed: int, fraction: float, rank: int, c: float
) -> None:
    matrix = a_low_rank_matrix(*size, 2, seed=seed)
    observed = a_part_of(matrix, fraction, seed=seed)
    found = complete(
        np.where(observed, matrix, np.nan),
        observed,
        Settings(rank, c, most_sweeps=5000),
        seed=seed,
        most=1.0,
    )
    assert (found.values[observed] == matrix[observed]).all()
    assert np.isfinite(found.values).all()
    assert ((found.values >= 0.0) & (found.values <= 1.0)).all()


@given(size=sizes, seed=st.integers(0, 99), rank=st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_the_objective_never_rises_and_the_last_sweep_gains_less_than_the_tolerance(
    size: tuple[int, int], seed: int, rank: int
) -> None:
    matrix = a_low_rank_matrix(*size, 2, seed=seed)
    rules = Settings(rank, 0.2, tolerance=1e-4, most_sweeps=5000)
    objective = complete(matrix, a_part_of(matrix, 0.5, seed=seed), rules, seed=seed).objective
    assert (np.diff(objective) <= 1e-9 * objective[0] + 1e-15).all()
    assert objective[-2] - objective[-1] <= 1e-4 * objective[-1]


def test_the_same_seed_makes_the_same_completion() -> None:
    matrix = a_low_rank_matrix(12, 15, 2)
    observed = a_part_of(matrix, 0.4)
    once, again = (complete(matrix, observed, seed=3).values for _ in range(2))
    assert (once == again).all()


def test_a_matrix_of_few_factors_is_found_again_from_a_part_of_it() -> None:
    matrix = a_low_rank_matrix(30, 40, 2, seed=1)
    observed = a_part_of(matrix, 0.5, seed=1)
    found = complete(
        matrix, observed, Settings(2, 0.003, tolerance=1e-6, most_sweeps=20_000)
    ).values
    wrong = np.abs(found - matrix)[~observed]
    assert wrong.mean() < 0.01
    assert wrong.mean() < 0.1 * np.abs(matrix[observed].mean() - matrix)[~observed].mean()


def test_too_few_factors_and_too_much_regularisation_are_worse_than_the_right_ones() -> None:
    matrix = a_low_rank_matrix(30, 40, 3, seed=2)
    observed = a_part_of(matrix, 0.5, seed=2)

    def error(rules: Settings) -> float:
        return float(np.abs(complete(matrix, observed, rules).values - matrix)[~observed].mean())

    right = error(Settings(3, 0.01, most_sweeps=20_000))
    assert right < 0.5 * error(Settings(0, 0.01))
    assert right < 0.5 * error(Settings(3, 100.0))


def test_a_row_with_one_observation_follows_the_columns_and_its_own_offset() -> None:
    columns = np.array([0.2, 0.4, 0.6, 0.8])
    matrix = np.vstack([columns + offset for offset in (-0.1, 0.0, 0.1, 0.15)])
    observed = np.ones_like(matrix, dtype=np.bool_)
    observed[3, 1:] = False
    found = complete(matrix, observed, Settings(0, 0.001)).values[3]
    assert found == pytest.approx(matrix[3], abs=0.02)


def test_what_the_model_puts_out_of_bounds_is_moved_to_them() -> None:
    matrix = np.array([[0.0, 0.1, 0.5], [0.5, 0.6, 1.0], [0.6, 0.7, 1.0]])
    observed = np.ones_like(matrix, dtype=np.bool_)
    observed[0, 0] = observed[2, 2] = False
    found = complete(matrix, observed, Settings(0, 1e-6), most=1.0)
    assert found.values[2, 2] == 1.0
    assert complete(matrix, observed, Settings(0, 1e-6)).values[2, 2] == pytest.approx(
        1.1, abs=1e-3
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.1, 1.5])
def test_a_value_that_is_no_fraction_is_refused_with_its_place(value: float) -> None:
    matrix = np.full((2, 3), 0.5)
    matrix[1, 2] = value
    with pytest.raises(CompletionError, match=r"row 1, column 2 .* \[0, 1\]"):
        complete(matrix, np.ones_like(matrix, dtype=np.bool_), most=1.0)


def test_values_that_were_not_observed_are_never_looked_at() -> None:
    matrix = np.array([[0.1, np.nan], [0.2, 0.4]])
    assert np.isfinite(complete(matrix, np.isfinite(matrix)).values).all()


@pytest.mark.parametrize(("axis", "name"), [(0, "row 1"), (1, "column 1")])
def test_a_row_or_column_of_which_nothing_is_observed_is_refused(axis: int, name: str) -> None:
    observed = np.ones((3, 3), dtype=np.bool_)
    observed[(1, slice(None)) if axis == 0 else (slice(None), 1)] = False
    with pytest.raises(CompletionError, match=f"nothing is observed in {name}"):
        complete(np.full((3, 3), 0.5), observed)


@pytest.mark.parametrize("shape", [((2, 2), (2, 3)), ((4,), (4,)), ((0, 3), (0, 3))])
def test_shapes_that_are_no_matrix_with_its_mask_are_refused(
    shape: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    with pytest.raises(CompletionError, match="matrices of one shape"):
        complete(np.zeros(shape[0]), np.ones(shape[1], dtype=np.bool_))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": -1},
        {"most_sweeps": 0},
        {"regularisation": 0.0},
        {"regularisation": np.nan},
        {"tolerance": 0.0},
    ],
)
def test_settings_outside_their_ranges_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(CompletionError, match="must be"):
        Settings(**wrong)  # type: ignore[arg-type]  # fields by name


def test_sweeps_that_do_not_suffice_are_an_error_rather_than_half_a_result() -> None:
    matrix = a_low_rank_matrix(10, 10, 3)
    with pytest.raises(CompletionError, match="not converged after 2 sweeps"):
        complete(matrix, a_part_of(matrix, 0.4), Settings(3, 0.01, tolerance=1e-9, most_sweeps=2))


def test_the_held_out_error_is_small_where_there_are_few_factors_and_large_in_noise() -> None:
    matrix = a_low_rank_matrix(20, 25, 1, seed=4)
    observed = a_part_of(matrix, 0.6, seed=4)
    noise = np.random.default_rng(0).uniform(0.1, 0.9, matrix.shape)
    rules = Settings(1, 0.01, most_sweeps=20_000)
    assert held_out_error(matrix, observed, rules) < 0.05
    assert held_out_error(noise, observed, rules) > 0.2


def test_entries_of_one_number_leave_together() -> None:
    """Every column stands there twice: left out one by one, each would be read off its twin."""
    noise = np.random.default_rng(1).uniform(0.1, 0.9, (30, 4))
    twice, observed = np.hstack([noise, noise]), np.ones((30, 8), dtype=np.bool_)
    numbers = np.arange(noise.size, dtype=np.int64).reshape(noise.shape)
    rules = Settings(3, 0.03, most_sweeps=20_000)
    alone, together = (
        held_out_error(twice, observed, rules, groups=g)
        for g in (None, np.hstack([numbers, numbers]))
    )
    assert together > 1.5 * alone


def test_where_every_number_is_the_only_one_nothing_can_be_held_out() -> None:
    with pytest.raises(CompletionError, match="nothing can be left out"):
        held_out_error(np.full((2, 2), 0.5), np.eye(2, dtype=np.bool_))
