"""Changes that would start a waiting job now, decided one by one by the cluster's policy.

Nothing is changed. The answer takes 2 s at most: what has not been decided by then is named as not
tried.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from django.contrib.auth.models import User

from clusters.models import Node
from clusters.models.nodes import Role, State
from controlplane.loop.live.observe import observe
from controlplane.loop.rounds import decide
from controlplane.studies.what_if.changes import Change, changes_for
from controlplane.studies.what_if.decide import names_of, solve_apart
from controlplane.studies.what_if.turns import TURNS
from controlplane.web import nice_process
from controlplane.web.rest.errors import ConflictError
from jobs.lifecycle import JobState
from jobs.models import Job
from jobs.selectors import names_in_waiting
from jobs.wording.explanation import reason_for_waiting
from policies.contract.plan import Plan
from policies.contract.policy import PolicyError
from policies.contract.snapshot import Purpose, Snapshot

BUDGET_S, PATIENCE_S = 2.0, 0.5

WAITING = (JobState.QUEUED, JobState.PROFILING)


@dataclass(frozen=True, slots=True)
class Start:
    """A change that starts the job now; the jobs that stop, move or wait for it.

    `displaced`: names that the reader may see; `hidden`: number of other teams' jobs.
    """

    code: str
    words: str
    command: str
    displaced: tuple[str, ...] = ()
    hidden: int = 0

    @property
    def condition(self) -> str:
        """Change in words, at the beginning of a sentence."""
        return "The next decision starts it as it is" if not self.command else f"With {self.words}"

    @property
    def effect(self) -> str:
        """Effect on other jobs, in words."""
        count = len(self.displaced) + self.hidden
        if not count:
            return "no other job stops, moves or waits for it"
        unseen = f"{self.hidden} of other teams" if self.hidden else ""
        names = ", ".join([*self.displaced, *([unseen] if unseen else [])])
        return f"{count} job{'s' * (count > 1)} would stop, move or wait for it: {names}"


@dataclass(slots=True)
class StartNow:
    """Changes that start a job now, the cheapest first; `note`: why none was tried."""

    starts: list[Start] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    not_tried: list[str] = field(default_factory=list)
    note: str = ""


def start_now(user: User, job: Job) -> StartNow:
    """Try the changes that could start this waiting job now, in the nice process.

    The fewest displaced jobs make a change cheapest; of equal ones the order of `changes_for`.
    ConflictError, BusyError, NoAnswerError.
    """
    if job.state not in WAITING:
        raise ConflictError(f"the job is {job.state}: only a job that waits can be started sooner")
    with TURNS.of(user.pk, PATIENCE_S):
        return nice_process.ask(_tried, user, job)


def _tried(user: User, job: Job) -> StartNow:
    deadline_s = time.monotonic() + BUDGET_S
    snapshot = observe(job.cluster_id, time.time(), job.cluster.round_number + 1).snapshot
    wanted, closed = str(job.pk), _closed_nodes(job)
    if wanted not in snapshot.jobs.position:
        names = names_in_waiting(user, [job])
        why = reason_for_waiting(job.state, job.waiting_code, job.waiting_detail, names)
        return StartNow(note=f"The next decision does not look at it. {why}")
    policy, parameters = job.cluster.policy, job.cluster.policy_parameters

    def solve(seen: Snapshot) -> Plan:
        return decide(seen, lambda rest: solve_apart(policy, parameters, rest), policy)

    names = names_of(user, snapshot)
    trial = Trial(wanted, changes_for(snapshot, wanted, closed), solve)
    trial.run(deadline_s)
    return trial.answer(names)


def _closed_nodes(job: Job) -> frozenset[str]:
    nodes = Node.objects.filter(cluster=job.cluster_id, state__in=(State.CORDONED, State.DRAINING))
    nodes = nodes.exclude(role=Role.PROFILING)
    return frozenset(str(pk) for pk in nodes.values_list("pk", flat=True))


@dataclass(slots=True)
class Trial:
    """Decisions of the changes to a job, in order, until the time is over."""

    job: str
    offered: Iterable[Change]
    solve: Callable[[Snapshot], Plan]
    changes: list[Change] = field(default_factory=list)
    plans: list[Plan | None] = field(default_factory=list)

    def run(self, deadline_s: float) -> None:
        """Decide until the deadline; a decision under way goes on without us."""
        pool = ThreadPoolExecutor(1, "start-now")
        found = pool.submit(self._decide_all, deadline_s)
        pool.shutdown(wait=False)
        with suppress(TimeoutError):
            found.result(max(0.0, deadline_s - time.monotonic()))

    def _decide_all(self, deadline_s: float) -> None:
        self.changes += self.offered
        for change in self.changes:
            if time.monotonic() >= deadline_s:
                return
            try:
                plan: Plan | None = self.solve(change.snapshot)
            except PolicyError:
                plan = None
            self.plans.append(plan)

    def answer(self, names: Mapping[str, str]) -> StartNow:
        """Return the changes by cost, with the names that a reader may see."""
        plans = list(self.plans)
        if not plans:
            return StartNow(note="The time did not suffice for a decision; try again.")
        found = StartNow(
            tried=[change.words for change in self.changes[: len(plans)]],
            not_tried=[change.words for change in self.changes[len(plans) :]],
        )
        present = plans[0]
        for change, plan in zip(self.changes, plans, strict=False):
            if plan is not None and _starts(plan, self.job):
                moved = displaced(present, plan, change.snapshot, self.job)
                shown = tuple(names[other] for other in moved if other in names)
                command = _command(change, self.job)
                hidden = len(moved) - len(shown)
                found.starts.append(Start(change.code, change.words, command, shown, hidden))
        found.starts.sort(key=lambda start: len(start.displaced) + start.hidden)
        return found


def displaced(present: Plan | None, plan: Plan, snapshot: Snapshot, job: str) -> list[str]:
    """Return the jobs that a plan stops, moves or lets wait, and the present decision does not."""
    places, before = _places(plan), _places(present) if present is not None else {}
    running = {
        of.id: tuple(run.ranks for run in of.running if run.purpose is Purpose.TRAINING)
        for of in snapshot.jobs
        if of.running and of.id != job
    }
    moved = [
        other
        for other, now in running.items()
        if now and places.get(other) != now and places.get(other) != before.get(other)
    ]
    wait = [other for other in before if other not in places and not running.get(other)]
    return moved + wait


def _places(plan: Plan) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for placed in plan.placements:
        if placed.purpose is Purpose.TRAINING:
            found[placed.job] = (*found.get(placed.job, ()), placed.ranks)
    return found


def _starts(plan: Plan, job: str) -> bool:
    return job in _places(plan)


def _command(change: Change, job: str) -> str:
    if change.node:
        return f"loadmaster uncordon {change.node}"
    return f"loadmaster clone {job} --set {change.settings}" if change.settings else ""
