"""Simulations in files, so that a stopped run goes on: figures of each, and its times apart."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.simulation.cluster.cluster_file import scenario_of
from controlplane.simulation.report.run_metrics import slowdowns
from controlplane.simulation.study.files import cluster_of
from controlplane.simulation.study.run_keys import digest_of_code
from controlplane.simulation.study.run_one import dumps
from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads import load
from controlplane.simulation.world.job_table import JobEnd
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from experiments.reproduce.pcp20.scenarios import CLUSTERS, Case, Setting
from experiments.waits_by_width import waits_by_width
from policies.contract.plan import Plan
from policies.contract.policy import Policy, places_batch
from policies.contract.snapshot import Floats, Snapshot
from policies.host import registry

SEED = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """A case to simulate with its data. `snapshots`: folder of its instances ("": none)."""

    case: Case
    data: Path
    snapshots: str = ""
    every: int = 0

    @property
    def file(self) -> str:
        """Name of its file: equal cells under equal code have the same."""
        workload = self.case.setting.workload(Path())
        facts = [asdict(self.case), workload, str(self.every), digest_of_code()]
        told = json.dumps(facts, sort_keys=True)
        digest = sha256(told.encode()).hexdigest()[:8]
        slug = self.case.label.lower().replace("'", "")
        return f"{self.case.setting.id}-{slug}-{digest}.json"


def run(cell: Cell) -> dict[str, Any]:
    """Figures of a cell; `timing` apart, which no two runs share."""
    case, setting = cell.case, cell.case.setting
    workload = load(setting.workload(cell.data), SEED, skip_bad=True)
    look = dumps(Path(cell.snapshots), cell.every) if cell.every else None
    policy = Clocked(registry.make(case.dispatcher.policy, case.dispatcher.parameters))
    scenario = scenario_of(cluster_of(f"{setting.cluster}.yaml", CLUSTERS))
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    outcome = simulate(
        scenario,
        workload,
        policy,
        name=case.label,
        seed=SEED,
        switches=switches_of(case),
        on_snapshot=look,
    )
    timing = {
        "wall_s": time.perf_counter() - wall_s,
        "cpu_s": time.process_time() - cpu_s,
        **_decisions(np.array(policy.cpu_s) * 1000.0),
    }
    return {
        "setting": setting.id,
        "label": case.label,
        "jobs": len(workload.jobs),
        "log": {name: workload.facts.get(name) for name in LOG if setting.jobs is None},
        **figures(outcome),
        "by_width": waits_by_width(outcome, workload.jobs, scenario.nodes),
        "timing": timing,
    }


@dataclass(frozen=True, slots=True)
class Clocked:
    """Policy with the CPU time of each decision: other programs do not count."""

    policy: Policy
    cpu_s: list[float] = field(default_factory=list)

    @property
    def places_batch(self) -> bool:
        return places_batch(self.policy)

    def __call__(self, snapshot: Snapshot) -> Plan:
        began_s = time.process_time()
        plan = self.policy(snapshot)
        self.cpu_s.append(time.process_time() - began_s)
        return plan


# Facts of a whole log: no simulation of its first jobs is compared with them.
LOG = ("wait_in_the_log_s", "slowdown_in_the_log", "jobs_that_ran_longer_than_requested")


def switches_of(case: Case) -> Switches:
    """Switches of a simulation."""
    setting: Setting = case.setting
    added_s = setting.added_s.get(case.label, 0.0)
    table = ((0, added_s),) if added_s else ()
    return replace(
        Switches(),
        predictor=case.predictor,
        kill_at_walltime=int(setting.kills),
        decision_times=table,
    )


def figures(outcome: Outcome) -> dict[str, Any]:
    """Waits, slowdowns and ends of the jobs, and resources in use."""
    ran = outcome.ran
    slowdown, bounded = slowdowns(outcome)
    wait_s = (outcome.first_start_s - outcome.arrival_s)[ran]
    span_s = outcome.makespan_s * outcome.utilisation.gpus
    return {
        "wait_s": spread(wait_s),
        "slowdown": spread(slowdown[ran]),
        "bounded_slowdown": spread(bounded[ran]),
        "makespan_s": outcome.makespan_s,
        "completed": int(np.count_nonzero(outcome.state == JobEnd.COMPLETED)),
        "killed": int(np.count_nonzero(outcome.state == JobEnd.KILLED)),
        "unfinished": int(np.count_nonzero(outcome.state == JobEnd.OPEN)),
        "never_placed": len(outcome.unplaceable),
        "used": dict(outcome.used)
        | ({"gpus": float(outcome.gpu_s.sum()) / span_s} if span_s else {}),
        "decisions": outcome.rounds,
        "run_time_error_s": None
        if outcome.run_time_errors.total is None
        else outcome.run_time_errors.total.absolute_s,
    }


def spread(values: Floats) -> dict[str, float | None]:
    """Mean, deviation and greatest of some values; None of nothing."""
    if not len(values):
        return {"mean": None, "deviation": None, "most": None}
    return {
        "mean": float(values.mean()),
        "deviation": float(values.std()),
        "most": float(values.max()),
    }


def _decisions(spent_ms: Floats) -> dict[str, float | None]:
    if not len(spent_ms):
        return {"mean_ms": None, "p99_ms": None, "most_ms": None}
    return {
        "mean_ms": float(spent_ms.mean()),
        "p99_ms": float(np.quantile(spent_ms, 0.99)),
        "most_ms": float(spent_ms.max()),
    }
