"""Very unlike speeds, weights, steps and counts of GPUs: every program finds shares, and they fit
to 1e-6.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.base import agnostic
from policies.gavel.solvers.cost import CostForm, Slos, min_cost
from policies.gavel.solvers.fairness import Entity, fair_shares, fairness, hierarchical_shares
from policies.gavel.solvers.finish_time import makespan
from policies.gavel.solvers.totals import first_in_first_out, shortest_job_first, total_throughput
from tests import textbook_shares as textbook
from tests.builders_shares import a_problem

MOST = 6
ENTITIES = [Entity(1e-3), Entity(1.0), Entity(1e6)]
RATES = st.sampled_from([0.0, 1e-6, 1e-3, 0.7, 1.0, 40.0, 1e3, 1e6])
STEPS = st.lists(st.sampled_from([1.0, 50.0, 1e4, 1e9]), min_size=MOST, max_size=MOST)

Ask = Callable[[AllocationProblem, np.ndarray], Shares]
PROGRAMS: dict[str, Ask] = {
    "fairness": lambda d, steps: fairness(d, fill=True),
    "water filling": lambda d, steps: fair_shares(d),
    "hierarchy": lambda d, steps: hierarchical_shares(d, ENTITIES),
    "makespan": lambda d, steps: makespan(d, steps),
    "first come": lambda d, steps: first_in_first_out(d, np.arange(len(steps))),
    "shortest": lambda d, steps: shortest_job_first(d, steps),
    "throughput": lambda d, steps: total_throughput(d),
    "cost": lambda d, steps: min_cost(d, _cost(d), floor=0.1),
    "published cost": lambda d, steps: min_cost(d, _cost(d), floor=0.1, form=CostForm.PUBLISHED),
    "SLOs": lambda d, steps: min_cost(
        d, _cost(d), floor=0.1, slos=Slos(steps, np.resize([3e4, np.inf, 3e7], len(steps)))
    ),
}


def _cost(problem: AllocationProblem) -> np.ndarray:
    return np.resize([100.0, 1.0, 0.01], len(problem.types))


@st.composite
def unlike(draw: st.DrawFn) -> AllocationProblem:
    """Up to six classes on up to three types, of which some have no GPU or more than there are
    jobs, and some run nothing.
    """
    classes, types = draw(st.integers(0, MOST)), draw(st.integers(1, 3))

    def each(*values: Any) -> list[Any]:
        return draw(st.lists(st.sampled_from(values), min_size=classes, max_size=classes))

    rates = draw(
        st.lists(
            st.lists(RATES, min_size=types, max_size=types), min_size=classes, max_size=classes
        )
    )
    scale, count = each(1, 1, 2, 8), each(1, 1, 3, 500)
    alike = [(a, b) for a in range(classes) for b in range(a, classes) if scale[a] == scale[b]]
    found = draw(st.sets(st.sampled_from(alike))) if alike else set()
    return a_problem(
        rates,
        draw(st.lists(st.sampled_from([0, 1, 2, 36, 1000]), min_size=types, max_size=types)),
        pairs={(a, b): _beside(rates[a], rates[b]) for a, b in found},
        scale=scale,
        count=count,
        weight=each(1e-3, 1.0, 1.0, 5.0, 1e6),
        entity=each(0, 1, 2),
    )


def _beside(first: Sequence[float], second: Sequence[float]) -> list[tuple[float, float]]:
    return [
        (0.6 * a, 0.6 * b) if a and b else (0.0, 0.0) for a, b in zip(first, second, strict=True)
    ]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("blind", [False, True])
@settings(max_examples=25, deadline=None)
@given(problem=unlike(), steps=STEPS)
def test_shares_are_found_and_fit_however_unlike_the_numbers_are(
    name: str, blind: bool, problem: AllocationProblem, steps: list[float]
) -> None:
    left = np.array(steps[: len(problem.count)])

    def ask(given: AllocationProblem) -> Shares:
        return PROGRAMS[name](given, left)

    shares = agnostic(ask, problem) if blind else ask(problem)
    assert textbook.excess(problem, shares) <= 1e-6 * max(
        1.0, float(problem.count.max(initial=1)), float(problem.gpus.max())
    )
    assert not np.isnan(shares.objective)
    assert (shares.throughput(problem)[problem.fastest_rates == 0.0] == 0.0).all()
