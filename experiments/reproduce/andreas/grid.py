"""The simulations of Section V-B, each in a file, so that a stopped run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.study.run_keys import digest_of_code
from controlplane.simulation.workloads import load
from controlplane.simulation.workloads.andreas import most_gpus
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from experiments.reproduce.andreas.armida import PRICE_PER_KWH, PUE, a_node
from experiments.reproduce.files import each
from policies.contract.snapshot import PriceInterval
from policies.host import registry

POLICIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "FIFO": ("fifo", {}),
    "EDF": ("edf", {}),
    "PS": ("priority", {"by": "weight"}),
    "RG as coded": ("randomized_greedy", {"mode": "coded"}),
    "RG as published": (
        "randomized_greedy",
        {"mode": "paper", "objective": "first_end", "hysteresis": 0.0},
    ),
    "RG by default": ("randomized_greedy", {}),
    "Cost search": ("cost_search", {"move_cost": 0.0}),
}
"""Label -> name and parameters. The first three are the baselines."""

BASELINES = ("FIFO", "EDF", "PS")
TUNINGS: Mapping[float, str] = {
    2.5: "published default",
    1.0: "the paper's margins",
    0.7: "overload",
    0.5: "deep overload",
}


@dataclass(frozen=True, slots=True)
class Grid:
    """The simulations to run; `jobs_per_node` is 10 in the paper."""

    scenarios: tuple[int, ...] = (1, 2)
    nodes: tuple[int, ...] = (10, 20, 30, 50, 70, 100)
    tunings: tuple[float, ...] = (2.5, 1.0, 0.7, 0.5)
    policies: tuple[str, ...] = tuple(POLICIES)
    seeds: int = 5
    jobs_per_node: int = 10

    def cells(self) -> Iterator[Cell]:
        """All simulations, the small ones first."""
        for nodes in self.nodes:
            for scenario in self.scenarios:
                for tuning in self.tunings:
                    for policy in self.policies:
                        for seed in range(1, self.seeds + 1):
                            yield Cell(
                                scenario, nodes, nodes * self.jobs_per_node, tuning, policy, seed
                            )


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation."""

    scenario: int
    nodes: int
    jobs: int
    tuning: float
    policy: str
    seed: int

    @property
    def file(self) -> str:
        """The name of its file: equal cells under equal policies and code have the same."""
        told = json.dumps([asdict(self), POLICIES[self.policy], digest_of_code()], sort_keys=True)
        slug = self.policy.lower().replace(" ", "_")
        digest = sha256(told.encode()).hexdigest()[:8]
        place = f"s{self.scenario}-n{self.nodes}-t{self.tuning:g}"
        return f"{place}-{slug}-{self.seed}-{digest}.json"


def known_policies() -> tuple[str, ...]:
    """Labels of the policies that this release has."""
    return tuple(label for label, (name, _) in POLICIES.items() if name in registry.names())


def cluster(scenario: int, nodes: int) -> Scenario:
    """Half the nodes with V100s, half with T4s, as many of each as the scenario says."""
    gpus = most_gpus(scenario)
    types = ["V100"] * (nodes - nodes // 2) + ["T4"] * (nodes // 2)
    views = tuple(a_node(f"node-{i + 1:03}", t, gpus[t]) for i, t in enumerate(types))
    return Scenario(
        nodes=views,
        kinds=(),
        energy=(PriceInterval(0.0, inf, PRICE_PER_KWH, PUE),),
        cluster="ANDREAS",
        round_s=300.0,
    )


def run(cell: Cell) -> dict[str, Any]:
    """The figures of a cell; `timing` apart, which no two runs share."""
    spec = {
        "type": "andreas",
        "nodes": cell.nodes,
        "scenario": cell.scenario,
        "jobs": cell.jobs,
        "tuning": cell.tuning,
    }
    workload = load(spec, cell.seed)
    name, parameters = POLICIES[cell.policy]
    outcome = simulate(
        cluster(cell.scenario, cell.nodes),
        workload,
        registry.make(name, parameters),
        name=cell.policy,
        seed=cell.seed,
    )
    return {
        **asdict(cell),
        "load": workload.facts["load"],
        **_figures(outcome),
        "timing": _timing(outcome),
    }


def run_all(
    grid: Grid, folder: Path, processes: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The figures of every cell, in the grid's order; those that a file has are not run again."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = list(grid.cells())
    left = [cell for cell in cells if not (folder / cell.file).exists()]
    say(f"{len(cells)} simulations, {len(cells) - len(left)} of them done before")
    for done, _ in enumerate(each(left, run, folder, processes), start=1):
        if done % max(1, len(left) // 20) == 0:
            say(f"{done} of {len(left)}")
    return [json.loads((folder / cell.file).read_text()) for cell in cells]


def _figures(outcome: Outcome) -> dict[str, Any]:
    late = outcome.tardiness_s > 0.0
    span_s = outcome.makespan_s * outcome.utilisation.gpus
    return {
        "energy_cost": outcome.energy_cost,
        "tardiness_cost": outcome.tardiness_cost,
        "total_cost": outcome.total_cost,
        "makespan_s": outcome.makespan_s,
        "jobs_late": int(late.sum()),
        "gpus_busy": float(outcome.gpu_s.sum()) / span_s if span_s else None,
        "rounds": outcome.rounds,
        "preemptions": int(outcome.preemptions.sum()),
        "migrations": int(outcome.migrations.sum()),
    }


def _timing(outcome: Outcome) -> dict[str, float | None]:
    """Milliseconds a decision took on this machine."""
    spans_ms = outcome.decision_s * 1000.0
    return (
        {"mean_ms": float(spans_ms.mean()), "most_ms": float(spans_ms.max())}
        if len(spans_ms)
        else {"mean_ms": None, "most_ms": None}
    )
