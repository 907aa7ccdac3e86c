"""Builders of simulated clusters whose devices have room for two, and of what their jobs must come
to.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any

from hypothesis import strategies as st

from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.world.run import Simulation
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import (
    JobView,
    KindView,
    NodeView,
    PairThroughput,
    PriceInterval,
    RankPlacement,
    Snapshot,
    Source,
    Throughput,
)
from tests.builders_colocation import a_wide_node
from tests.builders_policies import a_device, a_job, a_node

FLAT = (PriceInterval(0.0, inf, 0.2, 1.5),)


def kinds_of_two(a_beside_b: float = 0.5, b_beside_a: float = 0.8) -> tuple[KindView, KindView]:
    """Kinds "a" and "b" of 1 step/s on a V100 and 1.8 on two; what each keeps beside the other."""
    alone = (
        Throughput("V100", 1, 1.0, Source.MEASURED),
        Throughput("V100", 2, 1.8, Source.MEASURED),
    )
    pair = PairThroughput("b", "V100", a_beside_b, b_beside_a, Source.MEASURED)
    return KindView("a", throughputs=alone, pairs=(pair,)), KindView("b", throughputs=alone)


def a_scenario_of_two(
    nodes: Sequence[NodeView] = (), kinds: Sequence[KindView] = (), **fields: Any
) -> Scenario:
    """One V100 with room for two, unless other nodes are given."""
    return Scenario(
        tuple(nodes) or (a_wide_node(),), tuple(kinds) or kinds_of_two(), FLAT, **fields
    )


class Script:
    """A policy that gives jobs the seats of a table, as long as `present` says so; the others
    wait.
    """

    def __init__(
        self,
        seats: Mapping[str, tuple[RankPlacement, ...]],
        absent: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self.seats, self.absent = seats, absent or {}

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Jobs wait from the first to the second time that `absent` says, and while their node
        takes nothing.
        """
        jobs, out = [job.id for job in snapshot.jobs], self.absent
        away = {j for j in jobs if j in out and out[j][0] <= snapshot.now_s < out[j][1]}
        away |= {
            j
            for j in jobs
            if not all(snapshot.node_by_id[seat.node].takes_training for seat in self.seats[j])
        }
        placed = tuple(Placement(j, self.seats[j]) for j in jobs if j not in away)
        return Plan(
            "script",
            PlanStatus.HEURISTIC,
            placed,
            tuple(Waiting(j, WaitCode.POSTPONED) for j in jobs if j in away),
        )


def half_of(*devices: str, node: str = "n1", share: float = 0.5) -> tuple[RankPlacement, ...]:
    """A seat on shares of a node's devices."""
    return (RankPlacement(node, devices, share),)


def a_pair_member(job: str, steps: float = 100.0, **fields: Any) -> JobView:
    """A job that may share, of the kind of its first letter."""
    given = {"kind": job[0], "remaining_steps": steps, "total_steps": steps, "may_share": True}
    return a_job(job, **{**given, **fields})


def launches_of(simulation: Simulation) -> list[Launch]:
    """All launches, in order."""
    return [launch for job in simulation.state.jobs.values() for launch in job.launches]


def steps_by_integral(simulation: Simulation, launch: Launch, setup_s: float) -> float:
    """Steps that a launch of one GPU must have done, worked out from who held its GPU when: the
    integral of its rates.
    """
    (seat,) = launch.ranks
    others = [
        other
        for other in launches_of(simulation)
        if other.number != launch.number
        and other.ranks[0].node == seat.node
        and set(other.ranks[0].devices) & set(seat.devices)
    ]
    begins_s = min(launch.start_s + setup_s, launch.end_s)
    edges = sorted(
        {
            begins_s,
            launch.end_s,
            *(t for o in others for t in (o.start_s, o.end_s) if begins_s < t < launch.end_s),
        }
    )
    done = 0.0
    for from_s, to_s in pairwise(edges):
        there = [o for o in others if o.start_s <= from_s and o.end_s >= to_s]
        done += (to_s - from_s) * _true_rate(simulation.state.scenario, launch, there)
    return done


def _true_rate(scenario: Scenario, launch: Launch, there: Sequence[Launch]) -> float:
    kinds = {k.id: k for k in scenario.kinds}
    gpu_type = next(n.gpu_type for n in scenario.nodes if n.id == launch.ranks[0].node)
    own = kinds[launch.job[0]]
    if not there:
        return next(
            t.steps_per_s
            for t in own.throughputs
            if t.gpu_type == gpu_type and t.gpus == len(launch.ranks[0].devices)
        )
    (other,) = there
    told = [
        (p.steps_per_s, p) for p in own.pairs if p.other == other.job[0] and p.gpu_type == gpu_type
    ]
    told += [
        (p.other_steps_per_s, p)
        for p in kinds[other.job[0]].pairs
        if p.other == own.id and p.gpu_type == gpu_type
    ]
    return sum(rate for rate, _ in told) / len(told) if own.id == other.job[0] else told[0][0]


NAMES = ("a", "b", "c")
PARTS = st.sampled_from([0.0, 0.3, 0.5, 0.75, 0.9, 1.0])


@st.composite
def shared_scenarios(draw: st.DrawFn) -> tuple[Scenario, list[JobView]]:
    """Some nodes of two types, devices with one slot or two, kinds that get on more or less, and
    jobs of one GPU or two.
    """
    slots = draw(
        st.lists(
            st.lists(st.sampled_from([1, 2, 2]), min_size=1, max_size=2), min_size=1, max_size=3
        )
    )
    devices = [tuple(a_device(f"gpu{d}", slots=s) for d, s in enumerate(of)) for of in slots]
    nodes = [
        a_node(f"n{i}", draw(st.sampled_from(["V100", "T4"])), devices=of)
        for i, of in enumerate(devices)
    ]
    speeds = {"V100": 2.0, "T4": 0.5}
    pairs = {
        (one, other, t): (draw(PARTS), draw(PARTS))
        for i, one in enumerate(NAMES)
        for other in NAMES[i:]
        for t in speeds
    }
    kinds = tuple(_kind(name, speeds, pairs) for name in NAMES)
    jobs = [
        a_pair_member(
            f"{draw(st.sampled_from(NAMES))}{i}",
            float(draw(st.integers(1, 400))),
            arrival_s=float(draw(st.integers(0, 300))),
            may_share=draw(st.booleans()) or i < 2,
            gpus_min=(gpus := draw(st.sampled_from([1, 1, 1, 2]))),
            gpus_max=gpus,
        )
        for i in range(draw(st.integers(2, 7)))
    ]
    setup: dict[str, Any] = {
        "launch_s": draw(st.sampled_from([0.0, 3.0])),
        "restart_cost_s": draw(st.sampled_from([0.0, 5.0])),
    }
    scenario = Scenario(
        tuple(nodes),
        kinds,
        FLAT,
        round_s=draw(st.sampled_from([30.0, 60.0])),
        seed=draw(st.integers(0, 99)),
        **setup,
    )
    return scenario, jobs


def _kind(
    name: str,
    speeds: Mapping[str, float],
    pairs: Mapping[tuple[str, str, str], tuple[float, float]],
) -> KindView:
    alone = tuple(
        Throughput(t, g, speed * (1.0, 1.7)[g - 1], Source.MEASURED)
        for t, speed in speeds.items()
        for g in (1, 2)
    )
    told = tuple(
        PairThroughput(other, t, speeds[t] * own, speeds[t] * others, Source.MEASURED)
        for (one, other, t), (own, others) in pairs.items()
        if one == name
    )
    return KindView(name, throughputs=alone, pairs=told)
