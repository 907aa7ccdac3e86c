"""AlloX: the least average completion time, against every schedule there is; when jobs wait, stay
and move; gangs.
"""

from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.simulation.world.run import Simulation
from policies.contract.plan import Plan, WaitCode
from policies.contract.snapshot import Snapshot
from policies.contract.validation import validate_plan
from policies.gavel.allox import AlloX
from tests.builders_loop import a_scenario
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot, on

KINDS = (
    a_kind("even", {("V100", 1): 2.0, ("T4", 1): 1.0}),
    a_kind("picky", {("V100", 1): 4.0, ("T4", 1): 0.5}),
    a_kind("wide", {("V100", 2): 3.0, ("T4", 2): 1.5}),
)
RATES = {kind.id: {(t.gpu_type, t.gpus): t.steps_per_s for t in kind.throughputs} for kind in KINDS}
some = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def decide(snapshot: Snapshot, **parameters: Any) -> Plan:
    plan = AlloX(**parameters)(snapshot)
    assert validate_plan(plan, snapshot) == ()
    return plan


def placed(plan: Plan) -> dict[str, str]:
    """Node by job."""
    return {p.job: p.ranks[0].node for p in plan.placements}


def least_mean_jct_s(queue: list[tuple[str, int]], gpus: list[str]) -> float:
    """Of every assignment of (kind, steps) to single GPUs, each in its best order."""
    means = []
    for chosen in product(range(len(gpus)), repeat=len(queue)):
        total_s = 0.0
        for m, gpu_type in enumerate(gpus):
            times = sorted(
                n / RATES[k][gpu_type, 1]
                for (k, n), of in zip(queue, chosen, strict=True)
                if of == m
            )
            total_s += sum(sum(times[: i + 1]) for i in range(len(times)))
        means.append(total_s / len(queue))
    return min(means)


def mean_jct_s(queue: list[tuple[str, int]], policy: AlloX) -> float:
    """What becomes of the queue on one V100 and two T4 when the policy decides round by round."""
    jobs = [
        a_job(f"j{i}", k, remaining_steps=float(n), total_steps=float(n))
        for i, (k, n) in enumerate(queue)
    ]
    scenario = a_scenario(
        nodes=(a_node("v", gpus=1), a_node("t1", "T4", 1), a_node("t2", "T4", 1)),
        kinds=KINDS,
        round_s=60.0,
    )
    done = [job.completed_s for job in Simulation(scenario, jobs, policy).run().state.jobs.values()]
    return sum(end_s for end_s in done if end_s is not None) / len(done)


queues = st.lists(
    st.tuples(st.sampled_from(["even", "picky"]), st.integers(100, 4000)), min_size=1, max_size=5
)


@some
@given(queue=queues)
def test_the_mean_completion_time_of_a_static_queue_is_that_of_the_best_schedule(
    queue: list[tuple[str, int]],
) -> None:
    assert mean_jct_s(queue, AlloX()) == pytest.approx(
        least_mean_jct_s(queue, ["V100", "T4", "T4"]), rel=1e-3
    )


@some
@given(queue=queues)
def test_moving_started_jobs_is_never_worse_where_it_costs_nothing(
    queue: list[tuple[str, int]],
) -> None:
    """Steps are whole: what is done of one is lost by a move, up to two seconds of a T4."""
    assert mean_jct_s(queue, AlloX(started="move")) <= mean_jct_s(queue, AlloX()) + 10.0


@some
@given(queue=queues)
def test_the_objective_is_the_sum_of_completion_times(queue: list[tuple[str, int]]) -> None:
    jobs = [
        a_job(f"j{i}", k, remaining_steps=float(n), total_steps=float(n))
        for i, (k, n) in enumerate(queue)
    ]
    plan = decide(a_snapshot([a_node("v", gpus=1), a_node("t", "T4", 2)], jobs, KINDS))
    assert plan.objective == pytest.approx(
        least_mean_jct_s(queue, ["V100", "T4", "T4"]) * len(queue), rel=1e-6
    )


def test_a_job_waits_beside_an_idle_gpu_that_would_take_longer_than_waiting() -> None:
    nodes = [a_node("v", gpus=1), a_node("t", "T4", 1)]
    runs = a_job("runs", "picky", remaining_steps=40.0, running=on("v", "gpu0"))
    plan = decide(a_snapshot(nodes, [runs, a_job("waits", "picky", remaining_steps=400.0)], KINDS))
    assert placed(plan) == {"runs": "v"}
    assert [(w.job, w.code) for w in plan.waiting] == [("waits", WaitCode.POSTPONED)]


def test_the_shorter_job_goes_first_and_the_long_one_waits() -> None:
    jobs = [
        a_job("long", remaining_steps=1000.0),
        a_job("short", remaining_steps=10.0, arrival_s=9.0),
    ]
    assert placed(decide(a_snapshot([a_node("v", gpus=1)], jobs))) == {"short": "v"}


def test_only_the_oldest_jobs_are_matched_where_alpha_says_so() -> None:
    jobs = [a_job(f"old{i}", remaining_steps=1000.0) for i in range(2)]
    jobs += [a_job("young", remaining_steps=1.0, arrival_s=9.0)]
    nodes = [a_node("v", gpus=1)]
    assert placed(decide(a_snapshot(nodes, jobs))) == {"young": "v"}
    assert placed(decide(a_snapshot(nodes, jobs), alpha=0.5)) == {"old0": "v"}
    assert placed(decide(a_snapshot(nodes, jobs), most=2)) == {"old0": "v"}


@pytest.mark.parametrize(
    ("started", "restart_cost_s", "expected"),
    [
        ("keep", 0.0, "runs"),
        ("move", 0.0, "short"),
        ("move", 30.0, "short"),
        ("move", 2000.0, "runs"),
    ],
)
def test_a_started_job_gives_way_only_where_it_may_and_its_restart_costs_less(
    started: str, restart_cost_s: float, expected: str
) -> None:
    runs = a_job(
        "runs",
        remaining_steps=1000.0,
        total_steps=2000.0,
        running=on("v", "gpu0"),
        restart_cost_s=restart_cost_s,
    )
    plan = decide(
        a_snapshot([a_node("v", gpus=1)], [runs, a_job("short", remaining_steps=10.0)]),
        started=started,
    )
    assert list(placed(plan)) == [expected]


def test_a_started_job_moves_to_a_faster_gpu_where_that_pays() -> None:
    nodes = [a_node("v", gpus=1), a_node("t", "T4", 1)]
    for left, expected in ((4000.0, "v"), (20.0, "t")):
        runs = a_job(
            "runs",
            "picky",
            remaining_steps=left,
            total_steps=9000.0,
            running=on("t", "gpu0"),
            restart_cost_s=60.0,
        )
        assert placed(decide(a_snapshot(nodes, [runs], KINDS), started="move")) == {
            "runs": expected
        }
        assert placed(decide(a_snapshot(nodes, [runs], KINDS))) == {"runs": "t"}


def test_of_two_started_jobs_of_equal_places_neither_is_stopped_for_a_newcomer_without_need() -> (
    None
):
    runs = [a_job(f"r{i}", remaining_steps=100.0, running=on("v", f"gpu{i}")) for i in range(2)]
    plan = decide(
        a_snapshot([a_node("v", gpus=3)], [*runs, a_job("new", remaining_steps=100.0)]),
        started="move",
    )
    assert {p.job: p.ranks[0].devices for p in plan.placements} == {
        "r0": ("gpu0",),
        "r1": ("gpu1",),
        "new": ("gpu2",),
    }


def test_a_gang_goes_before_single_jobs_where_it_ends_soonest() -> None:
    jobs = [
        a_job("single", "even", remaining_steps=1.0),
        a_job("gang", "wide", arrival_s=9.0, gpus_min=2, gpus_max=2),
    ]
    plan = decide(a_snapshot([a_node("t", "T4", 2), a_node("v", gpus=2)], jobs, KINDS))
    assert placed(plan) == {"single": "t", "gang": "v"}


def test_a_started_gang_keeps_its_place_though_jobs_of_one_gpu_would_be_shorter() -> None:
    gang = a_job(
        "gang",
        "wide",
        remaining_steps=9000.0,
        gpus_min=2,
        gpus_max=2,
        running=on("v", "gpu0", "gpu1"),
    )
    plan = decide(
        a_snapshot([a_node("v", gpus=2)], [gang, a_job("a", "even")], KINDS), started="move"
    )
    assert placed(plan) == {"gang": "v"}


def test_a_node_is_kept_for_a_gang_but_for_jobs_that_end_before_it_starts() -> None:
    """Started jobs stay: single jobs would take each GPU as it comes free, and the gang would never
    start.
    """
    jobs = [
        a_job("runs", "even", remaining_steps=200.0, running=on("v", "gpu0")),
        a_job("gang", "wide", gpus_min=2, gpus_max=2),
        a_job("fits", "even", arrival_s=2.0, remaining_steps=199.0),
        a_job("long", "even", arrival_s=1.0, remaining_steps=201.0),
    ]
    plan = decide(a_snapshot([a_node("v", gpus=2)], jobs, KINDS))
    assert placed(plan) == {"runs": "v", "fits": "v"}


def test_a_gang_takes_the_gpus_of_single_jobs_where_these_may_be_stopped() -> None:
    jobs = [
        a_job("runs", "even", running=on("v", "gpu0")),
        a_job("gang", "wide", gpus_min=2, gpus_max=2),
    ]
    assert placed(decide(a_snapshot([a_node("v", gpus=2)], jobs, KINDS), started="move")) == {
        "gang": "v"
    }


def test_gangs_and_jobs_of_one_gpu_have_each_the_part_of_the_gpus_that_they_want() -> None:
    jobs = [a_job(f"gang{i}", "wide", arrival_s=float(i), gpus_min=2, gpus_max=2) for i in range(6)]
    jobs += [a_job(f"single{i}", "even", arrival_s=9.0) for i in range(12)]
    for started in ("keep", "move"):
        plan = decide(
            a_snapshot([a_node(f"v{i}", gpus=2) for i in range(4)], jobs, KINDS), started=started
        )
        assert [p.job for p in plan.placements][:2] == ["gang0", "gang1"]
        assert len(plan.placements) == 2 + 4
        again = [
            a_job(
                p.job,
                "wide" if p.gpus > 1 else "even",
                gpus_min=p.gpus,
                gpus_max=p.gpus,
                running=on(p.ranks[0].node, *p.ranks[0].devices),
            )
            for p in plan.placements[1:]
        ]
        later = decide(
            a_snapshot(
                [a_node(f"v{i}", gpus=2) for i in range(4)], [*again, *jobs[2:6], *jobs[12:]], KINDS
            ),
            started=started,
        )
        assert "gang2" in placed(later)


def test_gangs_have_what_jobs_of_one_gpu_leave_idle() -> None:
    jobs = [
        a_job(f"gang{i}", "wide", arrival_s=float(i), gpus_min=2, gpus_max=2, allowed_types=("T4",))
        for i in range(2)
    ]
    jobs += [a_job(f"single{i}", "picky", allowed_types=("V100",)) for i in range(9)]
    plan = decide(a_snapshot([a_node("v", gpus=1), a_node("t", "T4", 4)], jobs, KINDS))
    assert {p.job for p in plan.placements} == {"gang0", "gang1", "single0"}


def test_a_later_gang_does_not_start_on_the_node_that_is_kept_for_an_earlier_one() -> None:
    kinds = (*KINDS, a_kind("widest", {("V100", 4): 9.0}))
    jobs = [
        a_job("runs", "wide", gpus_min=2, gpus_max=2, running=on("v", "gpu0", "gpu1")),
        a_job("first", "widest", arrival_s=1.0, gpus_min=4, gpus_max=4),
        a_job("second", "wide", arrival_s=2.0, gpus_min=2, gpus_max=2),
    ]
    for started in ("keep", "move"):
        assert placed(decide(a_snapshot([a_node("v", gpus=4)], jobs, kinds), started=started)) == {
            "runs": "v"
        }


@pytest.mark.parametrize("started", ["keep", "move"])
@some
@given(
    queue=st.lists(
        st.tuples(st.sampled_from(sorted(RATES)), st.integers(100, 9000), st.floats(0.0, 3000.0)),
        min_size=1,
        max_size=8,
    )
)
def test_every_job_of_a_mixed_queue_ends(started: str, queue: list[tuple[str, int, float]]) -> None:
    jobs = [
        a_job(
            f"j{i}",
            k,
            arrival_s=at,
            remaining_steps=float(n),
            total_steps=float(n),
            gpus_min=1 + (k == "wide"),
            gpus_max=2,
        )
        for i, (k, n, at) in enumerate(queue)
    ]
    nodes = (a_node("v", gpus=2), a_node("t", "T4", 2))
    scenario = a_scenario(
        nodes=nodes, kinds=KINDS, round_s=120.0, launch_s=5.0, stop_s=2.0, restart_cost_s=10.0
    )
    done = Simulation(scenario, jobs, AlloX(started=started)).run().state.jobs.values()
    assert all(job.completed_s is not None for job in done)
    assert started == "move" or all(len(job.launches) == 1 for job in done)
