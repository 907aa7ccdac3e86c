"""A solver that runs out of time has proved nothing: the round says so and keeps what runs,
whichever share policy asked it.
"""

import pytest

from controlplane.loop.rounds import decide_or_keep
from policies.contract.plan import PlanStatus
from policies.contract.snapshot import GpuTypeView, Snapshot
from policies.gavel.solvers import program
from policies.host import registry
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on

PARAMETERS: dict[str, dict[str, object]] = {
    "max_min_fairness": {"fill": False},
    "finish_time_fairness": {},
    "makespan": {},
    "fifo_shares": {},
    "shortest_first": {},
    "max_throughput": {},
    "min_cost": {},
    "hierarchical": {},
}
"""Policies that ask linear programs, with what makes them do so for three jobs."""


def busy() -> Snapshot:
    """One job runs, two wait, and the one GPU of each type is worth unlike much to each."""
    kinds = [a_kind(f"k{n}", {("V100", 1): 1.0 + n, ("T4", 1): 1.0}) for n in range(3)]
    jobs = [a_job("runs", "k0", running=on("v", "gpu0")), a_job("b", "k1"), a_job("c", "k2")]
    priced = tuple(GpuTypeView(name, 8.0, 16.0, 1.0) for name in ("V100", "T4"))
    return a_snapshot([a_node("v", "V100", 1), a_node("t", "T4", 1)], jobs, kinds, gpu_types=priced)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_solver_that_stops_before_the_optimum_is_told_and_what_runs_goes_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = registry.make(name, PARAMETERS[name])
    decision = decide_or_keep(busy(), policy, name)
    assert (decision.failure, decision.plan.status) == (None, PlanStatus.HEURISTIC)
    for options in ("OPTIONS", "CAREFUL_OPTIONS"):
        monkeypatch.setattr(
            program,
            options,
            {**getattr(program, options), "time_limit": 0.0, "simplex_iteration_limit": 0},
        )
    decision = decide_or_keep(busy(), policy, name)
    plan = decision.plan
    assert plan.status is PlanStatus.KEPT
    assert "limit reached" in str(decision.failure)
    assert plan.message == decision.failure
    assert [(p.job, p.ranks[0].node) for p in plan.placements] == [("runs", "v")]
    assert {w.job for w in plan.waiting} == {"b", "c"}
