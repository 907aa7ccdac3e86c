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

    `kinds`: ids of their kinds. `numbers[name]` float64[J] for JOB_NUMBERS, `counts[name]` int64[J]
    for JOB_COUNTS, `others[name]` tuples of J values for the other fields of `JobView`. Columns are
    shared between snapshots: never write into them.
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
        """Return the columns of these jobs."""
        values = {
            name: [getattr(job, name) for job in jobs] for name in JobView.__dataclass_fields__
        }
        numbers = {name: frozen(np.array(values[name], dtype=np.float64)) for name in JOB_NUMBERS}
        counts = {name: frozen(np.array(values[name], dtype=np.int64)) for name in JOB_COUNTS}
        others = {name: tuple(values[name]) for name in _OTHER_FIELDS}
        return cls(tuple(values["id"]), tuple(values["kind"]), numbers, counts, others)

    @cached_property
    def gpus_only(self) -> bool:
        """True if no job uses anything of its node but GPUs."""
        if self.part_of_gpus_only:
            return True
        has_cores = self.numbers["cores"].any()
        has_memory = self.numbers["memory_gb"].any()
        return not (has_cores or has_memory or any(self.others["resources"]))

    @cached_property
    def unit_keys(self) -> Sequence[tuple[Any, ...]]:
        """All that a batch job's request depends on: jobs with equal keys fit in the same places.

        By row.
        """
        columns: list[Sequence[Any]] = []
        for name in ("gpus_min", "units", "units_per_node", "nodes", "cores", "memory_gb"):
            columns.append(self.listed[name])
        for name in ("resources", "allowed_types", "labels", "may_mix"):
            columns.append(self.others[name])
        return list(zip(*columns, strict=True))

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
        """Return the job of row i."""
        values: dict[str, Any] = {name: float(column[i]) for name, column in self.numbers.items()}
        values.update({name: int(column[i]) for name, column in self.counts.items()})
        values.update({name: column[i] for name, column in self.others.items()})
        return JobView(id=self.ids[i], kind=self.kinds[i], **values)


class _Listed(dict[str, list[Any]]):
    """Columns as lists, made when they are first read."""

    def __init__(self, columns: JobColumns) -> None:
        super().__init__()
        self._columns = columns

    def __missing__(self, name: str) -> list[Any]:
        counts = self._columns.counts
        column: Ints | Floats = counts[name] if name in counts else self._columns.numbers[name]
        values: list[Any] = column.tolist()
        self[name] = values
        return values


_OTHER_FIELDS = tuple(
    name
    for name in JobView.__dataclass_fields__
    if name not in (*JOB_NUMBERS, *JOB_COUNTS, "id", "kind")
)
"""Fields of a job that are neither numbers nor counts, id and kind apart."""


class Jobs(Sequence[JobView]):
    """Jobs of a snapshot: a sequence of lazy rows over `columns`."""

    def __init__(self, columns: JobColumns, position: Mapping[str, int] | None = None) -> None:
        """`position`: the rows by job id, where they are known already."""
        self.columns = columns
        self._position = position

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
            lambda jobs: cls(JobColumns.of(jobs)),
            rows,
            serialization=core_schema.plain_serializer_function_ser_schema(
                tuple, return_schema=rows
            ),
        )

    @property
    def position(self) -> Mapping[str, int]:
        """Row by job id."""
        if self._position is None:
            self._position = {job: i for i, job in enumerate(self.columns.ids)}
        return self._position

    def by_id(self, job: str) -> JobView:
        """Return the job with this id; KeyError if it is not in the snapshot."""
        return self.columns.row(self.position[job])


def frozen(array: Array) -> Array:
    """Make the array read-only and return it."""
    array.setflags(write=False)
    return array
