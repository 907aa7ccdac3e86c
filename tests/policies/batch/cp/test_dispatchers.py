"""Dispatchers by constraint programming: what they start, replay, keep and count."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.loop.rounds import decide
from policies.batch.cp import solver
from policies.batch.cp.dispatcher import KEPT, REFUSED, Decision, Dispatcher
from policies.batch.cp.instance import Instance
from policies.batch.cp.pcp20 import Pcp20
from policies.batch.fit import NODE_ORDERS
from policies.batch.plan import BatchPlan
from policies.contract.plan import Plan, PlanStatus
from policies.contract.policy import SolverFailedError
from policies.contract.snapshot import Snapshot
from policies.cp_sat import run_solver
from policies.host import registry
from tests.builders_policies import a_batch_job, a_cpu_node, a_job, a_node, a_snapshot
from tests.policies.batch.cp.instances import crowded, runs

NAMES = ("hcp19", "pcp19", "pcp20")
every_dispatcher = pytest.mark.parametrize("name", NAMES)


def planned(name: str, snapshot: Snapshot, **parameters: Any) -> Plan:
    """A plan that keeps to all rules: `decide` refuses any other."""
    return decide(snapshot, registry.make(name, {"budget": 0.2, **parameters}))


def started(plan: Plan) -> list[str]:
    return [p.job for p in plan.placements]


def a_busy_cluster(**fields: Any) -> Snapshot:
    """One node with two free cores for 100 s, and three jobs for them."""
    jobs = [
        runs("c1", 100.0, units=6),
        a_batch_job("wide", cores=8.0, walltime_s=100.0, arrival_s=0.0),
        a_batch_job("long", cores=2.0, walltime_s=5000.0, arrival_s=1.0),
        a_batch_job("short", cores=2.0, walltime_s=90.0, arrival_s=2.0),
    ]
    return a_snapshot([a_cpu_node("c1", cores=8.0)], jobs, **fields)


@every_dispatcher
def test_a_job_starts_if_that_delays_the_others_less_than_it_would_wait(name: str) -> None:
    plan = planned(name, a_busy_cluster())
    assert started(plan) == ["runs", "short"]
    expected = {w.job: w.expected.start_s for w in plan.waiting if w.expected}
    assert expected == {"wide": 1100.0, "long": 1200.0}


@every_dispatcher
def test_a_unit_never_crosses_nodes_though_the_pool_has_room(name: str) -> None:
    nodes = [a_cpu_node(f"c{i}", cores=3.0) for i in range(2)]
    jobs = [a_batch_job("a", 3, cores=2.0, nodes=0), a_batch_job("b", 2, cores=2.0, arrival_s=1.0)]
    plan = planned(name, a_snapshot([*nodes, a_cpu_node("c2", cores=1.0)], jobs))
    assert started(plan) == ["b"]


@every_dispatcher
@pytest.mark.parametrize("seed", [1, 2**40])
def test_equal_snapshots_get_equal_plans(name: str, seed: int) -> None:
    jobs = [a_batch_job(f"w{i}", 1 + i % 3, cores=1.0 + i % 4, arrival_s=float(i),
                        walltime_s=100.0 + 70.0 * (i % 5)) for i in range(20)]  # fmt: skip
    snapshot = a_snapshot([a_cpu_node(f"c{i}", cores=6.0) for i in range(3)], jobs, seed=seed)
    first = planned(name, snapshot)
    assert first.objective is not None
    assert planned(name, snapshot) == first


@pytest.mark.parametrize("name", ["pcp19", "pcp20"])
def test_a_decision_without_an_answer_keeps_what_runs_and_is_counted(name: str) -> None:
    jobs = [runs("c0", 1000.0)]
    jobs += [a_batch_job(f"w{i}", 3, cores=1.0 + i % 4, arrival_s=float(i), walltime_s=100.0 + i)
             for i in range(60)]  # fmt: skip
    nodes = [a_cpu_node(f"c{i}", cores=6.0) for i in range(6)]
    tight: dict[str, Any] = {"hint": False, "budget": 0.001}
    plan = planned(name, a_snapshot(nodes, jobs), **tight)
    assert (plan.status, started(plan)) == (PlanStatus.KEPT, ["runs"])
    assert plan.memory == {KEPT: 1, REFUSED: 0}
    assert "deterministic time of 0.00" in plan.message
    again = planned(name, a_snapshot(nodes, jobs, memory=dict(plan.memory)), **tight)
    assert again.memory == {KEPT: 2, REFUSED: 0}


@pytest.mark.parametrize(
    ("answers", "found"), [(0, ["runs"]), (1, ["runs", "b"])], ids=["none", "the first"]
)
def test_jobs_of_hcp19_that_have_nodes_start_though_the_next_search_has_no_answer(
    monkeypatch: pytest.MonkeyPatch, answers: int, found: list[str]
) -> None:
    left = iter(range(answers))

    def search(*args: Any, **settings: Any) -> Any:
        if next(left, None) is None:
            raise SolverFailedError("no answer")
        return run_solver(*args, **settings)

    monkeypatch.setattr(solver, "run_solver", search)
    nodes = [a_cpu_node("c0", cores=3.0), a_cpu_node("c1", cores=3.0), a_cpu_node("c2", cores=1.0)]
    jobs = [
        runs("c2", 100.0),
        a_batch_job("b", cores=2.0, arrival_s=0.0, walltime_s=100.0),
        a_batch_job("a", 2, cores=2.0, arrival_s=1.0, walltime_s=100.0),
    ]
    plan = planned("hcp19", a_snapshot(nodes, jobs))
    assert started(plan) == found


def test_a_model_of_pcp19_that_is_too_large_is_not_built_and_has_no_answer() -> None:
    plan = planned("pcp19", a_busy_cluster(), most_variables=3)
    assert (plan.status, started(plan)) == (PlanStatus.KEPT, ["runs"])
    assert "most_variables (3)" in plan.message


@pytest.mark.parametrize("memory", [{KEPT: -1, REFUSED: True}, {KEPT: "1"}, {"shares": {}}])
def test_a_memory_of_something_else_counts_from_0(memory: Mapping[str, Any]) -> None:
    plan = planned("pcp20", a_busy_cluster(memory=dict(memory)))
    assert plan.memory == {KEPT: 0, REFUSED: 0}


@dataclass(frozen=True, slots=True)
class Wrong(Dispatcher):
    """Dispatcher that puts every job on the first node at once."""

    name = "wrong"

    def decide(self, instance: Instance, plan: BatchPlan) -> Decision:
        size = len(instance.jobs)
        on_first = tuple({0: job.units} for job in instance.jobs)
        return Decision((0,) * size, on_first, PlanStatus.OPTIMAL, 1.0, 1.0, 0.0)


def test_a_job_that_does_not_fit_on_the_nodes_of_the_schedule_is_not_dispatched() -> None:
    plan = decide(a_busy_cluster(), Wrong())
    assert started(plan) == ["runs", "short"]
    assert plan.memory == {KEPT: 0, REFUSED: 2}
    assert plan.status is PlanStatus.FEASIBLE


@every_dispatcher
def test_only_what_the_power_cap_allows_is_dispatched(name: str) -> None:
    nodes = [a_cpu_node(f"c{i}", cores=1.0) for i in range(3)]
    jobs = [a_batch_job(f"w{i}", arrival_s=float(i)) for i in range(4)]
    plan = planned(name, a_snapshot(nodes, jobs, power_cap_w=250.0))
    assert len(started(plan)) == 2
    assert plan.memory[REFUSED] == (0 if name == "hcp19" else 1)


@every_dispatcher
def test_zero_amounts_take_nothing_and_the_others_are_scheduled(name: str) -> None:
    jobs = [
        runs("c1", 100.0, units=8),
        a_batch_job("nothing", 2, cores=0.0, resources=(("mic", 0.0),)),
        a_batch_job("some", cores=1.0, arrival_s=1.0),
    ]
    plan = planned(name, a_snapshot([a_cpu_node("c1", cores=8.0)], jobs))
    assert started(plan) == ["runs", "nothing"]


@every_dispatcher
def test_exclusive_jobs_are_alone_and_wait_for_an_empty_node(name: str) -> None:
    nodes = [a_cpu_node("c1"), a_cpu_node("c2")]
    jobs = [
        runs("c1", 100.0),
        a_batch_job("alone", 3, exclusive=True, arrival_s=1.0, walltime_s=50.0),
        a_batch_job("full", cores=8.0, arrival_s=2.0, walltime_s=5000.0),
        a_batch_job("beside", arrival_s=3.0),
    ]
    plan = planned(name, a_snapshot(nodes, jobs))
    seats = {p.job: p.ranks[0].node for p in plan.placements}
    assert seats == {"runs": "c1", "alone": "c2", "beside": "c1"}


@every_dispatcher
def test_training_jobs_are_scheduled_in_the_same_queue(name: str) -> None:
    nodes = [a_node("n1", gpus=1, cores=8.0)]
    jobs = [
        a_job("trains", remaining_steps=50.0, cores=1.0),
        a_batch_job("both", gpus_per_unit=1, cores=8.0, arrival_s=1.0),
        a_job("again", remaining_steps=50.0, arrival_s=2.0),
    ]
    plan = planned(name, a_snapshot(nodes, jobs))
    assert started(plan) == ["trains"]
    assert {w.job: w.expected and w.expected.start_s for w in plan.waiting}["again"] == 1050.0


@every_dispatcher
def test_only_the_window_is_considered_by_slowdown(name: str) -> None:
    jobs = [a_batch_job("new", cores=8.0, arrival_s=990.0),
            a_batch_job("old", cores=8.0, arrival_s=10.0)]  # fmt: skip
    assert started(planned(name, a_snapshot([a_cpu_node()], jobs), window=1)) == ["old"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(crowded(), st.sampled_from(NAMES), st.sampled_from(NODE_ORDERS), st.booleans())
def test_every_plan_keeps_the_rules_and_nobody_is_refused_without_a_power_cap(
    snapshot: Snapshot, name: str, order: str, symmetry: bool
) -> None:
    more: dict[str, Any] = {} if name == "hcp19" else {"symmetry": symmetry}
    plan = planned(name, snapshot, node_order=order, budget=0.05, **more)
    # a job that asks for nothing has no place in a model of resources
    ask = all(job.gpus_min or job.cores or job.memory_gb or job.resources for job in snapshot.jobs)
    assert plan.memory[REFUSED] == 0 or not ask
    if plan.objective is not None and plan.bound is not None:
        assert plan.bound <= plan.objective


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(crowded())
def test_breaking_symmetries_changes_no_optimum(snapshot: Snapshot) -> None:
    with_it, without = (Pcp20(symmetry=s, budget=2.0)(snapshot) for s in (True, False))
    optimal = {with_it.status, without.status} == {PlanStatus.OPTIMAL}
    if optimal and with_it.objective is not None:
        assert without.objective == pytest.approx(with_it.objective, rel=1e-3)
