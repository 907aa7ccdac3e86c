"""Expected starts of the waiting jobs of which a policy's plan has none.

The snapshot of the newest round is simulated to the end of its queue with the round's policy,
within a budget of work. It asks for nothing to arrive and for nothing to fail.
"""

from controlplane.loop.live.forecasting import not_scheduled, store
from controlplane.loop.models import Round
from controlplane.simulation.ahead import Ahead, run_ahead
from controlplane.simulation.world.run import SimulationError
from policies.contract import plan_json, snapshot_json
from policies.contract.plan import LAST_S, Expected
from policies.contract.policy import PolicyError
from policies.host import registry

WORK = 20_000
"""Jobs that all simulated rounds together may see."""

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
    names = {node.id: node.name for node in snapshot.nodes}
    starts = {job: _expected(ahead, job) for job in sorted(not_scheduled(plan))}
    if ahead.is_cut:  # jobs whose start it has not seen keep their last forecast
        starts = {job: start for job, start in starts.items() if start is not None}
    whys = {job: ahead.jobs[job].why for job in starts if job in ahead.jobs}
    store(cluster_id, row.number, snapshot.now_s, starts, names, whys)
    return True


def _expected(ahead: Ahead, job: str) -> Expected | None:
    found = ahead.jobs.get(job)
    if found is None or found.start_s is None or found.start_s > LAST_S:
        return None
    return Expected(found.start_s, found.end_s, found.nodes, found.gpus)
