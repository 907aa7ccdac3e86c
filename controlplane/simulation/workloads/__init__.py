"""Workloads: readers of traces and seeded generators by `type`; see docs/workloads.md."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controlplane.simulation.workloads import andreas, given, kit, poisson, table
from controlplane.simulation.workloads.base import BadLine, Workload, WorkloadError
from controlplane.simulation.workloads.gavel import generator as gavel_generator
from controlplane.simulation.workloads.gavel import trace as gavel
from controlplane.simulation.workloads.options import FILES, Context, read_options
from controlplane.simulation.workloads.swf import trace as swf
from foundation.garbage import not_collected

__all__ = ["FILES", "TYPES", "BadLine", "Workload", "WorkloadError", "load", "options_of"]

Reader = Callable[[Any, Context], Workload]

TYPES: Mapping[str, tuple[type[Any], Reader]] = {
    "andreas": (andreas.Andreas, andreas.generate),
    "csv": (table.Csv, table.read),
    "gavel": (gavel.Gavel, gavel.read),
    "gavel_generator": (gavel_generator.GavelGenerator, gavel_generator.generate),
    "jobs": (given.Given, given.read),
    "kit": (kit.Kit, kit.generate),
    "philly": (table.Philly, table.read_philly),
    "poisson": (poisson.Poisson, poisson.generate),
    "swf": (swf.Swf, swf.read),
}
"""Options and reader of each type; a new type is one line here and one file."""


def options_of(spec: Mapping[str, Any]) -> tuple[Any, Reader]:
    """Parse a specification to options and reader. WorkloadError names the field and known ones."""
    of = spec.get("type")
    if not isinstance(of, str) or of not in TYPES:
        raise WorkloadError(f"workload.type: must be one of {', '.join(TYPES)}, not {of!r:.80}")
    options, read = TYPES[of]
    return read_options(options, spec), read


@not_collected()
def load(
    spec: Mapping[str, Any], seed: int, *, skip_bad: bool = False, gpu_types: Sequence[str] = ()
) -> Workload:
    """Load the workload of a specification, {"type": ..., options of the type}.

    Equal specifications, seeds and files give equal workloads. `skip_bad` omits bad lines
    (`Workload.skipped`) instead of raising. `gpu_types`: the cluster's, on which traces without
    types run at the speed of the trace. WorkloadError as `options_of`, and for bad lines.
    """
    options, read = options_of(spec)
    return read(options, Context(seed, skip_bad, tuple(gpu_types)))
