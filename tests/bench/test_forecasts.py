"""The bench of forecasts: what it calls a forecast is what a user would have been told."""

from dataclasses import replace

import pytest

from experiments.bench.simulation.forecasts import Observer, run
from policies.contract.plan import Expected, Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import RankPlacement
from tests.builders_policies import a_job, a_node, a_snapshot

AT_300_S = Waiting("j", WaitCode.NO_CAPACITY, expected=Expected(300.0, None, ("n1",), 1))


def told(now_s: float, plan: Plan, observer: Observer) -> None:
    observer.policy = lambda snapshot: plan
    observer(replace(a_snapshot([a_node("n1")], [a_job("j")]), now_s=now_s))


def test_the_first_forecast_counts_and_is_held_against_the_start() -> None:
    observer = Observer(lambda snapshot: pytest.fail("no plan"))
    told(100.0, Plan("p", PlanStatus.FEASIBLE, waiting=(AT_300_S,)), observer)
    later = replace(AT_300_S, expected=Expected(500.0, None, ("n1",), 1))
    told(200.0, Plan("p", PlanStatus.FEASIBLE, waiting=(later,)), observer)
    started = Placement("j", (RankPlacement("n1", ("gpu0",)),))
    told(500.0, Plan("p", PlanStatus.FEASIBLE, placements=(started,)), observer)
    score = observer.score()
    assert score is not None
    assert (score.jobs, score.error, score.drift) == (1, 0.5, 0.5)


def test_a_policy_that_no_later_job_can_overtake_is_foretold_exactly() -> None:
    score = run("fifo", 1, 1.0, 1, jobs=40)
    assert score is not None
    assert score.jobs > 5
    assert score.inside == 1.0
    assert score.error < 1e-3
