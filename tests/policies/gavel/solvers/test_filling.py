"""The step of the dense simplex in which a column enters the basis."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from policies.contract.snapshot import Floats
from policies.gavel.solvers.filling import pivot

ROWS, COLUMNS = 4, 7
few = st.sampled_from([0.0, 0.0, 0.0, -2.0, -0.5, 1.0, 3.0])
"""Mostly nothing, as in a tableau."""


@settings(max_examples=200, deadline=None)
@given(
    table=arrays(np.float64, (ROWS, COLUMNS), elements=few),
    value=arrays(np.float64, ROWS, elements=few),
    gain=arrays(np.float64, COLUMNS, elements=few),
    row=st.integers(0, ROWS - 1),
    column=st.integers(0, COLUMNS - 1),
    factor=st.sampled_from([0.5, 1.0, 4.0]),
)
def test_a_pivot_takes_its_row_from_all_others_so_that_its_column_is_left_in_it_alone(
    table: Floats, value: Floats, gain: Floats, row: int, column: int, factor: float
) -> None:
    table[row, column] = factor
    whole = np.column_stack([np.vstack([table, gain]), [*value, 0.0]])
    expected = whole - np.outer(whole[:, column], whole[row] / factor)
    expected[row] = whole[row] / factor
    basis = np.arange(ROWS, dtype=np.int64)
    pivot(table, value, gain, basis, row, column)
    np.testing.assert_array_equal(table, expected[:-1, :-1])
    np.testing.assert_array_equal(value, expected[:-1, -1])
    np.testing.assert_array_equal(gain, expected[-1, :-1])
    assert basis[row] == column
