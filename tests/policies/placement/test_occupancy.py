"""Occupancy: what it says fits breaks no rule; take then release leaves nothing behind."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from policies.contract.plan import (
    Placement,
    Plan,
    PlanStatus,
    RankPlacement,
    available,
    seat_demand,
    seat_demanded,
)
from policies.contract.snapshot import NodeView, Snapshot
from policies.contract.validation import validate_plan
from policies.placement.occupancy import Occupancy, SeatAmounts
from tests.builders_policies import a_device, a_job, a_node, a_snapshot

ON_NODES = {
    "device_slots", "device_share", "node_cores", "node_memory", "node_resource", "exclusive",
}  # fmt: skip
"""Rules that jobs on one node break together."""


@st.composite
def crowded_nodes(draw: st.DrawFn) -> Snapshot:
    """Two or three nodes whose devices have one or two slots, and jobs that may share them."""
    nodes = []
    for number in range(draw(st.integers(2, 3))):
        slots = draw(st.integers(1, 2))
        devices = tuple(a_device(f"gpu{i}", slots=slots) for i in range(draw(st.integers(1, 3))))
        cores = draw(st.sampled_from([1.0, 4.0, 8.0]))
        nodes.append(a_node(f"n{number}", devices=devices, cores=cores, memory_gb=8.0))
    jobs = [
        a_job(
            f"j{number}",
            gpus_max=8,
            may_share=True,
            cores=draw(st.sampled_from([0.0, 0.1, 1.0, 3.0])),
            memory_gb=draw(st.sampled_from([0.0, 3.0])),
            exclusive=draw(st.sampled_from([False, False, True])),
        )
        for number in range(draw(st.integers(1, 6)))
    ]
    return a_snapshot(nodes, jobs)


@st.composite
def seats(draw: st.DrawFn, nodes: tuple[NodeView, ...]) -> tuple[RankPlacement, ...]:
    """Seats on some of these nodes, one on each."""
    chosen = draw(st.lists(st.sampled_from(nodes), min_size=1, unique_by=lambda node: node.id))
    share = draw(st.sampled_from([1.0, 0.5]))
    ranks = []
    for node in chosen:
        names = [device.id for device in node.devices]
        devices = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        ranks.append(RankPlacement(node.id, tuple(devices), share))
    return tuple(ranks)


def an_occupancy(snapshot: Snapshot) -> Occupancy[str]:
    slots = {(n.id, d.id): d.slots for n in snapshot.nodes for d in n.devices}
    return Occupancy(slots, {node.id: amounts_of(node) for node in snapshot.nodes})


def amounts_of(node: NodeView) -> Mapping[str, int]:
    has = {"cores": node.cores, "memory_gb": node.memory_gb}
    return {name: available(amount) for name, amount in has.items()}


def with_amounts(snapshot: Snapshot, job: str, ranks: tuple[RankPlacement, ...]) -> SeatAmounts:
    columns, row = snapshot.jobs.columns, snapshot.jobs.position[job]
    of_unit = seat_demand(columns, row)
    return [(seat, seat_demanded(of_unit, seat.units, seat.cpu_quota)) for seat in ranks]


def in_the_way(
    occupancy: Occupancy[str], snapshot: Snapshot, job: str, ranks: tuple[RankPlacement, ...]
) -> bool:
    alone = snapshot.jobs.by_id(job).exclusive
    company = [occupancy.others_in_the_way(job, seat.node, alone=alone) for seat in ranks]
    short = occupancy.short_amounts(with_amounts(snapshot, job, ranks))
    return bool(occupancy.full_devices(ranks) or short or any(company))


@given(data=st.data())
def test_what_fits_breaks_no_rule_and_what_does_not_breaks_one(data: st.DataObject) -> None:
    snapshot = data.draw(crowded_nodes())
    occupancy = an_occupancy(snapshot)
    placed: list[Placement] = []
    for job in snapshot.jobs.columns.ids:
        ranks = data.draw(seats(snapshot.nodes))
        tried = Plan("p", PlanStatus.HEURISTIC, (*placed, Placement(job, ranks)))
        broken = {violation.code for violation in validate_plan(tried, snapshot)} & ON_NODES
        assert in_the_way(occupancy, snapshot, job, ranks) == bool(broken)
        if not broken:
            alone = snapshot.jobs.by_id(job).exclusive
            occupancy.take(job, job, with_amounts(snapshot, job, ranks), alone=alone)
            placed.append(Placement(job, ranks))


@given(data=st.data())
def test_take_then_release_is_the_identity(data: st.DataObject) -> None:
    snapshot = data.draw(crowded_nodes())
    occupancy = an_occupancy(snapshot)
    held: list[tuple[str, SeatAmounts]] = []
    states = []
    for job in snapshot.jobs.columns.ids:
        ranks = data.draw(seats(snapshot.nodes))
        if in_the_way(occupancy, snapshot, job, ranks):
            continue
        states.append(_facts(occupancy))
        held.append((job, with_amounts(snapshot, job, ranks)))
        occupancy.take(job, job, held[-1][1], alone=snapshot.jobs.by_id(job).exclusive)
    for (job, taken), before in zip(reversed(held), reversed(states), strict=True):
        occupancy.release(job, job, taken)
        assert _facts(occupancy) == before


def test_devices_that_several_hold_are_in_use_once() -> None:
    node = a_node(devices=(a_device("gpu0", slots=2),))
    occupancy = an_occupancy(a_snapshot([node], []))
    half = RankPlacement("n1", ("gpu0",), 0.5)
    for job in ("a", "b"):
        occupancy.take(job, job, [(half, {})], alone=False)
    assert occupancy.in_use["n1"] == 1
    assert occupancy.full_devices([replace(half, share=0.1)]) == [("n1", "gpu0")]
    occupancy.release("a", "a", [(half, {})])
    assert occupancy.holders(("n1", "gpu0")) == ["b"]


def _facts(occupancy: Occupancy[str]) -> object:
    """Return the held amounts, without zeros."""
    used = {
        (node, name): amount
        for node, of in occupancy.used.items()
        for name, amount in of.items()
        if amount
    }
    in_use = {node: devices for node, devices in occupancy.in_use.items() if devices}
    tenants = {node: dict(jobs) for node, jobs in occupancy.tenants.items() if jobs}
    return dict(occupancy.holds), used, in_use, tenants
