"""Classes of like jobs: from columns of jobs to the rows of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.contract.snapshot import Ints

FEW = 65_536
"""Distinct values up to which counting them is faster than sorting jobs by them."""
MANY = 2**62


@dataclass(frozen=True, slots=True)
class Classes:
    """`of` int64[J]: the class of each job; `first` int64[M]: a job of each class, its first;
    `count` int64[M]: its jobs.
    """

    of: Ints
    first: Ints
    count: Ints


def classes_of(*columns: NDArray[Any]) -> Classes:
    """Classes of the jobs that are alike in every column: [J] or [J, n] of integers, truth values
    or floats (compared exactly).

    A job is in a class of its own where one of the columns numbers them. ValueError without a
    column. Classes are in the order of their values, the first column first, so that the same jobs
    give the same classes.
    """
    if not columns:
        raise ValueError("jobs are job_classes by at least one column")
    key, span = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in (part for whole in columns for part in np.atleast_2d(whole.T)):
        codes, n = _codes(column)
        if span * n > MANY:
            key, span = _ranks(key)
        key, span = key * n + codes, span * n
    return _counted(key, span) if span <= max(FEW, 4 * len(key)) else _sorted(key)


def _codes(column: NDArray[Any]) -> tuple[Ints, int]:
    """Values as numbers from 0 on in the same order, and how many there may be."""
    if not len(column) or (column == column[0]).all():
        return np.zeros(len(column), dtype=np.int64), 1
    if column.dtype.kind in "iub":
        low, high = int(column.min()), int(column.max())
        if high - low < MANY:
            return column.astype(np.int64) - low, high - low + 1
    return _ranks(column)


def _ranks(values: NDArray[Any]) -> tuple[Ints, int]:
    found, ranks = np.unique(values, return_inverse=True)
    return ranks.astype(np.int64), len(found)


def _counted(key: Ints, span: int) -> Classes:
    counts = np.bincount(key, minlength=span)
    present = np.flatnonzero(counts)
    number, first = np.zeros(span, dtype=np.int64), np.zeros(span, dtype=np.int64)
    number[present] = np.arange(len(present))
    first[key[::-1]] = np.arange(len(key))[
        ::-1
    ]  # of several jobs with one key the first is written last
    return Classes(number[key], first[present], counts[present])


def _sorted(key: Ints) -> Classes:
    _, first, of, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    return Classes(of.astype(np.int64), first.astype(np.int64), count.astype(np.int64))
