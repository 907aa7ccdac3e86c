"""Teams by the snapshot: their weights, their queues, and what one of them cannot use."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.contract.plan import Plan
from policies.contract.snapshot import Snapshot, TeamOrder, TeamView
from policies.gavel.allocation.observe import Observed, observe
from policies.gavel.allocation.problem import Shares
from policies.gavel.allocation.rates import GroupingOptions
from policies.gavel.hierarchical import Hierarchical
from tests.builders_colocation import after
from tests.builders_gavel import with_teams_and_prices
from tests.builders_policies import a_job, a_kind, a_node, a_snapshot
from tests.builders_snapshots import snapshots

KINDS = [a_kind("k", {("V100", 1): 1.0})]
RED, BLUE = TeamView("red", 3.0), TeamView("blue")


def four_gpus(red: int, blue: int, *teams: TeamView) -> Snapshot:
    """So many jobs of each team, those of each in the order of their numbers."""
    jobs = [
        a_job(f"{team}{i}", team=team, arrival_s=10.0 * i)
        for team, n in (("red", red), ("blue", blue))
        for i in range(n)
    ]
    return a_snapshot([a_node(gpus=4)], jobs, KINDS, teams=teams)


def of_team(plan: Plan, team: str) -> float:
    return sum(sum(of.values()) for job, of in plan.shares.items() if job.startswith(team))


def test_teams_have_the_cluster_by_their_weights_however_many_jobs_they_have() -> None:
    plan = Hierarchical()(four_gpus(4, 8, RED, BLUE))
    assert [of_team(plan, team) for team in ("red", "blue")] == pytest.approx([3.0, 1.0])
    assert plan.shares["blue0"] == pytest.approx({"V100": 1.0 / 8.0})


def test_a_team_that_nobody_has_set_weighs_one_and_so_do_jobs_of_no_team() -> None:
    plan = Hierarchical()(four_gpus(8, 8))
    assert [of_team(plan, team) for team in ("red", "blue")] == pytest.approx([2.0, 2.0])
    jobs = [*four_gpus(8, 0).jobs, *(a_job(f"nobody{i}") for i in range(8))]
    assert of_team(
        Hierarchical()(a_snapshot([a_node(gpus=4)], jobs, KINDS)), "nobody"
    ) == pytest.approx(2.0)


def test_what_a_team_cannot_use_goes_to_the_others() -> None:
    plan = Hierarchical()(four_gpus(1, 8, RED, BLUE))
    assert [of_team(plan, team) for team in ("red", "blue")] == pytest.approx([1.0, 3.0])


def of_users(counts: dict[tuple[str, str], int], gpus: int, *teams: TeamView) -> Snapshot:
    """So many jobs of each user of each team."""
    jobs = [
        a_job(f"{team}-{user}-{i}", team=team, user=user)
        for (team, user), n in counts.items()
        for i in range(n)
    ]
    return a_snapshot([a_node(gpus=gpus)], jobs, KINDS, teams=teams)


def test_users_of_a_team_have_equal_parts_however_many_jobs_they_have() -> None:
    snapshot = of_users({("red", "ada"): 9, ("red", "bob"): 3, ("blue", "eve"): 8}, 4, RED, BLUE)
    plan = Hierarchical()(snapshot)
    assert [of_team(plan, who) for who in ("red-ada", "red-bob", "blue")] == pytest.approx(
        [1.5, 1.5, 1.0]
    )
    plan = Hierarchical(users=False)(snapshot)
    assert [of_team(plan, who) for who in ("red-ada", "red-bob", "blue")] == pytest.approx(
        [2.25, 0.75, 1.0]
    )


def test_what_a_user_cannot_use_goes_to_the_others_of_the_team_first() -> None:
    plan = Hierarchical()(
        of_users({("red", "ada"): 9, ("red", "bob"): 1, ("blue", "eve"): 8}, 4, RED, BLUE)
    )
    assert [of_team(plan, who) for who in ("red-ada", "red-bob", "blue")] == pytest.approx(
        [2.0, 1.0, 1.0]
    )


def test_a_user_of_two_teams_has_a_part_of_each() -> None:
    plan = Hierarchical()(
        of_users({("red", "ada"): 4, ("red", "bob"): 4, ("blue", "ada"): 8}, 4, RED, BLUE)
    )
    assert [of_team(plan, who) for who in ("red-ada", "red-bob", "blue-ada")] == pytest.approx(
        [1.5, 1.5, 1.0]
    )


def test_users_are_not_told_apart_in_a_team_with_a_queue() -> None:
    snapshot = of_users(
        {("blue", "ada"): 3, ("blue", "bob"): 3}, 2, replace(BLUE, order=TeamOrder.FIFO)
    )
    assert observe(snapshot, Hierarchical()._grouping(snapshot)).classes.entities == ("blue",)
    assert sorted(Hierarchical()(snapshot).shares) == ["blue-ada-0", "blue-ada-1"]


def filled(
    counts: dict[tuple[str, str], int], weights: dict[str, float], gpus: float
) -> dict[tuple[str, str], float]:
    """What each user has of like GPUs, by filling: all rise, each at its part of its team's weight,
    until it has a GPU a job.
    """
    had = dict.fromkeys(counts, 0.0)
    while (rising := [u for u in counts if had[u] < counts[u] - 1e-12]) and gpus > 1e-12:
        rate = {u: weights[u[0]] / sum(other[0] == u[0] for other in rising) for u in rising}
        step = min(gpus / sum(rate.values()), *((counts[u] - had[u]) / rate[u] for u in rising))
        had |= {u: had[u] + rate[u] * step for u in rising}
        gpus -= step * sum(rate.values())
    return had


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    counts=st.dictionaries(
        st.tuples(st.sampled_from(["red", "blue"]), st.sampled_from("abc")),
        st.integers(1, 5),
        min_size=1,
    ),
    weights=st.fixed_dictionaries({"red": st.floats(0.2, 5.0), "blue": st.floats(0.2, 5.0)}),
    gpus=st.integers(1, 8),
)
def test_users_have_what_filling_gives_on_gpus_that_are_alike(
    counts: dict[tuple[str, str], int], weights: dict[str, float], gpus: int
) -> None:
    teams = (TeamView(team, weight) for team, weight in weights.items())
    plan = Hierarchical()(of_users(counts, gpus, *teams))
    expected = filled(counts, weights, gpus)
    assert {u: of_team(plan, f"{u[0]}-{u[1]}-") for u in counts} == pytest.approx(
        expected, rel=1e-5, abs=1e-5
    )


def test_in_a_team_with_a_queue_who_came_first_goes_first() -> None:
    plan = Hierarchical()(four_gpus(4, 8, RED, replace(BLUE, weight=5.0, order=TeamOrder.FIFO)))
    assert {
        job: of["V100"] for job, of in plan.shares.items() if job.startswith("blue")
    } == pytest.approx({"blue0": 1.0, "blue1": 1.0, "blue2": 0.5})
    assert of_team(plan, "red") == pytest.approx(1.5)


@pytest.mark.parametrize(("inside", "having"), [("fairness", 8), ("fifo", 1), ("team", 1)])
def test_a_policy_may_say_how_all_teams_share_inside(inside: str, having: int) -> None:
    plan = Hierarchical(inside=inside)(four_gpus(4, 8, RED, replace(BLUE, order=TeamOrder.FIFO)))
    assert sum(job.startswith("blue") for job in plan.shares) == having


@pytest.mark.parametrize("changed", [replace(RED, weight=1.0), replace(RED, order=TeamOrder.FIFO)])
def test_shares_are_made_anew_when_a_team_changes(changed: TeamView) -> None:
    snapshot = four_gpus(4, 8, RED, BLUE)
    plan = Hierarchical()(snapshot)
    later = after(snapshot, plan, 300.0)
    assert Hierarchical()(replace(later, teams=(RED, BLUE))).memory["made_s"] == 1000.0
    assert Hierarchical()(replace(later, teams=(changed, BLUE))).memory["made_s"] == 1300.0


def test_jobs_of_teams_without_a_queue_are_shared_for_by_likeness() -> None:
    plan = Hierarchical()(four_gpus(50, 50, RED, BLUE))
    assert len(plan.memory["names"]) == 2


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=snapshots())
def test_a_queue_beside_teams_without_one_gives_what_it_would_with_every_job_told_apart(
    snapshot: Snapshot,
) -> None:
    snapshot = with_teams_and_prices(snapshot)
    policy = Hierarchical()
    together = observe(snapshot, policy._grouping(snapshot))
    apart = observe(snapshot, GroupingOptions(teams=True, jobs=True))
    found, expected = (
        policy._solver(observed, {})(observed.problem) for observed in (together, apart)
    )
    assert found.objective == pytest.approx(expected.objective, rel=1e-6)
    levels = (
        _levels(observed, shares) for observed, shares in ((together, found), (apart, expected))
    )
    assert next(levels) == pytest.approx(next(levels), rel=1e-5, abs=1e-6)


def _levels(observed: Observed, shares: Shares) -> dict[str, float]:
    """Throughput of each job."""
    ids, by_class = observed.snapshot.jobs.columns.ids, shares.throughput(observed.problem)
    return {
        ids[row]: float(by_class[m]) for row, m in enumerate(observed.classes.class_of) if m >= 0
    }


def test_only_jobs_of_a_team_with_a_queue_are_classes_of_their_own() -> None:
    snapshot = four_gpus(50, 20, RED, replace(BLUE, order=TeamOrder.FIFO))
    keys = observe(snapshot, Hierarchical()._grouping(snapshot)).classes.keys
    assert sorted(key for key in keys if key.startswith("blue")) == sorted(
        f"blue{i}" for i in range(20)
    )
    assert len(keys) == 21
