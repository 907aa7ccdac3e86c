"""One simulation or computation of an experiment, its file, and its error."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from json import JSONDecodeError, loads
from pathlib import Path
from typing import Any

from controlplane.simulation.study.run_keys import (
    digest,
    digest_of_code,
    digest_of_file,
    files_in,
    slug,
)
from experiments.reproduce.files import each
from experiments.reproduce.gavel.model import Experiment, Spec
from policies.contract.policy import PolicyError, UnknownPolicyError


@dataclass(frozen=True)
class Cell:
    """A series at a point with a seed; only `spec` and `seed` decide its result."""

    experiment: str
    series: str
    x: float
    spec: Spec
    seed: int

    @cached_property
    def told(self) -> dict[str, Any]:
        """The spec that decides it; seed 0 may have another workload (`of_seed_0`)."""
        told = dict(self.spec)
        given = told.pop("of_seed_0", None)
        if given is not None and self.seed == 0:
            told["workload"] = given
        return told

    @cached_property
    def file(self) -> str:
        """The name of its file: equal computations of equal code on equal files have the same."""
        files = [digest_of_file(path) for path in files_in(self.told)]
        deciding = [_without_paths(self.told), files, self.seed, digest_of_code()]
        return f"{slug(self.series)}-{self.seed}-{digest(deciding)[:16]}.json"


def _without_paths(told: object) -> object:
    """The spec with names of files instead of paths: their content counts, not their place."""
    if isinstance(told, dict):
        return {k: _without_paths(v) for k, v in told.items()}
    return Path(told).name if isinstance(told, str) and "/" in told else told


def cells_of(experiment: Experiment, seeds: int) -> Iterator[Cell]:
    """All cells of an experiment; seeds count from 0."""
    for series, x, spec in experiment.points():
        for seed in range(min(seeds, experiment.seeds)):
            yield Cell(experiment.id, series.label, x, spec, seed)


def run(cell: Cell) -> dict[str, Any]:
    """Its result, or {"error": reason}: an experiment may fail in any way."""
    from experiments.reproduce.gavel.runners import RUNNERS

    try:
        return dict(RUNNERS[cell.told["runner"]](cell.told, cell.seed))
    except UnknownPolicyError as error:
        return {"error": f"policy not available: {str(error).split(';')[0]}"}
    except PolicyError as error:
        return {"error": f"policy not available as asked for: {error}"}
    except (
        Exception
    ) as error:  # whatever a policy, a trace or a simulation raises is that experiment's alone
        return {"error": f"{type(error).__name__}: {error}"}


def run_all(
    experiments: Sequence[Experiment],
    seeds: int,
    folder: Path,
    processes: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """A row for every cell, from its file; only failed ones are run again."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = [cell for experiment in experiments for cell in cells_of(experiment, seeds)]
    left = {cell.file: cell for cell in cells if not _is_done(folder / cell.file)}
    say(
        f"{len(cells)} simulations, {len({c.file for c in cells}) - len(left)} of them done before,"
        f" {len(left)} to do"
    )
    for done, path in enumerate(each(list(left.values()), run, folder, processes), start=1):
        cell = left[path.name]
        say(
            f"{done} of {len(left)}: figure {cell.experiment}, {cell.series}, {cell.x:g}, seed"
            f" {cell.seed}{_told_error(path)}"
        )
    return [_row(cell, folder) for cell in cells]


def _row(cell: Cell, folder: Path) -> dict[str, Any]:
    return {
        "experiment": cell.experiment,
        "series": cell.series,
        "x": cell.x,
        "seed": cell.seed,
        **_read(folder / cell.file),
    }


def _is_done(path: Path) -> bool:
    return path.exists() and "error" not in _read(path)


def _told_error(path: Path) -> str:
    error = _read(path).get("error")
    return f": {error}" if error else ""


def _read(path: Path) -> Mapping[str, Any]:
    try:
        read: dict[str, Any] = loads(path.read_text())
    except JSONDecodeError as error:
        return {"error": f"{path.name} cannot be read: {error}"}
    return read
