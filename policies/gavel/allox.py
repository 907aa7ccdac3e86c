"""AlloX (Le et al., EuroSys 2020): a matching for the least mean completion time."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from policies.contract.plan import Plan
from policies.contract.policy import parameter
from policies.contract.snapshot import Bools, Floats, Ints, Snapshot
from policies.gavel.allox_gangs import Draft, Gangs
from policies.gavel.solvers.matching import Machines, Matching, match
from policies.placement.layout import members

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class AlloX:
    """Least average completion time: jobs matched to GPUs and places in their queues (AlloX).

    A job of one GPU that is the k-th from the end of a GPU's queue costs k run times there, after
    the GPU comes free: the matching of least cost has the least total completion time (section 4).
    It is made in each round; the first in a queue of a free GPU starts, the others wait, some
    beside an idle but slower GPU. Elastic jobs have their fewest GPUs.

    Gangs are beyond AlloX. Here they go first, by arrival, each where it ends soonest on its fewest
    GPUs, and are never stopped. Together they have their part of all wanted GPUs, one gang always,
    and leftovers. The first without a node has one reserved: later gangs do not start there, nor,
    where started jobs stay, single jobs that would not end before it starts.
    """

    started: str = parameter(
        "keep",
        meaning=(
            "running jobs of one GPU: keep: they stay until they end, as in AlloX; move: they are"
            " matched again, and a move costs a restart"
        ),
        choices=("keep", "move"),
    )
    alpha: float = parameter(
        1.0,
        meaning=(
            "part of the waiting jobs that is matched, oldest first; a smaller part starves long"
            " jobs less"
        ),
        minimum=0.0,
        maximum=1.0,
    )
    most: int = parameter(
        500,
        meaning=(
            "most waiting jobs that are matched, oldest first; on 108 GPUs 500 jobs take 0.2 s,"
            " 2000 take 15 s"
        ),
        minimum=1,
        maximum=100_000,
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the plan; its objective is the sum of matched jobs' completion times from now."""
        draft = Draft(snapshot, never_touch=self.started == "keep")
        gangs = Gangs(draft, closes_node=self.started == "keep")
        gangs.place()
        singles = _Singles(draft, gangs)
        total_s = singles.place(self._considered(singles))
        gangs.fill()
        return draft.build("allox", total_s)

    def _considered(self, singles: _Singles) -> Ints:
        order = np.argsort(singles.arrival_s, kind="stable")
        waits = singles.home[order] == NOWHERE
        part = int(self.alpha * np.count_nonzero(waits))
        most = min(max(sum(singles.open), part, 1), self.most)
        considered: Ints = order[~waits | (np.cumsum(waits) <= most)]
        return considered


class _Singles:
    """Jobs of one GPU by number, and groups of nodes on which each is equally fast.

    `rows` int64[J]; `groups`: sets of nodes; `open`: free GPUs of each. `home` int64[J]: the group
    where a job runs on one GPU; `times_s` float64[J, G]: with a launch elsewhere.
    """

    def __init__(self, draft: Draft, gangs: Gangs) -> None:
        self.draft, self.gangs, jobs = draft, gangs, draft.jobs
        self.rows: Ints = np.array(gangs.singles, dtype=np.int64)
        self.arrival_s: Floats = np.array([jobs.arrival_s[row] for row in gangs.singles])
        self.groups = self._groups()
        idle = draft.state.idle
        self.open = [sum(idle[n].bit_count() for n in members(of)) for of in self.groups]
        self.home: Ints = np.array([self._home(row) for row in gangs.singles], dtype=np.int64)
        self.restart_s: Floats = np.array([jobs.launch_s(row) for row in gangs.singles])
        steps = np.array([jobs.steps[row] for row in gangs.singles])[:, None]
        rates = self._rates()
        run_s = np.divide(steps, rates, out=np.full(rates.shape, inf), where=rates > 0.0)
        here = self.home[:, None] == np.arange(len(self.groups))
        self.times_s: Floats = run_s + np.where(here, 0.0, self.restart_s[:, None])

    def place(self, considered: Ints) -> float:
        """Match these jobs and place those that start; return the sum of completion times."""
        group, machines = self._machines()
        times_s = self.times_s[considered][:, group]
        possible = np.isfinite(times_s).any(axis=1)
        total_s = 0.0
        if possible.any():
            matching, jobs = match(times_s[possible], machines), considered[possible]
            groups = range(len(self.groups))
            queues = [_Queue(self, g, jobs, matching, group, machines) for g in groups]
            total_s = matching.total_s + sum(queue.keep_running() for queue in queues)
            self._start(queues)
        self._fill_before_gang()
        return total_s

    def at_home(self, jobs: Ints, group: int) -> Bools:
        """bool: True for jobs that run on one GPU of that group now."""
        found: Bools = self.home[jobs] == group
        return found

    def is_placed(self, job: int) -> bool:
        """Return True if a job has a GPU in the plan."""
        return int(self.rows[job]) in self.draft.placed

    def take(self, job: int, nodes: int) -> bool:
        """Place a job on one of these nodes; return if there was one."""
        return self.draft.place(int(self.rows[job]), 1, nodes)

    def _groups(self) -> list[int]:
        options, state = self.draft.plan.options, self.draft.state
        alike = {options.keys[row]: row for row in self.gangs.singles}.values()
        on_one = {o.nodes for row in alike for o in options.of(row) if o.gpus == 1}
        there = sum(1 << n for n in range(len(state.free))) & state.open & ~self.gangs.closed
        groups = [there] if there else []
        for nodes in sorted(on_one):
            parts = [part for of in groups for part in (of & nodes, of & ~nodes)]
            groups = [part for part in parts if part]
        return groups

    def _home(self, row: int) -> int:
        seat = self.draft.seats.get(row)
        if seat is None or seat.gpus != 1:
            return NOWHERE
        return next((g for g, of in enumerate(self.groups) if of >> seat.node & 1), NOWHERE)

    def _rates(self) -> Floats:
        """float64[J, G]: steps/s on one GPU of each group; 0 where a job cannot run."""
        keys, known = self.draft.plan.options.keys, dict[object, list[float]]()
        first = [next(members(of)) for of in self.groups]
        for row in self.gangs.singles:
            if keys[row] not in known:
                known[keys[row]] = [self.draft.jobs.rate(row, 1, node) for node in first]
        found = [known[keys[row]] for row in self.gangs.singles]
        return np.array(found, dtype=np.float64).reshape(len(found), len(first))

    def _machines(self) -> tuple[Ints, Machines]:
        """(int64[M] groups of nodes, GPUs of each): free ones, and those that come free later."""
        found = [(g, 0.0) for g, gpus in enumerate(self.open) for _ in range(gpus)]
        for g, nodes in enumerate(self.groups):
            ends = (end_s for n in members(nodes) for end_s in self.gangs.ends_s[n])
            found += [(g, end_s) for end_s in ends if isfinite(end_s)]
        table = np.array(found).reshape(-1, 2)
        of, gpus = np.unique(table, axis=0, return_counts=True)
        return of[:, 0].astype(np.int64), Machines(gpus.astype(np.int64), of[:, 1])

    def _start(self, queues: list[_Queue]) -> None:
        """Place those that go on, then the others of each queue while there is room."""
        for queue in queues:
            for job in queue.starting[self.at_home(queue.starting, queue.group)].tolist():
                self.take(job, 1 << self.draft.seats[int(self.rows[job])].node)
        for queue in queues:
            left = queue.gpus - sum(map(self.is_placed, queue.starting.tolist()))
            waiting = [job for job in queue.order.tolist() if not self.is_placed(job)]
            for job in waiting:
                if left > 0 and self.take(job, self.groups[queue.group]):
                    left -= 1

    def _fill_before_gang(self) -> None:
        """Place waiting jobs that end before the gang starts on its node, the shortest first."""
        for node in members(self.gangs.closed):
            times_s = [(self.draft.time_s(row, 1, node), row) for row in self.gangs.singles]
            for time_s, row in sorted(times_s, key=lambda of: of[0]):
                if time_s <= self.gangs.starts_s and row not in self.draft.placed:
                    self.draft.place(row, 1, 1 << node)


class _Queue:
    """Jobs that were matched to the GPUs of one group of nodes.

    `order` int64: jobs of the `gpus` free GPUs as they would start, of which the first `gpus` do;
    `later` int64: jobs of GPUs that come free later. `place` int64[J]: of every matched job.
    Running jobs of equal places start first.
    """

    def __init__(
        self,
        singles: _Singles,
        group: int,
        jobs: Ints,
        matching: Matching,
        machine_group: Ints,
        machines: Machines,
    ) -> None:
        self.singles, self.group, self.gpus = singles, group, singles.open[group]
        mine = machine_group[matching.machine] == group
        now = mine & (machines.ready_s[matching.machine] == 0.0)
        free, self.later = jobs[now], jobs[mine & ~now]
        self.place: Ints = np.zeros(len(singles.rows), dtype=np.int64)
        self.place[jobs] = matching.place
        self.times_s: Floats = singles.times_s[:, group]
        moves = ~singles.at_home(free, group)
        keys = (singles.arrival_s[free], self.times_s[free], moves, -self.place[free])
        self.order: Ints = free[np.lexsort(keys)]

    @property
    def starting(self) -> Ints:
        found: Ints = self.order[: self.gpus]
        return found

    def keep_running(self) -> float:
        """Keep jobs whose restart costs more than the order gains; return the added time.

        The matching ignores that a stopped job starts again. A job at place b that goes on at the
        place a of a starting one costs (a - b) times the difference of their run times more, and
        saves b restarts.
        """
        added = 0.0
        stopped = np.concatenate([self.order[self.gpus :], self.later])
        for job in stopped[self.singles.at_home(stopped, self.group)].tolist():
            cost_s, other = self._cheapest_exchange(job)
            saved_s = float(self.place[job] * self.singles.restart_s[job])
            if cost_s < saved_s:
                self._exchange(job, other)
            added += min(cost_s, saved_s)
        return added

    def _cheapest_exchange(self, job: int) -> tuple[float, int]:
        """(seconds more in total, the newcomer) of the cheapest exchange; inf without one."""
        newcomers = self.starting[~self.singles.at_home(self.starting, self.group)]
        if not len(newcomers):
            return inf, NOWHERE
        slower_s = self.times_s[job] - self.times_s[newcomers]
        costs_s = (self.place[newcomers] - self.place[job]) * slower_s
        best = int(np.argmin(costs_s))
        return float(costs_s[best]), int(newcomers[best])

    def _exchange(self, job: int, other: int) -> None:
        self.place[job], self.place[other] = self.place[other], self.place[job]
        for jobs in (self.order, self.later):
            one, two = jobs == job, jobs == other
            jobs[one], jobs[two] = other, job
