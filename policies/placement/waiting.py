"""Why each job that is not placed waits, with what is in its way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from policies.contract.plan import Placement, WaitCode, Waiting
from policies.contract.snapshot import Bools, Floats, JobPhase, Purpose, Snapshot
from policies.contract.validation import TOLERANCE, power_w, profile_runs
from policies.placement.eligibility import busy_devices
from policies.placement.impossible import MOST_NAMED, why_impossible
from policies.placement.problem import Problem
from policies.placement.solution import Solution


def waiting_of(
    problem: Problem, solution: Solution, placements: Sequence[Placement]
) -> tuple[Waiting, ...]:
    """One reason for each job of the snapshot that is not placed, in the jobs' order."""
    placed = {p.job for p in placements}
    ids = problem.snapshot.jobs.columns.ids
    if len(placed) == len(ids):
        return ()
    reasons = _Reasons(problem, solution, placements)
    at = {int(row): e for e, row in enumerate(problem.rows)}
    waiting = []
    for row, job in enumerate(ids):
        if job not in placed:
            waiting.append(
                problem.not_eligible[row]
                if row in problem.not_eligible
                else reasons.of(at[row], row)
            )
    return tuple(waiting)


def watts_of(snapshot: Snapshot, placements: Iterable[Placement]) -> float:
    """IT power of these placements together with what runs outside of any decision."""
    known = snapshot.jobs.position
    used: dict[str, int] = defaultdict(int, {n.id: busy_devices(n, known) for n in snapshot.nodes})
    for placed in placements:
        for seat in placed.ranks:
            used[seat.node] += len(seat.devices) if placed.purpose is Purpose.TRAINING else 0
    return power_w(snapshot.node_by_id, used)


def cap_rises_s(snapshot: Snapshot, missing_w: float) -> float | None:
    """When the cluster may use so many watts more than now; None if no cap that ends or rises
    leaves them.
    """
    wanted_w = (snapshot.cap_w or 0.0) + missing_w
    changes = sorted(
        {
            at
            for s in snapshot.power_caps
            for at in (s.from_s, s.to_s)
            if snapshot.now_s < at < np.inf
        }
    )
    caps = ((at, snapshot.cap_at(at)) for at in changes)
    return next((at for at, cap in caps if cap is None or cap >= wanted_w), None)


@dataclass(frozen=True, slots=True)
class _InTheWay:
    jobs: tuple[str, ...]
    earliest_s: float | None


class _Reasons:
    """Reasons by what jobs have in common, so that ten thousand of them cost milliseconds."""

    def __init__(
        self, problem: Problem, solution: Solution, placements: Sequence[Placement]
    ) -> None:
        self.problem, self.snapshot = problem, problem.snapshot
        self.columns = problem.snapshot.jobs.columns
        self.possible: Bools = np.any(problem.feasible, axis=1)
        self.needed_w: Floats = self._needed_w(solution)
        self.fits_now: Bools = np.isfinite(self.needed_w)
        self.jobs_at: dict[str, list[tuple[str, float | None]]] = defaultdict(list)
        for placed in placements:
            for seat in placed.ranks:
                self.jobs_at[seat.node].append((placed.job, placed.predicted_run_s))
        for job, run in profile_runs(problem.snapshot):
            for seat in run.ranks:
                self.jobs_at[seat.node].append((job, None))
        self.cached: dict[bytes, _InTheWay] = {}
        self.watts_left = self._watts_left(placements)
        self.more_at_s: dict[float, float | None] = {}
        self.impossible: dict[tuple[object, ...], tuple[WaitCode, tuple[str, ...]]] = {}

    def of(self, job: int, row: int) -> Waiting:
        """The reason of job `job` of the problem, row `row` of the snapshot."""
        name = self.columns.ids[row]
        if not self.possible[job]:
            code, nodes = self._impossible(row)
            return Waiting(name, code, nodes=nodes)
        missing_w = float(self.needed_w[job]) - max(0.0, self.watts_left)
        if self.fits_now[job] and missing_w > TOLERANCE:
            return self._for_watts(name, missing_w)
        way = self._in_the_way(job)
        was_running = self.columns.others["phase"][row] is JobPhase.RUNNING
        code = WaitCode.POSTPONED if was_running or self.fits_now[job] else WaitCode.NO_CAPACITY
        return Waiting(name, code, jobs=way.jobs, earliest_s=way.earliest_s)

    def _needed_w(self, solution: Solution) -> Floats:
        """float64[E]: the fewest watts with which each job could still start on a node that has
        GPUs and resources left after the decision; inf where none has. A node that stays closed
        needs its idle watts too.
        """
        problem = self.problem
        left = problem.capacity.copy()
        np.subtract.at(left, solution.node[solution.placed], problem.demand[solution.placed])
        gpus = problem.config_gpus[solution.config[solution.placed]]
        free = np.array([len(d) for d in problem.devices], dtype=np.int64)
        in_use = problem.busy.copy()
        np.subtract.at(free, solution.node[solution.placed], gpus)
        np.add.at(in_use, solution.node[solution.placed], gpus)
        needed = np.full(len(problem.rows), np.inf)
        with_some = np.flatnonzero(free > 0)
        if not problem.demand.shape[
            1
        ]:  # then nodes of one class with as many GPUs left and in use are alike
            alike = np.stack([problem.node_class, free, in_use])[:, with_some]
            with_some = with_some[np.unique(alike, axis=1, return_index=True)[1]]
        for n in with_some:
            c = problem.node_class[n]
            usable = np.flatnonzero((problem.config_class == c) & (problem.config_gpus <= free[n]))
            drawn = problem.power[c, in_use[n]] if in_use[n] else 0.0
            extra = problem.power[c, in_use[n] + problem.config_gpus[usable]] - drawn
            fits = problem.feasible[:, usable] & np.all(problem.demand <= left[n], axis=1)[:, None]
            needed = np.minimum(
                needed, np.where(fits, extra[None, :], np.inf).min(axis=1, initial=np.inf)
            )
        return needed

    def _watts_left(self, placements: Sequence[Placement]) -> float:
        cap = self.snapshot.cap_w
        return np.inf if cap is None else cap - watts_of(self.snapshot, placements)

    def _for_watts(self, name: str, missing_w: float) -> Waiting:
        """Waits for so many watts, and until when if a cap that ends or rises leaves them."""
        if missing_w not in self.more_at_s:
            self.more_at_s[missing_w] = cap_rises_s(self.snapshot, missing_w)
        return Waiting(
            name, WaitCode.POWER_CAP, watts=missing_w, earliest_s=self.more_at_s[missing_w]
        )

    def _in_the_way(self, job: int) -> _InTheWay:
        """Who holds the nodes that would do, and when the first of them ends."""
        problem = self.problem
        classes = np.zeros(len(problem.cost), dtype=np.bool_)
        classes[problem.config_class[problem.feasible[job]]] = True
        key = classes.tobytes()
        if key not in self.cached:
            nodes = [
                n.id for n, c in zip(problem.nodes, problem.node_class, strict=True) if classes[c]
            ]
            holders = [h for n in nodes for h in self.jobs_at[n]]
            ends = [run_s for _, run_s in holders if run_s is not None]
            earliest = self.snapshot.now_s + min(ends) if ends else None
            self.cached[key] = _InTheWay(
                tuple(dict.fromkeys(j for j, _ in holders))[:MOST_NAMED], earliest
            )
        return self.cached[key]

    def _impossible(self, row: int) -> tuple[WaitCode, tuple[str, ...]]:
        counts, others = self.columns.counts, self.columns.others
        shape = (
            counts["gpus_min"][row],
            counts["gpus_max"][row],
            others["allowed_types"][row],
            others["labels"][row],
        )
        key = (self.columns.kinds[row], *shape)
        if key not in self.impossible:
            self.impossible[key] = why_impossible(self.snapshot, row)
        return self.impossible[key]
