"""A team's limit of GPUs: policies see no more of its jobs than may run, and no plan exceeds it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.loop.rounds import decide
from controlplane.loop.team_limits import within_team_limits
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode
from policies.contract.snapshot import (
    JobView,
    RankPlacement,
    SlotHold,
    Snapshot,
    TeamView,
)
from policies.contract.validation import validate_plan
from policies.host import registry
from tests.builders_policies import a_batch_job, a_device, a_job, a_node, a_snapshot, on
from tests.builders_snapshots import snapshots

POLICIES: dict[str, dict[str, Any]] = {
    "fifo": {},
    "edf": {},
    "area_backfilling": {},
    "cost_search": {"moves": 20},
    "randomized_greedy": {"iterations": 20},
    "max_min_fairness": {},
    "hierarchical": {},
    "gandiva": {},
}


def limited(jobs: list[JobView], most: int | None, gpus: int = 8, **fields: Any) -> Snapshot:
    """A cluster of one node whose team `red` may use `most` GPUs."""
    nodes = fields.pop("nodes", [a_node("n1", "V100", gpus)])
    return a_snapshot(nodes, jobs, teams=(TeamView("red", max_gpus=most),), **fields)


def red(name: str, gpus: int = 1, **fields: Any) -> JobView:
    return a_job(name, **{"team": "red", "gpus_min": gpus, "gpus_max": gpus, **fields})


def shown(snapshot: Snapshot) -> list[str]:
    return [job.id for job in within_team_limits(snapshot)[0].jobs]


def held_back(snapshot: Snapshot) -> list[str]:
    return [entry.job for entry in within_team_limits(snapshot)[1]]


def test_a_team_without_a_limit_is_shown_as_it_is() -> None:
    snapshot = limited([red("a"), red("b")], None)
    assert within_team_limits(snapshot) == (snapshot, ())


def test_as_many_jobs_are_shown_as_the_team_may_run_and_the_rest_is_told_why() -> None:
    snapshot = limited([red(name) for name in "abcd"] + [a_job("other", team="blue")], 3)
    assert shown(snapshot) == ["a", "b", "c", "other"]
    (entry,) = within_team_limits(snapshot)[1]
    assert (entry.job, entry.code, entry.gpus, entry.team) == ("d", WaitCode.TEAM_LIMIT, 3, "red")


def test_what_runs_takes_room_and_stays_though_it_is_above_the_limit() -> None:
    runs = [red("r1", running=on("n1", "gpu0")), red("r2", running=on("n1", "gpu1"))]
    assert shown(limited([*runs, red("a"), red("b")], 3)) == ["r1", "r2", "a"]
    assert shown(limited([*runs, red("a")], 1)) == ["r1", "r2"]
    plan = decide(limited([*runs, red("a")], 1), registry.make("fifo"))
    assert {p.job for p in plan.placements} == {"r1", "r2"}


def test_greater_priority_then_earlier_arrival_goes_first() -> None:
    jobs = [red("late", arrival_s=9.0), red("early", arrival_s=1.0), red("urgent", priority=1)]
    assert held_back(limited(jobs, 1)) == ["late", "early"]
    assert held_back(limited(jobs, 2)) == ["late"]


def test_a_large_job_is_not_passed_by_small_ones_until_there_is_room_for_it() -> None:
    runs = red("r", gpus=2, running=on("n1", "gpu0", "gpu1"))
    jobs = [runs, red("large", gpus=4, arrival_s=1.0), red("small", arrival_s=2.0)]
    assert held_back(limited(jobs, 4)) == ["large", "small"]


def test_a_job_larger_than_the_limit_waits_and_holds_nobody_back() -> None:
    jobs = [red("large", gpus=4, arrival_s=1.0), red("small", arrival_s=2.0)]
    assert held_back(limited(jobs, 2)) == ["large"]


def test_jobs_that_cannot_start_now_leave_the_room_to_those_that_can() -> None:
    busy = a_job("busy", team="blue", running=on("t", "gpu0"))
    nodes = [a_node("v", "V100", 2), a_node("t", "T4", 1)]
    never = red("never", arrival_s=0.0, allowed_types=("A100",))
    later = red("later", arrival_s=1.0, allowed_types=("T4",))
    now = [red("a", arrival_s=2.0), red("b", arrival_s=3.0)]
    snapshot = limited([busy, never, later, *now], 2, nodes=nodes)
    assert held_back(snapshot) == ["later"]
    plan = decide(snapshot, registry.make("fifo"))
    codes = {entry.job: entry.code for entry in plan.waiting}
    assert codes == {"never": WaitCode.TYPES_UNAVAILABLE, "later": WaitCode.TEAM_LIMIT}


def test_an_elastic_job_is_shown_with_what_its_team_may_still_use() -> None:
    grows = red("grows", gpus=1, gpus_max=8, running=on("n1", "gpu0"))
    view = within_team_limits(limited([grows, red("next", gpus=1, gpus_max=4)], 5))[0]
    assert {job.id: job.gpus_max for job in view.jobs} == {"grows": 4, "next": 1}


def test_devices_of_a_job_that_is_being_stopped_are_still_its_teams() -> None:
    held = [a_device(f"gpu{i}", held=(SlotHold("stops"),)) for i in range(2)]
    node = a_node("n1", "V100", 8, devices=(*held, *[a_device(f"gpu{i}") for i in range(2, 8)]))
    jobs = [red("stops", gpus=2), red("a", arrival_s=1.0), red("b", arrival_s=2.0)]
    assert held_back(limited(jobs, 3, nodes=[node])) == ["b"]


def test_batch_jobs_and_jobs_without_gpus() -> None:
    jobs = [
        a_batch_job("b1", gpus_per_unit=1, units=2, team="red"),
        a_batch_job("b2", gpus_per_unit=1, team="red", arrival_s=1.0),
        a_batch_job("cpu", team="red", arrival_s=2.0),
    ]
    plan = decide(limited(jobs, 2), registry.make("fifo"))
    assert {p.job for p in plan.placements} == {"b1", "cpu"}
    assert [entry.code for entry in plan.waiting] == [WaitCode.TEAM_LIMIT]


def test_a_plan_that_exceeds_a_limit_breaks_the_rules() -> None:
    snapshot = limited([red("a"), red("b")], 1)
    seats = [RankPlacement("n1", (f"gpu{i}",)) for i in range(2)]
    placed = tuple(Placement(job, (seat,)) for job, seat in zip("ab", seats, strict=True))
    (found,) = validate_plan(Plan("p", PlanStatus.HEURISTIC, placed), snapshot)
    assert str(found) == "team_gpus: team red would use 2 GPUs, and may use 1: leave some waiting"
    lowered = limited([red("a", running=on("n1", "gpu0")), red("b", running=on("n1", "gpu1"))], 1)
    assert validate_plan(Plan("p", PlanStatus.HEURISTIC, placed), lowered) == ()


def test_others_get_the_gpus_that_a_limited_team_may_not_use() -> None:
    jobs = [red(f"r{i}", priority=9) for i in range(6)] + [a_job(f"b{i}") for i in range(6)]
    plan = decide(limited(jobs, 2), registry.make("priority"))
    assert sum(p.job.startswith("r") for p in plan.placements) == 2
    assert sum(p.job.startswith("b") for p in plan.placements) == 6


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_policy_exceeds_a_limit_or_fails_for_it(name: str, data: st.DataObject) -> None:
    snapshot, most = data.draw(snapshots()), data.draw(st.integers(0, 6))
    teams = data.draw(st.lists(st.sampled_from(["red", "blue"]), min_size=10, max_size=10))
    columns = snapshot.jobs.columns
    others = {**columns.others, "team": tuple(teams[: len(columns.ids)])}
    given_ = replace(
        snapshot,
        jobs=type(snapshot.jobs)(replace(columns, others=others)),
        teams=(TeamView("red", max_gpus=most), TeamView("blue")),
    )
    plan = decide(given_, registry.make(name, POLICIES[name]), name)
    used = sum(
        p.gpus for p in plan.placements if others["team"][given_.jobs.position[p.job]] == "red"
    )
    runs = [
        max(sum(r.gpus for r in of), int(columns.counts["gpus_min"][row]))
        for row, of in enumerate(columns.others["running"])
        if of and others["team"][row] == "red"
    ]
    assert used <= max(most, sum(runs))
