"""Jobs of a snapshot as columns: 100,000 jobs cost milliseconds; a row is made when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from policies.contract.views import JobView

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Array = TypeVar("Array", bound=np.ndarray[Any, Any])

JOB_NUMBERS = (
    "arrival_s", "remaining_steps", "due_s", "deadline_s", "walltime_s", "tardiness_weight",
    "weight", "cores",
    "memory_gb", "total_steps", "restart_cost_s",
    "min_run_s", "waiting_cost", "expected_run_s",
)  # fmt: skip
JOB_COUNTS = ("gpus_min", "gpus_max", "priority", "units", "units_per_node", "nodes")


@dataclass(frozen=True)
class JobColumns:
    """Jobs of a snapshot by column; row i of every column is job `ids[i]`.

    `numbers[name]` float64[J] for JOB_NUMBERS, `counts[name]` int64[J] for JOB_COUNTS, `kind`
    int64[J] into the snapshot's kinds; `others[name]` tuples of J values. Columns are shared
    between snapshots: never write into them.
    """

    ids: tuple[str, ...]
    kinds: tuple[str, ...]
    numbers: Mapping[str, Floats]
    counts: Mapping[str, Ints]
    others: Mapping[str, tuple[Any, ...]]
    part_of_gpus_only: bool = False
    """True for a part of columns that are known to be `gpus_only`."""

    @classmethod
    def of(cls, jobs: Sequence[JobView]) -> JobColumns:
        numbers = {
            n: frozen(np.array([getattr(j, n) for j in jobs], dtype=np.float64))
            for n in JOB_NUMBERS
        }
        counts = {
            n: frozen(np.array([getattr(j, n) for j in jobs], dtype=np.int64)) for n in JOB_COUNTS
        }
        others = {n: tuple(getattr(j, n) for j in jobs) for n in _OTHER_FIELDS}
        return cls(tuple(j.id for j in jobs), tuple(j.kind for j in jobs), numbers, counts, others)

    @cached_property
    def gpus_only(self) -> bool:
        """Return True if no job uses anything of its node but GPUs."""
        if self.part_of_gpus_only:
            return True
        plain = (self.numbers["cores"], self.numbers["memory_gb"])
        uses = any(amounts.any() for amounts in plain) or any(self.others["resources"])
        return not uses

    @cached_property
    def unit_keys(self) -> Sequence[tuple[Any, ...]]:
        """Columns that a batch job's request depends on: equal jobs fit where any of them fits."""
        asked = ("gpus_min", "units", "units_per_node", "nodes", "cores", "memory_gb")
        named = [self.listed[name] for name in asked]
        others = [self.others[n] for n in ("resources", "allowed_types", "labels", "may_mix")]
        return list(zip(*named, *others, strict=True))

    @cached_property
    def listed(self) -> Mapping[str, list[Any]]:
        """Numbers and counts as lists, which are several times as fast to read one by one."""
        return _Listed(self)

    @cached_property
    def predicted_run_s(self) -> list[float]:
        """Predicted run time of each batch job in s, at most its walltime; inf if unknown."""
        numbers = self.numbers
        run_s: list[float] = np.minimum(numbers["expected_run_s"], numbers["walltime_s"]).tolist()
        return run_s

    def row(self, i: int) -> JobView:
        values: dict[str, Any] = {n: float(c[i]) for n, c in self.numbers.items()}
        values.update({n: int(c[i]) for n, c in self.counts.items()})
        values.update({n: c[i] for n, c in self.others.items()})
        return JobView(id=self.ids[i], kind=self.kinds[i], **values)


class _Listed(dict[str, list[Any]]):
    """Columns as lists, made when they are first read."""

    def __init__(self, columns: JobColumns) -> None:
        super().__init__()
        self._columns = columns

    def __missing__(self, name: str) -> list[Any]:
        of = self._columns
        column: Ints | Floats = of.counts[name] if name in JOB_COUNTS else of.numbers[name]
        made: list[Any] = column.tolist()
        self[name] = made
        return made


_OTHER_FIELDS = tuple(
    n for n in JobView.__dataclass_fields__ if n not in (*JOB_NUMBERS, *JOB_COUNTS, "id", "kind")
)  # fmt: skip


class Jobs(Sequence[JobView]):
    """Jobs of a snapshot: a sequence of lazy rows over `columns`."""

    def __init__(self, columns: JobColumns, position: Mapping[str, int] | None = None) -> None:
        """Use `position`, the rows by job id, where it is known already."""
        self.columns, self._position = columns, position

    def __len__(self) -> int:
        return len(self.columns.ids)

    @overload
    def __getitem__(self, index: int) -> JobView: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[JobView, ...]: ...
    def __getitem__(self, index: int | slice) -> JobView | tuple[JobView, ...]:
        if isinstance(index, slice):
            return tuple(self.columns.row(i) for i in range(*index.indices(len(self))))
        return self.columns.row(range(len(self))[index])

    def __iter__(self) -> Iterator[JobView]:
        return (self.columns.row(i) for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Jobs) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # a sequence compared by value, like a list

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        rows = handler.generate_schema(tuple[JobView, ...])
        return core_schema.no_info_after_validator_function(
            lambda given: cls(JobColumns.of(given)),
            rows,
            serialization=core_schema.plain_serializer_function_ser_schema(
                tuple, return_schema=rows
            ),
        )

    @property
    def position(self) -> Mapping[str, int]:
        if self._position is None:
            self._position = {job: i for i, job in enumerate(self.columns.ids)}
        return self._position

    def by_id(self, job: str) -> JobView:
        """Job with this id; KeyError if it is not in the snapshot."""
        return self.columns.row(self.position[job])


def frozen(array: Array) -> Array:
    """Make the array read-only and return it."""
    array.setflags(write=False)
    return array
