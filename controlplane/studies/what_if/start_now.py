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

BUDGET_S = 2.0
"""Seconds after which no further decision begins."""

PATIENCE_S = 0.5
"""Seconds to wait while the same web process answers another question."""

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
        return (
            f"With {self.words}" if self.command else "The next decision starts it without a change"
        )

    @property
    def effect(self) -> str:
        """Effect on other jobs, in words."""
        count = len(self.displaced) + self.hidden
        if not count:
            return "no other job stops, moves or waits for it"
        names = list(self.displaced)
        if self.hidden:
            names.append(f"{self.hidden} of other teams")
        jobs = "1 job" if count == 1 else f"{count} jobs"
        return f"{jobs} would stop, move or wait for it: {', '.join(names)}"


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
    """Try the changes until the time is over; in the nice process."""
    # 1. A job that no decision looks at cannot be helped by one.
    deadline_s = time.monotonic() + BUDGET_S
    snapshot = observe(job.cluster_id, time.time(), job.cluster.round_number + 1).snapshot
    job_id = str(job.pk)
    if job_id not in snapshot.jobs.position:
        names = names_in_waiting(user, [job])
        reason = reason_for_waiting(job.state, job.waiting_code, job.waiting_detail, names)
        return StartNow(note=f"The next decision does not look at it. {reason}")

    # 2. The cluster's policy decides about each change.
    policy = job.cluster.policy
    parameters = job.cluster.policy_parameters

    def solve(changed: Snapshot) -> Plan:
        return decide(changed, lambda rest: solve_apart(policy, parameters, rest), policy)

    trial = Trial(job_id, changes_for(snapshot, job_id, _closed_nodes(job)), solve)
    trial.run(deadline_s)
    return trial.answer(names_of(user, snapshot))


def _closed_nodes(job: Job) -> frozenset[str]:
    """Ids of the cluster's nodes that an operator could uncordon for the job."""
    nodes = Node.objects.filter(cluster=job.cluster_id, state__in=(State.CORDONED, State.DRAINING))
    nodes = nodes.exclude(role=Role.PROFILING)
    return frozenset(str(pk) for pk in nodes.values_list("pk", flat=True))


@dataclass(slots=True)
class Trial:
    """Decisions of the changes to a job, in order, until the time is over.

    `plans` are those of the first of `changes`; None where the policy failed.
    """

    job: str
    offered: Iterable[Change]
    solve: Callable[[Snapshot], Plan]
    changes: list[Change] = field(default_factory=list)
    plans: list[Plan | None] = field(default_factory=list)

    def run(self, deadline_s: float) -> None:
        """Decide until the deadline; a decision under way goes on without us."""
        pool = ThreadPoolExecutor(1, "start-now")
        decisions = pool.submit(self._decide_all, deadline_s)
        pool.shutdown(wait=False)
        with suppress(TimeoutError):
            decisions.result(max(0.0, deadline_s - time.monotonic()))

    def _decide_all(self, deadline_s: float) -> None:
        """Decide about each change; the pool's thread goes on after the deadline."""
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
        # 1. What was tried by now, and what was not: a late decision may still add to `plans`.
        plans = list(self.plans)
        if not plans:
            return StartNow(note="No decision was ready in time; try again.")
        words = [change.words for change in self.changes]
        answer = StartNow(tried=words[: len(plans)], not_tried=words[len(plans) :])

        # 2. The changes that start the job, against the decision without a change.
        present = plans[0]
        for change, plan in zip(self.changes, plans, strict=False):
            if plan is None or self.job not in _ranks_by_job(plan):
                continue
            jobs = displaced(present, plan, change.snapshot, self.job)
            visible = tuple(names[job] for job in jobs if job in names)
            hidden = len(jobs) - len(visible)
            command = _command(change, self.job)
            answer.starts.append(Start(change.code, change.words, command, visible, hidden))
        answer.starts.sort(key=lambda start: len(start.displaced) + start.hidden)
        return answer


def displaced(present: Plan | None, plan: Plan, snapshot: Snapshot, job: str) -> list[str]:
    """Return the jobs that a plan stops, moves or lets wait, and the present decision does not."""
    planned = _ranks_by_job(plan)
    planned_at_present = {} if present is None else _ranks_by_job(present)

    # 1. Running jobs that would not stay where they are.
    jobs = []
    running = set()
    for other in snapshot.jobs:
        ranks = tuple(run.ranks for run in other.running if run.purpose is Purpose.TRAINING)
        if not ranks or other.id == job:
            continue
        running.add(other.id)
        after = planned.get(other.id)
        if after != ranks and after != planned_at_present.get(other.id):
            jobs.append(other.id)

    # 2. Waiting jobs that would start at present.
    for waiting in planned_at_present:
        if waiting not in planned and waiting not in running:
            jobs.append(waiting)
    return jobs


def _ranks_by_job(plan: Plan) -> dict[str, tuple[object, ...]]:
    """Ranks of each training placement, by job."""
    ranks: dict[str, tuple[object, ...]] = {}
    for placement in plan.placements:
        if placement.purpose is Purpose.TRAINING:
            ranks[placement.job] = (*ranks.get(placement.job, ()), placement.ranks)
    return ranks


def _command(change: Change, job: str) -> str:
    """Command that makes the change; empty if nothing needs to be changed."""
    if change.node:
        return f"loadmaster uncordon {change.node}"
    if change.settings:
        return f"loadmaster clone {job} --set {change.settings}"
    return ""
