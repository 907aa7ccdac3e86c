"""AlloX (Le et al., EuroSys 2020): a matching for the least mean completion time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.andreas.kernels.arrays import NONE
from policies.andreas.problem import Problem, build
from policies.andreas.to_plan import to_plan
from policies.contract.plan import Plan
from policies.contract.policy import parameter
from policies.contract.snapshot import Bools, Floats, Ints, Snapshot
from policies.gavel.allox_matching import Machines, Matching, match
from policies.gavel.colocation.gangs import Gangs
from policies.gavel.colocation.vacancies import Vacancies


@dataclass(frozen=True, slots=True)
class AlloX:
    """Least average completion time: jobs matched to GPUs and places in their queues (AlloX).

    A job of one GPU that is the k-th from the end of a GPU's queue costs k run times there, after
    the GPU comes free: the matching of least cost has the least total completion time (section 4).
    It is made anew in each round; who is first in a queue of a free GPU starts, the others wait,
    some of them beside an idle GPU that would take longer than waiting for a better one. A job
    whose count of GPUs may vary has the fewest it can run on.

    Gangs are beyond AlloX. Here they go first, by arrival, each where it ends soonest on the fewest
    GPUs it may have, and keep what they run on. Together they have the part of all GPUs that they
    are of what is wanted, one gang always, and what is left idle. The first for which no node has
    room has one kept for it: later gangs do not start there, nor, where started jobs stay, single
    jobs that would not end before it starts.
    """

    started: str = parameter(
        "keep",
        meaning=(
            "jobs of one GPU that run: keep: stay until they end, as in AlloX; move: are matched"
            " anew, a restart at its cost"
        ),
        choices=("keep", "move"),
    )
    alpha: float = parameter(
        1.0,
        meaning=(
            "part of the waiting jobs, the oldest, that are matched: fewer starve long jobs less"
        ),
        minimum=0.0,
        maximum=1.0,
    )
    most: int = parameter(
        500,
        meaning=(
            "waiting jobs that are matched at most, the oldest; 500 on 108 GPUs take 0.2 s, 2000"
            " take 15 s"
        ),
        minimum=1,
        maximum=100_000,
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """The plan; the objective is the sum of matched jobs' completion times from now (s)."""
        problem = build(snapshot, never_touch=self.started == "keep")
        vacancies = Vacancies(problem)
        gangs = Gangs(problem, vacancies, shuts_out_singles=self.started == "keep")
        gangs.seat()
        singles = _Singles(problem, vacancies, gangs)
        total_s = singles.seat(self._considered(problem, singles))
        gangs.fill()
        return to_plan(problem, vacancies.solution, "allox", total_s)

    def _considered(self, problem: Problem, singles: _Singles) -> Ints:
        """Jobs to match: running ones, and the oldest waiting ones."""
        jobs = singles.jobs[np.argsort(problem.column("arrival_s")[singles.jobs], kind="stable")]
        waits = problem.home[jobs] == NONE
        wanted = min(
            max(int(singles.open.sum()), int(self.alpha * np.count_nonzero(waits)), 1), self.most
        )
        considered: Ints = jobs[~waits | (np.cumsum(waits) <= wanted)]
        return considered


class _Singles:
    """Jobs of one GPU; `open` int64[C]: the free GPUs of each class that they may have."""

    def __init__(self, problem: Problem, vacancies: Vacancies, gangs: Gangs) -> None:
        self.problem, self.vacancies, self.gangs = problem, vacancies, gangs
        self.jobs = gangs.singles
        classes = len(problem.cost)
        self.usable: Bools = ~gangs.shut
        self.open: Ints = np.bincount(
            problem.node_class[self.usable], vacancies.free[self.usable].astype(np.float64), classes
        ).astype(np.int64)
        config_of = np.array([vacancies.number[c, 1] for c in range(classes)], dtype=np.int64)
        self.class_times_s: Floats = problem.times_s[:, config_of]
        """float64[E, C]: run time on one GPU of a class, with a launch unless it runs there."""
        self.restart_s = problem.move_s

    def seat(self, considered: Ints) -> float:
        """Match, and seat who starts; the sum of completion times."""
        machine_class, machines = self._machines()
        times_s = self.class_times_s[considered][:, machine_class]
        possible = np.isfinite(times_s).any(axis=1)
        total_s = 0.0
        if possible.any():
            matching = match(times_s[possible], machines)
            queues = self._queues(considered[possible], matching, machine_class, machines)
            total_s = matching.total_s + sum(queue.keep_running() for queue in queues)
            self._start(queues)
        self._fill_before_gang()
        return total_s

    def _queues(
        self, jobs: Ints, matching: Matching, machine_class: Ints, machines: Machines
    ) -> list[_Queue]:
        return [
            _Queue.of(self, c, jobs, matching, machine_class, machines)
            for c in range(len(self.open))
        ]

    def at_home(self, jobs: Ints, of_class: int) -> Bools:
        """Which of the jobs run on one GPU of that class now."""
        same: Bools = self.problem.home_config[jobs] == self.vacancies.number[of_class, 1]
        return same

    def _machines(self) -> tuple[Ints, Machines]:
        """(int64[M] classes, GPU groups): free ones, and those freed by ends."""
        free = [(c, 0.0) for c, gpus in enumerate(self.open.tolist()) for _ in range(gpus)]
        ends = (
            (n, end_s)
            for n, of_node in enumerate(self.gangs.ends_s)
            for end_s in of_node
            if self.usable[n]
        )
        held = [(int(self.problem.node_class[n]), end_s) for n, end_s in ends if np.isfinite(end_s)]
        groups, gpus = np.unique(
            np.array([*free, *held]).reshape(-1, 2), axis=0, return_counts=True
        )
        return groups[:, 0].astype(np.int64), Machines(gpus.astype(np.int64), groups[:, 1])

    def _start(self, queues: list[_Queue]) -> None:
        """Place those that stay, then the others of each queue while there is room."""
        for queue in queues:
            for job in queue.starting[self.at_home(queue.starting, queue.of_class)].tolist():
                home = int(self.problem.home[job])
                if self.vacancies.roomy(job, 1)[home]:
                    self.vacancies.take(job, home, 1)
        for queue in queues:
            left = queue.gpus - int(np.count_nonzero(self.vacancies.node[queue.starting] != NONE))
            for job in [j for j in queue.order.tolist() if self.vacancies.node[j] == NONE]:
                if left > 0 and self._take(job, queue.of_class):
                    left -= 1

    def _take(self, job: int, of_class: int) -> bool:
        """Seat the job on a node of the class, one in use and as full as can be; whether there was
        one.
        """
        fits = self.vacancies.roomy(job, 1) & self.usable & (self.problem.node_class == of_class)
        at = np.flatnonzero(fits)
        if not len(at):
            return False
        closed = self.vacancies.used[at] == 0
        self.vacancies.take(job, int(at[np.lexsort((self.vacancies.free[at], closed))[0]]), 1)
        return True

    def _fill_before_gang(self) -> None:
        """On the node that is kept for a gang, waiting jobs that end before it starts, shortest
        first.
        """
        for n in np.flatnonzero(self.gangs.shut).tolist():
            times_s = self.class_times_s[:, self.problem.node_class[n]]
            fits = self.jobs[
                (times_s[self.jobs] <= self.gangs.starts_s)
                & (self.vacancies.node[self.jobs] == NONE)
            ]
            for job in fits[np.argsort(times_s[fits], kind="stable")].tolist():
                if self.vacancies.roomy(job, 1)[n]:
                    self.vacancies.take(job, n, 1)


@dataclass(slots=True)
class _Queue:
    """What was matched to the GPUs of one class: `order` int64[J], the jobs of the `gpus` free GPUs
    as they would start, of which the first `gpus` do; `place` int64[E] of every matched job,
    `later` those of GPUs that come free later.
    """

    singles: _Singles
    of_class: int
    gpus: int
    order: Ints
    later: Ints
    place: Ints

    @classmethod
    def of(
        cls,
        singles: _Singles,
        of_class: int,
        jobs: Ints,
        matching: Matching,
        machine_class: Ints,
        machines: Machines,
    ) -> _Queue:
        """Variables of like GPUs may be exchanged among them: those that run start before others of
        the same place.
        """
        mine = machine_class[matching.machine] == of_class
        now = mine & (machines.ready_s[matching.machine] == 0.0)
        free = jobs[now]
        place = np.zeros(len(singles.problem.rows), dtype=np.int64)
        place[jobs] = matching.place
        times_s, home = singles.class_times_s[free, of_class], singles.at_home(free, of_class)
        order = free[
            np.lexsort((singles.problem.column("arrival_s")[free], times_s, ~home, -place[free]))
        ]
        return cls(singles, of_class, int(singles.open[of_class]), order, jobs[mine & ~now], place)

    @property
    def starting(self) -> Ints:
        """Jobs that start, or go on, now."""
        return self.order[: self.gpus]

    def keep_running(self) -> float:
        """Have running jobs go on where their restart costs more than the order gains; what this
        adds to the total.

        The matching does not know that who is stopped starts again. A job at place b that goes on
        in the place a of one that would have started in its stead costs (a - b) times the
        difference of their run times more, and saves b restarts.
        """
        added = 0.0
        stopped = np.concatenate([self.order[self.gpus :], self.later])
        for job in stopped[self.singles.at_home(stopped, self.of_class)].tolist():
            cost_s, other = self._cheapest_exchange(job)
            saved_s = float(self.place[job] * self.singles.restart_s[job])
            if cost_s < saved_s:
                self._exchange(job, other)
            added += min(cost_s, saved_s)
        return added

    def _cheapest_exchange(self, job: int) -> tuple[float, int]:
        """(seconds more in total, the job that starts now) of the exchange with a newcomer that
        costs least; inf without one.
        """
        newcomers = self.starting[~self.singles.at_home(self.starting, self.of_class)]
        if not len(newcomers):
            return float("inf"), NONE
        times_s = self.singles.class_times_s[:, self.of_class]
        costs_s = (self.place[newcomers] - self.place[job]) * (times_s[job] - times_s[newcomers])
        best = int(np.argmin(costs_s))
        return float(costs_s[best]), int(newcomers[best])

    def _exchange(self, job: int, other: int) -> None:
        self.place[job], self.place[other] = self.place[other], self.place[job]
        for jobs in (self.order, self.later):
            one, two = jobs == job, jobs == other
            jobs[one], jobs[two] = other, job
