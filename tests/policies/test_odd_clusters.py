"""Clusters with something odd: every built-in policy gives a plan that may be applied."""

from dataclasses import replace

import pytest

from policies.contract import plan_json
from policies.contract.plan import BILLIONTHS
from policies.contract.snapshot import Purpose, RankPlacement, Running, Snapshot
from policies.contract.validation import validate_plan
from policies.host import registry
from policies.placement.from_snapshot import cluster_of
from policies.placement.priced_options import admits
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on

every_policy = pytest.mark.parametrize("policy", registry.BUILT_IN)


def with_quota(
    cores: float, node: str = "n1", *devices: str, purpose: Purpose = Purpose.TRAINING
) -> Running:
    """One process that was given so many cores."""
    return Running(0, (RankPlacement(node, devices, cpu_quota=cores),), 0.0, purpose=purpose)


def placed(policy: str, snapshot: Snapshot) -> list[str]:
    """Jobs that a policy places, once its plan was found to break no rule."""
    plan = registry.make(policy)(snapshot)
    assert validate_plan(plan, snapshot) == ()
    return [placement.job for placement in plan.placements]


@every_policy
@pytest.mark.filterwarnings("error")
def test_a_speed_at_which_no_step_ever_ends_counts_as_unknown(policy: str) -> None:
    kinds = (a_kind("k", {("V100", 1): 1e-300}), a_kind("fast", {("V100", 1): 1.0}))
    jobs = [a_job("a", remaining_steps=1e9), a_job("b", kind="fast", remaining_steps=1e9)]
    snapshot = replace(a_snapshot([a_node("n1", gpus=2)], jobs), kinds=kinds)
    assert placed(policy, snapshot) == ["b"]


@every_policy
def test_a_running_job_has_the_cores_of_its_quota(policy: str) -> None:
    jobs = [
        a_job("a", cores=1.0, running=(with_quota(1.5, "n1", "gpu0"),)),
        a_job("b", cores=1.0),
    ]
    placed(policy, a_snapshot([a_node("n1", gpus=2, cores=2.0)], jobs))


@every_policy
def test_a_running_job_with_a_quota_below_its_demand_leaves_room(policy: str) -> None:
    jobs = [
        a_job("a", cores=1.0, running=(with_quota(0.5, "n1", "gpu0"),)),
        a_job("b", cores=1.0),
    ]
    assert placed(policy, a_snapshot([a_node("n1", gpus=2, cores=1.5)], jobs))


def test_a_gang_has_the_cores_of_its_quotas() -> None:
    ranks = tuple([RankPlacement(node, ("gpu0",), cpu_quota=1.5) for node in ("n1", "n2")])
    gang = a_job("a", cores=1.0, gpus_min=2, gpus_max=2, running=(Running(0, ranks, 0.0),))
    nodes = [a_node(node, gpus=2, cores=2.0) for node in ("n1", "n2")]
    assert placed("fifo", a_snapshot(nodes, [gang, a_job("b", cores=1.0)])) == ["a"]


def test_a_profile_run_has_the_cores_of_its_quota() -> None:
    run = with_quota(1.5, "n1", "gpu0", purpose=Purpose.PROFILING)
    snapshot = a_snapshot(
        [a_node("n1", gpus=2, cores=2.0)], [a_job("a", cores=1.0, running=(run,))]
    )
    assert cluster_of(snapshot).free == [(1, BILLIONTHS // 2)]


@every_policy
def test_a_job_runs_on_a_node_whose_power_is_not_known(policy: str) -> None:
    node = a_node("n1", gpus=1, power_w=())
    assert placed(policy, a_snapshot([node], [a_job("a", running=on("n1", "gpu0"))])) == ["a"]


@every_policy
def test_a_node_without_gpus_is_left_out(policy: str) -> None:
    nodes = [a_node("empty", gpus=0), a_node("n1", gpus=1)]
    assert placed(policy, a_snapshot(nodes, [a_job("a")])) == ["a"]


@every_policy
def test_jobs_wait_where_no_node_has_a_gpu(policy: str) -> None:
    assert placed(policy, a_snapshot([a_node("empty", gpus=0)], [a_job("a")])) == []


def test_labels_of_nodes_that_are_gone_are_forgotten() -> None:
    most = admits.cache_info().maxsize
    assert most is not None
    for i in range(most + 10):
        admits((frozenset(), frozenset()), "V100", frozenset([f"data-{i}"]))
    assert admits.cache_info().currsize == most


@every_policy
@pytest.mark.parametrize("rate", [1e-9, 1e-200])
@pytest.mark.parametrize("runs", [True, False])
def test_a_run_time_beyond_what_a_plan_may_say_is_left_out(
    policy: str, rate: float, runs: bool
) -> None:
    running = on("n1", "gpu0") if runs else ()
    job = a_job("a", "slow", remaining_steps=1e9, running=running)
    snapshot = a_snapshot([a_node("n1", gpus=1)], [job], [a_kind("slow", {("V100", 1): rate})])
    placed(policy, snapshot)
    plan = registry.make(policy)(snapshot)
    assert [p.predicted_run_s for p in plan.placements] in ([], [None])
    assert plan_json.from_json(plan_json.FORM.write(plan)).placements == plan.placements
