"""Results of a study by policy. Their memory does not grow with the number of jobs."""

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
"""Lane of a timeline: node's row, length of the device's name, that name, and place beside others.

With the length before the name, device 10 comes after device 9.
"""

BINS = 400
"""Intervals of a timeline for which the mean number of GPUs in use is kept."""

MOST_STAYS = 3000
MOST_LANES = 64
"""Most bars and lanes of a chart."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Run over time, reduced to what a chart can show.

    `in_use`: mean GPUs in use between one of `edges_s` and the next. `stays`: (lane, job, from_s,
    to_s) of placements. `hidden_stays`, `hidden_lanes`: numbers of those left out.
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
    """Results of a policy by seed: metrics of `runs`, quantiles (at LEVELS), unfinished jobs.

    `timeline`, `run_time_errors`: of the first seed; None or empty if that run failed.
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
        """Mean and confidence interval of each metric over the seeds, by name."""
        return run_metrics.intervals(list(self.runs.values()))

    def against(self, baseline: PolicySummary) -> run_metrics.Interval:
        """Return the excess of the total cost over the baseline's as a fraction, seed by seed."""
        own_costs = {seed: run["total_cost"] for seed, run in self.runs.items()}
        its_costs = {seed: run["total_cost"] for seed, run in baseline.runs.items()}
        return run_metrics.relative(own_costs, its_costs)

    def add(self, seed: int, outcome: Outcome, *, is_first: bool) -> None:
        """Add a run; that of the first seed is shown over time."""
        self.runs[seed] = run_metrics.metrics_of(outcome)
        self.unfinished[seed] = outcome.unfinished
        self.not_completed[seed] = outcome.not_completed
        jct_s = outcome.jct_s[outcome.ran]
        self.jct_s[seed] = np.array(run_metrics.quantiles(jct_s, LEVELS))
        _, bounded_slowdown = run_metrics.slowdowns(outcome)
        quantiles = run_metrics.quantiles(bounded_slowdown[outcome.ran], LEVELS)
        self.bounded_slowdown[seed] = np.array(quantiles)
        if is_first:
            self.timeline = timeline_of(outcome)
            self.run_time_errors = outcome.run_time_errors


@dataclass(frozen=True, slots=True)
class Summary:
    """Results of a study: those of policies, facts and unplaceable jobs by seed, failed runs."""

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
    for run, finished_run in finished:
        outcome = finished_run.outcome
        policies[run.policy].add(run.seed, outcome, is_first=run.seed == study.seeds[0])
        workloads.setdefault(run.seed, finished_run.workload)
        unplaceable.setdefault(run.seed, outcome.unplaceable)
    return Summary(study, policies, workloads, unplaceable, tuple(failures))


def timeline_of(outcome: Outcome) -> Timeline:
    """Return a run over time."""
    # 1. Intervals from the first moment to the end of the last stay.
    stays = outcome.stays
    until_s = float(stays.end_s.max()) if len(stays) else 1.0
    edges_s = np.linspace(0.0, max(until_s, 1.0), BINS + 1)

    # 2. The first lanes, with their names.
    lane_of_stays = _lanes(outcome)
    all_lanes = sorted({lane for lane, _ in lane_of_stays})
    number_of_lane = {lane: number for number, lane in enumerate(all_lanes[:MOST_LANES])}
    names = []
    for node, _, device, beside in number_of_lane:
        name = f"{outcome.nodes[node]} {device}"
        names.append(f"{name} ({beside + 1})" if beside else name)

    # 3. The stays in these lanes.
    shown = []
    for lane, stay in lane_of_stays:
        if lane in number_of_lane:
            job = outcome.job_ids[stays.job[stay]]
            start_s = float(stays.start_s[stay])
            shown.append((number_of_lane[lane], job, start_s, float(stays.end_s[stay])))
    return Timeline(
        edges_s,
        run_metrics.averages(outcome.utilisation, edges_s),
        outcome.utilisation.gpus,
        tuple(names),
        tuple(shown),
        hidden_stays=max(0, len(stays) - MOST_STAYS),
        hidden_lanes=max(0, len(all_lanes) - MOST_LANES),
    )


def _lanes(outcome: Outcome) -> list[tuple[Lane, int]]:
    """Return (lane, number) of the first stays, for each of their devices.

    Of the lanes of its device, a stay gets the first one that is free.
    """
    stays = outcome.stays
    free_from_s: dict[Lane, float] = {}
    lanes = []
    for stay in range(min(len(stays), MOST_STAYS)):
        node = int(stays.node[stay])
        for device in stays.devices[stay]:
            beside = 0
            lane = (node, len(device), device, beside)
            while free_from_s.get(lane, -inf) > stays.start_s[stay]:
                beside += 1
                lane = (node, len(device), device, beside)
            free_from_s[lane] = float(stays.end_s[stay])
            lanes.append((lane, stay))
    return lanes
