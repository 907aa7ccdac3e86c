"""Expected starts of the waiting jobs of which a policy's plan has none.

The snapshot of the newest round is simulated to the end of its queue with the round's policy,
within a budget of work. It asks for nothing to arrive and for nothing to fail. A job that no round
sees, for it waits for an array or a held job, is expected to start when these have ended.
"""

from collections import defaultdict
from collections.abc import Mapping
from uuid import UUID

from controlplane.loop.live.forecasting import not_scheduled, store
from controlplane.loop.models import Round
from controlplane.simulation.ahead import (
    BEHIND_FIRST_RUN,
    Ahead,
    run_ahead,
    without_assumed_times,
)
from controlplane.simulation.world.run import SimulationError
from jobs.dependencies import unsatisfied
from jobs.lifecycle import ACTIVE, JobState
from jobs.models import Condition, Dependency, Job
from policies.contract import plan_json, snapshot_json
from policies.contract.plan import LAST_S, Expected
from policies.contract.policy import PolicyError
from policies.host import registry

WORK = 20_000
"""Jobs that all simulated rounds together may see."""

AFTER_A_FAILURE = "it starts only if a job that it waits for does not complete"
AFTER_UNKNOWN = "what it waits for has no known end, or is not in the queue itself"

BUDGET_S = 10.0
"""Longest time of a simulation; one that is cut forecasts the starts that it has seen."""


def forecast_round(cluster_id: int) -> bool:
    """Store the starts expected after the newest round of a cluster; False if there are none."""
    rows = Round.objects.filter(cluster=cluster_id).exclude(snapshot=None).exclude(plan=None)
    row = rows.order_by("-number").first()
    if row is None or row.policy not in registry.BUILT_IN:
        return False
    snapshot, plan = snapshot_json.from_json(row.snapshot), plan_json.from_json(row.plan)
    try:
        policy = registry.make(row.policy, row.parameters)
        ahead = run_ahead(snapshot, policy, work=WORK, budget_s=BUDGET_S)
    except (PolicyError, SimulationError):
        return False
    ahead = without_assumed_times(ahead, snapshot)
    names = {node.id: node.name for node in snapshot.nodes}
    starts = {job: _expected(ahead, job) for job in sorted(not_scheduled(plan))}
    whys = {job: ahead.jobs[job].why for job in starts if job in ahead.jobs}
    for job, told in _dependent(cluster_id, ahead).items():
        starts[job], whys[job] = (None, told) if isinstance(told, str) else (told, "")
    if ahead.is_cut:  # jobs whose start it has not seen keep their last forecast
        certain = (BEHIND_FIRST_RUN, AFTER_A_FAILURE)
        unknown = {job for job, why in whys.items() if why in certain}
        starts = {job: of for job, of in starts.items() if of is not None or job in unknown}
    store(cluster_id, row.number, snapshot.now_s, starts, names, whys)
    return True


def _dependent(cluster_id: int, ahead: Ahead) -> Mapping[str, Expected | str]:
    """Starts of jobs that wait for others, as far as the simulation has not told them, or why not.

    The simulation lets all jobs complete, and so it says nothing of what comes after a failure.
    """
    waiting = Dependency.objects.filter(unsatisfied(), job__cluster=cluster_id)
    links = waiting.filter(job__state=JobState.QUEUED)
    found, ends = dict[str, Expected | str](), _ends_of_arrays(cluster_id, ahead)
    for job, on, array, condition in links.values_list("job", "on", "on_array", "condition"):
        name, before = str(job), found.get(str(job))
        end_s = ends.get(array) if array else _end_s(ahead, on)
        if condition == Condition.AFTERNOTOK:
            found[name] = AFTER_A_FAILURE
        elif name in ahead.jobs or isinstance(before, str):
            continue
        elif end_s is None:
            found[name] = AFTER_UNKNOWN
        else:
            found[name] = Expected(max(end_s, before.start_s if before else end_s), None)
    return found


def _ends_of_arrays(cluster_id: int, ahead: Ahead) -> Mapping[UUID, float | None]:
    """When the last of an array's elements that are not over ends; None if that is not known."""
    elements = Job.objects.filter(cluster=cluster_id, array__isnull=False, state__in=ACTIVE)
    waited_for = elements.filter(array__dependent_links__isnull=False).distinct()
    ends: dict[UUID, list[float | None]] = defaultdict(list)
    for array, job in waited_for.values_list("array", "pk"):
        if array is not None:
            ends[array].append(_end_s(ahead, job))
    return {
        array: None if None in of else max(end_s for end_s in of if end_s is not None)
        for array, of in ends.items()
    }


def _end_s(ahead: Ahead, job: UUID) -> float | None:
    found = ahead.jobs.get(str(job))
    return None if found is None or found.end_s is None or found.end_s > LAST_S else found.end_s


def _expected(ahead: Ahead, job: str) -> Expected | None:
    found = ahead.jobs.get(job)
    if found is None or found.start_s is None or found.start_s > LAST_S:
        return None
    return Expected(found.start_s, found.end_s, found.nodes, found.gpus)
