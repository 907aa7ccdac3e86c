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
"""Home of a job that does not run on one GPU; number of a job that does not exist."""


@dataclass(frozen=True, slots=True)
class AlloX:
    """Least average completion time: jobs matched to GPUs and places in their queues (AlloX).

    A job of one GPU that is the k-th from the end of a GPU's queue costs k run times there, after
    the GPU comes free: the matching of least cost has the least total completion time (section 4).
    It is made in each round. The first job in the queue of a free GPU starts; the others wait, some
    although a slower GPU is idle. Elastic jobs have their fewest GPUs.

    Gangs are beyond AlloX. Here they go first, by arrival, each where it ends soonest on its fewest
    GPUs, and are never stopped. Gangs and jobs of one GPU divide the GPUs in proportion to what
    they want; one gang always runs, and gangs also get GPUs that are left over. For the first gang
    without room a node is reserved: later gangs do not start there, nor, with `keep`, jobs of one
    GPU that would not end before the gang starts.
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
        # 1. Gangs, on their part of the GPUs.
        draft = Draft(snapshot, never_touch=self.started == "keep")
        gangs = Gangs(draft, closes_node=self.started == "keep")
        gangs.start()

        # 2. Jobs of one GPU, by the matching.
        singles = _Singles(draft, gangs)
        total_s = singles.start(self._considered(singles))

        # 3. More gangs, on GPUs that are left over.
        gangs.fill()
        return draft.build("allox", total_s)

    def _considered(self, singles: _Singles) -> Ints:
        """int64: the jobs to match, by arrival: all running and the oldest waiting ones.

        At least as many waiting ones as there are free GPUs, but no more than `most`.
        """
        by_arrival = np.argsort(singles.arrival_s, kind="stable")
        is_waiting = singles.home[by_arrival] == NOWHERE
        part = int(self.alpha * np.count_nonzero(is_waiting))
        most = min(max(sum(singles.free_gpus), part, 1), self.most)
        is_among_oldest = np.cumsum(is_waiting) <= most
        considered: Ints = by_arrival[~is_waiting | is_among_oldest]
        return considered


class _Singles:
    """J jobs of one GPU by number, and G groups of nodes on which each job is equally fast.

    `rows` int64[J]: of the snapshot. `groups`: the nodes of each; `free_gpus`: their number in each
    group. `home` int64[J]: the group where a job runs on one GPU, or NOWHERE. `times_s` float64[J,
    G]: seconds that each job needs on each group, with a launch unless it is its home; inf if
    never.
    """

    def __init__(self, draft: Draft, gangs: Gangs) -> None:
        self.draft = draft
        self.gangs = gangs
        jobs = draft.jobs
        self.rows: Ints = np.array(gangs.singles, dtype=np.int64)
        self.arrival_s: Floats = np.array([jobs.arrival_s[row] for row in gangs.singles])
        self.groups = self._node_groups()
        self.free_gpus: list[int] = []
        for nodes in self.groups:
            idle = [draft.state.idle[node].bit_count() for node in members(nodes)]
            self.free_gpus.append(sum(idle))
        self.home: Ints = np.array([self._home(row) for row in gangs.singles], dtype=np.int64)
        self.restart_s: Floats = np.array([jobs.launch_s(row) for row in gangs.singles])
        steps = np.array([jobs.steps[row] for row in gangs.singles])[:, None]
        rates = self._rates()
        run_s = np.divide(steps, rates, out=np.full(rates.shape, inf), where=rates > 0.0)
        is_home = self.home[:, None] == np.arange(len(self.groups))
        self.times_s: Floats = run_s + np.where(is_home, 0.0, self.restart_s[:, None])

    def _node_groups(self) -> list[NodeSet]:
        """Return the open nodes, split so that no job is faster on some of a group than on others.

        Each option of a job is a set of nodes; these sets split the groups.
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

    def start(self, considered: Ints) -> float:
        """Match these jobs and start the first ones; return the sum of completion times."""
        # 1. Match those that can run on some GPU, one that is free or comes free later.
        group_of_machine, machines = self._machines()
        times_s = self.times_s[considered][:, group_of_machine]
        is_possible = np.isfinite(times_s).any(axis=1)
        total_s = 0.0
        if is_possible.any():
            matching = match(times_s[is_possible], machines)
            jobs = considered[is_possible]
            total_s = matching.total_s

            # 2. Each group has a queue, in which running jobs stay if a restart costs more.
            queues = []
            for group in range(len(self.groups)):
                queue = _Queue(self, group, jobs, matching, group_of_machine, machines)
                queues.append(queue)
            total_s += sum(queue.keep_running() for queue in queues)
            self._start_first(queues)

        # 3. Jobs that are done before the waiting gang starts.
        self._fill_before_gang()
        return total_s

    def _machines(self) -> tuple[Ints, Machines]:
        """Return the machines of the matching, and int64[M]: the group of each.

        A machine is all the GPUs of one group that are free now, or that come free together.
        """
        group_and_time: list[tuple[int, float]] = []
        for group, gpus in enumerate(self.free_gpus):
            group_and_time += [(group, 0.0)] * gpus
        for group, nodes in enumerate(self.groups):
            for node in members(nodes):
                ends_s = [end_s for end_s in self.gangs.ends_s[node] if isfinite(end_s)]
                group_and_time += [(group, end_s) for end_s in ends_s]
        table = np.array(group_and_time).reshape(-1, 2)
        distinct, gpus_of = np.unique(table, axis=0, return_counts=True)
        group_of_machine = distinct[:, 0].astype(np.int64)
        return group_of_machine, Machines(gpus_of.astype(np.int64), distinct[:, 1])

    def _start_first(self, queues: list[_Queue]) -> None:
        """Let running jobs go on, then start the others of each queue while there is room."""
        for queue in queues:
            goes_on = self.is_home(queue.starting, queue.group)
            for job in queue.starting[goes_on].tolist():
                node = self.draft.seats[int(self.rows[job])].node
                self._place(job, 1 << node)
        for queue in queues:
            gpus_left = queue.gpus - sum(self._is_placed(job) for job in queue.starting.tolist())
            for job in queue.order.tolist():
                if self._is_placed(job) or gpus_left <= 0:
                    continue
                if self._place(job, self.groups[queue.group]):
                    gpus_left -= 1

    def _fill_before_gang(self) -> None:
        """Place waiting jobs that end before the gang starts on its node, the shortest first."""
        for node in members(self.gangs.closed):
            time_s = {row: self.draft.time_s(row, 1, node) for row in self.gangs.singles}
            for row in sorted(time_s, key=lambda row: time_s[row]):
                if time_s[row] <= self.gangs.starts_s and row not in self.draft.placed:
                    self.draft.place(row, 1, 1 << node)

    def is_home(self, jobs: Ints, group: int) -> Bools:
        """bool: True for jobs that run on one GPU of that group now."""
        is_home: Bools = self.home[jobs] == group
        return is_home

    def _is_placed(self, job: int) -> bool:
        """Return True if a job has a GPU in the plan."""
        return int(self.rows[job]) in self.draft.placed

    def _place(self, job: int, nodes: NodeSet) -> bool:
        """Place a job on one GPU of these nodes; return if there was room."""
        return self.draft.place(int(self.rows[job]), 1, nodes)


class _Queue:
    """Jobs that were matched to the GPUs of one group of nodes.

    `order` int64: jobs of the `gpus` free GPUs as they would start, of which the first `gpus` do;
    `later` int64: jobs of GPUs that come free later. `from_end` int64[J]: the position of every
    matched job in its GPU's queue, counted from the end, so that 1 runs last.
    """

    def __init__(
        self,
        singles: _Singles,
        group: int,
        jobs: Ints,
        matching: Matching,
        group_of_machine: Ints,
        machines: Machines,
    ) -> None:
        self.singles = singles
        self.group = group
        self.gpus = singles.free_gpus[group]

        # 1. The jobs of this group: of free GPUs, and of those that come free later.
        is_here = group_of_machine[matching.machine] == group
        is_free = machines.ready_s[matching.machine] == 0.0
        on_free = jobs[is_here & is_free]
        self.later = jobs[is_here & ~is_free]

        # 2. The last in a GPU's queue, counted from the end, starts first. Of equal ones running
        #    jobs start first, then short ones, then old ones.
        self.from_end: Ints = np.zeros(len(singles.rows), dtype=np.int64)
        self.from_end[jobs] = matching.from_end
        self.times_s: Floats = singles.times_s[:, group]
        is_move = ~singles.is_home(on_free, group)
        arrival_s = singles.arrival_s[on_free]
        by_priority = np.lexsort(
            (arrival_s, self.times_s[on_free], is_move, -self.from_end[on_free])
        )
        self.order: Ints = on_free[by_priority]

    @property
    def starting(self) -> Ints:
        """int64: the jobs that start now."""
        starting: Ints = self.order[: self.gpus]
        return starting

    def keep_running(self) -> float:
        """Keep jobs whose restart costs more than the order gains; return the added time.

        The matching ignores that a stopped job starts again. A job at position b from the end that
        goes on at the position a of a starting one costs (a - b) times the difference of their run
        times more, and saves b restarts.
        """
        added_s = 0.0
        stopped = np.concatenate([self.order[self.gpus :], self.later])
        for job in stopped[self.singles.is_home(stopped, self.group)].tolist():
            cost_s, other = self._cheapest_exchange(job)
            saved_s = float(self.from_end[job] * self.singles.restart_s[job])
            if cost_s < saved_s:
                self._exchange(job, other)
            added_s += min(cost_s, saved_s)
        return added_s

    def _cheapest_exchange(self, job: int) -> tuple[float, int]:
        """Return the cheapest exchange with a job that would start here anew.

        (seconds more in total, that job); (inf, NOWHERE) without one.
        """
        newcomers = self.starting[~self.singles.is_home(self.starting, self.group)]
        if not len(newcomers):
            return inf, NOWHERE
        slower_s = self.times_s[job] - self.times_s[newcomers]
        costs_s = (self.from_end[newcomers] - self.from_end[job]) * slower_s
        best = int(np.argmin(costs_s))
        return float(costs_s[best]), int(newcomers[best])

    def _exchange(self, job: int, other: int) -> None:
        """Let two jobs have each other's position."""
        from_end = self.from_end[job]
        self.from_end[job] = self.from_end[other]
        self.from_end[other] = from_end
        for jobs in (self.order, self.later):
            is_job = jobs == job
            is_other = jobs == other
            jobs[is_job] = other
            jobs[is_other] = job
