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
from policies.placement.layout import NodeSet, lowest, members

NOWHERE = -1
"""Group of a job that does not run on one GPU."""


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
        """int64: the jobs to match, by arrival: all running and the oldest waiting ones."""
        order = np.argsort(singles.arrival_s, kind="stable")
        is_waiting = singles.home[order] == NOWHERE
        part = int(self.alpha * np.count_nonzero(is_waiting))
        most = min(max(sum(singles.open), part, 1), self.most)
        considered: Ints = order[~is_waiting | (np.cumsum(is_waiting) <= most)]
        return considered


class _Singles:
    """Jobs of one GPU by number, and groups of nodes on which each is equally fast.

    `rows` int64[J]: of the snapshot. `groups`: sets of nodes; `open`: free GPUs of each. `home`
    int64[J]: the group where a job runs on one GPU, or NOWHERE. `times_s` float64[J, G]: seconds
    that each job needs on each group, with a launch unless it is its home; inf if never.
    """

    def __init__(self, draft: Draft, gangs: Gangs) -> None:
        self.draft = draft
        self.gangs = gangs
        jobs = draft.jobs
        self.rows: Ints = np.array(gangs.singles, dtype=np.int64)
        self.arrival_s: Floats = np.array([jobs.arrival_s[row] for row in gangs.singles])
        self.groups = self._groups()
        self.open: list[int] = []
        for nodes in self.groups:
            self.open.append(sum(draft.state.idle[node].bit_count() for node in members(nodes)))
        self.home: Ints = np.array([self._home(row) for row in gangs.singles], dtype=np.int64)
        self.restart_s: Floats = np.array([jobs.launch_s(row) for row in gangs.singles])
        steps = np.array([jobs.steps[row] for row in gangs.singles])[:, None]
        rates = self._rates()
        run_s = np.divide(steps, rates, out=np.full(rates.shape, inf), where=rates > 0.0)
        is_home = self.home[:, None] == np.arange(len(self.groups))
        self.times_s: Floats = run_s + np.where(is_home, 0.0, self.restart_s[:, None])

    def place(self, considered: Ints) -> float:
        """Match these jobs and place those that start; return the sum of completion times."""
        # 1. Match those that can run on some machine, a GPU that is free or comes free later.
        group, machines = self._machines()
        times_s = self.times_s[considered][:, group]
        possible = np.isfinite(times_s).any(axis=1)
        total_s = 0.0
        if possible.any():
            matching = match(times_s[possible], machines)
            jobs = considered[possible]
            total_s = matching.total_s

            # 2. Each group has a queue, in which running jobs stay if a restart costs more.
            queues = []
            for number in range(len(self.groups)):
                queue = _Queue(self, number, jobs, matching, group, machines)
                queues.append(queue)
            total_s += sum(queue.keep_running() for queue in queues)
            self._start(queues)

        # 3. Jobs that are done before the waiting gang starts.
        self._fill_before_gang()
        return total_s

    def at_home(self, jobs: Ints, group: int) -> Bools:
        """bool: True for jobs that run on one GPU of that group now."""
        is_home: Bools = self.home[jobs] == group
        return is_home

    def is_placed(self, job: int) -> bool:
        """Return True if a job has a GPU in the plan."""
        return int(self.rows[job]) in self.draft.placed

    def take(self, job: int, nodes: NodeSet) -> bool:
        """Place a job on one of these nodes; return if there was one."""
        return self.draft.place(int(self.rows[job]), 1, nodes)

    def _groups(self) -> list[NodeSet]:
        """Return the open nodes, split so that no job is faster on some of a group than on others.

        The options of each job are such sets of nodes.
        """
        options = self.draft.plan.options
        row_by_key = {options.keys[row]: row for row in self.gangs.singles}
        option_nodes: set[NodeSet] = set()
        for row in row_by_key.values():
            option_nodes.update(option.nodes for option in options.of(row) if option.gpus == 1)

        state = self.draft.state
        every_node = (1 << len(state.free)) - 1
        usable = every_node & state.open & ~self.gangs.closed
        groups = [usable] if usable else []
        for nodes in sorted(option_nodes):
            parts: list[NodeSet] = []
            for group in groups:
                parts += [group & nodes, group & ~nodes]
            groups = [part for part in parts if part]
        return groups

    def _home(self, row: int) -> int:
        """Return the group where a job runs on one GPU; NOWHERE if it does not."""
        seat = self.draft.seats.get(row)
        if seat is None or seat.gpus != 1:
            return NOWHERE
        for group, nodes in enumerate(self.groups):
            if nodes >> seat.node & 1:
                return group
        return NOWHERE

    def _rates(self) -> Floats:
        """float64[J, G]: steps/s on one GPU of each group; 0 where a job cannot run."""
        keys = self.draft.plan.options.keys
        nodes = [lowest(group) for group in self.groups]
        rates_by_key: dict[object, list[float]] = {}
        for row in self.gangs.singles:
            if keys[row] not in rates_by_key:
                rates_by_key[keys[row]] = [self.draft.jobs.rate(row, 1, node) for node in nodes]
        rates = [rates_by_key[keys[row]] for row in self.gangs.singles]
        return np.array(rates, dtype=np.float64).reshape(len(rates), len(nodes))

    def _machines(self) -> tuple[Ints, Machines]:
        """Return the machines of the matching: GPUs of a group that are there at the same time.

        (int64[M]: the group of each; their GPUs and times): free ones, and those that come free.
        """
        group_and_time: list[tuple[int, float]] = []
        for group, gpus in enumerate(self.open):
            group_and_time += [(group, 0.0)] * gpus
        for group, nodes in enumerate(self.groups):
            for node in members(nodes):
                ends_s = [end_s for end_s in self.gangs.ends_s[node] if isfinite(end_s)]
                group_and_time += [(group, end_s) for end_s in ends_s]
        table = np.array(group_and_time).reshape(-1, 2)
        distinct, gpus_of = np.unique(table, axis=0, return_counts=True)
        groups = distinct[:, 0].astype(np.int64)
        return groups, Machines(gpus_of.astype(np.int64), distinct[:, 1])

    def _start(self, queues: list[_Queue]) -> None:
        """Place those that go on, then the others of each queue while there is room."""
        for queue in queues:
            for job in queue.starting[self.at_home(queue.starting, queue.group)].tolist():
                self.take(job, 1 << self.draft.seats[int(self.rows[job])].node)
        for queue in queues:
            left = queue.gpus - sum(self.is_placed(job) for job in queue.starting.tolist())
            waiting = [job for job in queue.order.tolist() if not self.is_placed(job)]
            for job in waiting:
                if left > 0 and self.take(job, self.groups[queue.group]):
                    left -= 1

    def _fill_before_gang(self) -> None:
        """Place waiting jobs that end before the gang starts on its node, the shortest first."""
        for node in members(self.gangs.closed):
            time_s = {row: self.draft.time_s(row, 1, node) for row in self.gangs.singles}
            for row in sorted(time_s, key=lambda row: time_s[row]):
                if time_s[row] <= self.gangs.starts_s and row not in self.draft.placed:
                    self.draft.place(row, 1, 1 << node)


class _Queue:
    """Jobs that were matched to the GPUs of one group of nodes.

    `order` int64: jobs of the `gpus` free GPUs as they would start, of which the first `gpus` do;
    `later` int64: jobs of GPUs that come free later. `place` int64[J]: of every matched job, its
    place from the end of its GPU's queue. Running jobs of equal places start first.
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
        self.singles = singles
        self.group = group
        self.gpus = singles.open[group]

        # 1. The jobs of this group: of free GPUs, and of those that come free later.
        is_here = machine_group[matching.machine] == group
        is_free = machines.ready_s[matching.machine] == 0.0
        on_free = jobs[is_here & is_free]
        self.later = jobs[is_here & ~is_free]

        # 2. The last in a GPU's queue starts first: by falling place, running ones first.
        self.place: Ints = np.zeros(len(singles.rows), dtype=np.int64)
        self.place[jobs] = matching.place
        self.times_s: Floats = singles.times_s[:, group]
        moves = ~singles.at_home(on_free, group)
        keys = (singles.arrival_s[on_free], self.times_s[on_free], moves, -self.place[on_free])
        self.order: Ints = on_free[np.lexsort(keys)]

    @property
    def starting(self) -> Ints:
        """int64: the jobs that start now."""
        starting: Ints = self.order[: self.gpus]
        return starting

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
        """Return (seconds more in total, newcomer) of the cheapest exchange; inf without one."""
        newcomers = self.starting[~self.singles.at_home(self.starting, self.group)]
        if not len(newcomers):
            return inf, NOWHERE
        slower_s = self.times_s[job] - self.times_s[newcomers]
        costs_s = (self.place[newcomers] - self.place[job]) * slower_s
        best = int(np.argmin(costs_s))
        return float(costs_s[best]), int(newcomers[best])

    def _exchange(self, job: int, other: int) -> None:
        """Let two jobs have each other's place."""
        self.place[job], self.place[other] = self.place[other], self.place[job]
        for jobs in (self.order, self.later):
            is_job = jobs == job
            is_other = jobs == other
            jobs[is_job] = other
            jobs[is_other] = job
