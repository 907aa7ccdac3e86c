"""A round of the loop: whatever the policy does, what runs goes on unless a plan that breaks no
rule stops it.
"""

from dataclasses import replace

import pytest

from controlplane.loop.changes import changes, current_of
from controlplane.loop.rounds import Applied, LastPlan, RoundResult, run_round
from policies.baselines.fifo import Fifo
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.policy import PolicyError
from policies.contract.snapshot import JobPhase, NodeRole, Purpose, RankPlacement, Snapshot
from tests.builders_policies import a_job, a_node, a_profile_request, a_profile_run, a_snapshot, on


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

    def apply(self, plan: Plan, carried: int | None = None) -> Applied:
        self.given, self.carried = plan, carried
        return Applied(changes(current_of(self.seen), plan))


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


def test_a_plan_that_breaks_a_rule_is_refused_and_the_rule_is_named() -> None:
    def greedy(snapshot: Snapshot) -> Plan:
        seat = (RankPlacement("n1", ("gpu0",)),)
        placements = tuple(Placement(job.id, seat) for job in snapshot.jobs)
        return Plan("greedy", PlanStatus.HEURISTIC, placements)

    result = run_round(StillWorld(busy()), greedy, name="greedy")
    assert result.plan.status is PlanStatus.KEPT
    assert "device_slots" in str(result.failure)


def test_a_plan_that_forgets_a_running_job_is_refused_rather_than_stopping_it() -> None:
    def forgetful(snapshot: Snapshot) -> Plan:
        return Plan("forgetful", PlanStatus.HEURISTIC)

    result = run_round(StillWorld(busy()), forgetful)
    assert "job_missing" in str(result.failure)
    assert "and 1 more" not in str(result.failure)
    assert [p.job for p in result.plan.placements] == ["runs"]


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
