"""Gangs that no node can hold: placed whole on several nodes or not at all, by every policy."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.contract.plan import Plan, WaitCode
from policies.contract.snapshot import (
    JobColumns,
    Jobs,
    JobView,
    NodeState,
    NodeView,
    RankPlacement,
    Running,
    Snapshot,
    Source,
    Throughput,
)
from policies.contract.validation import validate_plan
from policies.host import registry
from policies.placement.from_snapshot import cluster_of
from policies.placement.layout import members
from policies.placement.priced_options import JobOptions
from policies.placement.waiting.explained import explained
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on
from tests.builders_snapshots import snapshots
from tests.policies.test_contract import POLICIES, VARIANTS, decide
from tests.policies.test_contract_properties import examples

SPREADING = tuple(name for name in POLICIES if name != "exact")
every_spreading_policy = pytest.mark.parametrize("name", SPREADING)
SPREAD_BY_DESIGN = {"hadar", "tiresias", "yarn_cs"}
"""Policies that weigh a gang over nodes against one node, as their papers do."""

KNOWN = {("V100", 1): 1.0, ("V100", 2): 1.6, ("T4", 1): 0.4}


def two_nodes_of_two(*jobs: JobView, **fields: Any) -> Snapshot:
    nodes = [a_node("n1", gpus=2), a_node("n2", gpus=2)]
    return a_snapshot(nodes, [*jobs], [a_kind("k", KNOWN)], **fields)


def a_gang(job: str = "w", gpus: int = 3, **fields: Any) -> JobView:
    return a_job(job, gpus_min=gpus, gpus_max=gpus, **fields)


def seats_of(plan: Plan, job: str = "w") -> dict[str, int]:
    """GPUs of a job on each node."""
    seats = (seat for p in plan.placements if p.job == job for seat in p.ranks)
    return {seat.node: len(seat.devices) for seat in seats}


@every_spreading_policy
def test_a_gang_of_three_is_on_two_nodes_of_two(name: str) -> None:
    snapshot = two_nodes_of_two(a_gang())
    plan = decide(name, snapshot)
    assert validate_plan(plan, snapshot) == ()
    assert sorted(seats_of(plan).values()) == [1, 2]
    (placed,) = plan.placements
    assert placed.predicted_run_s is not None
    assert placed.predicted_run_s > 0.0


def test_the_exact_model_says_that_it_does_not_spread() -> None:
    snapshot = two_nodes_of_two(a_gang())
    (waiting,) = explained(decide("exact", snapshot), snapshot)
    assert waiting.code is WaitCode.NOT_SPREAD


@pytest.mark.parametrize("name", sorted(set(POLICIES) - SPREAD_BY_DESIGN))
def test_a_job_that_a_node_can_hold_is_never_spread_without_a_wish(name: str) -> None:
    nodes = [a_node("n1", gpus=2), a_node("n2", gpus=2), a_node("n3", gpus=4)]
    rates = {("V100", gpus): float(gpus) for gpus in (1, 2, 3, 4)}
    running = a_gang("big", 3, running=on("n3", "gpu0", "gpu1", "gpu2"), preemptible=False)
    snapshot = a_snapshot(nodes, [running, a_gang()], [a_kind("k", rates)])
    assert len(seats_of(decide(name, snapshot))) <= 1


@every_spreading_policy
def test_a_running_gang_over_nodes_goes_on(name: str) -> None:
    seats = (RankPlacement("n1", ("gpu0", "gpu1")), RankPlacement("n2", ("gpu1",)))
    gang = a_gang(running=(Running(0, seats, 0.0),))
    snapshot = two_nodes_of_two(gang)
    plan = decide(name, snapshot)
    assert validate_plan(plan, snapshot) == ()
    assert [p.ranks for p in plan.placements] == [seats]


@every_spreading_policy
def test_a_gang_over_nodes_waits_for_gpus_in_use(name: str) -> None:
    jobs = [
        a_job(f"r{i}", running=on(f"n{1 + i // 2}", f"gpu{i % 2}"), preemptible=False)
        for i in range(3)
    ]
    snapshot = two_nodes_of_two(*jobs, a_gang())
    plan = decide(name, snapshot)
    assert validate_plan(plan, snapshot) == ()
    (waiting,) = explained(plan, snapshot)
    assert (waiting.job, waiting.code) == ("w", WaitCode.NO_CAPACITY)


@pytest.mark.parametrize("name", ["cost_search", "randomized_greedy", "allox", "gandiva"])
def test_gpus_are_kept_for_the_first_gang_without_room(name: str) -> None:
    running = [a_job(f"r{i}", running=on("n1", f"gpu{i}")) for i in range(2)]
    long = [a_job(f"l{i}", arrival_s=500.0, remaining_steps=1e6) for i in range(2)]
    snapshot = two_nodes_of_two(*running, a_gang(arrival_s=100.0), *long)
    plan = decide(name, snapshot)
    assert validate_plan(plan, snapshot) == ()
    assert sum(seats_of(plan, job.id).get("n2", 0) for job in long) <= 1
    (waiting,) = [w for w in plan.waiting if w.job == "w"]
    assert waiting.expected is not None
    assert set(waiting.expected.nodes) == {"n1", "n2"}


@every_spreading_policy
def test_closed_nodes_that_could_hold_a_gang_are_named(name: str) -> None:
    nodes = [a_node(f"n{i}", gpus=2, state=NodeState.CORDONED) for i in (1, 2)]
    snapshot = a_snapshot(nodes, [a_gang()], [a_kind("k", KNOWN)])
    (waiting,) = explained(decide(name, snapshot), snapshot)
    assert (waiting.code, waiting.nodes) == (WaitCode.NODES_UNAVAILABLE, ("n1", "n2"))


@every_spreading_policy
def test_a_gang_larger_than_all_nodes_is_told_so(name: str) -> None:
    snapshot = two_nodes_of_two(a_gang(gpus=5))
    (waiting,) = explained(decide(name, snapshot), snapshot)
    assert waiting.code is WaitCode.NO_NODE_FITS


@every_spreading_policy
def test_a_gang_on_a_cluster_without_gpus_is_told_so(name: str) -> None:
    over_nodes = Throughput("V100", 2, 1.0, Source.MEASURED, spread=True)
    kind = a_kind("k", throughputs=(over_nodes,))
    snapshot = a_snapshot([a_node("n1", "", gpus=0)], [a_gang(gpus=2)], [kind])
    (waiting,) = explained(decide(name, snapshot), snapshot)
    assert waiting.code is WaitCode.NO_NODE_FITS


@every_spreading_policy
def test_a_gang_is_not_on_two_types_unless_it_may_mix_them(name: str) -> None:
    nodes = [a_node("n1", "V100", gpus=2), a_node("n2", "T4", gpus=2)]
    snapshot = a_snapshot(nodes, [a_gang()], [a_kind("k", KNOWN)])
    assert not decide(name, snapshot).placements


@pytest.mark.parametrize("name", ["cost_search", "fifo", "edf", "priority", "randomized_greedy"])
def test_a_gang_that_may_mix_types_is_on_both(name: str) -> None:
    nodes = [a_node("n1", "V100", gpus=2), a_node("n2", "T4", gpus=2)]
    snapshot = a_snapshot(nodes, [a_gang(may_mix=True)], [a_kind("k", KNOWN)])
    plan = decide(name, snapshot)
    assert validate_plan(plan, snapshot) == ()
    assert sorted(seats_of(plan)) == ["n1", "n2"]


@every_spreading_policy
def test_nodes_whose_agents_run_no_gangs_get_no_rank(name: str) -> None:
    labels = {"n1": ("agent:gang",), "n2": (), "n3": ("agent:gang",)}
    nodes = [a_node(node, gpus=2, labels=of) for node, of in labels.items()]
    snapshot = a_snapshot(nodes, [a_gang()], [a_kind("k", KNOWN)])
    assert sorted(seats_of(decide(name, snapshot))) == ["n1", "n3"]


@st.composite
def clusters_with_gangs(draw: st.DrawFn) -> Snapshot:
    """Any snapshot, with kinds that are known everywhere, and some jobs of up to eight GPUs."""
    snapshot = draw(snapshots())
    rates = {(t, g): float(g) ** 0.8 for t in ("V100", "T4", "A100") for g in range(1, 5)}
    kinds = tuple(a_kind(kind.id, rates) for kind in snapshot.kinds)
    jobs = []
    for job in snapshot.jobs:
        if not job.running and draw(st.booleans()):
            gpus = draw(st.integers(2, 8))
            job = replace(job, gpus_min=gpus, gpus_max=gpus, labels=(), allowed_types=())
        jobs.append(job)
    return replace(snapshot, kinds=kinds, jobs=Jobs(JobColumns.of(jobs)))


@examples(200)
@given(variant=st.sampled_from(VARIANTS), snapshot=clusters_with_gangs())
def test_a_gang_is_placed_whole_or_not_at_all(
    variant: tuple[str, dict[str, object]], snapshot: Snapshot
) -> None:
    name, parameters = variant
    plan = decide(name, snapshot, **parameters)
    assert validate_plan(plan, snapshot) == ()
    for placed in plan.placements:
        job = snapshot.jobs.by_id(placed.job)
        assert job.gpus_min <= placed.gpus <= job.gpus_max


@examples(200)
@given(snapshot=clusters_with_gangs())
def test_what_the_planner_finds_over_nodes_is_whole_and_can_be_given_back(
    snapshot: Snapshot,
) -> None:
    state = cluster_of(snapshot)
    options = JobOptions(snapshot, state)
    for row in range(len(snapshot.jobs)):
        for option in options.over_nodes(row):
            before = (list(state.free), list(state.idle), state.used_mw)
            found = state.find(option.request, option.nodes)
            if found is None:
                continue
            assert sum(part.units for part in found.parts) == option.gpus
            assert len({part.node for part in found.parts}) == len(found.parts) > 1
            assert all(option.nodes >> part.node & 1 for part in found.parts)
            state.take(found)
            state.release(found)
            assert (list(state.free), list(state.idle), state.used_mw) == before


@examples(200)
@given(snapshot=clusters_with_gangs())
def test_only_jobs_that_no_node_could_hold_are_spread(snapshot: Snapshot) -> None:
    snapshot = replace(snapshot, power_cap_w=None, power_caps=())
    options = JobOptions(snapshot, cluster_of(snapshot))
    for row, job in enumerate(snapshot.jobs):
        suiting = [node for node in snapshot.nodes if _suits(job, node)]
        could_hold = any(len(node.devices) >= job.gpus_min for node in suiting)
        assert not (options.over_nodes(row) and could_hold)
        if could_hold or not suiting:
            continue
        layout = options.layout
        together: dict[str, int] = {}
        for node in suiting:
            healthy = sum(device.healthy for device in node.devices)
            of = "" if job.may_mix else node.gpu_type
            is_open = node.takes_training
            together[of] = together.get(of, 0) + healthy * is_open
        if max(together.values(), default=0) >= job.gpus_min:
            found = options.over_nodes(row)
            assert found
            named = {layout.nodes[n].id for option in found for n in members(option.nodes)}
            assert named <= {node.id for node in suiting if node.takes_training}


def _suits(job: JobView, node: NodeView) -> bool:
    """Return True if a lasting node has what one process of a job needs beside GPUs."""
    if node.state is NodeState.LOST or node.role.value == "profiling":
        return False
    if job.allowed_types and node.gpu_type not in job.allowed_types:
        return False
    amounts = {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
    wanted = {"cores": job.cores, "memory_gb": job.memory_gb, **dict(job.resources)}
    enough = all(amounts.get(name, 0.0) >= amount for name, amount in wanted.items() if amount)
    return enough and set(job.labels) <= set(node.labels) and inf > job.gpus_min > 1


def test_every_built_in_policy_is_asked() -> None:
    assert set(SPREADING) | {"exact"} == set(registry.BUILT_IN)
