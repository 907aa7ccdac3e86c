"""FIFO, EDF and PS as ANDREAS' paper means them: an order of the queue, one rule for
configurations, started jobs left alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.simulation.world.run import Simulation
from policies.contract.policy import Policy
from policies.contract.snapshot import JobView, NodeState, PriceInterval
from policies.host import registry
from tests.builders_loop import (
    SECONDS_PER_EPOCH,
    STEPS_PER_EPOCH,
    a_scenario,
    armida_kinds,
    armida_nodes,
    table_v_jobs,
)
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on

BASELINES: Mapping[str, Policy] = {
    "fifo": registry.make("fifo"),
    "edf": registry.make("edf"),
    "priority": registry.make("priority"),
    "PS": registry.make("priority", {"by": "weight"}),
}
every_baseline = pytest.mark.parametrize("policy", BASELINES.values(), ids=BASELINES)
some = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])

QUEUE = (
    a_job("heavy", arrival_s=3.0, due_s=5000.0, tardiness_weight=9.0, priority=0),
    a_job("first", arrival_s=1.0, due_s=6000.0, tardiness_weight=1.0, priority=1),
    a_job("pressing", arrival_s=2.0, due_s=1200.0, tardiness_weight=2.0, priority=2),
    a_job("favoured", arrival_s=4.0, tardiness_weight=0.0, priority=7),
)


def order_of(policy: Policy) -> list[str]:
    """The jobs as they start on one GPU, each as soon as the one before it has ended."""
    started, queue = [], list(QUEUE)
    while queue:
        (placed,) = policy(a_snapshot([a_node("n1", gpus=1)], queue)).placements
        started.append(placed.job)
        queue = [j for j in queue if j.id != placed.job]
    return started


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("fifo", ["first", "pressing", "heavy", "favoured"]),
        ("edf", ["pressing", "heavy", "first", "favoured"]),
        ("priority", ["favoured", "pressing", "first", "heavy"]),
        ("PS", ["heavy", "pressing", "first", "favoured"]),
    ],
)
def test_the_queue_is_served_in_the_baselines_order(name: str, order: list[str]) -> None:
    assert order_of(BASELINES[name]) == order


@every_baseline
def test_a_started_job_keeps_its_configuration_though_a_better_one_is_free(policy: Policy) -> None:
    nodes = [a_node("fast", gpus=2), a_node("slow", "T4", 1)]
    jobs = [a_job("a", gpus_max=2, due_s=1010.0, tardiness_weight=1.0, running=on("slow", "gpu0"))]
    (placed,) = policy(a_snapshot(nodes, jobs)).placements
    assert (placed.ranks[0].node, placed.ranks[0].devices) == ("slow", ("gpu0",))


@every_baseline
def test_a_started_job_gives_way_to_nobody(policy: Policy) -> None:
    late = a_job("b", due_s=1.0, tardiness_weight=99.0, priority=99)
    jobs = [a_job("a", arrival_s=500.0, running=on("n1", "gpu0")), late]
    plan = policy(a_snapshot([a_node("n1", gpus=1)], jobs))
    assert [p.job for p in plan.placements] == ["a"]
    assert [(w.job, w.jobs) for w in plan.waiting] == [("b", ("a",))]


@every_baseline
def test_a_job_gets_the_cheapest_configuration_in_time_and_else_the_fastest(policy: Policy) -> None:
    kind = a_kind("k", {("V100", 1): 1.0, ("V100", 2): 1.9, ("T4", 1): 0.9})
    nodes = [a_node("n1", gpus=2), a_node("n2", "T4", 1)]
    cheapest_w_s = {"V100 x 2": 700 / 1.9, "V100": 530 / 1.0, "T4": 400 / 0.9}
    assert min(cheapest_w_s, key=cheapest_w_s.__getitem__) == "V100 x 2"
    slow = a_kind("k", {("V100", 1): 1.0, ("V100", 2): 1.2, ("T4", 1): 0.9})
    for known, due_s, expected in (
        (kind, 9000.0, ("n1", 2)),
        (slow, 9000.0, ("n2", 1)),
        (slow, 1001.0, ("n1", 2)),
    ):
        job = a_job("a", gpus_max=2, due_s=due_s, tardiness_weight=1.0)
        (placed,) = policy(a_snapshot(nodes, [job], [known])).placements
        assert (placed.ranks[0].node, placed.gpus) == expected


@every_baseline
def test_one_that_does_not_fit_lets_the_next_one_try(policy: Policy) -> None:
    wide = a_job(
        "wide",
        arrival_s=0.0,
        due_s=1001.0,
        tardiness_weight=9.0,
        priority=9,
        gpus_min=2,
        gpus_max=2,
    )
    jobs = [a_job("runs", running=on("n1", "gpu0")), wide, a_job("narrow", arrival_s=9.0)]
    assert [p.job for p in policy(a_snapshot([a_node("n1", gpus=2)], jobs)).placements] == [
        "runs",
        "narrow",
    ]


@every_baseline
def test_a_job_whose_node_is_lost_starts_anew_elsewhere(policy: Policy) -> None:
    nodes = [a_node("n1", state=NodeState.LOST), a_node("n2", gpus=1)]
    (placed,) = policy(a_snapshot(nodes, [a_job("a", running=on("n1", "gpu0"))])).placements
    assert placed.ranks[0].node == "n2"


def jobs_of(rows: list[tuple[str, int, float, float, float]]) -> list[JobView]:
    """(kind, epochs, arrival, time to the due date, weight) of each."""
    return [
        a_job(
            f"j{i}", kind, arrival_s=arrival_s, remaining_steps=float(epochs * STEPS_PER_EPOCH),
            total_steps=float(epochs * STEPS_PER_EPOCH), gpus_max=2, due_s=arrival_s + due_s,
            tardiness_weight=weight,
        )
        for i, (kind, epochs, arrival_s, due_s, weight) in enumerate(rows)
    ]  # fmt: skip


rows = st.tuples(
    st.sampled_from(sorted(SECONDS_PER_EPOCH)),
    st.integers(1, 30),
    st.floats(0.0, 3000.0),
    st.floats(1.0, 5000.0),
    st.floats(0.0, 1.0),
)


@every_baseline
@some
@given(queue=st.lists(rows, min_size=1, max_size=10))
def test_every_job_is_launched_once_and_ends_where_and_as_it_was_started(
    policy: Policy, queue: list[tuple[str, int, float, float, float]]
) -> None:
    """On a cluster whose prices change, with launches that take time: reasons to move that a
    baseline must not follow.
    """
    prices = tuple(
        PriceInterval(900.0 * i, 900.0 * (i + 1) if i < 9 else inf, 0.05 + 0.1 * (i % 3), 1.33)
        for i in range(10)
    )
    scenario = a_scenario(
        nodes=armida_nodes(), kinds=armida_kinds(), energy=prices, launch_s=20.0, round_s=300.0
    )
    for job in Simulation(scenario, jobs_of(queue), policy).run().state.jobs.values():
        assert job.completed_s is not None
        assert len(job.launches) == 1
        assert job.launches[0].end_s == job.completed_s


@every_baseline
def test_table_v_runs_without_a_pre_emption(policy: Policy) -> None:
    jobs = [replace(j, due_s=inf) if j.id == "J3" else j for j in table_v_jobs()]
    simulation = Simulation(a_scenario(round_s=300.0), jobs, policy).run()
    assert all(len(job.launches) == 1 for job in simulation.state.jobs.values())
