"""Results of a study by policy, in memory independent of the number of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

import numpy as np

from controlplane.simulation.report import run_metrics
from controlplane.simulation.study.document import Failure, PolicyChoice, Run, Study
from controlplane.simulation.study.run_files import FinishedRun, WorkloadFacts
from controlplane.simulation.world.outcome import Outcome, Unplaceable
from policies.contract.snapshot import Floats
from profiling.run_times.errors import RunTimeErrors

LEVELS = np.linspace(0.0, 1.0, 201)
"""Levels at which distributions are kept."""

Lane: TypeAlias = tuple[int, int, str, int]
"""Lane of a timeline: node's row, device, and position beside others there."""

BINS = 400
MOST_STAYS, MOST_LANES = 3000, 64
"""Most bars and lanes of a chart."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Run over time: GPUs in use between `edges_s`, and placements (lane, job, from_s, to_s).

    `hidden_*`: number of those left out.
    """

    edges_s: Floats
    in_use: Floats
    gpus: int
    lanes: tuple[str, ...]
    stays: tuple[tuple[int, str, float, float], ...]
    hidden_stays: int
    hidden_lanes: int


@dataclass(slots=True)
class PolicySummary:
    """Policy by seed: metrics, quantiles (at LEVELS) and unfinished jobs.

    `timeline`, `run_time_errors`: of the first seed, None or empty where that run failed.
    """

    choice: PolicyChoice
    runs: dict[int, Mapping[str, float]] = field(default_factory=dict)
    jct_s: dict[int, Floats] = field(default_factory=dict)
    bounded_slowdown: dict[int, Floats] = field(default_factory=dict)
    timeline: Timeline | None = None
    unfinished: dict[int, tuple[Unplaceable, ...]] = field(default_factory=dict)
    not_completed: dict[int, tuple[Unplaceable, ...]] = field(default_factory=dict)
    run_time_errors: RunTimeErrors = field(default_factory=RunTimeErrors)

    @property
    def intervals(self) -> dict[str, run_metrics.Interval]:
        """Every metric over the seeds."""
        return run_metrics.intervals(list(self.runs.values()))

    def against(self, baseline: PolicySummary) -> run_metrics.Interval:
        """By what fraction the total cost is above the baseline's, seed by seed."""
        own, other = (
            {seed: run["total_cost"] for seed, run in p.runs.items()} for p in (self, baseline)
        )
        return run_metrics.relative(own, other)

    def add(self, seed: int, outcome: Outcome, *, is_first: bool) -> None:
        """Add a run; the `is_first` one is shown over time."""
        done = outcome.ran
        self.runs[seed], self.unfinished[seed] = run_metrics.metrics_of(outcome), outcome.unfinished
        self.not_completed[seed] = outcome.not_completed
        self.jct_s[seed] = np.array(run_metrics.quantiles(outcome.jct_s[done], LEVELS))
        self.bounded_slowdown[seed] = np.array(
            run_metrics.quantiles(run_metrics.slowdowns(outcome)[1][done], LEVELS)
        )
        if is_first:
            self.timeline = timeline_of(outcome)
            self.run_time_errors = outcome.run_time_errors


@dataclass(frozen=True, slots=True)
class Summary:
    """Policies, workload facts, unplaceable jobs by seed, and failed runs of a study."""

    study: Study
    policies: tuple[PolicySummary, ...]
    workloads: Mapping[int, WorkloadFacts]
    unplaceable: Mapping[int, tuple[Unplaceable, ...]]
    failures: tuple[Failure, ...]


def summarise(
    study: Study, finished: Iterable[tuple[Run, FinishedRun]], failures: Sequence[Failure] = ()
) -> Summary:
    """Summarise the finished runs one by one."""
    policies = tuple(PolicySummary(choice) for choice in study.policies)
    workloads: dict[int, WorkloadFacts] = {}
    unplaceable: dict[int, tuple[Unplaceable, ...]] = {}
    for run, found in finished:
        policies[run.policy].add(run.seed, found.outcome, is_first=run.seed == study.seeds[0])
        workloads.setdefault(run.seed, found.workload)
        unplaceable.setdefault(run.seed, found.outcome.unplaceable)
    return Summary(study, policies, workloads, unplaceable, tuple(failures))


def timeline_of(outcome: Outcome) -> Timeline:
    """Course of a run, reduced to what a chart can show."""
    stays = outcome.stays
    until_s = float(stays.end_s.max()) if len(stays) else 1.0
    edges_s = np.linspace(0.0, max(until_s, 1.0), BINS + 1)
    placed = _placed(outcome)
    all_lanes = sorted({lane for lane, _ in placed})
    lanes = {lane: i for i, lane in enumerate(all_lanes[:MOST_LANES])}
    drawn = tuple(
        (lanes[lane], outcome.job_ids[stays.job[i]], float(stays.start_s[i]), float(stays.end_s[i]))
        for lane, i in placed
        if lane in lanes
    )
    names = tuple(
        f"{outcome.nodes[node]} {device}" + (f" ({beside + 1})" if beside else "")
        for node, _, device, beside in lanes
    )
    return Timeline(
        edges_s,
        run_metrics.averages(outcome.utilisation, edges_s),
        outcome.utilisation.gpus,
        names,
        drawn,
        hidden_stays=max(0, len(stays) - MOST_STAYS),
        hidden_lanes=max(0, len(all_lanes) - MOST_LANES),
    )


def _placed(outcome: Outcome) -> list[tuple[Lane, int]]:
    """Lane and number of each of the first stays on a device; each takes the first free lane."""
    stays, free_s = outcome.stays, dict[Lane, float]()
    found = []
    for i in range(min(len(stays), MOST_STAYS)):
        for device in stays.devices[i]:
            beside, lane = 0, (int(stays.node[i]), len(device), device, 0)
            while free_s.get(lane, -inf) > stays.start_s[i]:
                beside += 1
                lane = (*lane[:3], beside)
            free_s[lane] = float(stays.end_s[i])
            found.append((lane, i))
    return found
