"""Builders of problems: say rates and GPUs, the rest is plausible; and any small problem, for
hypothesis.

problem = a_problem([[2, 1, 0.5], [3, 2, 1]], gpus=[1, 2, 3])
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from policies.gavel.allocation.problem import AllocationProblem, Column

T0_T1 = [[2.0, 1.0, 0.5], [3.0, 2.0, 1.0]]
"""steps/s of two jobs on V100, P100 and K80, of which Gavel's small examples are made."""
PairRates = Mapping[tuple[int, int], Sequence[tuple[float, float]]]


def a_problem(
    rates: Sequence[Sequence[float]],
    gpus: Sequence[float],
    *,
    pairs: PairRates | None = None,
    spread: Sequence[int] = (),
    **fields: Sequence[Any],
) -> AllocationProblem:
    """Classes of one job on one GPU with weight 1, of one entity, a column for each GPU type;
    `pairs` gives rates by column.

    `spread` names types which have a second column, of GPUs of several nodes: after the others, in
    that order.
    """
    jobs, types = len(rates), [f"type{t}" for t in range(len(gpus))]
    given: dict[str, Any] = {
        "count": np.ones(jobs, dtype=np.int64),
        "scale": np.ones(jobs, dtype=np.int64),
        "weight": np.ones(jobs),
        "entity": np.zeros(jobs, dtype=np.int64),
    }
    given.update(
        {name: np.asarray(value, dtype=given[name].dtype) for name, value in fields.items()}
    )
    columns = (*(Column(name) for name in types), *(Column(types[t], spread=True) for t in spread))
    return AllocationProblem(
        types=tuple(types),
        gpus=np.asarray(gpus, dtype=np.float64),
        columns=columns,
        column_type=np.array([*range(len(types)), *spread], dtype=np.int64),
        rates=np.asarray(rates, dtype=np.float64).reshape(jobs, len(columns)),
        pairs=np.array(sorted(pairs or {}), dtype=np.int64).reshape(-1, 2),
        pair_rates=np.array(
            [(pairs or {})[p] for p in sorted(pairs or {})], dtype=np.float64
        ).reshape(-1, len(columns), 2),
        **given,
    )


def jobs_of(problem: AllocationProblem) -> AllocationProblem:
    """The same problem with each job in a class of its own, and every pair of jobs whose classes
    pair.
    """
    of = np.repeat(np.arange(len(problem.count)), problem.count)
    known = {
        (int(a), int(b)): rates
        for (a, b), rates in zip(problem.pairs, problem.pair_rates, strict=True)
    }
    pairs = {
        (i, j): known[of[i], of[j]]
        for i in range(len(of))
        for j in range(i + 1, len(of))
        if (of[i], of[j]) in known
    }
    return replace(
        problem,
        **{name: getattr(problem, name)[of] for name in ("rates", "scale", "weight", "entity")},
        count=np.ones(len(of), dtype=np.int64),
        pairs=np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2),
        pair_rates=np.array([pairs[p] for p in sorted(pairs)]).reshape(-1, len(problem.columns), 2),
    )


def many_like_jobs(seed: int, jobs: int = 40) -> AllocationProblem:
    """Jobs of a few kinds that gain unlike much from three types, with four weights: many ties,
    which rounding may undo.
    """
    rng = np.random.default_rng(seed)
    kinds = (
        rng.lognormal(0.0, 1.5, (12, 1))
        * rng.uniform(1.0, 10.0, (12, 3))
        * (rng.random((12, 3)) < 0.7)
    )
    kind, scale = rng.integers(0, 12, jobs), rng.choice([1, 2, 4, 8], 12)
    together = [
        (i, j)
        for i in range(jobs)
        for j in range(i + 1, jobs)
        if scale[kind[i]] == scale[kind[j]] and (i + j) % 4 == 0
    ]
    return a_problem(
        kinds[kind].tolist(),
        rng.integers(1, 40, 3).tolist(),
        pairs={
            (i, j): _slowed(kinds[kind[i]].tolist(), kinds[kind[j]].tolist(), 0.7, 0.6)
            for i, j in together
        },
        scale=scale[kind].tolist(),
        weight=rng.choice([1.0, 2.0, 0.3, 5.0], jobs).tolist(),
    )


speeds = st.one_of(st.just(0.0), st.integers(1, 40).map(lambda n: n / 4.0))


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    most: int = 4,
    counts: int = 3,
    pairing: bool = True,
    types: int = 3,
    entities: int = 1,
) -> AllocationProblem:
    """Up to `most` classes of up to `counts` jobs on up to `types` types, some of which some jobs
    cannot use.
    """
    classes, kinds = draw(st.integers(1, most)), draw(st.integers(1, types))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=classes, max_size=classes))

    rates = column(st.lists(speeds, min_size=kinds, max_size=kinds))
    scale, count = column(st.sampled_from([1, 1, 2])), column(st.integers(1, counts))
    found = (
        draw(st.sets(st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1))))
        if pairing
        else set()
    )
    pairs = {
        (a, b): _beside(draw, rates[a], rates[b], a == b)
        for a, b in found
        if a <= b and scale[a] == scale[b]
    }
    return a_problem(
        rates,
        draw(st.lists(st.integers(1, 4), min_size=kinds, max_size=kinds)),
        pairs=pairs,
        scale=scale,
        count=count,
        weight=column(st.sampled_from([1.0, 1.0, 2.0, 0.5])),
        entity=column(st.integers(0, entities - 1)),
    )


def _beside(
    draw: st.DrawFn, first: Sequence[float], second: Sequence[float], alike: bool
) -> list[tuple[float, float]]:
    part, other = draw(st.floats(0.4, 0.9)), draw(st.floats(0.4, 0.9))
    return _slowed(first, second, part, part if alike else other)


def _slowed(
    first: Sequence[float], second: Sequence[float], part: float, other: float
) -> list[tuple[float, float]]:
    """Parts of both rates where both run, else none of either."""
    return [
        (a * part, b * other) if a and b else (0.0, 0.0) for a, b in zip(first, second, strict=True)
    ]
