"""Completion of a partly measured matrix by a low rank (Gavel, "Throughput Estimation"). Pure.

Candes and Plan ("Matrix Completion with Noise", 2010, Gavel's [18]) complete a matrix by that of
the smallest nuclear norm near the measured entries. Here the usual factored form is solved, with
offsets a and b: without them a row of few measurements is drawn to 0.

    min  sum_(i,j observed) (X[i,j] - m - a_i - b_j - u_i . v_j)^2
         + c (sum_i a_i^2 + |u_i|^2  +  sum_j b_j^2 + |v_j|^2)

with m the mean of the observed entries, u_i and v_j in R^rank and c > 0 the `regularisation`. For
fixed (b, V) this is one ridge regression for each row, and for fixed (a, U) one for each column.
They are solved in turn (alternating least squares), which never raises the objective. The first V
is drawn by a seed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

FIRST_SPREAD = 0.1
"""Standard deviation of the first V: small against completed values, which lie around 1."""


class CompletionError(ValueError):
    """Matrix that cannot be completed; the message names the row or the remedy."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`rank` of u and v (0: offsets alone) and `regularisation` c.

    Sweeps over rows and columns end when one lowers the objective by less than the fraction
    `tolerance`. Raises CompletionError for impossible settings.
    """

    rank: int = 5
    regularisation: float = 0.3
    tolerance: float = 1e-5
    most_sweeps: int = 2000

    def __post_init__(self) -> None:
        if self.rank < 0 or self.most_sweeps < 1:
            raise CompletionError(
                f"rank must be 0 or more and most_sweeps 1 or more, not {self.rank} and"
                f" {self.most_sweeps}"
            )
        is_regular = isfinite(self.regularisation) and self.regularisation > 0
        if not is_regular or not 0 < self.tolerance < 1:
            raise CompletionError(
                f"regularisation must be above 0 and tolerance in (0, 1), not {self.regularisation}"
                f" and {self.tolerance}"
            )


DEFAULT = Settings()
CANDIDATES = tuple(Settings(rank, c) for rank in (0, 1, 2, 3, 5) for c in (0.1, 0.3, 1.0))
"""Settings among which the default was chosen, by their held-out error."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Completed matrix.

    `values` float64[R, C]: observed ones unchanged, others completed and within [0, most].
    `columns` float64[C, 1 + rank]: (b_j, v_j). `objective` float64[sweeps + 1]: its value before
    and after each sweep.
    """

    values: Floats
    columns: Floats
    objective: Floats


def complete(
    values: Floats,
    observed: Bools,
    settings: Settings = DEFAULT,
    *,
    seed: int = 0,
    most: float = inf,
) -> Completion:
    """Complete float64[R, C] `values` where they are not `observed` (bool[R, C]).

    `most`: upper bound of all values. Raises CompletionError if an observed value is not within
    [0, most], a row or column has none, or the allowed sweeps do not suffice.
    """
    # 1. Start with drawn columns.
    _check(values, observed, most)
    known = observed.astype(np.float64)
    mean = float(values[observed].mean())
    target = np.where(observed, values - mean, 0.0)
    rows = np.zeros((len(values), settings.rank + 1))
    columns = _draw_columns(values.shape[1], settings.rank, seed)

    # 2. Solve for rows and columns in turn, until the objective hardly falls.
    objective = [inf, _objective(target, known, rows, columns, settings.regularisation)]
    while objective[-2] - objective[-1] > settings.tolerance * objective[-1]:
        if len(objective) > settings.most_sweeps + 1:
            raise CompletionError(
                f"not converged after {settings.most_sweeps} sweeps: regularise more, or lower the"
                " rank"
            )
        rows = _ridge_regression(target, known, columns, settings.regularisation)
        columns = _ridge_regression(target.T, known.T, rows, settings.regularisation)
        objective.append(_objective(target, known, rows, columns, settings.regularisation))

    # 3. Fill in what was not observed.
    bounded = np.clip(mean + _model(rows, columns), 0.0, most)
    return Completion(np.where(observed, values, bounded), columns, np.array(objective[1:]))


def held_out_error(
    values: Floats,
    observed: Bools,
    settings: Settings = DEFAULT,
    *,
    seed: int = 0,
    groups: Ints | None = None,
    parts: int = 5,
) -> float:
    """Return the root mean square error on observed entries, when each of `parts` is left out.

    `groups` int64[R, C]: entries with equal numbers are left out together; the only entry of a row
    or column never is. Raises CompletionError if nothing can be left out.
    """
    if groups is None:
        groups = np.arange(values.size, dtype=np.int64).reshape(values.shape)
    errors = []
    for left_out in _parts(observed, groups, parts, seed):
        completed = complete(values, observed & ~left_out, settings, seed=seed).values
        errors.append(completed[left_out] - values[left_out])
    if not errors:
        raise CompletionError(
            "nothing can be left out: every number is the only one of its row or column"
        )
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


def _check(values: Floats, observed: Bools, most: float) -> None:
    """Raise CompletionError for a matrix that cannot be completed."""
    if values.ndim != 2 or values.shape != observed.shape or not values.size:
        raise CompletionError(
            f"values and observed must be matrices of one shape, not {values.shape} and"
            f" {observed.shape}"
        )
    wrong = observed & ~(np.isfinite(values) & (values >= 0.0) & (values <= most))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise CompletionError(
            f"the value in row {row}, column {column} is {values[row, column]}: give one in [0,"
            f" {most:g}]"
        )
    for axis, name in ((1, "row"), (0, "column")):
        empty = np.flatnonzero(~observed.any(axis=axis))
        if len(empty):
            raise CompletionError(
                f"nothing is observed in {name} {empty[0]}: leave it out, or measure something"
                " of it"
            )


def _draw_columns(columns: int, rank: int, seed: int) -> Floats:
    """Return float64[columns, 1 + rank]: offsets of 0, and drawn factors."""
    drawn = np.random.default_rng(seed).normal(0.0, FIRST_SPREAD, (columns, rank))
    return np.hstack([np.zeros((columns, 1)), drawn])


def _ridge_regression(
    target: Floats, known: Floats, fixed: Floats, regularisation: float
) -> Floats:
    """Return float64[R, 1 + rank]: offset and factors of each row of `target` float64[R, C].

    `known` float64[R, C]: 1 for observed entries. `fixed` float64[C, 1 + rank]: the columns'.
    """
    features = np.hstack([np.ones((len(fixed), 1)), fixed[:, 1:]])
    size = features.shape[1]
    products = (features[:, :, None] * features[:, None, :]).reshape(len(features), -1)
    gram = (known @ products).reshape(-1, size, size) + regularisation * np.eye(size)
    right = (known * (target - fixed[:, 0])) @ features
    solved: Floats = np.linalg.solve(gram, right[:, :, None])[:, :, 0]
    return solved


def _model(rows: Floats, columns: Floats) -> Floats:
    """Return float64[R, C]: a_i + b_j + u_i . v_j."""
    model: Floats = rows[:, :1] + columns[:, 0] + rows[:, 1:] @ columns[:, 1:].T
    return model


def _objective(
    target: Floats, known: Floats, rows: Floats, columns: Floats, regularisation: float
) -> float:
    """Return the objective, see above."""
    misfit = known * (target - _model(rows, columns))
    return float((misfit**2).sum() + regularisation * ((rows**2).sum() + (columns**2).sum()))


def _parts(observed: Bools, groups: Ints, parts: int, seed: int) -> Iterator[Bools]:
    """Yield bool[R, C] of entries to leave out together: the groups, dealt out by the seed."""
    shuffled = np.random.default_rng(seed).permutation(np.unique(groups[observed]))
    for part in np.array_split(shuffled, min(parts, len(shuffled))):
        left_out = np.zeros_like(observed)
        for group in part:
            # A group is left out only if each row and column keeps an entry.
            with_group = left_out | (observed & (groups == group))
            kept = observed & ~with_group
            if kept.any(axis=1).all() and kept.any(axis=0).all():
                left_out = with_group
        if left_out.any():
            yield left_out
