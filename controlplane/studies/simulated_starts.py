"""Expected starts of the waiting jobs of which a policy's plan has none.

The snapshot of the newest round is simulated to the end of its queue with the round's policy,
within a budget of work. In the simulation no job arrives and none fails. A job that waits for an
array, a held job, a start or one of several jobs is in no round; it is expected to start when what
it waits for has come.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

from controlplane.loop.models import Round
from controlplane.simulation.ahead import (
    BEHIND_FIRST_RUN,
    Ahead,
    run_ahead,
    without_assumed_times,
)
from controlplane.simulation.world.run import SimulationError
from jobs.dependencies import unsatisfied
from jobs.forecasts.scheduled_starts import not_scheduled
from jobs.forecasts.storage import store
from jobs.lifecycle import ACTIVE, JobState
from jobs.models import Condition, Dependency, Job
from policies.contract import plan_json, snapshot_json
from policies.contract.plan import LAST_S, Expected
from policies.contract.policy import PolicyError
from policies.host import registry

WORK = 20_000
"""Jobs that all simulated rounds together may see."""

# Why a job has no expected start, or a start without an end.
AFTER_A_FAILURE = "it starts only if a job that it waits for does not complete"
AFTER_UNKNOWN = "a job that it waits for has no known end, or is not in the queue"

BUDGET_S = 10.0
"""Longest time of a simulation; one that is cut forecasts the starts that it has seen."""


def forecast_round(cluster_id: int) -> bool:
    """Store the starts expected after the newest round of a cluster; False if there are none."""
    # 1. The newest round that is stored whole. Third parties' policies are not simulated.
    rounds = Round.objects.filter(cluster=cluster_id).exclude(snapshot=None).exclude(plan=None)
    newest = rounds.order_by("-number").first()
    if newest is None or newest.policy not in registry.BUILT_IN:
        return False
    snapshot = snapshot_json.from_json(newest.snapshot)
    plan = plan_json.from_json(newest.plan)

    # 2. Simulate its queue to the end.
    try:
        policy = registry.make(newest.policy, newest.parameters)
        ahead = run_ahead(snapshot, policy, work=WORK, budget_s=BUDGET_S)
    except (PolicyError, SimulationError):
        return False
    ahead = without_assumed_times(ahead, snapshot)

    # 3. Starts of the jobs in it, and why some have none; then of the jobs that wait for others.
    starts = {job: _expected(ahead, job) for job in sorted(not_scheduled(plan))}
    reasons = {job: ahead.jobs[job].why for job in starts if job in ahead.jobs}
    for job, forecast in _dependent(cluster_id, ahead, snapshot.now_s).items():
        if isinstance(forecast, str):
            starts[job] = None
            reasons[job] = forecast
        else:
            starts[job] = forecast
            reasons[job] = ""

    # 4. If the simulation was cut, a job whose start it has not seen keeps its last forecast.
    if ahead.is_cut:
        for job, start in list(starts.items()):
            is_certain = reasons.get(job) in (BEHIND_FIRST_RUN, AFTER_A_FAILURE)
            if start is None and not is_certain:
                del starts[job]
    node_names = {node.id: node.name for node in snapshot.nodes}
    store(cluster_id, newest.number, snapshot.now_s, starts, node_names, reasons)
    return True


def _dependent(cluster_id: int, ahead: Ahead, now_s: float) -> Mapping[str, Expected | str]:
    """Expected starts of jobs that wait for others and are not simulated, or why there is none.

    The simulation lets all jobs complete, and so it says nothing of what comes after a failure.
    """
    # 1. The moments at which its open dependencies are satisfied, for each job.
    now = datetime.fromtimestamp(now_s, UTC)
    unsatisfied_links = Dependency.objects.filter(unsatisfied(now), job__cluster=cluster_id)
    links = unsatisfied_links.filter(job__state=JobState.QUEUED).select_related("on")
    elements = _elements_waited_for(cluster_id)
    moments: dict[str, list[float | str]] = defaultdict(list)
    one_suffices = set[str]()
    for link in links:
        job = str(link.job_id)
        if link.alternative:
            one_suffices.add(job)
        if link.condition == Condition.AFTERNOTOK:
            moments[job].append(AFTER_A_FAILURE)
        elif job not in ahead.jobs:
            moments[job].append(_satisfied_s(link, ahead, elements))

    # 2. Of all the last one; one that is not known decides. Of alternatives the first one known.
    forecasts: dict[str, Expected | str] = {}
    for job, of_job in moments.items():
        known = [moment for moment in of_job if not isinstance(moment, str)]
        unknown = [moment for moment in of_job if isinstance(moment, str)]
        if job in one_suffices and known:
            forecasts[job] = Expected(min(known), None)
        elif unknown:
            forecasts[job] = unknown[-1]
        else:
            forecasts[job] = Expected(max(known), None)
    return forecasts


def _satisfied_s(
    link: Dependency, ahead: Ahead, elements: Mapping[UUID | None, Sequence[Job]]
) -> float | str:
    """Moment in epoch seconds at which a dependency will be satisfied, or why it is not known."""
    jobs = [link.on] if link.on is not None else elements.get(link.on_array_id, ())
    moments = list[float]()
    for job in jobs:
        if link.condition == Condition.AFTER:
            moment = _start_s(ahead, job)
        else:
            moment = _end_s(ahead, job.pk)
        if moment is None:
            return AFTER_UNKNOWN
        moments.append(moment)
    if not moments:
        return AFTER_UNKNOWN
    return max(moments) + link.delay.total_seconds()


def _elements_waited_for(cluster_id: int) -> Mapping[UUID | None, Sequence[Job]]:
    """Active elements of each array that jobs wait for."""
    active = Job.objects.filter(cluster=cluster_id, array__isnull=False, state__in=ACTIVE)
    waited_for = active.filter(array__dependent_links__isnull=False).distinct()
    elements: dict[UUID | None, list[Job]] = defaultdict(list)
    for job in waited_for.only("array", "started_at", "completed_at"):
        elements[job.array_id].append(job)
    return elements


def _start_s(ahead: Ahead, job: Job) -> float | None:
    """Start of a job in epoch seconds, simulated if it is still to come; None if unknown."""
    began_at = job.started_at or job.completed_at
    if began_at is not None:
        return began_at.timestamp()
    expected = _expected(ahead, str(job.pk))
    return None if expected is None else expected.start_s


def _end_s(ahead: Ahead, job: UUID) -> float | None:
    """Simulated end of a job in epoch seconds; None if it is not known, or too far to be a date."""
    forecast = ahead.jobs.get(str(job))
    if forecast is None or forecast.end_s is None or forecast.end_s > LAST_S:
        return None
    return forecast.end_s


def _expected(ahead: Ahead, job: str) -> Expected | None:
    """Simulated start of a job; None if it is not known, or too far to be a date."""
    forecast = ahead.jobs.get(job)
    if forecast is None or forecast.start_s is None or forecast.start_s > LAST_S:
        return None
    return Expected(forecast.start_s, forecast.end_s, forecast.nodes, forecast.gpus)
