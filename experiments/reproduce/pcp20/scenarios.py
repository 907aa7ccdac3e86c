"""Systems, logs and dispatchers of the evaluation as data: a line here is a simulation more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.simulation.switches import AnyPredictor
from policies.host import registry

CLUSTERS = Path(__file__).with_name("clusters")
DATA_DRIVEN: AnyPredictor = "data_driven"
ORACLE: AnyPredictor = "oracle"
LAST_TWO: AnyPredictor = "last_two"
WALLTIME: AnyPredictor = "walltime"
SUFFIX: Mapping[AnyPredictor, str] = {
    DATA_DRIVEN: "-D",
    ORACLE: "-R",
    LAST_TWO: "-L2",
    WALLTIME: "-W",
}
"""The paper's endings; -W: walltimes, which it has not."""

PBS = "PBS"


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Policy of the registry with parameters, under the name of the report."""

    name: str
    policy: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_there(self) -> bool:
        """Return True if this release has the policy."""
        return self.policy in registry.names()


PCP20, HCP19, PCP19 = (
    Dispatcher(n, n.replace("'", "").lower()) for n in ("PCP'20", "HCP'19", "PCP'19")
)
EASY = Dispatcher("EASY", "backfilling")
FIFO = Dispatcher("FIFO", "backfilling", {"backfill": "none"})
SJF = Dispatcher("SJF", "backfilling", {"backfill": "none", "order": "shortest"})
LJF = Dispatcher("LJF", "backfilling", {"backfill": "none", "order": "longest"})
SHIPPED = Dispatcher("Loadmaster", "area_backfilling")
BASELINES = (FIFO, SJF, LJF, EASY)
CP = (HCP19, PCP19, PCP20)


@dataclass(frozen=True, slots=True)
class Setting:
    """System and log of some simulations. `jobs`: the first so many (None: all).

    `log`: file of the data folder; "" for the drawn load. `kills`: batch jobs end at their
    walltime. `added_s`: time of every decision in the simulated world, by dispatcher.
    """

    id: str
    title: str
    cluster: str
    log: str
    jobs: int | None = None
    kills: bool = False
    added_s: Mapping[str, float] = field(default_factory=dict)

    def workload(self, data: Path) -> dict[str, Any]:
        """Specification of the workload."""
        cut = {} if self.jobs is None else {"jobs": self.jobs}
        if self.log:
            fields = "batch_fields" if "eurora" in self.log else "batch"
            return {"type": "swf", "path": str(data / self.log), "gpus": fields, **cut}
        return {"type": "kit", "load": KIT_LOAD, **cut}


@dataclass(frozen=True, slots=True)
class Case:
    """Simulation of a setting with a dispatcher and a predictor of run times."""

    setting: Setting
    dispatcher: Dispatcher
    predictor: AnyPredictor

    @property
    def label(self) -> str:
        """Name of the dispatcher as in the paper, with the predictor's ending."""
        return self.dispatcher.name + SUFFIX[self.predictor]


@dataclass(frozen=True, slots=True)
class Scale:
    """Size of a reproduction: jobs of each log (None: all), and the rounds between instances.

    `first`: jobs of Eurora in the settings with PCP'19, which takes seconds to decide.
    """

    name: str
    eurora: int | None
    first: int
    kit: int
    seth: int | None
    instances_every: int
    most_instances: int


FULL = Scale("full", None, 1_000, 4_000, None, 5, 250)
QUICK = Scale("quick", 150, 100, 150, 150, 10, 10)

KIT_LOAD = 0.95
"""Part of the cluster that the drawn load wants: by its default nothing would wait."""
EURORA_LOG, SETH_LOG = "hpc/eurora-2014-4days.swf", "hpc/hpc2n-seth-slice.swf"
EURORA, FIRST, GPU_FIRST, KILLED, TIMED, KIT, SETH = (
    "eurora",
    "eurora-first",
    "eurora-gpu-first",
    "eurora-killed",
    "eurora-timed",
    "kit",
    "seth",
)
PAPERS_DECISION_S = {
    "HCP'19-D": 0.411, "PCP'19-D": 0.565, "PCP'20-D": 0.252,
    "HCP'19-R": 0.385, "PCP'19-R": 0.512, "PCP'20-R": 0.364,
}  # fmt: skip  # a table, to be read by columns
"""Table 2: mean time of a decision, which the paper's simulation leaves out of the waits."""


def settings(scale: Scale, kit_log: str = "") -> dict[str, Setting]:
    """Settings by id. `kit_log`: KIT's own log, where somebody has it."""
    mic, jobs, first = "eurora-mic-first-32gb", scale.eurora, scale.first
    found = (
        Setting(EURORA, "Eurora, MIC first", mic, EURORA_LOG, jobs),
        Setting(FIRST, f"Eurora, the first {first:,} jobs", mic, EURORA_LOG, first),
        Setting(GPU_FIRST, "Eurora, GPU first", "eurora-gpu-first-32gb", EURORA_LOG, jobs),
        Setting(KILLED, "Eurora, killed at the walltime", mic, EURORA_LOG, jobs, kills=True),
        Setting(
            TIMED,
            "Eurora, the first jobs with the paper's decision times",
            mic,
            EURORA_LOG,
            first,
            added_s=PAPERS_DECISION_S,
        ),
        Setting(KIT, "KIT ForHLR II", "kit-forhlr2", kit_log, scale.kit if not kit_log else None),
        Setting(SETH, "Seth", "seth", SETH_LOG, scale.seth),
    )
    return {setting.id: setting for setting in found}


def cases(of: Mapping[str, Setting], wanted: Sequence[str] = ()) -> Iterator[Case]:
    """Yield the simulations of these settings (all without `wanted`)."""
    plan: tuple[tuple[str, Sequence[Dispatcher], Sequence[AnyPredictor]], ...] = (
        (EURORA, BASELINES, (WALLTIME,)),
        (EURORA, (EASY, SHIPPED), (ORACLE,)),
        (EURORA, (SHIPPED,), (WALLTIME,)),
        (EURORA, (HCP19, PCP20), (DATA_DRIVEN, ORACLE)),
        (FIRST, (EASY,), (WALLTIME, ORACLE)),
        (FIRST, CP, (DATA_DRIVEN, ORACLE)),
        (GPU_FIRST, (EASY, SHIPPED, HCP19, PCP20), (WALLTIME,)),
        (KILLED, (EASY, SHIPPED, HCP19, PCP20), (WALLTIME,)),
        (TIMED, CP, (DATA_DRIVEN, ORACLE)),
        (KIT, (EASY, SHIPPED), (WALLTIME,)),
        (KIT, (HCP19, PCP20, PCP19), (LAST_TWO, ORACLE)),
        (SETH, (EASY, SHIPPED), (WALLTIME, LAST_TWO, ORACLE)),
        (SETH, (HCP19, PCP20), (LAST_TWO,)),
    )
    for name, dispatchers, predictors in plan:
        if name in of and (not wanted or name in wanted):
            for dispatcher in dispatchers:
                for predictor in predictors:
                    yield Case(of[name], dispatcher, predictor)
