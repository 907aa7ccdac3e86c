"""Options of a workload: strict frozen dataclasses whose errors list known names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import Field

from controlplane.simulation.workloads.base import MOST_WEIGHT, WorkloadError
from controlplane.simulation.workloads.lines import read_text
from foundation.forms import OBJECT, Form, FormError
from loadmaster.text_formats import without_mark
from policies.contract.snapshot import Floats

Factor = Annotated[float, Field(gt=0, le=1e6)]
Weight = Annotated[float, Field(ge=0, le=MOST_WEIGHT)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Tuning = Annotated[float, Field(gt=0, le=1e9)]
JobCount = Annotated[int, Field(ge=1, le=10_000_000)]
Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class Context:
    """Context of a reader; `gpu_types`: the cluster's, for traces that name none."""

    seed: int
    skip_bad: bool
    gpu_types: tuple[str, ...]

    def rng(self) -> np.random.Generator:
        """Random numbers of this seed."""
        return np.random.default_rng(self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Options of every trace: its `path` or `text`, its part to use, and assumptions.

    `jobs`: at most so many, from the first on. `time_factor`: multiplies arrivals, so that 0.5
    doubles the load. `speeds`: speed of each GPU type, 1 as in the trace. `due_factor` [least,
    most]: due date drawn as arrival + that many run times. `tardiness_weight` [least, most]: drawn,
    cost per second late.
    """

    type: str
    path: str = ""
    text: str = ""
    name: str = ""
    jobs: JobCount | None = None
    time_factor: Factor = 1.0
    speeds: Annotated[tuple[tuple[str, Factor], ...], OBJECT] = ()
    due_factor: tuple[Annotated[float, Field(ge=0, le=1e6)], ...] = ()
    tardiness_weight: tuple[Weight, ...] = ()

    def read(self) -> str:
        """Text, or that of the file."""
        if bool(self.path) == bool(self.text):
            raise WorkloadError("path: give either a path or a text")
        return without_mark(self.text) if self.text else read_text(Path(self.path))

    def speed_of(self, gpu_types: tuple[str, ...]) -> dict[str, float]:
        """Speed by GPU type: as given, else 1 on every type of the cluster."""
        speeds = dict(self.speeds) or dict.fromkeys(gpu_types, 1.0)
        if not speeds:
            raise WorkloadError(
                'speeds: give the speed of the jobs on each GPU type, such as {"V100": 1.0, "T4":'
                " 0.4}"
            )
        return speeds

    def due_s(self, arrival_s: Floats, run_s: Floats, rng: np.random.Generator) -> Floats | float:
        """Due dates, drawn; inf by default."""
        if not self.due_factor:
            return inf
        return arrival_s + run_s * drawn(self.due_factor, len(run_s), rng)

    def weights(self, count: int, rng: np.random.Generator) -> Floats | float:
        """Tardiness weights, drawn; 0 by default."""
        return drawn(self.tardiness_weight, count, rng) if self.tardiness_weight else 0.0

    @property
    def title(self) -> str:
        """Name of the workload: as given, else the file's, else the type."""
        return self.name or (Path(self.path).name if self.path else self.type)


FILES = ("path", "throughputs")
"""Options that name a file."""


def read_options(of: type[Options], spec: Mapping[str, Any]) -> Options:
    """Options of a specification; WorkloadError names the bad field and the known ones."""
    try:
        options = Form(of).read(dict(spec))
    except FormError as error:
        raise WorkloadError(f"workload.{error}") from None
    for name in ("due_factor", "tardiness_weight"):
        limits = getattr(options, name, ())
        if limits and (len(limits) != 2 or limits[0] > limits[1]):
            raise WorkloadError(f"workload.{name}: must be [least, most], not {list(limits)}")
    return options


def drawn(limits: tuple[float, ...], count: int, rng: np.random.Generator) -> Floats:
    """float64[count], uniform between the two limits."""
    return rng.uniform(limits[0], limits[1], count)


def one_of(name: str, value: str, known: Sequence[str]) -> None:
    """Raise WorkloadError unless the value is a known one."""
    if value not in known:
        raise WorkloadError(f"{name}: must be one of {', '.join(known)}, not {value!r}")
