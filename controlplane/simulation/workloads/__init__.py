"""Workloads: readers of traces and seeded generators by `type`; see docs/workloads.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from controlplane.simulation.workloads import (
    andreas,
    gavel,
    gavel_generator,
    given,
    philly,
    poisson,
    swf,
    table,
)
from controlplane.simulation.workloads.base import BadLine, Workload, WorkloadError
from controlplane.simulation.workloads.options import FILES, Context, read_options

__all__ = ["FILES", "TYPES", "BadLine", "Workload", "WorkloadError", "load"]

TYPES: Mapping[str, tuple[type[Any], Callable[[Any, Context], Workload]]] = {
    "andreas": (andreas.Andreas, andreas.generate),
    "csv": (table.Csv, table.read),
    "gavel": (gavel.Gavel, gavel.read),
    "gavel_generator": (gavel_generator.GavelGenerator, gavel_generator.generate),
    "jobs": (given.Given, given.read),
    "philly": (philly.Philly, philly.read),
    "poisson": (poisson.Poisson, poisson.generate),
    "swf": (swf.Swf, swf.read),
}
"""Options and reader of each type; a new type is one line here and one file."""


def load(
    spec: Mapping[str, Any],
    seed: int,
    *,
    skip_bad: bool = False,
    gpu_types: Sequence[str] = (),
    folder: Path | None = None,
) -> Workload:
    """The workload of a specification, {"type": ..., options of the type}.

    Equal specifications, seeds and files give equal workloads. `skip_bad` leaves bad lines out
    (`Workload.skipped`) instead of refusing the file. `gpu_types`: the cluster's, on which traces
    that know none run at the speed of the trace. `folder`: where paths count from and which they
    may not leave; without it any path may be read. WorkloadError says what is wrong: unknown types
    and options with the known ones, bad lines with their numbers.
    """
    of = spec.get("type")
    if not isinstance(of, str) or of not in TYPES:
        raise WorkloadError(f"type: must be one of {', '.join(TYPES)}, not {of!r}")
    options, read = TYPES[of]
    return read(read_options(options, spec), Context(seed, skip_bad, tuple(gpu_types), folder))
