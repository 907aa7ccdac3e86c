"""What share policies divide: time on GPUs among classes of like jobs, and pairs of them that share
devices (Gavel, section 3.1).

Jobs with the same row of throughputs, scale factor, weight, entity and willingness to share are
interchangeable in every objective that looks neither at steps nor at a place in a queue: any
optimum averaged over their permutations is one too. So a row here is a *class* of `count` jobs, its
share the time of all of them together. Objectives that tell jobs apart have classes of one job.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from policies.contract.snapshot import Bools, Floats, Ints, frozen


@dataclass(frozen=True, slots=True)
class Column:
    """A way to get time: GPUs of one type, on one node or (`spread`) several."""

    gpu_type: str
    spread: bool = False


@dataclass(frozen=True)
class AllocationProblem:
    """Classes m of jobs, columns c, and pairs p of classes whose jobs share their devices.

    `types` names of the GPU types; `gpus` float64[T], N_j; `columns` and `column_type` int64[C]
    their types: columns of a type share its GPUs. `rates` float64[M, C], T[m, c]: steps/s of one
    job of the class, 0 where it cannot run. `count` int64[M] jobs in the class, `scale` int64[M]
    GPUs of each (s_m), `weight` float64[M] (w_m > 0), `entity` int64[M] whose they are. `pairs`
    int64[P, 2]: classes that share, the first not above the second (equal: two jobs of one class,
    of which it needs two); both have the same scale. `pair_rates` float64[P, C, 2]: steps/s of a
    job of the first and of the second together (the same for two of one class).
    """

    types: tuple[str, ...]
    gpus: Floats
    columns: tuple[Column, ...]
    column_type: Ints
    rates: Floats
    count: Ints
    scale: Ints
    weight: Floats
    entity: Ints
    pairs: Ints
    pair_rates: Floats

    def of_jobs(self, count: Ints, pairs: Ints, pair_rates: Floats) -> AllocationProblem:
        """The same classes with other numbers of jobs and pairs; derived values are kept."""
        after, known = object.__new__(AllocationProblem), vars(self)
        kept = {name: known[name] for name in WITHOUT_JOBS if name in known}
        vars(after).update(kept, count=count, pairs=pairs, pair_rates=pair_rates)
        return after

    @cached_property
    def usage(self) -> Floats:
        """float64[T, C]: GPUs of each type that a GPU's worth of time in a column takes."""
        table = np.zeros((len(self.types), len(self.columns)))
        table[self.column_type, np.arange(len(self.columns))] = 1.0
        return frozen(table)

    @cached_property
    def type_column(self) -> Ints:
        """int64[M, T]: the usual column of a job on a type (`usual_columns`), or -1."""
        return frozen(self.usual_columns(self.rates > 0.0))

    def usual_columns(self, usable: Bools) -> Ints:
        """int64[R, T]: first usable (bool[R, C]) column of each type, consolidated first, or -1."""
        found = np.full((len(usable), len(self.types)), -1, dtype=np.int64)
        for c in sorted(range(len(self.columns)), key=lambda c: (not self.columns[c].spread, -c)):
            found[usable[:, c], self.column_type[c]] = c
        return found

    @cached_property
    def type_rates(self) -> Floats:
        """float64[M, T]: steps/s of a job on each type, in `type_column`; 0 where it cannot run."""
        if self.column_type.tolist() == list(range(len(self.types))) and not any(
            c.spread for c in self.columns
        ):
            return self.rates  # a column for each type, as nearly always
        rates = np.take_along_axis(self.rates, np.maximum(self.type_column, 0), axis=1)
        return frozen(np.where(self.type_column < 0, 0.0, rates))

    @cached_property
    def equal_rates(self) -> Floats:
        """float64[M]: throughput(m, X_equal): steps/s with equal time on every GPU."""
        return frozen(self.type_rates @ (self.gpus / max(float(self.gpus.sum()), 1.0)))

    @cached_property
    def fastest_rates(self) -> Floats:
        """float64[M]: throughput(m, X_fastest): steps/s with all time on its fastest type."""
        return frozen(self.rates.max(axis=1, initial=0.0))


WITHOUT_JOBS = (
    "types", "gpus", "columns", "column_type", "rates", "scale", "weight", "entity",
    "usage", "type_column", "type_rates", "equal_rates", "fastest_rates",
)  # fmt: skip
"""Fields of a problem, and what follows from them, that do not depend on job numbers."""


@dataclass(frozen=True)
class Shares:
    """A problem made. `alone` float64[M, C]: time of all jobs of a class together, in parts of the
    wall clock (at most `count`); `paired` float64[P, C]: of all pairs of the two classes together.
    A job's part is its class's, divided by `count`.
    """

    alone: Floats
    paired: Floats
    objective: float

    def throughput(self, problem: AllocationProblem) -> Floats:
        """float64[M]: throughput(m, X): steps/s of one job of each class (section 3.1)."""
        total: Floats = (self.alone * problem.rates).sum(axis=1)
        for side in (0, 1):
            np.add.at(
                total,
                problem.pairs[:, side],
                (self.paired * problem.pair_rates[:, :, side]).sum(axis=1),
            )
        total /= problem.count
        return total
