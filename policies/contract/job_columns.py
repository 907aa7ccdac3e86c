"""All jobs of a snapshot by column, with rows made when they are asked for."""

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
)  # fmt: skip
JOB_COUNTS = ("gpus_min", "gpus_max", "priority", "units")


@dataclass(frozen=True)
class JobColumns:
    """All jobs of a snapshot by column; row i of every column is job `ids[i]`.

    `numbers[name]` float64[J] for each of JOB_NUMBERS, `counts[name]` int64[J] for each of
    JOB_COUNTS, `kind` int64[J] into the snapshot's kinds; `others[name]` tuples of J values for the
    rest. Columns are shared between snapshots (copy-on-write): never write into them.
    """

    ids: tuple[str, ...]
    kinds: tuple[str, ...]
    numbers: Mapping[str, Floats]
    counts: Mapping[str, Ints]
    others: Mapping[str, tuple[Any, ...]]

    @classmethod
    def of(cls, jobs: Sequence[JobView]) -> JobColumns:
        """Columns of these rows, in their order."""
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
        """Whether no job uses anything of its node but GPUs; true of every part of such columns."""
        uses = (
            self.numbers["cores"].any()
            or self.numbers["memory_gb"].any()
            or any(self.others["resources"])
        )
        return not uses

    @cached_property
    def free_of_conditions(self) -> bool:
        """True if no job has dependencies, labels or resources."""
        return not any(any(self.others[name]) for name in ("dependencies", "labels", "resources"))

    def row(self, i: int) -> JobView:
        """Row i as a JobView."""
        values: dict[str, Any] = {n: float(c[i]) for n, c in self.numbers.items()}
        values.update({n: int(c[i]) for n, c in self.counts.items()})
        values.update({n: c[i] for n, c in self.others.items()})
        return JobView(id=self.ids[i], kind=self.kinds[i], **values)


_OTHER_FIELDS = tuple(
    n for n in JobView.__dataclass_fields__ if n not in (*JOB_NUMBERS, *JOB_COUNTS, "id", "kind")
)  # fmt: skip


class Jobs(Sequence[JobView]):
    """The jobs of a snapshot: a sequence of lazy rows over `columns`."""

    def __init__(self, columns: JobColumns) -> None:
        self.columns = columns

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
        """An array of rows in JSON."""
        rows = handler.generate_schema(tuple[JobView, ...])
        return core_schema.no_info_after_validator_function(
            lambda given: cls(JobColumns.of(given)),
            rows,
            serialization=core_schema.plain_serializer_function_ser_schema(
                tuple, return_schema=rows
            ),
        )

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Row of each job id."""
        return {job: i for i, job in enumerate(self.columns.ids)}

    def by_id(self, job: str) -> JobView:
        """The job with this id; KeyError if it is not in the snapshot."""
        return self.columns.row(self.position[job])


def frozen(array: Array) -> Array:
    """The same array, which can no longer be written to."""
    array.setflags(write=False)
    return array
