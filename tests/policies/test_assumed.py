"""Results that rest on an unknown speed are told to nobody."""

from dataclasses import replace

import pytest

from policies.contract.assumed import without_assumed_times
from policies.contract.plan import Expected, Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import (
    JobColumns,
    Jobs,
    JobView,
    KindView,
    RankPlacement,
    Snapshot,
    Source,
    Throughput,
)


def a_snapshot(source: Source) -> Snapshot:
    known = KindView("known", throughputs=(Throughput("V100", 1, 2.0, Source.MEASURED),))
    other = KindView("other", throughputs=(Throughput("V100", 1, 2.0, source),))
    jobs = [JobView(f"{kind}-{n}", kind, 0.0, 10.0) for kind in ("known", "other") for n in "ab"]
    return Snapshot("c", 0.0, 60.0, 1, (), (known, other), Jobs(JobColumns.of(jobs)))


PLACED = [Placement(f"{k}-a", (RankPlacement("n", ("0",)),), predicted_run_s=5.0,
                    predicted_energy_cost=1.0) for k in ("known", "other")]  # fmt: skip
WAITING = [
    Waiting(f"{k}-b", WaitCode.NO_CAPACITY, expected=Expected(5.0, 10.0, (f"{k} node",), 1))
    for k in ("known", "other")
]
PLAN = Plan("p", PlanStatus.HEURISTIC, tuple(PLACED), tuple(WAITING))


def test_run_times_ends_and_costs_of_assumed_speeds_are_left_out() -> None:
    plan = without_assumed_times(PLAN, a_snapshot(Source.ASSUMED))
    unknown = replace(PLACED[1], predicted_run_s=None, predicted_energy_cost=None)
    assert plan.placements == (PLACED[0], unknown)
    own = replace(WAITING[1], expected=Expected(5.0, None, ("other node",), 1))
    assert plan.waiting == (WAITING[0], own)


@pytest.mark.parametrize(
    ("start_s", "nodes", "is_known"),
    [
        (5.0, ("n",), False),
        (5.0, ("elsewhere", "n"), False),
        (5.0, (), False),
        (5.0, ("elsewhere",), True),
        (0.0, ("n",), False),
    ],
)
def test_a_start_behind_a_run_of_unknown_length_is_unknown(
    start_s: float, nodes: tuple[str, ...], is_known: bool
) -> None:
    waiting = replace(WAITING[0], expected=Expected(start_s, 10.0, nodes, 1))
    plan = without_assumed_times(replace(PLAN, waiting=(waiting,)), a_snapshot(Source.ASSUMED))
    assert (plan.waiting[0].expected is not None) is is_known


def test_a_start_behind_an_expected_run_of_unknown_length_is_unknown() -> None:
    behind = Waiting("known-b", WaitCode.NO_CAPACITY, expected=Expected(9.0, 10.0, ("other node",)))
    plan = replace(PLAN, waiting=(behind, WAITING[1]))
    found = without_assumed_times(plan, a_snapshot(Source.ASSUMED))
    assert [w.expected is None for w in found.waiting] == [True, False]


def test_estimated_speeds_are_told() -> None:
    assert without_assumed_times(PLAN, a_snapshot(Source.ESTIMATED)) is PLAN
