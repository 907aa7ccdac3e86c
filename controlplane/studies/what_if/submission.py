"""Forecast of a job before it is submitted, as `sbatch --test-only` asks for it.

The job is written, seen by a snapshot of the live queue, and taken back, in one transaction. Then
the cluster's policy decides about the snapshot, in the nice process.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite

from django.contrib.auth.models import User
from django.db import transaction

from clusters.models import Cluster
from controlplane.loop.live.observe import observe
from controlplane.loop.rounds import decide_or_keep
from controlplane.simulation.ahead import JobAhead, run_ahead, without_assumed_times
from controlplane.simulation.world.run import SimulationError
from controlplane.studies.what_if.decide import names_of, reason_of, solve_apart
from controlplane.studies.what_if.turns import TURNS
from controlplane.web import nice_process
from jobs.forecasts.intervals import UnknownRunTime
from jobs.forecasts.run_times import unknown_run_times
from jobs.models import Job
from jobs.submission.refusals import JobConflict
from jobs.submission.submit import Asked, Submission, submit_all
from jobs.submission.validation import validate_job
from policies.contract.plan import Plan
from policies.contract.policy import PolicyError
from policies.contract.snapshot import Snapshot
from policies.host import registry
from policies.placement.waiting.explained import explained

PATIENCE_S = 0.5
"""Seconds to wait while the same web process answers another question."""

WORK = 20_000
"""Jobs that all simulated rounds together may see."""

BUDGET_S = 5.0
"""Seconds after which the simulation of the queue is cut short."""

UNKNOWN = "When it would start is not known."


@dataclass(frozen=True, slots=True)
class SubmissionForecast:
    """Expected start of a job that is not submitted; `start` is None where it is not known.

    `reason` says why it would not start at once; `nodes` are names. `run_time` is an interval of a
    run time that is unknown, None where it is known.
    """

    starts_now: bool
    start: datetime | None = None
    nodes: tuple[str, ...] = ()
    cores: float = 0.0
    gpus: int = 0
    reason: str = ""
    run_time: UnknownRunTime | None = None
    warnings: tuple[str, ...] = ()


def forecast_submission(user: User, data: object) -> SubmissionForecast:
    """Forecast the start of this job; nothing is submitted.

    Raises JobInvalid and JobConflict as a submission does, BusyError, NoAnswerError.
    """
    validate_job(user, data)
    with TURNS.of(user.pk, PATIENCE_S):
        forecast = nice_process.ask(_forecast, user, data)
    if isinstance(forecast, str):
        raise JobConflict(forecast)
    return forecast


def _forecast(user: User, data: object) -> SubmissionForecast | str:
    """Return the forecast, or why the job would be refused."""
    if isinstance(data, dict):
        data = {**data, "hold": False}
    with transaction.atomic():
        answer = submit_all([Asked(user, data, is_forecast=True)])[0]
        if not isinstance(answer, Submission):
            transaction.set_rollback(True)
            return str(answer)
        job = answer.job
        cluster = job.cluster
        snapshot = observe(cluster.pk, time.time(), cluster.round_number + 1).snapshot
        run_time = _run_time(job, snapshot)
        transaction.set_rollback(True)
    waits = SubmissionForecast(
        starts_now=False,
        cores=job.units * job.cores,
        gpus=job.gpus_max,
        run_time=run_time,
        warnings=answer.warnings,
    )
    return _decided(user, answer, waits, snapshot)


def _run_time(job: Job, snapshot: Snapshot) -> UnknownRunTime | None:
    """Return the interval of the job's run time; None if that is known or predicted."""
    row = snapshot.jobs.position.get(str(job.pk))
    if job.has_no_speed and row is not None:
        predicted_s = snapshot.jobs.columns.predicted_run_s[row]
        if isfinite(predicted_s):
            return None
    now = datetime.fromtimestamp(snapshot.now_s, UTC)
    return unknown_run_times([job], now).get(job.pk)


def _decided(
    user: User, answer: Submission, waits: SubmissionForecast, snapshot: Snapshot
) -> SubmissionForecast:
    """Return the forecast of a job that is taken back already, from a snapshot that has it.

    `waits`: a forecast that it waits, without a start or a reason.
    """
    # 1. A job that no decision would look at begins later, or waits for others.
    job = answer.job
    cluster = job.cluster
    wanted = str(job.pk)
    if wanted not in snapshot.jobs.position:
        if answer.dependencies:
            return replace(waits, reason="It would wait for other jobs.")
        return replace(waits, start=job.begin_at, reason="It would not begin before its time.")

    # 2. Ask the policy for its next decision.
    def solve(snapshot: Snapshot) -> Plan:
        return solve_apart(cluster.policy, cluster.policy_parameters, snapshot)

    plan = decide_or_keep(snapshot, solve, cluster.policy).plan
    names = {node.id: node.name for node in snapshot.nodes}
    nodes = _nodes_of(plan, wanted, names)
    if nodes:
        now = datetime.fromtimestamp(snapshot.now_s, UTC)
        return replace(waits, starts_now=True, start=now, nodes=nodes)

    # 3. It would wait: simulate the queue to its end.
    visible = {**names_of(user, snapshot), wanted: job.name}
    entries = [entry for entry in explained(plan, snapshot) if entry.job == wanted]
    reason = reason_of(entries[0], snapshot, visible) if entries else UNKNOWN
    ahead = _ahead(cluster, snapshot, wanted)
    if ahead is None:
        return replace(waits, reason=reason)
    if ahead.start_s is None:
        # The reason of a job that waits for others says all: they must end first.
        if ahead.why and not answer.dependencies:
            reason = f"{reason} Its start is unknown: {ahead.why}."
        return replace(waits, reason=reason)
    start = datetime.fromtimestamp(ahead.start_s, UTC)
    later_nodes = tuple(names.get(node, node) for node in ahead.nodes)
    return replace(waits, start=start, nodes=later_nodes, reason=reason)


def _nodes_of(plan: Plan, job: str, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the nodes on which the plan starts the job, each once."""
    nodes = list[str]()
    for placement in plan.placements:
        if placement.job == job:
            nodes += [names[rank.node] for rank in placement.ranks]
    return tuple(dict.fromkeys(nodes))


def _ahead(cluster: Cluster, snapshot: Snapshot, job: str) -> JobAhead | None:
    """Simulate the queue, unless the policy is a third party's; None if the simulation fails."""
    if cluster.policy not in registry.BUILT_IN:
        return None
    try:
        policy = registry.make(cluster.policy, cluster.policy_parameters)
        ahead = run_ahead(snapshot, policy, work=WORK, budget_s=BUDGET_S)
    except (PolicyError, SimulationError):
        return None
    return without_assumed_times(ahead, snapshot).jobs.get(job)
