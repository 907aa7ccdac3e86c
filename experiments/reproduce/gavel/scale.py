"""Scales of the experiments: as in the paper, or small enough for minutes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOUR_S = 3600.0
ROUND_S = 360.0


@dataclass(frozen=True, slots=True)
class Scale:
    """`each`: GPUs of each of the three types (36 in the paper); rates are told for 36 and scaled.

    `jobs` of a continuous trace, of which the rows of `window` count (jobs in a steady state; the
    published program takes 4000 to 5000, others go on arriving); `single`, `multiple`: jobs per
    hour. `static`: jobs of static traces. `cost_jobs`: of the cost experiment. `active`: active
    jobs whose shares are timed. `rounds_s`: lengths of rounds. `small`: jobs per hour of 12 GPUs.
    """

    name: str
    each: int = 36
    jobs: int = 5700
    window: tuple[int, int] = (4000, 5000)
    single: tuple[float, ...] = (2.0, 3.0, 4.0, 5.0, 6.0)
    multiple: tuple[float, ...] = (1.0, 1.5, 2.0, 2.5, 3.0)
    static: tuple[int, ...] = (100, 250, 500)
    cost_jobs: int = 500
    active: tuple[int, ...] = (32, 128, 512, 2048)
    rounds_s: tuple[float, ...] = (360.0, 720.0, 1200.0, 1800.0, 3600.0)
    small: tuple[float, ...] = (0.2, 0.35, 0.5, 0.6)

    def gap_s(self, jobs_per_hour: float) -> float:
        """Mean gap of arrivals that makes the load of so many jobs per hour on 108 GPUs."""
        return HOUR_S / jobs_per_hour * 36 / self.each


FULL = Scale("full")
QUICK = Scale(
    "quick",
    each=9,
    jobs=150,
    window=(70, 120),
    single=(4.0, 6.0),
    multiple=(1.5, 3.0),
    static=(30, 60),
    cost_jobs=40,
    active=(128, 512, 2048),
    rounds_s=(360.0, 1200.0, 3600.0),
    small=(0.7,),
)


@dataclass(frozen=True, slots=True)
class Data:
    """Folder of Gavel's throughput tables and traces; what is missing is drawn."""

    folder: Path

    def tables(self, name: str = "simulation") -> str:
        """Path of the tables of that name."""
        return str(self.folder / f"{name}_throughputs.json")

    def trace(self, name: str) -> str:
        """Path of a recorded trace."""
        return str(self.folder / name)

    def stream(self, mode: str) -> str | None:
        """Path of the published program's stream of jobs for seed 0, if there."""
        path = (
            self.folder
            / f"gavel_stream_{'single' if mode.endswith('single') else 'multi'}_seed0.csv"
        )
        return str(path) if path.is_file() else None

    def arriving(self, mode: str, jobs: int, gap_s: float) -> dict[str, Any]:
        """The continuous workload: for seed 0 the published stream if present, else drawn."""
        drawn = {
            "type": "gavel_generator",
            "mode": mode,
            "jobs": jobs,
            "gap_s": gap_s,
            "throughputs": self.tables(),
        }
        if (path := self.stream(mode)) is None:
            return {"workload": drawn}
        given = {
            "type": "gavel",
            "path": path,
            "throughputs": self.tables(),
            "gap_s": gap_s,
            "jobs": jobs,
        }
        return {"workload": drawn, "of_seed_0": given}


def cluster(each: Sequence[int], types: Sequence[str] = ("V100", "P100", "K80")) -> dict[str, int]:
    """GPUs by type, as a spec has them."""
    return dict(zip(types, each, strict=True))
