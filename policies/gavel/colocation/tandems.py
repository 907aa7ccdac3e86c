"""Units that get time together, a job or two jobs of one GPU that share it: where they sit now, how
fast two are side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from policies.andreas.problem import Problem
from policies.contract.snapshot import Ints, Running, Snapshot
from policies.placement.from_snapshot import training_run
from policies.placement.speed import UNKNOWN, PairRates, PairSpeed, Speeds

WHOLE, HALF = 1.0, 0.5


@dataclass(frozen=True, slots=True)
class Seat:
    """Devices of a node, by its number in the problem."""

    node: int
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """One or two jobs (their numbers in the problem) that have `gpus` devices together.

    `seat`: where they run and may go on without a restart; of two that share a device one may still
    have to come.
    """

    jobs: tuple[int, ...]
    gpus: int
    seat: Seat | None = None


class Tandems:
    """What a problem's jobs need to be made units of; `least` int64[E]: the fewest GPUs that each
    can run on.

    `names`: ids of the jobs. `runs`, `seats`: by job, where it runs and could go on; `halves`: by
    device, the jobs that hold a part of it; `wide[n]`: devices of node n to give that have room for
    two.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        most = problem.cost.shape[1]
        self.least: Ints = np.where(problem.feasible, problem.config_gpus[None, :], most).min(
            axis=1, initial=most
        )
        slots = [{d.id for d in node.devices if d.slots > 1} for node in problem.nodes]
        self.wide = [
            tuple(d for d in given if d in of)
            for given, of in zip(problem.devices, slots, strict=True)
        ]
        self.runs: dict[int, Running] = {}
        self.seats: dict[int, Seat] = {}
        self.halves: dict[Seat, list[int]] = defaultdict(list)
        self._find_runs()
        self.rates = pair_rates(problem.snapshot)
        others = problem.snapshot.jobs.columns.others
        self._may_share = [bool(others["may_share"][row]) for row in problem.rows]
        self._kinds = [problem.snapshot.jobs.columns.kinds[row] for row in problem.rows]
        self.names = [problem.snapshot.jobs.columns.ids[row] for row in problem.rows]

    def jobs(self, without: Collection[str]) -> list[int]:
        """Jobs that can run, but for those with these ids."""
        most = self.problem.cost.shape[1]
        return [
            e
            for e, least in enumerate(self.least.tolist())
            if least < most and self.names[e] not in without
        ]

    def sharers(self) -> list[int]:
        """Jobs that may share a device, of one GPU: pairs are known on one."""
        return (
            [e for e, least in enumerate(self.least.tolist()) if least == 1 and self._may_share[e]]
            if any(self.wide)
            else []
        )

    def sides(self, one: int, other: int, n: int) -> PairSpeed:
        """Speeds of two jobs that share a device of node n; 0 where that is not known, or they do
        not fit into its memory.
        """
        found = self.rates.get(
            (self._kinds[one], self._kinds[other], self.problem.nodes[n].gpu_type), UNKNOWN
        )
        return found if min(found) > 0.0 else UNKNOWN

    def worth(self, one: int, other: int, n: int) -> float:
        """The sum of the parts of their speeds alone that two jobs keep side by side on node n:
        above 1 they beat taking turns.
        """
        snapshot, of_type = (
            self.problem.snapshot,
            self.problem.snapshot.type_index[self.problem.nodes[n].gpu_type],
        )
        alone = [
            float(snapshot.throughputs[snapshot.kind_index[self._kinds[e]], of_type, 1])
            for e in (one, other)
        ]
        beside = self.sides(one, other, n)
        return sum(b / a for b, a in zip(beside, alone, strict=True)) if min(alone) > 0.0 else 0.0

    def nodes_of(self, unit: Unit) -> list[int]:
        """Nodes on which the unit could run, were they empty."""
        problem = self.problem
        configs = np.flatnonzero(
            (problem.config_gpus == unit.gpus) & problem.feasible[list(unit.jobs)].all(axis=0)
        )
        found = np.flatnonzero(np.isin(problem.node_class, problem.config_class[configs])).tolist()
        if len(unit.jobs) == 1:
            return found
        one, other = unit.jobs
        return [n for n in found if self.wide[n] and self.sides(one, other, n) != UNKNOWN]

    def single(self, job: int) -> Unit:
        """A job on its own; who is left on a part of a device keeps it, without a restart."""
        seat = self.seats.get(job)
        return Unit((job,), len(seat.devices) if seat is not None else int(self.least[job]), seat)

    def pair(self, one: int, other: int) -> Unit:
        """Two jobs on one device: where both sit, or where one sits on a part of it and nobody
        beside it, if they may be there.
        """
        for job in (one, other):
            seat = self.seats.get(job)
            if (
                seat is None
                or job not in self.halves[seat]
                or not set(self.halves[seat]) <= {one, other}
            ):
                continue
            if (
                set(seat.devices) <= set(self.wide[seat.node])
                and self.sides(one, other, seat.node) != UNKNOWN
            ):
                return Unit((one, other), 1, seat)
        return Unit((one, other), 1)

    def sit_together(self, one: int, other: int) -> Seat | None:
        """The device that both hold a part of now."""
        seat = self.seats.get(one)
        return seat if seat is not None and {one, other} == set(self.halves[seat]) else None

    def _find_runs(self) -> None:
        problem, running = self.problem, self.problem.snapshot.jobs.columns.others["running"]
        at = {node.id: n for n, node in enumerate(problem.nodes)}
        given = [frozenset(devices) for devices in problem.devices]
        for e, row in enumerate(problem.rows.tolist()):
            run = training_run(running[row])
            if (
                run is None
                or run.copy != 0
                or len(run.ranks) != 1
                or (n := at.get(run.ranks[0].node)) is None
            ):
                continue
            seat = Seat(n, run.ranks[0].devices)
            if given[n].issuperset(seat.devices) and self._suits(e, n, len(seat.devices)):
                self.runs[e], self.seats[e] = run, seat
                if run.ranks[0].share < WHOLE:
                    self.halves[seat].append(e)

    def _suits(self, job: int, n: int, gpus: int) -> bool:
        problem = self.problem
        config = (problem.config_class == problem.node_class[n]) & (problem.config_gpus == gpus)
        return bool((problem.feasible[job] & config).any())


def pair_rates(snapshot: Snapshot) -> PairRates:
    """Return every pair of kinds that is known."""
    return Speeds(snapshot.kinds).pairs
