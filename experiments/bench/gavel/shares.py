"""Times of share policies' programs: `python -m experiments.bench.gavel.shares --help`.

From columns of jobs and a table of throughputs to shares of classes. Throughputs are those of
Gavel's evaluation where its folder is given, else made up: 83 kinds on three types. The cluster has
36 GPUs of each type, as in the paper, except where hierarchical fairness shall have many levels to
fill.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from experiments.bench.figures import Figure, figure, milliseconds, show
from policies.contract.snapshot import Floats, Ints
from policies.gavel.allocation.job_classes import with_pairs
from policies.gavel.allocation.problem import AllocationProblem, Column, Shares
from policies.gavel.solvers.fairness import Entity, fairness, hierarchical_shares
from policies.gavel.solvers.finish_time import Times, finish_time_fairness, makespan

TYPES = ("v100", "p100", "k80")
FILE = "simulation_throughputs.json"
GPUS = 36.0
ENTITIES = tuple(Entity(weight) for weight in (1.0, 2.0, 3.0, 1.0, 2.0))
LEVELS = 0.4
"""GPUs of each type per job where hierarchies have many levels: scarce, but not for all."""


@dataclass(frozen=True)
class Table:
    """Steps/s of kinds: `alone` [K, T], `beside` [K, K, T]; `scale` [K] GPUs of a job."""

    alone: Floats
    beside: Floats
    scale: Ints


def measured(folder: Path) -> Table:
    """The throughputs of Gavel's evaluation (stanford-futuredata/gavel, MIT)."""
    read = json.loads((folder / FILE).read_text())
    kinds = sorted(read[TYPES[0]])
    alone, beside = (
        np.zeros((len(kinds), len(TYPES))),
        np.zeros((len(kinds), len(kinds), len(TYPES))),
    )
    for t, name in enumerate(TYPES):
        for k, kind in enumerate(kinds):
            known = read[name].get(kind, {})
            alone[k, t] = known.get("null", 0.0)
            beside[k, :, t] = [known.get(other, (0.0, 0.0))[0] for other in kinds]
    return Table(alone, beside, np.array([ast.literal_eval(kind)[1] for kind in kinds]))


def made_up(kinds: int = 83, seed: int = 0) -> Table:
    """Kinds that gain from faster types by 1 to 10 times, and share well or badly."""
    rng = np.random.default_rng(seed)
    alone = (
        rng.lognormal(1.0, 1.5, (kinds, 1))
        * np.sort(rng.uniform(1.0, 10.0, (kinds, 3)), axis=1)[:, ::-1]
    )
    beside = alone[:, None, :] * rng.uniform(0.3, 0.9, (kinds, kinds, 3))
    return Table(alone, beside, rng.choice([1, 2, 4, 8], kinds, p=[0.4, 0.2, 0.2, 0.2]))


@dataclass(frozen=True)
class Jobs:
    """Jobs by column: kind, entity, and speed relative to the kind."""

    table: Table
    kind: Ints
    entity: Ints
    speed: Floats

    @classmethod
    def drawn(
        cls, table: Table, jobs: int, entities: int = 1, different: bool = False, seed: int = 0
    ) -> Jobs:
        """Jobs of kinds drawn alike."""
        rng = np.random.default_rng(seed)
        kind, entity = rng.integers(0, len(table.scale), jobs), rng.integers(0, entities, jobs)
        return cls(table, kind, entity, rng.uniform(0.9, 1.1, jobs) if different else np.ones(jobs))

    def problem(
        self, gpus: float = GPUS, pairs: bool = False, each: bool = False
    ) -> AllocationProblem:
        """The problem to solve; with `each`, every job is a class."""
        first, count = self._classes(each)
        kind, none = self.kind[first], len(TYPES)
        plain = AllocationProblem(
            types=TYPES,
            gpus=np.full(len(TYPES), gpus),
            columns=tuple(Column(name) for name in TYPES),
            column_type=np.arange(len(TYPES)),
            rates=self.table.alone[kind] * self.speed[first][:, None],
            count=count,
            scale=self.table.scale[kind],
            weight=np.ones(len(kind)),
            entity=self.entity[first],
            pairs=np.zeros((0, 2), dtype=np.int64),
            pair_rates=np.zeros((0, none, 2)),
        )
        return (
            with_pairs(plain, kind, self.table.beside, np.ones(len(kind), dtype=np.bool_))
            if pairs
            else plain
        )

    def _classes(self, each: bool) -> tuple[Ints, Ints]:
        """(a job of each class, its number of jobs): by kind and entity, or every job a class."""
        if each or (self.speed != 1.0).any():
            return np.argsort(self.kind, kind="stable"), np.ones(len(self.kind), dtype=np.int64)
        key = self.kind * (int(self.entity.max()) + 1) + self.entity
        first, count = np.zeros(int(key.max()) + 1, dtype=np.int64), np.bincount(key)
        first[key] = np.arange(len(key))
        present = np.flatnonzero(count)
        return first[present], count[present]


def figures(table: Table, times: int) -> Iterator[Figure]:
    """The figures, the quickest first."""
    draw = partial(Jobs.drawn, table)
    for jobs, goal_ms in ((2048, 5.0), (100_000, 20.0)):
        yield _figure(f"fairness, {jobs} jobs of 83 kinds", _fair(draw(jobs)), times, goal_ms)
    for jobs, goal_ms in ((512, 25.0), (100_000, 50.0)):
        yield _figure(
            f"fairness with pairs, {jobs} jobs of 83 kinds",
            _fair(draw(jobs), pairs=True),
            times,
            goal_ms,
        )
    for jobs, goal_ms in ((512, 300.0), (2048, 500.0)):
        for gpus in (GPUS, round(jobs * LEVELS)):
            call = partial(_hierarchy, draw(jobs, entities=len(ENTITIES)), gpus)
            yield _figure(
                f"hierarchical fairness, {jobs} jobs, 5 entities, {gpus:g} GPUs of each type",
                call,
                times,
                goal_ms,
            )
    for jobs, goal_ms in ((2048, 100.0), (8192, 500.0)):
        yield _figure(
            f"fairness, {jobs} jobs all different",
            _fair(draw(jobs, different=True)),
            times,
            goal_ms,
        )
    yield _figure("makespan, 2048 jobs", partial(_makespan, draw(2048)), times, 1000.0)
    yield _figure(
        "finish-time fairness to 1e-3, 2048 jobs", partial(_finish_time, draw(2048)), times, 2000.0
    )


def _fair(jobs: Jobs, pairs: bool = False) -> Callable[[], Shares]:
    return lambda: fairness(jobs.problem(pairs=pairs))


def _hierarchy(jobs: Jobs, gpus: float) -> Shares:
    return hierarchical_shares(jobs.problem(gpus), ENTITIES)


def _steps(problem: AllocationProblem) -> Floats:
    return problem.fastest_rates * 10.0 ** np.random.default_rng(1).uniform(
        3.0, 5.0, len(problem.count)
    )


def _makespan(jobs: Jobs) -> Shares:
    problem = jobs.problem(each=True)
    return makespan(problem, _steps(problem))


def _finish_time(jobs: Jobs) -> Shares:
    problem, rng = jobs.problem(each=True), np.random.default_rng(2)
    elapsed_s = rng.uniform(0.0, 1e5, len(problem.count))
    isolated_s = elapsed_s * rng.uniform(0.5, 1.5, len(problem.count))
    return finish_time_fairness(
        problem, Times(_steps(problem), elapsed_s, isolated_s), precision=1e-3
    )


def _figure(name: str, call: Callable[[], object], times: int, goal_ms: float) -> Figure:
    return figure(name, milliseconds(call, times), goal_ms, "ms")


def main(arguments: list[str] | None = None) -> None:
    """Print the lines as they are measured."""
    parser = argparse.ArgumentParser(description="Times of share policies")
    parser.add_argument(
        "--throughputs", type=Path, help=f"folder of Gavel's {FILE}; made up without it"
    )
    parser.add_argument("--times", type=int, default=5, help="calls of which the median is printed")
    asked = parser.parse_args(arguments)
    show(figures(measured(asked.throughputs) if asked.throughputs else made_up(), asked.times))


if __name__ == "__main__":
    main()
