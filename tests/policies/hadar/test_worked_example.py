"""The paper's worked example (figure 1): three gangs on two V100, three P100 and a K80.

Figure 1 shows five rounds, which breaks constraint (1e): whole gangs need six, of one type or
mixed, by exhaustive search. Five rounds need elastic gangs.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import pytest

from policies.contract.snapshot import (
    JobView,
    KindView,
    RankPlacement,
    Running,
    Source,
    Throughput,
)
from policies.contract.validation import validate_plan
from policies.hadar.hadar import Hadar
from tests.builders_policies import a_job, a_node, a_snapshot

TYPES = ("V100", "P100", "K80")
GPUS = (2, 3, 1)
RATES = {"j1": (40.0, 20.0, 30.0), "j2": (5.0, 15.0, 5.0), "j3": (10.0, 2.0, 20.0)}
"""Epochs per round of the whole gang on each type."""
WANTED = {"j1": 3, "j2": 2, "j3": 2}
EPOCHS = {"j1": 80.0, "j2": 30.0, "j3": 50.0}
ROUND_S = 100.0
MOST = sum(GPUS)


def progress(job: str, counts: tuple[int, ...]) -> float:
    """Epochs that a job does in a round on these GPUs; its slowest worker sets the pace."""
    slowest = min(rate for rate, gpus in zip(RATES[job], counts, strict=True) if gpus)
    return slowest * sum(counts) / WANTED[job]


# ---- the least number of rounds, by exhaustive search


def fewest_rounds(*, may_mix: bool, elastic: bool) -> int:
    """Return the least number of rounds until all jobs are done."""
    gains = _maximal_gains(may_mix, elastic)
    states = {tuple(EPOCHS.values())}
    for number in range(1, 20):
        following = set()
        for state in states:
            for gain in gains:
                left = tuple(max(0.0, a - b) for a, b in zip(state, gain, strict=True))
                following.add(left)
        states = _not_dominated(following)
        if any(sum(state) < 1e-9 for state in states):
            return number
    raise AssertionError("the jobs never end")


def _maximal_gains(may_mix: bool, elastic: bool) -> set[tuple[float, ...]]:
    """Epochs of the three jobs in a round, of all ways to give the GPUs that none beats."""
    ways = [_ways(job, may_mix, elastic) for job in WANTED]
    gains = set()
    for choice in product(*ways):
        taken = [sum(counts[t] for counts in choice) for t in range(len(GPUS))]
        if all(a <= b for a, b in zip(taken, GPUS, strict=True)):
            gain = [
                progress(job, counts) if any(counts) else 0.0
                for job, counts in zip(WANTED, choice, strict=True)
            ]
            gains.add(tuple(gain))
    negative = _not_dominated({tuple(-g for g in gain) for gain in gains})
    return {tuple(-g for g in gain) for gain in negative}


def _ways(job: str, may_mix: bool, elastic: bool) -> list[tuple[int, ...]]:
    """Return the GPUs by type that a job may have in a round."""
    every = product(*[range(gpus + 1) for gpus in GPUS])
    sizes = range(MOST + 1) if elastic else (0, WANTED[job])
    return [
        counts for counts in every
        if sum(counts) in sizes and (may_mix or sum(map(bool, counts)) <= 1)
    ]  # fmt: skip


def _not_dominated(states: set[tuple[float, ...]]) -> set[tuple[float, ...]]:
    """Return the states without those that have no less left of anything than another one."""
    kept: list[tuple[float, ...]] = []
    for state in sorted(states, key=sum):
        if not any(all(a <= b for a, b in zip(other, state, strict=True)) for other in kept):
            kept.append(state)
    return set(kept)


# ---- the policy, round by round


@cache
def decided_rounds(
    *, may_mix: bool, elastic: bool, utility: str = "critical_path"
) -> tuple[int, float]:
    """Return (rounds, part of the GPUs in use) of the policy until all jobs are done."""
    nodes = [a_node(name, name, gpus) for name, gpus in zip(TYPES, GPUS, strict=True)]
    left = dict(EPOCHS)
    running: dict[str, tuple[RankPlacement, ...]] = {}
    used = 0
    for number in range(1, 20):
        fields: dict[str, Any] = {"may_mix": may_mix}
        jobs = [_job(job, left[job], running.get(job, ()), elastic, **fields) for job in left]
        now_s = 1000.0 + number * ROUND_S
        kinds = [_kind(job) for job in left]
        snapshot = a_snapshot(nodes, jobs, kinds, now_s=now_s, round_s=ROUND_S)
        plan = Hadar(utility=utility)(snapshot)
        assert validate_plan(plan, snapshot) == ()
        running = {placed.job: placed.ranks for placed in plan.placements}
        for placed in plan.placements:
            used += placed.gpus
            counts = {seat.node: len(seat.devices) for seat in placed.ranks}
            of_types = tuple(counts.get(name, 0) for name in TYPES)
            left[placed.job] -= progress(placed.job, of_types)
        left = {job: epochs for job, epochs in left.items() if epochs > 1e-9}
        if not left:
            return number, used / (number * MOST)
    raise AssertionError("the jobs never end")


def _job(
    job: str, left: float, ranks: tuple[RankPlacement, ...], elastic: bool, **fields: Any
) -> JobView:
    running = (Running(0, ranks, 0.0),) if ranks else ()
    least = 1 if elastic else WANTED[job]
    most = MOST if elastic else WANTED[job]
    return a_job(
        job, job, gpus_min=least, gpus_max=most, remaining_steps=left, total_steps=EPOCHS[job],
        running=running, **fields,
    )  # fmt: skip


def _kind(job: str) -> KindView:
    """Speeds over nodes as on one, as in the paper; a step is an epoch."""
    return KindView(job, throughputs=tuple(_throughputs(job)))


def _throughputs(job: str) -> Iterator[Throughput]:
    for name, rate in zip(TYPES, RATES[job], strict=True):
        for gpus in range(1, MOST + 1):
            speed = rate / ROUND_S * gpus / WANTED[job]
            for spread in (False, True):
                yield Throughput(name, gpus, speed, Source.MEASURED, spread=spread)


@pytest.mark.parametrize("may_mix", [False, True])
def test_whole_gangs_need_six_rounds(may_mix: bool) -> None:
    assert fewest_rounds(may_mix=may_mix, elastic=False) == 6


def test_elastic_gangs_need_five_rounds_at_most() -> None:
    assert fewest_rounds(may_mix=True, elastic=True) <= 5


@pytest.mark.parametrize("may_mix", [False, True])
def test_the_policy_ends_whole_gangs_in_six_rounds(may_mix: bool) -> None:
    number, _ = decided_rounds(may_mix=may_mix, elastic=False, utility="effective_throughput")
    assert number == 6


def test_the_policy_ends_elastic_gangs_in_five_rounds() -> None:
    number, part_in_use = decided_rounds(may_mix=True, elastic=True)
    assert number == 5
    assert part_in_use > 0.5
