"""Any snapshot that the contract allows, for hypothesis."""

from dataclasses import dataclass, field
from math import inf
from typing import Any

from hypothesis import strategies as st

from policies.contract.snapshot import (
    JobPhase,
    KindView,
    NodeRole,
    NodeState,
    NodeView,
    PowerCapStep,
    PriceInterval,
    RankPlacement,
    Running,
    SlotHold,
    Snapshot,
)
from tests.builders_policies import (
    a_device,
    a_job,
    a_kind,
    a_node,
    a_profile_request,
    a_profile_run,
    a_snapshot,
)

NOW_S = 1000.0
TYPES = ("V100", "T4", "A100")
TARIFF = (
    PriceInterval(0.0, 1040.0, 0.3, 1.33, 300.0),
    PriceInterval(1040.0, 1100.0, 0.02, 1.2, 50.0),
    PriceInterval(1100.0, inf, 0.2, 1.33),
)
POWER_CAPS = (
    PowerCapStep(0.0, 1200.0, 1300.0),
    PowerCapStep(1200.0, 1400.0, 800.0),
    PowerCapStep(2000.0, inf, 0.0),
)
"""Of now, and of a time before the next round."""


@dataclass
class _Free:
    """Devices nobody holds yet, so that running jobs never overlap."""

    devices: dict[str, list[str]] = field(default_factory=dict)


@st.composite
def nodes(draw: st.DrawFn, number: int) -> NodeView:
    """A node of any state and role, a device of which may be broken."""
    gpus = draw(st.integers(1, 4))
    broken = draw(st.one_of(st.none(), st.integers(0, gpus - 1)))
    state = draw(st.sampled_from([NodeState.READY] * 5 + list(NodeState)))
    limits: dict[str, Any] = {}
    if draw(st.booleans()):
        limits = {
            "cores": draw(st.sampled_from([2.0, 4.0, 8.0])),
            "memory_gb": draw(st.sampled_from([4.0, 16.0])),
        }
    return a_node(
        f"n{number}",
        draw(st.sampled_from(TYPES)),
        gpus,
        devices=tuple(
            a_device(f"gpu{i}", healthy=i != broken, held=draw(_ghosts())) for i in range(gpus)
        ),
        state=state,
        drain_until_s=draw(st.sampled_from([None, 900.0, 1050.0, 5000.0]))
        if state is NodeState.DRAINING
        else None,
        role=draw(st.sampled_from([NodeRole.PRODUCTION] * 4 + list(NodeRole))),
        labels=draw(st.sampled_from([(), (), ("imagenet",)])),
        resources=draw(st.sampled_from([(), (("fpga", 1.0),)])),
        **limits,
    )


def _ghosts() -> st.SearchStrategy[tuple[SlotHold, ...]]:
    """Rarely a hold of a job that the snapshot does not know."""
    return st.sampled_from([()] * 19 + [(SlotHold("ghost"),)])


@st.composite
def kinds(draw: st.DrawFn, number: int) -> KindView:
    """A kind known on some types and counts, sublinear."""
    known = draw(st.sets(st.sampled_from([(t, g) for t in TYPES for g in range(1, 5)])))
    speed = {t: draw(st.floats(0.01, 10.0)) for t in TYPES}
    return a_kind(
        f"k{number}",
        {(t, g): speed[t] * g**0.7 for t, g in sorted(known)},
        setup_s=draw(st.sampled_from([0.0, 5.0])),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Up to five nodes and ten jobs, some running, some profiling, with caps, due dates, labels,
    scarce resources, dependencies.
    """
    seats = tuple(draw(nodes(i)) for i in range(draw(st.integers(0, 5))))
    known = tuple(draw(kinds(i)) for i in range(draw(st.integers(1, 3))))
    free = _Free({n.id: [d.id for d in n.devices] for n in seats})
    jobs = [draw(_jobs(i, known, seats, free)) for i in range(draw(st.integers(0, 10)))]
    profiling = tuple(
        a_profile_request(
            j.id,
            draw(st.sampled_from(TYPES)),
            draw(st.integers(1, 3)),
            kind=j.kind,
            copy=5,
            since_s=draw(st.floats(0.0, NOW_S)),
        )
        for j in jobs
        if draw(st.integers(0, 3)) == 0
    )
    return a_snapshot(
        seats,
        jobs,
        known,
        seed=draw(st.integers(0, 2**63 - 1)),
        power_cap_w=draw(st.sampled_from([None, None, None, 0.0, 600.0, 1500.0])),
        power_caps=draw(st.sampled_from([(), (), POWER_CAPS])),
        energy=draw(st.sampled_from([(), a_snapshot().energy, TARIFF])),
        emissions_cost_per_kg=draw(st.sampled_from([0.0, 0.1])),
        profiling=profiling,
    )


@st.composite
def _jobs(
    draw: st.DrawFn,
    number: int,
    known: tuple[KindView, ...],
    seats: tuple[NodeView, ...],
    free: _Free,
) -> Any:
    least = draw(st.integers(1, 3))
    most = draw(st.integers(least, 4))
    running = draw(_running(least, most, seats, free))
    phase = (
        JobPhase.RUNNING
        if running
        else draw(st.sampled_from([JobPhase.WAITING, JobPhase.WAITING, JobPhase.PROFILING]))
    )
    if draw(st.integers(0, 9)) == 0:
        running = running + draw(_profile_run(seats, free))
    return a_job(
        f"j{number}",
        draw(st.sampled_from(known)).id,
        arrival_s=draw(st.floats(0.0, NOW_S)),
        remaining_steps=draw(st.sampled_from([0.0, 1.0, 100.0, 1e6])),
        total_steps=1e6,
        gpus_min=least,
        gpus_max=most,
        phase=phase,
        running=running,
        due_s=draw(st.sampled_from([inf, -50.0, 900.0, 1001.0, 1100.0, 1e5])),
        tardiness_weight=draw(st.sampled_from([0.0, 0.001, 1.0, 5.0])),
        may_mix=draw(st.booleans()),
        priority=draw(st.integers(-2, 2)),
        cores=draw(st.sampled_from([0.0, 0.0, 1.0, 3.0])),
        memory_gb=draw(st.sampled_from([0.0, 0.0, 2.0, 8.0])),
        resources=draw(st.sampled_from([(), (), (("fpga", 1.0),)])),
        allowed_types=draw(st.sampled_from([(), (), ("V100",), ("T4", "A100"), ("H100",)])),
        labels=draw(st.sampled_from([(), (), (), ("imagenet",)])),
        restart_cost_s=draw(st.sampled_from([0.0, 30.0])),
        dependencies=draw(st.sampled_from([(), (), ("j0",), ("gone",)])) if number else (),
    )


@st.composite
def _running(
    draw: st.DrawFn, least: int, most: int, seats: tuple[NodeView, ...], free: _Free
) -> tuple[Running, ...]:
    """Mostly on one node with a fitting count; now and then over two nodes, as two copies, on a
    part of its devices, or on too many devices (the job was changed since).
    """
    if not seats or draw(st.integers(0, 2)) == 0:
        return ()
    ranks = [
        s
        for s in (
            draw(_seat(least, most + 1, seats, free))
            for _ in range(draw(st.sampled_from([1, 1, 1, 1, 2])))
        )
        if s.devices
    ]
    if not ranks:
        return ()
    if len(ranks) == 2 and draw(st.booleans()):
        return tuple(Running(copy, (rank,), 0.0) for copy, rank in enumerate(ranks))
    return (Running(0, tuple(ranks), 0.0),)


@st.composite
def _seat(
    draw: st.DrawFn, least: int, most: int, seats: tuple[NodeView, ...], free: _Free
) -> RankPlacement:
    node, gpus = draw(st.sampled_from(seats)), draw(st.integers(least, most))
    devices = free.devices[node.id][:gpus]
    del free.devices[node.id][: len(devices)]
    return RankPlacement(node.id, tuple(devices), draw(st.sampled_from([1.0, 1.0, 1.0, 1.0, 0.5])))


@st.composite
def _profile_run(draw: st.DrawFn, seats: tuple[NodeView, ...], free: _Free) -> tuple[Running, ...]:
    candidates = [n.id for n in seats if free.devices[n.id] and n.role is not NodeRole.PRODUCTION]
    if not candidates:
        return ()
    node = draw(st.sampled_from(candidates))
    return (a_profile_run(node, free.devices[node].pop(), copy=7),)
