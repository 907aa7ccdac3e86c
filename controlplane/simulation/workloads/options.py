"""Options of a workload: strict frozen dataclasses whose errors list known names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from controlplane.simulation.workloads.base import MOST_WEIGHT, WorkloadError
from controlplane.simulation.workloads.lines import read_text
from policies.contract.forms import Form, FormError, Rules
from policies.contract.snapshot import Floats
from policies.contract.snapshot_json import RULES

Amounts = tuple[tuple[str, float], ...]
Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class Context:
    """Context of a reader; `gpu_types`: the cluster's, for traces that name none."""

    seed: int
    skip_bad: bool
    gpu_types: tuple[str, ...]
    folder: Path | None

    def rng(self) -> np.random.Generator:
        """Random numbers of this seed."""
        return np.random.default_rng(self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Fields that every trace has: where its text is (`path` or `text`), how much of it is wanted,
    and what it does not say.

    `jobs`: at most so many, from the first on. `time_factor`: multiplies arrivals, so that 0.5
    doubles the load. `speeds`: how fast each GPU type runs the jobs, 1 as in the trace.
    `due_factor` [least, most]: due date drawn as arrival + that many run times. `tardiness_weight`
    [least, most]: drawn, cost per second late.
    """

    type: str
    path: str = ""
    text: str = ""
    name: str = ""
    jobs: int | None = None
    time_factor: float = 1.0
    speeds: Amounts = ()
    due_factor: tuple[float, ...] = ()
    tardiness_weight: tuple[float, ...] = ()

    def read(self, folder: Path | None) -> str:
        """The text. A folder given, paths count from there and may not leave it."""
        if bool(self.path) == bool(self.text):
            raise WorkloadError("path: give either a path or a text")
        return self.text or read_text(within(folder, self.path))

    def speed_of(self, gpu_types: tuple[str, ...]) -> dict[str, float]:
        """Speed by GPU type: as said, else 1 on every type of the cluster."""
        speeds = dict(self.speeds) or dict.fromkeys(gpu_types, 1.0)
        if not speeds:
            raise WorkloadError(
                'speeds: say on which GPU types the jobs run and how fast, e.g. {"V100": 1.0, "T4":'
                " 0.4}"
            )
        return speeds

    def due_s(self, arrival_s: Floats, run_s: Floats, rng: np.random.Generator) -> Floats | float:
        """Due dates, drawn; inf where none are wanted."""
        return (
            float(np.inf)
            if not self.due_factor
            else arrival_s + run_s * drawn(self.due_factor, len(run_s), rng)
        )

    def weights(self, count: int, rng: np.random.Generator) -> Floats | float:
        """Tardiness weights, drawn; 0 where none are wanted."""
        return 0.0 if not self.tardiness_weight else drawn(self.tardiness_weight, count, rng)

    @property
    def title(self) -> str:
        """The workload's name: as said, else the file's, else the type."""
        return self.name or (Path(self.path).name if self.path else self.type)


FILES = ("path", "throughputs")
"""Options that name a file."""

LEAST = {
    "jobs": 1,
    "nodes": 1,
    "scenario": 1,
    "due_factor": 0,
    "tardiness_weight": 0,
    "gap_s": 0,
    "sigma": 0,
    "gpus": 0,
    "heavy": 0,
}
ABOVE = {
    "time_factor": 0,
    "speeds": 0,
    "processors_per_gpu": 0,
    "run_s": 0,
    "tuning": 0,
    "heavy_weight": 0,
    "slos": 0,
}
MOST = {
    "scenario": 2,
    "sigma": 10,
    "nodes": 1_000_000,
    "jobs": 10_000_000,
    "time_factor": 1e6,
    "gap_s": 1e9,
    "run_s": 1e9,
    "tuning": 1e9,
    "gpus": 1e9,
    "speeds": 1e6,
    "due_factor": 1e6,
    "tardiness_weight": MOST_WEIGHT,
    "heavy": 1,
    "heavy_weight": MOST_WEIGHT,
    "slos": 1e6,
}
"""Limits of the options, by name: at least, greater than, at most."""


def read_options(of: type[Options], spec: Mapping[str, Any]) -> Options:
    """Options of a specification; WorkloadError names the bad field and the known ones."""
    try:
        options: Options = _form(of).read(dict(spec), "")
    except FormError as error:
        raise WorkloadError(f"workload: {error}") from None
    for name in ("due_factor", "tardiness_weight"):
        check_range(name, getattr(options, name, ()))
    return options


def drawn(limits: tuple[float, ...], count: int, rng: np.random.Generator) -> Floats:
    """float64[count], uniform between the two limits."""
    return rng.uniform(limits[0], limits[1], count)


def check_range(name: str, limits: tuple[float, ...]) -> None:
    """A range is nothing or [least, most]."""
    if limits and (len(limits) != 2 or limits[0] > limits[1]):
        raise WorkloadError(f"{name}: must be [least, most], not {list(limits)}")


def one_of(name: str, value: str, known: Sequence[str]) -> None:
    """WorkloadError unless the value is one of those known."""
    if value not in known:
        raise WorkloadError(f"{name}: must be one of {', '.join(known)}, not {value!r}")


def within(folder: Path | None, path: str) -> Path:
    """The path; below `folder`, which it may not leave, if one is given."""
    if folder is None:
        return Path(path)
    inside = (folder / path).resolve()
    if not inside.is_relative_to(folder.resolve()):
        raise WorkloadError(f"path: {path} is not below the folder of workloads")
    return inside


def _form(of: type[Any]) -> Form:
    names = [f.name for f in fields(of)]
    least = {f"{of.__name__}.{n}": LEAST[n] for n in names if n in LEAST}
    above = {f"{of.__name__}.{n}": ABOVE[n] for n in names if n in ABOVE}
    most = {f"{of.__name__}.{n}": MOST[n] for n in names if n in MOST}
    return Form(
        of,
        Rules(
            {**RULES.least, **least},
            {**RULES.above, **above},
            {**RULES.most, **most},
            RULES.unbounded,
        ),
    )
