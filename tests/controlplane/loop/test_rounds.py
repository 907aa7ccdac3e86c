"""A round of the loop: whatever the policy does, what runs goes on unless a plan that breaks no
rule stops it.
"""

from dataclasses import replace
from math import nan

import pytest

from controlplane.loop.changes import changes, current_of
from controlplane.loop.rounds import Applied, Decision, LastPlan, RejectCode, RoundResult, run_round
from policies.baselines.fifo import Fifo
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.policy import PolicyError
from policies.contract.snapshot import JobPhase, NodeRole, Purpose, RankPlacement, Snapshot
from policies.contract.validation import validate_plan
from tests.builders_policies import (
    a_batch_job,
    a_job,
    a_node,
    a_profile_request,
    a_profile_run,
    a_snapshot,
    on,
)


class StillWorld:
    """A world that shows one snapshot, knows the last round's plan, and remembers the plan it was
    given and whose that was.
    """

    def __init__(self, snapshot: Snapshot, last: LastPlan | None = None) -> None:
        self.seen, self.last, self.given = snapshot, last, Plan("none", PlanStatus.KEPT)
        self.carried: int | None = None

    def snapshot(self) -> Snapshot:
        return self.seen

    def last_plan(self) -> LastPlan | None:
        return self.last

    def apply(self, decision: Decision) -> Applied:
        self.given, self.carried = decision.plan, decision.carried
        return Applied(changes(current_of(self.seen), decision.plan), decision.refused)


def busy() -> Snapshot:
    """One job runs, one waits, one is being profiled."""
    run = a_job("runs", running=on("n1", "gpu0", until_s=2000.0, steps_quota=7))
    return a_snapshot(jobs=[run, a_job("waits"), a_job("new", phase=JobPhase.PROFILING)])


def failing(error: Exception) -> RoundResult:
    def policy(snapshot: Snapshot) -> Plan:
        raise error

    return run_round(StillWorld(busy()), policy, name="broken")


def test_a_round_applies_what_the_policy_decides() -> None:
    world = StillWorld(busy())
    result = run_round(world, Fifo())
    assert result.failure is None
    assert world.given == result.plan
    assert {p.job for p in result.plan.placements} == {"runs", "waits"}


@pytest.mark.parametrize(
    "error", [PolicyError("no solution"), ZeroDivisionError("division by zero")]
)
def test_a_policy_that_fails_leaves_what_runs_and_says_why_the_others_wait(
    error: Exception,
) -> None:
    result = failing(error)
    assert str(error) in str(result.failure)
    plan = result.plan
    assert (plan.policy, plan.status, plan.message) == ("broken", PlanStatus.KEPT, result.failure)
    assert plan.placements == (
        Placement("runs", (RankPlacement("n1", ("gpu0",)),), steps_quota=7, until_s=2000.0),
    )
    assert plan.waiting == (
        Waiting("waits", WaitCode.SOLVER_FAILED),
        Waiting("new", WaitCode.AWAITING_PROFILE),
    )


def test_a_failed_round_keeps_the_policys_memory() -> None:
    world = StillWorld(replace(busy(), memory={"prices": [1, 2]}))

    def policy(snapshot: Snapshot) -> Plan:
        raise PolicyError("no")

    assert run_round(world, policy).plan.memory == {"prices": [1, 2]}


def test_gangs_that_break_a_rule_are_left_out_and_the_others_start() -> None:
    def greedy(snapshot: Snapshot) -> Plan:
        seat = (RankPlacement("n1", ("gpu0",)),)
        placements = tuple(Placement(job.id, seat, steps_quota=7) for job in snapshot.jobs)
        return Plan("greedy", PlanStatus.HEURISTIC, placements)

    result = run_round(StillWorld(busy()), greedy, name="greedy")
    assert result.failure is None
    assert [p.job for p in result.plan.placements] == ["runs"]
    assert {r.key[0]: r.code for r in result.applied.rejected} == {
        "waits": RejectCode.REFUSED,
        "new": RejectCode.REFUSED,
    }
    assert "device_slots" in next(r.detail for r in result.applied.rejected if r.key[0] == "waits")
    assert "2 jobs" in result.plan.message
    assert validate_plan(result.plan, busy()) == ()


def test_a_plan_that_forgets_a_running_job_does_not_stop_it() -> None:
    def forgetful(snapshot: Snapshot) -> Plan:
        return Plan("forgetful", PlanStatus.HEURISTIC)

    result = run_round(StillWorld(busy()), forgetful)
    assert "job_missing" in result.plan.message
    assert [p.job for p in result.plan.placements] == ["runs"]
    assert [type(c).__name__ for c in result.applied.changes] == ["Keep"]


def test_a_plan_whose_own_numbers_are_wrong_is_refused_as_a_whole() -> None:
    def vague(snapshot: Snapshot) -> Plan:
        return replace(Fifo()(snapshot), objective=nan)

    result = run_round(StillWorld(busy()), vague)
    assert result.plan.status is PlanStatus.KEPT
    assert "not_finite" in str(result.failure)


def test_a_batch_job_gets_what_a_bad_gang_would_have_taken() -> None:
    nodes = [a_node("n1", gpus=1, cores=4.0)]
    jobs = [
        a_job("bad", cores=4.0, labels=("fast",), arrival_s=0.0),
        a_batch_job("batch", cores=4.0, arrival_s=1.0),
    ]

    def blind(snapshot: Snapshot) -> Plan:
        seat = (RankPlacement("n1", ("gpu0",)),)
        ghost = Placement("ghost", seat)
        placements = tuple(Placement(job.id, seat) for job in snapshot.jobs)
        return Plan("blind", PlanStatus.HEURISTIC, (*placements, ghost))

    result = run_round(StillWorld(a_snapshot(nodes, jobs)), blind)
    assert [p.job for p in result.plan.placements] == ["batch"]
    assert {r.key[0] for r in result.applied.rejected} == {"bad", "ghost"}


def test_profile_runs_get_their_devices_before_the_policy_decides() -> None:
    nodes = [a_node("n1", "V100", 2, role=NodeRole.BOTH)]
    jobs = [a_job("new", phase=JobPhase.PROFILING), a_job("waits", gpus_max=2)]
    snapshot = a_snapshot(nodes, jobs, profiling=(a_profile_request("new"),))
    placements = run_round(StillWorld(snapshot), Fifo()).plan.placements
    by_job = {p.job: p for p in placements}
    assert by_job["new"].purpose is Purpose.PROFILING
    assert by_job["waits"].gpus == 1
    assert not set(by_job["new"].ranks[0].devices) & set(by_job["waits"].ranks[0].devices)


def test_a_failed_round_leaves_profile_runs_going() -> None:
    job = a_job("new", phase=JobPhase.PROFILING, running=(a_profile_run("n1", "gpu0"),))

    def policy(snapshot: Snapshot) -> Plan:
        raise PolicyError("no")

    result = run_round(StillWorld(a_snapshot(jobs=[job])), policy)
    assert [type(c).__name__ for c in result.applied.changes] == ["Keep"]
    assert result.plan.waiting == (Waiting("new", WaitCode.AWAITING_PROFILE),)
