"""A round that nothing but ended stops asks for carries out the plan that asked for those stops, as
long as that breaks no rule.
"""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from clusters.models import Reason
from controlplane.loop.changes import Keep, Start, changes, current_of
from controlplane.loop.rounds import ENDED_STOP, Applied, Decision, LastPlan, RoundResult, run_round
from policies.baselines.fifo import Fifo
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import (
    JobView,
    NodeState,
    NodeView,
    Purpose,
    RankPlacement,
    Snapshot,
    Trigger,
)
from tests.builders_policies import a_job, a_node, a_snapshot, on

STOPPED = Trigger((ENDED_STOP,), ("old",))


class StillWorld:
    """A world that shows one snapshot and knows what the last round came to."""

    def __init__(self, snapshot: Snapshot, last: LastPlan | None) -> None:
        self.seen, self.last = snapshot, last

    def snapshot(self) -> Snapshot:
        return self.seen

    def last_plan(self) -> LastPlan | None:
        return self.last

    def apply(self, decision: Decision) -> Applied:
        return Applied(changes(current_of(self.seen), decision.plan))


def placed(job: str, node: str = "n1", *devices: str) -> Placement:
    return Placement(job, (RankPlacement(node, devices or ("gpu0",)),), predicted_run_s=5.0)


def a_last_plan(
    *deferred: str, placements: Iterable[Placement] | None = None, waiting: Iterable[str] = ("old",)
) -> LastPlan:
    """Round 7 took its device from the job `old` for the job `new`, which waits for that stop;
    `stays` stays.
    """
    chosen = (
        (placed("stays", "n1", "gpu1"), placed("new")) if placements is None else tuple(placements)
    )
    left = tuple(Waiting(job, WaitCode.POSTPONED) for job in waiting)
    plan = Plan(
        "p", PlanStatus.OPTIMAL, chosen, left, objective=3.0, bound=3.0, memory={"prices": [1]}
    )
    return LastPlan(plan, 7, frozenset((job, Purpose.TRAINING, 0) for job in deferred or ("new",)))


def now(
    trigger: Trigger = STOPPED, *more: JobView, nodes: Iterable[NodeView] | None = None
) -> Snapshot:
    """The stop has ended: `old` waits, its device is free."""
    jobs = [a_job("old"), a_job("new"), a_job("stays", running=on("n1", "gpu1")), *more]
    return a_snapshot(None if nodes is None else list(nodes), jobs, trigger=trigger, seed=99)


def held(snapshot: Snapshot, last: LastPlan | None) -> RoundResult:
    return run_round(StillWorld(snapshot, last), Fifo())


def test_an_ended_stop_makes_no_new_decision() -> None:
    last = a_last_plan()
    result = held(now(), last)
    assert result.carried == 7
    assert result.plan.message == "carried out round 7's plan"
    assert (result.plan.placements, result.plan.waiting, result.plan.memory) == (
        last.plan.placements,
        last.plan.waiting,
        last.plan.memory,
    )
    assert [type(c) for c in result.applied.changes] == [Keep, Start]


def test_a_plan_that_was_decided_for_another_moment_has_no_objective_in_this_one() -> None:
    plan = held(now(), a_last_plan()).plan
    assert (plan.status, plan.objective, plan.bound) == (PlanStatus.OPTIMAL, None, None)


def test_what_waits_for_another_stop_still_under_way_goes_on_waiting() -> None:
    last = a_last_plan(
        "new",
        "later",
        placements=(placed("stays", "n1", "gpu1"), placed("new"), placed("later", "n2")),
    )
    result = held(now(STOPPED, a_job("later")), last)
    assert result.carried == 7
    assert {p.job for p in result.plan.placements} == {"stays", "new", "later"}


def test_a_stop_for_whose_devices_nobody_waits_leaves_everything_as_decided() -> None:
    last = a_last_plan(placements=[placed("stays", "n1", "gpu1")], waiting=("old", "new"))
    result = held(now(), last)
    assert (result.carried, [type(c) for c in result.applied.changes]) == (7, [Keep])


@pytest.mark.parametrize("reason", [r.value for r in Reason if r is not Reason.STOPPED])
def test_whatever_else_happens_makes_a_new_decision(reason: str) -> None:
    for reasons in ((reason,), (ENDED_STOP, reason), (reason, ENDED_STOP)):
        result = held(now(Trigger(reasons)), a_last_plan())
        assert result.carried is None
        assert result.plan.policy == "fifo"


def test_the_reason_for_which_plans_are_carried_out_is_the_one_that_the_live_world_writes() -> None:
    assert Reason.STOPPED.value == ENDED_STOP


def test_without_a_plan_to_carry_out_the_policy_decides() -> None:
    assert held(now(), None).carried is None


LOST = a_node("n1", "V100", 2, state=NodeState.LOST)
SICK = replace(
    a_node("n1", "V100", 2),
    devices=tuple(replace(d, healthy=d.id != "gpu0") for d in a_node("n1", "V100", 2).devices),
)


@pytest.mark.parametrize(
    "snapshot",
    [
        now(nodes=(LOST, a_node("n2", "T4", 1))),
        now(nodes=(SICK, a_node("n2", "T4", 1))),
        now(STOPPED, a_job("came_in")),
        replace(now(), power_cap_w=1.0),
    ],
    ids=["node lost", "device unhealthy", "a job it does not speak of", "power cap"],
)
def test_a_plan_that_breaks_a_rule_by_now_is_not_carried_out(snapshot: Snapshot) -> None:
    assert held(snapshot, a_last_plan()).carried is None


def test_a_plan_whose_term_is_over_is_not_carried_out() -> None:
    last = a_last_plan(
        placements=[placed("stays", "n1", "gpu1"), replace(placed("new"), until_s=1000.0)]
    )
    assert held(now(), last).carried is None


def test_what_ran_under_the_plan_and_has_ended_is_not_simply_started_again() -> None:
    """Its quota is used up, or its node was emptied: that was no stop of the plan's."""
    last = a_last_plan(
        placements=[placed("stays", "n1", "gpu1"), placed("new"), placed("old", "n2")], waiting=()
    )
    assert held(now(), last).carried is None


def test_a_plan_that_would_stop_something_more_is_not_carried_out() -> None:
    assert (
        held(now(), a_last_plan(placements=[placed("new")], waiting=("old", "stays"))).carried
        is None
    )


def test_devices_of_a_job_that_the_plan_does_not_know_are_free_for_all() -> None:
    """Somebody held or cancelled it: the plan could not count on what it has given back."""
    gone = now(Trigger((ENDED_STOP,), ("held",)))
    assert held(gone, a_last_plan()).carried is None


def test_the_last_plan_is_only_asked_for_where_it_matters() -> None:
    class Curious(StillWorld):
        def last_plan(self) -> LastPlan | None:
            raise AssertionError("reading it takes time")

    assert run_round(Curious(now(Trigger(("submission",))), None), Fifo()).carried is None
