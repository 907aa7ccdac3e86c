"""The paper's worked example (figure 1): three gangs on two V100, three P100 and a K80.

Figure 1 shows five rounds, which breaks constraint (1e): whole gangs need six, of one type or
mixed, by exhaustive search. Five rounds need elastic gangs.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product

from policies.contract.plan import Running
from policies.contract.snapshot import (
    DeviceView,
    JobColumns,
    JobPhase,
    Jobs,
    JobView,
    KindView,
    NodeView,
    RankPlacement,
    SlotHold,
    Snapshot,
    Source,
    Throughput,
)
from policies.contract.validation import validate_plan
from policies.hadar.hadar import Hadar

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


@cache
def decided_rounds(
    *, may_mix: bool, elastic: bool, utility: str = "critical_path"
) -> tuple[int, float]:
    """Return (rounds, part of the GPUs in use) of the policy until all jobs are done."""
    kinds = tuple(_kind(job) for job in WANTED)
    left = dict(EPOCHS)
    running: dict[str, tuple[RankPlacement, ...]] = {}
    used = 0
    for number in range(1, 20):
        jobs = [_job(job, left[job], running.get(job, ()), elastic, may_mix) for job in left]
        now_s = 1000.0 + number * ROUND_S
        snapshot = Snapshot(
            "example", now_s, ROUND_S, 1, _nodes(running), kinds, Jobs(JobColumns.of(jobs))
        )
        plan = Hadar(utility=utility)(snapshot)
        assert validate_plan(plan, snapshot) == ()
        running = {placed.job: placed.ranks for placed in plan.placements}
        for placed in plan.placements:
            used += placed.gpus
            counts = {seat.node: len(seat.devices) for seat in placed.ranks}
            of_types = tuple(counts.get(name, 0) for name in TYPES)
            left[placed.job] -= progress(placed.job, of_types)
        left = {job: epochs for job, epochs in left.items() if epochs > 1e-9}
        running = {job: ranks for job, ranks in running.items() if job in left}
        if not left:
            return number, used / (number * MOST)
    raise AssertionError("the jobs never end")


def _nodes(running: Mapping[str, Sequence[RankPlacement]]) -> tuple[NodeView, ...]:
    """Return a node of each type; GPUs of running jobs are held."""
    held: dict[tuple[str, str], tuple[SlotHold, ...]] = {}
    for job, ranks in running.items():
        for seat in ranks:
            for device in seat.devices:
                held[seat.node, device] = (SlotHold(job),)
    nodes = []
    for name, gpus in zip(TYPES, GPUS, strict=True):
        devices = []
        for number in range(gpus):
            device = f"gpu{number}"
            devices.append(DeviceView(device, 16.0, held=held.get((name, device), ())))
        watts = tuple(100.0 * (in_use + 1) for in_use in range(gpus + 1))
        nodes.append(NodeView(name, name, name, tuple(devices), watts))
    return tuple(nodes)


def _job(
    job: str, left: float, ranks: tuple[RankPlacement, ...], elastic: bool, may_mix: bool
) -> JobView:
    least = 1 if elastic else WANTED[job]
    most = MOST if elastic else WANTED[job]
    return JobView(
        job, job, 0.0, left, least, most,
        total_steps=EPOCHS[job],
        running=(Running(0, ranks, 0.0),) if ranks else (),
        phase=JobPhase.RUNNING if ranks else JobPhase.WAITING,
        may_mix=may_mix,
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
