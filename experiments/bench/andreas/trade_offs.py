"""Cost against moves, and against waiting: `python -m experiments.bench.andreas.trade_offs --help`.

ANDREAS' scenarios with restarts that take time. Each setting of a policy is compared with the first
one of its list: total cost and moves per job by least run times and `move_cost`, or mean completion
time and idle GPUs beside waiting jobs by the value of time. Means over seeds, scenarios and loads;
a load's figures are relative, so that dear ones count no more than others.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads import load
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from experiments.bench.figures import Figure, figure, show
from experiments.reproduce.andreas.grid import TUNINGS, cluster
from policies.host import registry


@dataclass(frozen=True, slots=True)
class Setting:
    """A policy with parameters, and the cluster's two."""

    policy: str
    min_run_factor: float = 0.0
    value_of_time: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Differences from the defaults."""
        own = {"min_run_factor": self.min_run_factor, "value_of_time": self.value_of_time}
        told = {name: value for name, value in own.items() if value} | dict(self.parameters)
        return f"{self.policy} ({', '.join(f'{n} {v:g}' for n, v in told.items()) or 'as given'})"


def moving(policy: str) -> list[Setting]:
    """Moves without least run times and their own cost, then with both."""
    if policy != "cost_search":
        return [Setting(policy, factor) for factor in (0.0, 3.0, 10.0, 30.0)]
    costs = [{"move_cost": of} for of in (0.0, 0.15, 0.35, 0.6)]
    return [Setting(policy, 0.0, 0.0, costs[0]), *(Setting(policy, 10.0, 0.0, of) for of in costs)]


def waiting(policy: str) -> list[Setting]:
    """Five values of time, with least run times."""
    return [Setting(policy, 10.0, value) for value in (0.0, 0.003, 0.01, 0.03, 0.1)]


@dataclass(frozen=True, slots=True)
class Facts:
    """Result of one simulation."""

    total_cost: float
    energy_cost: float
    moves_per_job: float
    completion_s: float
    idle_beside_waiting: float


def run(
    setting: Setting, scenario: int, nodes: int, tuning: float, seed: int, restart_s: float
) -> Facts:
    """Simulate ten jobs per node."""
    spec = {"type": "andreas", "nodes": nodes, "scenario": scenario, "jobs": 10 * nodes}
    outcome = simulate(
        replace(
            cluster(scenario, nodes),
            value_of_time=setting.value_of_time,
            min_run_factor=setting.min_run_factor,
        ),
        load({**spec, "tuning": tuning}, seed),
        registry.make(setting.policy, setting.parameters),
        name=setting.policy,
        seed=seed,
        switches=Switches(restart_cost_s=restart_s),
    )
    return Facts(
        outcome.total_cost,
        outcome.energy_cost,
        float((outcome.preemptions + outcome.migrations).mean()),
        float(outcome.jct_s.mean()),
        idle_beside_waiting(outcome),
    )


def idle_beside_waiting(outcome: Outcome) -> float:
    """Part of all GPU time in which a GPU is idle and a job waits that no other idle GPU takes."""
    stays, use = outcome.stays, outcome.utilisation
    times = [outcome.arrival_s, stays.end_s, stays.start_s, outcome.completion_s]
    more = np.concatenate([np.full(len(t), m) for t, m in zip(times, (1, 1, -1, -1), strict=True)])
    at_s = np.concatenate(times)
    steps_s = np.unique(np.concatenate([at_s, use.time_s]))
    changes = np.bincount(np.searchsorted(steps_s, at_s), more, len(steps_s))
    queued = np.cumsum(changes)
    in_use = use.gpus_in_use[np.searchsorted(use.time_s, steps_s, side="right") - 1]
    in_use = np.where(steps_s < use.time_s[0], 0, in_use)
    wasted = np.minimum(use.gpus - in_use, queued)[:-1] * np.diff(steps_s)
    return float(wasted.sum() / (use.gpus * (steps_s[-1] - steps_s[0])))


def figures(settings: Sequence[Setting], given: argparse.Namespace) -> Iterator[Figure]:
    """A figure for each setting: its mean cost, relative to the first one's."""
    cells = list(product(given.scenarios, given.nodes, given.tunings, range(1, given.seeds + 1)))
    first: list[Facts] = []
    for setting in settings:
        found = [run(setting, *cell, given.restart_s) for cell in cells]
        first = first or found
        pairs = list(zip(found, first, strict=True))
        summed, base_cost = (sum(of.total_cost for of in facts) for facts in (found, first))
        ratio = fmean(of.total_cost / base.total_cost for of, base in pairs)
        yield figure(
            setting.words,
            ratio,
            None,
            "cost",
            summed_cost=round(summed / base_cost, 4),
            energy=round(fmean(of.energy_cost / base.energy_cost for of, base in pairs), 4),
            completion=round(fmean(of.completion_s / base.completion_s for of, base in pairs), 4),
            moves_per_job=round(fmean(of.moves_per_job for of in found), 4),
            idle_beside_waiting=round(fmean(of.idle_beside_waiting for of in found), 4),
            worst_cost=round(max(of.total_cost / base.total_cost for of, base in pairs), 4),
        )


CURVES = {"moves": moving, "waiting": waiting}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures as they are measured."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.andreas.trade_offs")
    parser.add_argument("--curves", nargs="+", default=list(CURVES), choices=CURVES)
    parser.add_argument("--policies", nargs="+", default=["cost_search", "randomized_greedy"])
    parser.add_argument("--scenarios", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 20])
    parser.add_argument("--tunings", type=float, nargs="+", default=list(TUNINGS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--restart-s", type=float, default=30.0)
    given = parser.parse_args(arguments)
    for curve, policy in product(given.curves, given.policies):
        show(figures(CURVES[curve](policy), given))


if __name__ == "__main__":
    main()
