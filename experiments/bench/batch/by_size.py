"""The batch policy for every day on real traces: `python -m experiments.bench.batch.by_size`.

`area_backfilling` beside EASY: waits by width, slowdowns (bounded ones count a job of less than ten
seconds as one of ten) and whole decisions. On every log and half of a log the goals are relative to
EASY's figures; some have goals of their own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import yaml

from controlplane.simulation.cluster.cluster_file import scenario_of
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.workloads import load
from controlplane.simulation.workloads.base import Workload, by_arrival, rows
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from experiments.bench.batch.dispatchers import CLUSTERS
from experiments.bench.batch.easy import DATA, ENERGY, Clocked, eurora, waits
from experiments.bench.figures import Figure, figure, show
from experiments.waits_by_width import WIDTHS, waits_by_width
from policies.contract.snapshot import NodeView
from policies.host.registry import make

POLICIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "backfilling": ("backfilling", {}),
    "area_backfilling": ("area_backfilling", {}),
}
OVER_EASY = {
    "mean wait s": 1.0,
    "bounded slowdown": 1.0,
    "longest wait s": 1.3,
    "wait by area s": 1.1,
}
"""Goals of `area_backfilling` as multiples of EASY's figures."""

LEAST_RUN_S = 10.0
KIT_JOBS, KIT_LOAD = 4000, 1.3


@dataclass(frozen=True, slots=True)
class Trace:
    """Trace, and goals of `area_backfilling` in place of those relative to EASY."""

    read: Callable[[], tuple[Scenario, Workload]]
    parameters: Mapping[str, Any]
    goals: Mapping[str, float]


def real_durations() -> tuple[Scenario, Workload]:
    """Return Eurora with each job's run time as its walltime."""
    scenario, _ = eurora()
    lines = (DATA / "eurora-2014-4days.swf").read_text().splitlines()
    text = "\n".join(_with_real(line) for line in lines)
    spec: dict[str, Any] = {"type": "swf", "text": text, "gpus": "batch_fields"}
    return scenario, load(spec, 1, gpu_types=["GPU", ""])


def processors(file: str, count: int) -> tuple[Scenario, Workload]:
    """Return a trace of single processors, as one node of so many cores."""
    spec: dict[str, Any] = {"type": "swf", "path": str(DATA / file), "gpus": "batch"}
    workload = load(spec, 1, skip_bad=True, gpu_types=[""])
    node = NodeView("n0", "n0", "", (), cores=float(count), memory_gb=1e6, power_w=(100.0,))
    return Scenario((node,), workload.kinds, ENERGY), workload


def half(read: Callable[[], tuple[Scenario, Workload]], number: int) -> tuple[Scenario, Workload]:
    """Return the first (0) or second (1) half of the jobs of a trace."""
    scenario, workload = read()
    middle = len(workload.jobs) // 2
    if number == 0:
        return scenario, _part(workload, 0, middle)
    return scenario, _part(workload, middle, len(workload.jobs))


def kth_overload() -> tuple[Scenario, Workload]:
    """Return KTH's jobs 2400 to 4000: long queues of narrow jobs beside wide ones."""
    scenario, workload = kth()
    return scenario, _part(workload, 2400, 4000)


def _part(workload: Workload, first: int, last: int) -> Workload:
    """Return the jobs from `first` up to, but without, `last`."""
    jobs, _ = by_arrival(rows(workload.jobs, np.arange(first, last)))
    return replace(workload, jobs=jobs)


def kit_like() -> tuple[Scenario, Workload]:
    """Return a load drawn like KIT ForHLR II's that asks for more cores than there are."""
    spec: dict[str, Any] = {"type": "kit", "jobs": KIT_JOBS, "load": KIT_LOAD}
    cluster = yaml.safe_load((CLUSTERS / "kit-forhlr2.yaml").read_text())
    scenario = scenario_of(cluster)
    types = sorted({node.gpu_type for node in scenario.nodes})
    return scenario, load(spec, 1, skip_bad=True, gpu_types=types)


EURORA = {"mean wait s": 1250.0, "mean slowdown": 4.1, "longest wait s": 80_000.0}
DECISIONS = {"a decision ms": 5.0, "p99 of a decision ms": 100.0}
seth = partial(processors, "hpc2n-seth-slice.swf", 240)
kth = partial(processors, "kth-sp2.swf", 100)
lublin = partial(processors, "lublin_256.swf", 256)

TRACES: Mapping[str, Trace] = {
    "Eurora": Trace(eurora, {}, {**EURORA, **DECISIONS}),
    "Eurora, nodes reversed": Trace(eurora, {"node_order": "reversed"}, EURORA),
    "Eurora, real durations": Trace(real_durations, {}, {}),
    "Eurora, first half": Trace(partial(half, eurora, 0), {}, {}),
    "Eurora, second half": Trace(partial(half, eurora, 1), {}, {}),
    "Seth": Trace(seth, {}, {}),
    "Seth, first half": Trace(partial(half, seth, 0), {}, {}),
    "Seth, second half": Trace(partial(half, seth, 1), {}, {}),
    "KTH, jobs 2400 to 4000": Trace(kth_overload, {}, {}),
    "KTH": Trace(kth, {}, {}),
    "KTH, first half": Trace(partial(half, kth, 0), {}, {}),
    "KTH, second half": Trace(partial(half, kth, 1), {}, {}),
    "Lublin": Trace(lublin, {}, {}),
    "Lublin, first half": Trace(partial(half, lublin, 0), {}, {}),
    "Lublin, second half": Trace(partial(half, lublin, 1), {}, {}),
    "KIT-like": Trace(kit_like, {}, {"a decision ms": 15.0, "p99 of a decision ms": 300.0}),
}


def figures() -> Iterator[Figure]:
    """Yield the figures of all traces under both policies; those of EASY have no goals."""
    for name, trace in TRACES.items():
        easy: Mapping[str, float] = {}  # measured first, as POLICIES lists it first
        for title, (policy, parameters) in POLICIES.items():
            clocked = Clocked(make(policy, {**parameters, **trace.parameters}))
            scenario, workload = trace.read()
            run = simulate(scenario, workload, clocked, name=policy, seed=1)
            found = _measured(run, clocked, scenario, workload)
            goals: dict[str, float] = {}
            if policy == "backfilling":
                easy = found
            else:
                goals = {what: most * easy[what] for what, most in OVER_EASY.items()}
                goals.update(trace.goals)
            for what, value in found.items():
                yield figure(f"{title}, {name}, {what}", value, goals.get(what), "")


def _measured(
    run: Outcome, policy: Clocked, scenario: Scenario, workload: Workload
) -> dict[str, float]:
    """Return the figures of a run by name; those of classes of width without jobs are left out."""
    of_all = waits(run)
    run_s = run.completion_s - run.first_start_s
    slowdown = (run.completion_s - run.arrival_s) / np.maximum(run_s, LEAST_RUN_S)
    decisions_ms = 1000.0 * np.array(policy.took_s)
    found = {
        "mean wait s": of_all.wait_s,
        "mean slowdown": of_all.slowdown,
        "bounded slowdown": float(np.maximum(1.0, slowdown).mean()),
        "longest wait s": of_all.longest_s,
    }

    by_width = waits_by_width(run, workload.jobs, scenario.nodes)
    found["wait by area s"] = by_width["all"]["by_area_s"] or 0.0
    for width in WIDTHS:
        of_width = by_width[width]
        named = {
            f"mean wait s, share {width}": of_width["mean_s"],
            f"longest wait s, share {width}": of_width["longest_s"],
            f"wait by area s, share {width}": of_width["by_area_s"],
        }
        found.update({what: value for what, value in named.items() if value is not None})

    found["a decision ms"] = float(decisions_ms.mean())
    found["p99 of a decision ms"] = float(np.quantile(decisions_ms, 0.99))
    return found


def _with_real(line: str) -> str:
    """Return a job's line with its run time in place of the requested time; others as they are."""
    values = line.split()
    if line.startswith(";") or not values:
        return line
    run_s = float(values[3])
    values[8] = str(max(1.0, run_s))
    return " ".join(values)


if __name__ == "__main__":
    show(figures())
