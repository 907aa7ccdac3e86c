"""Expected starts of the waiting jobs of which a policy's plan has none.

The snapshot of the newest round is simulated to the end of its queue with the round's policy,
within a budget of work. In the simulation no job arrives and none fails. A job that waits for an
array or a held job is in no round; it is expected to start when these have ended.
"""

from collections.abc import Mapping
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
from jobs.forecasts.rounds import not_scheduled
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
    for job, forecast in _dependent(cluster_id, ahead).items():
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


def _dependent(cluster_id: int, ahead: Ahead) -> Mapping[str, Expected | str]:
    """Expected starts of jobs that wait for others and are not simulated, or why there is none.

    The simulation lets all jobs complete, and so it says nothing of what comes after a failure.
    """
    unsatisfied_links = Dependency.objects.filter(unsatisfied(), job__cluster=cluster_id)
    links = unsatisfied_links.filter(job__state=JobState.QUEUED)
    ends_of_arrays = _ends_of_arrays(cluster_id, ahead)

    # A job with several links starts after the last of them; one without a forecast decides.
    forecasts: dict[str, Expected | str] = {}
    for job_id, on_job, array, condition in links.values_list("job", "on", "on_array", "condition"):
        job = str(job_id)
        earlier = forecasts.get(job)
        if condition == Condition.AFTERNOTOK:
            forecasts[job] = AFTER_A_FAILURE
            continue
        if job in ahead.jobs or isinstance(earlier, str):
            continue
        end_s = ends_of_arrays.get(array) if array else _end_s(ahead, on_job)
        if end_s is None:
            forecasts[job] = AFTER_UNKNOWN
        elif earlier is None:
            forecasts[job] = Expected(end_s, None)
        else:
            forecasts[job] = Expected(max(end_s, earlier.start_s), None)
    return forecasts


def _ends_of_arrays(cluster_id: int, ahead: Ahead) -> Mapping[UUID, float | None]:
    """Simulated end of each array that jobs wait for; None if that of an element is not known."""
    elements = Job.objects.filter(cluster=cluster_id, array__isnull=False, state__in=ACTIVE)
    waited_for = elements.filter(array__dependent_links__isnull=False).distinct()
    ends: dict[UUID, float | None] = {}
    for array, job in waited_for.values_list("array", "pk"):
        if array is None:
            continue
        end_s = _end_s(ahead, job)
        latest_s = ends.get(array, end_s)
        if end_s is None or latest_s is None:
            ends[array] = None
        else:
            ends[array] = max(end_s, latest_s)
    return ends


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
