"""Results that share policies keep from one round to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from policies.contract.snapshot import NodeView, Running
from policies.gavel.allocation.job_classes import ClassInputs, JobClasses
from policies.placement.layout import Layout
from policies.placement.time_slices import Current

Inputs = TypeVar("Inputs")
Result = TypeVar("Result")

LayoutInputs: TypeAlias = tuple[Sequence[NodeView], tuple[str, ...], Sequence[int]]
"""Nodes, the resources that are counted, and by node the devices that are."""

CurrentInputs: TypeAlias = tuple[
    ClassInputs, LayoutInputs, Sequence[int], Sequence[tuple[Running, ...]]
]
"""Of the job classes, of the layout, by node the idle devices, and by row what runs."""


class Kept(Generic[Inputs, Result]):
    """The last result with all that it follows from, which is compared by value."""

    def __init__(self) -> None:
        self._last: tuple[Inputs, Result] | None = None

    def of(self, inputs: Inputs, make: Callable[[], Result]) -> Result:
        """Return the last result if these were its inputs, else a new one."""
        if self._last is None or self._last[0] != inputs:
            self._last = inputs, make()
        return self._last[1]


@dataclass(slots=True)
class RoundCache:
    """Results of the round before: most rounds see the jobs and nodes of the one before.

    The world owns it and passes it to its policy. A plan never depends on it.
    """

    layout: Kept[LayoutInputs, Layout] = field(default_factory=Kept)
    job_classes: Kept[ClassInputs, JobClasses] = field(default_factory=Kept)
    current: Kept[CurrentInputs, Mapping[int, Current]] = field(default_factory=Kept)
