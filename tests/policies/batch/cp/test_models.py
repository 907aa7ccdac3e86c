"""Models of PCP'19, HCP'19 and PCP'20 beside brute force, and their sizes."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from ortools.sat.python import cp_model

from policies.batch.cp.hcp19 import Hcp19
from policies.batch.cp.instance import Instance
from policies.batch.cp.optional_units import variables
from policies.batch.cp.pcp19 import Pcp19
from policies.batch.cp.pcp20 import Pcp20
from policies.batch.cp.positions import PositionsModel
from policies.batch.cp.scheduling import SchedulingModel
from policies.batch.cp.solver import minimised
from policies.contract.plan import PlanStatus
from policies.contract.snapshot import Snapshot
from tests.builders_policies import a_batch_job, a_cpu_node, a_node, a_snapshot
from tests.policies.batch.cp import brute_force
from tests.policies.batch.cp.instances import (
    an_instance,
    busy,
    crowded,
    fits_ever,
    runs,
    tiny,
)

MODELS: dict[str, tuple[Callable[[Instance], SchedulingModel], Callable[[Instance], float]]] = {
    "hcp19": (Hcp19().model, brute_force.pooled),
    "pcp19": (Pcp19().model, brute_force.by_amounts),
    "pcp19, symmetric": (Pcp19(symmetry=False).model, brute_force.by_amounts),
    "pcp19, without hint": (Pcp19(hint=False).model, brute_force.by_amounts),
    "pcp20": (Pcp20().model, brute_force.by_positions),
    "pcp20, symmetric": (Pcp20(symmetry=False).model, brute_force.by_positions),
    "pcp20, without hint": (Pcp20(hint=False).model, brute_force.by_positions),
}
every_model = pytest.mark.parametrize("name", MODELS)


@every_model
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=tiny().filter(fits_ever))
def test_the_optimum_is_that_of_brute_force(name: str, snapshot: Snapshot) -> None:
    instance = an_instance(snapshot)
    model, oracle = MODELS[name]
    found = minimised(model(instance), 20.0, seed=1)
    assert found.status is PlanStatus.OPTIMAL
    best = oracle(instance)
    assert found.objective == pytest.approx(best, rel=2 * instance.rounding + 1e-9)
    assert found.bound <= found.objective + 1e-9
    assert found.bound == pytest.approx(best, rel=2 * instance.rounding + 1e-6)


@pytest.mark.parametrize("policy", [Hcp19(), Pcp19(), Pcp20(), Pcp20(symmetry=False)], ids=repr)
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=crowded().filter(fits_ever))
def test_the_list_schedule_is_a_solution_of_every_model(
    policy: Hcp19 | Pcp19 | Pcp20, snapshot: Snapshot
) -> None:
    instance = an_instance(snapshot)
    model = policy.model(instance)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(model.cp) in (cp_model.OPTIMAL, cp_model.FEASIBLE)


def queue_of(nodes: int) -> Snapshot:
    """Jobs that ask for cores, memory and GPUs on a cluster of so many nodes."""
    cluster = [a_node(f"n{i}", gpus=2, cores=16.0, memory_gb=16.0) for i in range(nodes)]
    jobs = [
        a_batch_job(f"w{i}", units, 1, cores=8.0, memory_gb=4.0)
        for i, units in enumerate([1, 2, 3, 8, 1])
    ]
    return a_snapshot(cluster, jobs)


@pytest.mark.parametrize("nodes", [64, 1173, 10_000])
@pytest.mark.parametrize("symmetry", [True, False])
def test_variables_of_pcp20_do_not_depend_on_the_number_of_nodes(
    nodes: int, symmetry: bool
) -> None:
    instance = an_instance(queue_of(nodes))
    model = Pcp20(hint=False, symmetry=symmetry).model(instance)
    jobs, units, resources = 5, 1 + 2 + 3 + 8 + 1, 3
    assert len(instance.resources) == resources
    assert len(model.cp.proto.variables) == jobs + units * resources


def test_variables_of_pcp19_grow_with_the_nodes_and_are_counted_before_the_model_is_made() -> None:
    sizes = []
    for nodes in (16, 64):
        instance = an_instance(queue_of(nodes))
        sizes.append(variables(instance))
        assert len(Pcp19().model(instance).cp.proto.variables) == sizes[-1]
    assert sizes[1] - 5 == 4 * (sizes[0] - 5)
    pcp20 = Pcp20().model(an_instance(queue_of(64)))
    assert len(pcp20.cp.proto.variables) < 0.1 * sizes[1]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=busy().filter(fits_ever))
def test_the_nodes_that_symmetry_leaves_out_do_not_change_the_optimum(snapshot: Snapshot) -> None:
    instance = an_instance(snapshot)
    found = [minimised(Pcp20(symmetry=of).model(instance), 20.0, seed=1) for of in (True, False)]
    assert [of.status for of in found] == [PlanStatus.OPTIMAL] * 2
    assert found[0].objective == pytest.approx(found[1].objective, rel=4 * instance.rounding + 1e-9)


def test_only_as_many_nodes_that_are_in_use_are_kept_as_there_are_units() -> None:
    nodes = [a_cpu_node(f"c{i}", cores=4.0) for i in range(9)]
    jobs = [runs(f"c{i}", 10.0 * (1 + i), f"r{i}", units=4) for i in range(8)]
    jobs.append(runs("c8", 500.0, "beside", units=1))
    instance = an_instance(a_snapshot(nodes, [*jobs, a_batch_job("w", 2, cores=2.0)]))
    assert PositionsModel(instance).kept == {0, 1, 8}
    assert PositionsModel(instance, symmetry=False).kept == set(range(9))


def test_running_jobs_count_with_what_is_left_of_them_at_least_one_unit_of_time() -> None:
    jobs = [runs("c1", 50.0), runs("c1", -500.0, "late"), a_batch_job("w", cores=2.0)]
    instance = an_instance(a_snapshot([a_cpu_node("c1", cores=2.0)], jobs))
    assert sorted(part.left for part in instance.running) == [1, 5]
    (start,) = minimised(Pcp20().model(instance), 1.0, seed=1).starts
    assert start == 5


def test_a_unit_may_fill_its_node_to_the_last_position_and_never_crosses_to_the_next() -> None:
    nodes = [a_cpu_node(f"c{i}", cores=3.0) for i in range(3)]
    full = an_instance(a_snapshot(nodes, [a_batch_job("w", 3, cores=3.0)]))
    assert minimised(Pcp20().model(full), 1.0, seed=1).starts == (0,)
    jobs = [a_batch_job("a", 3, cores=2.0), a_batch_job("b", 1, cores=3.0, arrival_s=1.0)]
    apart = an_instance(a_snapshot(nodes, jobs))
    for policy in (Pcp19(), Pcp20()):
        found = minimised(policy.model(apart), 1.0, seed=1)
        assert found.starts == (0, 60)
        assert found.nodes[0] == {0: 1, 1: 1, 2: 1}


def test_amounts_and_times_are_whole_and_no_demand_is_smaller_than_told() -> None:
    jobs = [a_batch_job("w", cores=0.25, memory_gb=1.5, walltime_s=11.0)]
    instance = an_instance(a_snapshot([a_cpu_node("c1", cores=1.1, memory_gb=8.0)], jobs))
    (job,) = instance.jobs
    assert (job.duration, job.demand[1:]) == (2, (1, 1))
    assert instance.capacity[0][1:] == (1, 1)  # no more than all demands together


def test_an_unlimited_capacity_counts_as_the_sum_of_all_demands() -> None:
    jobs = [a_batch_job(f"w{i}", 2, cores=1.0) for i in range(3)]
    nodes = [a_cpu_node("c1", cores=float("inf")), a_cpu_node("c2", cores=1.0)]
    instance = an_instance(a_snapshot(nodes, jobs))
    assert instance.capacity[0][1] == 6


def test_an_idle_cluster_without_jobs_is_an_instance_too() -> None:
    instance = an_instance(a_snapshot([a_cpu_node("c1", cores=4.0)], []))
    assert (instance.jobs, instance.running, instance.resources) == ((), (), ())


def test_the_order_of_nodes_decides_which_fill_first() -> None:
    nodes = [a_node("g1", gpus=1, cores=4.0), a_cpu_node("c1", cores=4.0),
             a_cpu_node("c2", cores=4.0)]  # fmt: skip
    blocked = a_batch_job("w2", 3, cores=4.0, arrival_s=1.0)
    snapshot = a_snapshot(nodes, [a_batch_job("w1", cores=4.0), blocked])
    first = {
        order: Pcp20(node_order=order)(snapshot).placements[0].ranks[0].node
        for order in ("given", "reversed", "gpus_first", "gpus_last")
    }
    assert first == {"given": "c2", "reversed": "g1", "gpus_first": "c2", "gpus_last": "g1"}
