"""Experiments on shares alone: hierarchies over time, and time to solve."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from controlplane.simulation.workloads import load
from controlplane.simulation.workloads.base import jobs_of, rows
from controlplane.simulation.workloads.gavel.tables import tables_of
from experiments.reproduce.gavel.model import Spec
from experiments.reproduce.gavel.scenarios import nodes, snapshot
from policies.contract.snapshot import Floats, Ints, Jobs, KindView
from policies.gavel.allocation.observe import GroupingOptions, observe
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.base import agnostic
from policies.gavel.solvers.fairness import Entity, fair_shares, hierarchical_shares

WEIGHTS = (1.0, 2.0, 3.0)
FIVE = (1.0, 2.0, 3.0, 1.0, 2.0)
"""Weights of the entities over time, and of those whose shares are timed."""
TIMES = 3
DRAWS = 10


def timeline(spec: Spec, seed: int) -> Mapping[str, Any]:
    """Normalised throughput of every job after each arrival: `parts` [steps][jobs], its sum
    `totals` [steps], and what part of the aware policy's is lost, averaged over DRAWS of jobs, of
    which the others are the first: `lost` over all steps, `lost_at_last` with all jobs there.
    """
    drawn = [_drawn(spec, np.random.default_rng([seed, draw])) for draw in range(DRAWS)]
    levels, _ = drawn[0]
    return {
        "parts": levels.tolist(),
        "totals": levels.sum(axis=1).tolist(),
        "entity": [i * len(WEIGHTS) // spec["jobs"] for i in range(spec["jobs"])],
        "every": spec["every"],
        "lost": float(np.mean([lost.mean() for _, lost in drawn])),
        "lost_at_last": float(np.mean([lost[-1] for _, lost in drawn])),
        "timing": {},
    }


def _drawn(spec: Spec, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """(levels [steps, jobs], part of the aware policy's that is lost [steps])."""
    jobs, kinds = _timeline_jobs(spec, rng)
    aware, form = (
        np.array([_levels(spec, jobs, kinds, n, form) for n in range(1, spec["jobs"] + 1)])
        for form in ("aware", spec["form"])
    )
    return form, 1.0 - form.sum(axis=1) / aware.sum(axis=1)


def _timeline_jobs(spec: Spec, rng: np.random.Generator) -> tuple[Jobs, tuple[KindView, ...]]:
    """Jobs of one GPU that run on all types, of kinds drawn, of three teams one after the other."""
    count = int(spec["jobs"])
    tables = tables_of(spec.get("throughputs", ""), spec.get("tables", ""))
    known = [tables.kind(name, pairs=False) for name in tables.job_types]
    usable = [
        k
        for k in known
        if {t.gpu_type for t in k.throughputs if (t.gpus, t.spread) == (1, False)}
        >= set(spec["gpus"])
    ]
    drawn = [usable[int(i)] for i in rng.integers(0, len(usable), count)]
    teams = [f"entity {i * len(WEIGHTS) // count}" for i in range(count)]
    ids = [f"J{i + 1:02}" for i in range(count)]
    arrival_s = np.arange(count) * float(spec["every"])
    jobs = jobs_of(
        ids,
        [k.id for k in drawn],
        arrival_s=arrival_s,
        remaining_steps=1e9,
        gpus_min=1,
        gpus_max=1,
        team=teams,
    )
    return jobs, tuple({k.id: k for k in drawn}.values())


def _levels(spec: Spec, jobs: Jobs, kinds: tuple[KindView, ...], count: int, form: str) -> Floats:
    """float64[jobs]: throughput / throughput(X_equal) of the first `count` jobs, else 0."""
    there = rows(jobs, np.arange(count))
    observed = observe(
        snapshot(nodes(spec["gpus"]), kinds, there), GroupingOptions(teams=True, jobs=True)
    )
    problem, names = observed.problem, observed.classes.entities
    entities = [Entity(WEIGHTS[int(name.split()[-1])], spec["fifo"]) for name in names]
    place = observed.number("arrival_s").argsort(kind="stable").argsort(kind="stable")
    shares = _divided(problem, entities, place, form)
    found, of = np.zeros(spec["jobs"]), np.array(observed.classes.class_of)
    levels = shares.throughput(problem) / problem.equal_rates
    found[np.flatnonzero(of >= 0)] = levels[of[of >= 0]]
    return found


def _divided(
    problem: AllocationProblem, entities: Sequence[Entity], place: Ints, form: str
) -> Shares:
    if form == "static partition":
        return partition(problem, [e.weight for e in entities])
    policy = partial(hierarchical_shares, entities=entities, position=place)
    return agnostic(policy, problem) if form == "agnostic" else policy(problem)


def partition(problem: AllocationProblem, weights: Sequence[float]) -> Shares:
    """Every entity has its part of each type's GPUs by weight, each of its jobs the same part of
    that; what exceeds all of a job's time, or is of a type on which it cannot run, is lost.
    """
    mates = np.bincount(problem.entity, weights=problem.count, minlength=len(weights))
    part = (np.array(weights) / np.sum(weights) / np.maximum(mates, 1.0))[problem.entity]
    time = part[:, None] * problem.gpus / problem.scale[:, None] * (problem.type_column >= 0)
    time /= np.maximum(time.sum(axis=1, keepdims=True), 1.0)
    alone = np.zeros(problem.rates.shape)
    for t in range(len(problem.types)):
        usable = problem.type_column[:, t] >= 0
        alone[usable, problem.type_column[usable, t]] = time[usable, t] * problem.count[usable]
    return Shares(alone, np.zeros((len(problem.pairs), len(problem.columns))), 0.0)


def scaling(spec: Spec, seed: int) -> Mapping[str, Any]:
    """Processor seconds from a snapshot of jobs to their shares, median of three."""
    drawn = {"type": "gavel_generator", "mode": "static-multiple", "jobs": spec["active"]}
    of = {key: spec[key] for key in ("throughputs", "tables") if key in spec}
    workload = load({**drawn, **of}, seed)
    columns, count = workload.jobs.columns, len(workload.jobs)
    teams = [
        f"entity {i}" for i in np.random.default_rng(seed).integers(0, len(FIVE), count).tolist()
    ]
    jobs = Jobs(replace(columns, others={**columns.others, "team": tuple(teams)}))
    cluster = nodes(dict.fromkeys(("V100", "P100", "K80"), max(count // 4, 8)))
    call = partial(_shares_of, lambda: snapshot(cluster, workload.kinds, jobs), spec["form"])
    call()
    return {"timing": {"seconds": median(_timed(call) for _ in range(TIMES))}}


def _shares_of(fresh: Callable[[], Any], form: str) -> Shares:
    hierarchical, pairs = form.startswith("hierarchical"), form.endswith("sharing")
    observed = observe(fresh(), GroupingOptions(teams=hierarchical, pairs=pairs))
    if not hierarchical:
        return fair_shares(observed.problem)
    return hierarchical_shares(
        observed.problem,
        [Entity(FIVE[int(name.split()[-1])]) for name in observed.classes.entities],
    )


def _timed(call: Callable[[], Any]) -> float:
    began_s = process_time()
    call()
    return process_time() - began_s
