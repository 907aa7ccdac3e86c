"""Gavel's table of policies, from the snapshot to the shares: exact cases, and what holds of all of
them.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from policies.contract import plan_json, snapshot_json
from policies.contract.plan import Plan
from policies.contract.policy import PolicyParameterError
from policies.contract.snapshot import GpuTypeView, JobView, Snapshot, TeamOrder, TeamView
from policies.contract.validation import validate_plan
from policies.host import registry
from tests.builders_colocation import a_pairing_kind, a_sharer, a_wide_node, after, wide_snapshots
from tests.builders_gavel import (
    FASTER,
    OBJECTIVES,
    PRICES,
    ROUND_S,
    SLOWER,
    TEAMS,
    Held,
    cluster,
    simulated,
    steps_of,
    two_jobs,
    with_teams_and_prices,
)
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot
from tests.builders_snapshots import TYPES, snapshots

POLICIES = tuple(OBJECTIVES)
FORMS = ("aware", "agnostic", "sharing")
EVENLY: dict[str, dict[str, object]] = {"hierarchical": {"inside": "fairness"}}
"""Parameters with which a policy has one objective for all jobs."""

BY_ENDS = ("makespan", "finish_time_fairness")
"""Policies whose objective is to be low."""

OTHER_POLICIES = tuple(name for name in POLICIES if name != "shortest_first")
"""The first of a queue comes before all else, so that the objective, the whole queue's, says little
of shares.
"""
any_policy, any_other_policy = st.sampled_from(POLICIES), st.sampled_from(OTHER_POLICIES)
every_policy = pytest.mark.parametrize("name", POLICIES)
every_other_policy = pytest.mark.parametrize("name", OTHER_POLICIES)
some = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def decide(name: str, snapshot: Snapshot, **parameters: object) -> Plan:
    return registry.make(name, {**EVENLY.get(name, {}), **parameters})(snapshot)


@st.composite
def priced(draw: st.DrawFn, of: st.SearchStrategy[Snapshot]) -> Snapshot:
    """Snapshots with teams, weights and a price for every type."""
    prices = [GpuTypeView(t, 8.0, 16.0, draw(st.sampled_from([0.3, 1.0, 2.5]))) for t in TYPES]
    return with_teams_and_prices(draw(of), draw(st.sampled_from([(1.0,), (1.0, 3.0, 0.5)])), prices)


# Exact cases


def test_the_shortest_makespan_of_300_and_500_steps_on_one_gpu_of_each_type_is_200_seconds() -> (
    None
):
    jobs = [a_job("j0", "a", remaining_steps=300.0), a_job("j1", "b", remaining_steps=500.0)]
    plan = decide(
        "makespan", a_snapshot(cluster(1, 1, 1), jobs, [a_kind("a", FASTER), a_kind("b", SLOWER)])
    )
    assert plan.objective == pytest.approx(200.0, rel=1e-9)


def test_who_came_first_has_the_fastest_gpu_and_the_next_what_is_fastest_for_him_of_the_rest() -> (
    None
):
    plan = decide("fifo_shares", two_jobs(1, 1, 1))
    assert plan.shares == {"j0": {"V100": pytest.approx(1.0)}, "j1": {"P100": pytest.approx(1.0)}}
    assert plan.objective == pytest.approx(2.0 + 2.0 / 3.0)


def test_a_queue_is_by_arrival_not_by_the_order_of_the_snapshot() -> None:
    jobs = [a_job("late", arrival_s=500.0), a_job("early", arrival_s=10.0)]
    assert decide("fifo_shares", a_snapshot([a_node(gpus=1)], jobs)).shares == {
        "early": {"V100": pytest.approx(1.0)}
    }


def test_who_can_end_soonest_has_the_fastest_gpu() -> None:
    jobs = [a_job("j0", "a", remaining_steps=300.0), a_job("j1", "b", remaining_steps=400.0)]
    plan = decide(
        "shortest_first",
        a_snapshot(cluster(1, 1, 1), jobs, [a_kind("a", FASTER), a_kind("b", SLOWER)]),
    )
    assert plan.shares == {"j0": {"P100": pytest.approx(1.0)}, "j1": {"V100": pytest.approx(1.0)}}


def test_the_highest_throughput_of_two_jobs_lets_the_one_lose_least() -> None:
    plan = decide("max_throughput", two_jobs(1, 1, 1))
    assert plan.objective == pytest.approx(1.0 + 2.0 / 3.0)
    assert plan.shares == {"j0": {"V100": pytest.approx(1.0)}, "j1": {"P100": pytest.approx(1.0)}}


def test_a_gang_counts_as_one_job_for_the_highest_throughput() -> None:
    jobs = [a_job("gang", gpus_min=2, gpus_max=2), a_job("a"), a_job("b")]
    assert sorted(decide("max_throughput", a_snapshot([a_node(gpus=2)], jobs)).shares) == ["a", "b"]


def test_the_published_program_finds_the_cheapest_progress() -> None:
    snapshot = replace(two_jobs(1, 1, 1), gpu_types=PRICES)
    plan = decide("min_cost", snapshot, objective="published", floor=0.0)
    assert plan.objective == pytest.approx(1.89516, abs=1e-5)
    assert plan.shares == {"j0": {"V100": pytest.approx(1.0)}, "j1": {"K80": pytest.approx(1.0)}}


# All of them


@some
@given(any_policy, st.sampled_from(["aware", "agnostic"]), priced(snapshots()))
def test_shares_fit_the_time_of_each_job_and_the_gpus_of_each_type(
    name: str, form: str, snapshot: Snapshot
) -> None:
    held = Held(snapshot, decide(name, snapshot, form=form))
    assert (held.time >= 0.0).all()
    assert (held.time.sum(axis=1) <= 1.0 + 1e-6).all()
    assert (
        held.problem.scale @ held.time
        <= held.problem.gpus + 1e-6 * np.maximum(held.problem.gpus, 1.0)
    ).all()
    assert (held.time[held.problem.type_rates == 0.0] == 0.0).all()


@some
@given(any_policy, priced(snapshots()))
def test_to_know_how_fast_jobs_run_where_is_no_loss_for_what_a_policy_wants(
    name: str, snapshot: Snapshot
) -> None:
    aware, agnostic = (
        Held(snapshot, decide(name, snapshot, form=form)) for form in ("aware", "agnostic")
    )
    assume(len(aware.steps))
    best, other = OBJECTIVES[name](aware), OBJECTIVES[name](agnostic)
    assert best >= other - 1e-5 * max(1.0, abs(best))


@some
@given(any_other_policy, priced(snapshots()))
def test_a_plan_says_what_its_shares_are_worth(name: str, snapshot: Snapshot) -> None:
    plan = decide(name, snapshot)
    held = Held(snapshot, plan)
    assume(len(held.steps))
    if name in BY_ENDS:
        assume(
            (held.throughput > 0.0).all()
        )  # a job of one step beside one of a million: less than a share that is told
    assert plan.objective is not None
    worth = abs(OBJECTIVES[name](held))
    assert worth == pytest.approx(plan.objective, rel=1e-4, abs=1e-5)


@some
@given(any_policy, priced(snapshots()))
def test_gpus_of_one_type_leave_nothing_to_know(name: str, snapshot: Snapshot) -> None:
    alike = replace(
        snapshot, nodes=tuple(replace(node, gpu_type="V100") for node in snapshot.nodes)
    )
    aware, agnostic = (decide(name, alike, form=form).objective for form in ("aware", "agnostic"))
    assert aware == pytest.approx(agnostic, rel=1e-5, abs=1e-9)


@some
@given(any_other_policy, priced(wide_snapshots()))
def test_jobs_that_may_share_gpus_are_no_loss_for_what_a_policy_wants(
    name: str, snapshot: Snapshot
) -> None:
    alone, sharing = (decide(name, snapshot, form=form).objective for form in ("aware", "sharing"))
    assert alone is not None
    assert sharing is not None
    assert (alone - sharing if name in BY_ENDS else sharing - alone) >= -1e-5 * max(1.0, abs(alone))


@every_other_policy
def test_two_jobs_that_share_a_gpu_well_run_there_together(name: str) -> None:
    jobs = [a_sharer("a"), a_sharer("b")]
    plan = decide(name, a_snapshot([a_wide_node()], jobs, [a_pairing_kind()]), form="sharing")
    assert [(p.job, p.ranks[0].share) for p in plan.placements] == [("a", 0.5), ("b", 0.5)]


@every_other_policy
def test_a_job_may_have_the_name_of_a_pair_of_others(name: str) -> None:
    jobs = [a_sharer(job) for job in ("a", "b", "a+b")]
    snapshot = a_snapshot([a_wide_node()], jobs, [a_pairing_kind()])
    plan = decide(name, snapshot, form="sharing")
    later = after(snapshot, plan, 300.0)
    assert not validate_plan(plan, snapshot)
    assert not validate_plan(decide(name, later, form="sharing"), later)


@every_policy
@pytest.mark.parametrize("form", FORMS)
def test_a_gang_has_no_time_on_gpus_of_which_no_node_has_enough(name: str, form: str) -> None:
    speeds = {(t, g): float(g) for t in ("V100", "K80") for g in (1, 2)}
    nodes = [a_node("v", "V100", 1), a_node("v2", "V100", 1), a_node("k", "K80", 2)]
    plan = decide(
        name,
        a_snapshot(nodes, [a_job("gang", gpus_min=2, gpus_max=2)], [a_kind("k", speeds)]),
        form=form,
    )
    assert list(plan.shares["gang"]) == ["K80"]
    assert [seat.node for p in plan.placements for seat in p.ranks] == ["k"]


@every_policy
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"form": "blind"}, "form: must be one of aware, agnostic, sharing, not 'blind'"),
        ({"recompute_s": -1.0}, "recompute_s: must be >= 0.0, not -1.0"),
        ({"spread": "yes"}, "spread: must be of type boolean, not 'yes'"),
        ({"colour": "red"}, "colour: no such parameter; known are: form, spread, recompute_s"),
    ],
)
def test_what_is_no_parameter_is_refused(
    name: str, parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(PolicyParameterError) as raised:
        registry.make(name, parameters)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("min_cost", {"floor": 1.5}, "floor: must be <= 1.0, not 1.5"),
        (
            "min_cost",
            {"objective": "ratio"},
            "objective: must be one of paper, published, not 'ratio'",
        ),
        (
            "hierarchical",
            {"inside": "lifo"},
            "inside: must be one of team, fairness, fifo, not 'lifo'",
        ),
    ],
)
def test_what_a_policy_does_not_know_is_refused(
    name: str, parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(PolicyParameterError) as raised:
        registry.make(name, parameters)
    assert str(raised.value) == message


@every_policy
def test_the_registry_knows_a_policy_by_the_name_on_its_plans(name: str) -> None:
    assert decide(name, two_jobs(1, 1, 1)).policy == name


# Rounds


def made_at(plan: Plan) -> float:
    made_s: float = plan.memory["made_s"]
    return made_s


@every_policy
def test_shares_stand_until_they_are_as_old_as_they_may_become(name: str) -> None:
    snapshot = with_teams_and_prices(two_jobs(1, 1, 1))
    plan = decide(name, snapshot, recompute_s=500.0)
    later = after(snapshot, plan, 300.0)
    later_plan = decide(name, replace(later, teams=TEAMS, gpu_types=PRICES), recompute_s=500.0)
    last = replace(after(later, later_plan, 300.0), teams=TEAMS, gpu_types=PRICES)
    assert [made_at(p) for p in (plan, later_plan, decide(name, last, recompute_s=500.0))] == [
        1000.0,
        1000.0,
        1600.0,
    ]


@every_policy
@pytest.mark.parametrize("form", ["aware", "agnostic"])
def test_all_jobs_end_though_they_come_and_go(name: str, form: str) -> None:
    simulation = _scenario(registry.make(name, {"form": form})).run()
    assert simulation.state.completed == len(simulation.state.table)
    for result in simulation.rounds:
        assert validate_plan(result.plan, result.snapshot) == ()


@every_policy
def test_any_round_can_be_decided_again_from_its_stored_snapshot(name: str) -> None:
    simulation = _scenario(registry.make(name)).run()
    for result in [r for r in simulation.rounds if r.carried is None]:
        stored = snapshot_json.from_json(snapshot_json.to_json(result.snapshot))
        assert plan_json.digest(registry.make(name)(stored)) == plan_json.digest(result.plan)


def _scenario(policy: Any) -> Any:
    jobs = [_job(i) for i in range(10)]
    speeds = {("V100", 2): 3.5, ("K80", 2): 1.6}
    kinds = [a_kind("a", {**FASTER, **speeds}), a_kind("b", {**SLOWER, **speeds})]
    told = {
        "stop_s": 5.0,
        "launch_s": 2.0,
        "restart_cost_s": 10.0,
        "gpu_types": PRICES,
        "teams": TEAMS,
    }
    return simulated(cluster(2, 1, 2), kinds, jobs, policy, **told)


def _job(i: int) -> JobView:
    gang = {"gpus_min": 2, "gpus_max": 2} if i % 4 == 3 else {}
    team = ("red", "blue", "")[i % 3]
    due_s = 150.0 * i + 3000.0
    return steps_of(
        f"j{i}",
        900.0 + 400.0 * (i % 5),
        "ab"[i % 2],
        arrival_s=150.0 * i,
        team=team,
        due_s=due_s,
        **gang,
    )


def test_a_scene_knows_its_teams_and_prices() -> None:
    simulation = _scenario(registry.make("hierarchical")).run(ROUND_S)
    snapshot = simulation.rounds[0].snapshot
    assert snapshot.teams == (TeamView("red", 3.0), TeamView("blue", 1.0, TeamOrder.FIFO))
    assert {of.name: of.price_per_hour for of in snapshot.gpu_types} == {
        "V100": 3.1,
        "P100": 2.0,
        "K80": 0.8,
    }
