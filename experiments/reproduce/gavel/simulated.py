"""Experiments of the simulator: a workload on a cluster under a policy."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np

from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads import load
from controlplane.simulation.workloads.base import Workload, jobs_of
from controlplane.simulation.workloads.gavel.tables import tables_of
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from experiments.reproduce.gavel.estimated import GroupingKey, told_of
from experiments.reproduce.gavel.figures_of import gpu_hours, jct_figures, rho_figures
from experiments.reproduce.gavel.model import Spec
from experiments.reproduce.gavel.scenarios import PRICES, scenario
from experiments.reproduce.gavel.sharing import check
from policies.contract.policy import Policy
from policies.contract.snapshot import Throughput
from policies.host import registry

DAYS, SLOS, DAY_S = (0.5, 1.0, 2.0, 4.0, 8.0), (1.2, 2.0, 10.0), 86_400.0
MODELS = ("ResNet-50", "A3C")


def simulated(spec: Spec, seed: int) -> Mapping[str, Any]:
    """A simulated workload, figures over the jobs of `window` (null: all)."""
    return _figures(spec, load(spec["workload"], seed), seed)


def cost(spec: Spec, seed: int) -> Mapping[str, Any]:
    """The workload of section 7.3: dollars of all GPU hours, part of SLOs violated."""
    return _figures(spec, cost_workload(spec, seed), seed)


def cost_workload(spec: Spec, seed: int) -> Workload:
    """ResNet-50 and A3C jobs of one GPU in equal numbers, due after their SLO."""
    rng, count = np.random.default_rng(seed), int(spec["jobs"])
    tables = tables_of(spec.get("throughputs", ""), spec.get("tables", ""))
    names = {
        m: [
            n
            for n in tables.job_types
            if n.startswith(m) and _rate(tables.kind(n, pairs=False).throughputs)
        ]
        for m in MODELS
    }
    kinds = [str(rng.choice(names[m])) for m in rng.permutation(np.resize(MODELS, count)).tolist()]
    views = {name: tables.kind(name, pairs=True) for name in sorted(set(kinds))}
    duration_s = rng.choice(DAYS, count) * DAY_S
    arrival_s = np.cumsum(rng.exponential(float(spec["gap_s"]), count))
    rates = np.array([_rate(views[k].throughputs) for k in kinds])
    jobs = jobs_of(
        [f"J{i + 1}" for i in range(count)],
        kinds,
        arrival_s=arrival_s - arrival_s[0],
        remaining_steps=np.rint(duration_s * rates),
        due_s=arrival_s - arrival_s[0] + rng.choice(SLOS, count) * duration_s,
        gpus_min=1,
        gpus_max=1,
        may_share=True,
    )
    return Workload("Gavel cost", jobs, tuple(views.values()))


def _rate(throughputs: tuple[Throughput, ...]) -> float:
    return next(
        (
            t.steps_per_s
            for t in throughputs
            if (t.gpu_type, t.gpus, t.spread) == ("V100", 1, False)
        ),
        0.0,
    )


def _figures(spec: Spec, workload: Workload, seed: int) -> dict[str, Any]:
    gpus: dict[str, int] = spec["gpus"]
    check(spec)
    policy, began_s = _policy(spec, workload, seed), perf_counter()
    switches = Switches(**spec.get("switches", {}))
    outcome = simulate(
        scenario(gpus, spec["round_s"]),
        workload,
        policy,
        name=spec["policy"],
        seed=seed,
        switches=switches,
    )
    wall_s = perf_counter() - began_s
    lo, hi = spec.get("window") or (0, len(workload.jobs))
    counted = np.zeros(len(workload.jobs), dtype=np.bool_)
    counted[lo:hi] = True
    return {
        **jct_figures(outcome, workload.jobs.columns, counted),
        **rho_figures(outcome, workload, gpus, counted),
        **_costs(outcome, {n.id: n.gpu_type for n in scenario(gpus, 1.0).nodes}),
        "makespan_h": outcome.makespan_s / 3600.0,
        "rounds": outcome.rounds,
        "preemptions": int(outcome.preemptions.sum()),
        "migrations": int(outcome.migrations.sum()),
        "timing": {"wall_s": wall_s, "deciding_s": float(outcome.decision_s.sum())},
    }


def _policy(spec: Spec, workload: Workload, seed: int) -> Policy:
    policy = registry.make(spec["policy"], spec["parameters"])
    if (observed := spec.get("observed")) is None:
        return policy
    return GroupingKey(policy, told_of(workload.kinds, observed, seed))


def _costs(outcome: Outcome, type_of: Mapping[str, str]) -> dict[str, float]:
    held, shared_h = gpu_hours(outcome, type_of)
    violated = np.isfinite(outcome.due_s) & ~(outcome.completion_s <= outcome.due_s)
    return {
        "dollars": sum(PRICES.get(t, 0.0) * hours for t, hours in held.items()),
        "violated": float(violated.sum()) / max(int(np.isfinite(outcome.due_s).sum()), 1),
        "shared_gpu_h": shared_h,
    }
