"""The placement engine against brute force, on random small clusters."""

from copy import deepcopy
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.contract.plan import Placement
from policies.contract.snapshot import PROFILING, JobPhase, NodeView, RankPlacement
from policies.placement.cluster_state import ClusterState, ShortageCode, why_not
from policies.placement.from_snapshot import left_beside
from policies.placement.layout import DEVICES, Allocation, Layout, Request, Span
from policies.placement.timeline import earliest
from tests.builders_policies import a_batch_job, a_device, a_job, a_node, a_snapshot, on
from tests.policies.placement.brute_force import BruteForce

RESOURCES = ("cores", "memory_gb")
random = st.randoms(use_true_random=False)


def a_random_node(rng: Random, n: int) -> NodeView:
    gpus = rng.choice([0, 1, 2, 4])
    curve = [0.0, *[rng.choice([10.0, 50.0, 200.0]) for _ in range(gpus)]]
    idle_w = rng.choice([0.0, 100.0, 300.0])
    slots = rng.choice([1, 1, 2])
    return a_node(
        f"n{n}",
        rng.choice("AB"),
        devices=tuple(
            a_device(f"g{i}", healthy=rng.random() < 0.9, slots=rng.choice([slots, 3]))
            for i in range(gpus)
        ),
        power_w=tuple(idle_w + sum(curve[: g + 1]) for g in range(gpus + 1)),
        cores=rng.choice([2.0, 4.0, 8.0]),
        memory_gb=rng.choice([3.0, 6.0, inf]),
        labels=tuple(label for label in "xy" if rng.random() < 0.6),
    )


def a_random_request(rng: Random, layout: Layout) -> Request:
    span = rng.choice(list(Span))
    units, gpus = rng.choice([(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (4, 1), (1, 0), (3, 0)])
    if span in (Span.ONE_TYPE, Span.MIXED):
        gpus = max(gpus, 1)
    slots = rng.choice([1, 1, 1, 2, 3]) if gpus else 1
    return layout.request(
        gpus,
        {"cores": rng.choice([0.0, 0.0, 1.0, 2.0]), "memory_gb": rng.choice([0.0, 1.0, 3.0])},
        units=units,
        span=span,
        types=rng.choice([(), (), ("A", "B"), ("B",)]),
        labels=rng.choice([(), (), (), ("x",)]),
        per_node={"cores": rng.choice([0.0, 1.0])},
        nodes=rng.choice([0, 0, 2, 3]) if span is not Span.ONE_NODE else 0,
        slots=slots if layout.devices_at(slots) is not None else 1,
    )


class Pair:
    """The engine and the oracle, given the same things."""

    def __init__(self, rng: Random) -> None:
        self.nodes = [a_random_node(rng, n) for n in range(rng.choice([1, 2, 3, 4]))]
        if rng.random() < 0.5:
            alike = self.nodes[0]
            self.nodes += [replace(alike, id=f"m{i}") for i in range(rng.choice([0, 1]))]
        self.layout = Layout(self.nodes, RESOURCES)
        self.cap_mw = rng.choice([inf, inf, 600_000, 900_000])
        self.state = ClusterState(self.layout, self.cap_mw)
        self.oracle = BruteForce(self.layout, self.nodes, self.cap_mw)
        self.jobs = 0

    def take(self, allocation: Allocation, end_s: float) -> None:
        self.state.take(allocation, self.jobs, end_s)
        self.oracle.held.append(allocation)
        self.oracle.check()
        self.jobs += 1

    def release(self, job: Any) -> None:
        allocation = self.state.held[job].allocation
        self.state.release(allocation, job)
        self.oracle.held.remove(allocation)

    def close(self, n: int) -> None:
        self.state.close(n)
        self.oracle.closed.add(n)


def contents(state: ClusterState) -> Any:
    found = (state.free, state.idle, state.groups, state.order, state.used_mw, state.held)
    return deepcopy(found)


def a_filled_pair(rng: Random, steps: int) -> Pair:
    pair = Pair(rng)
    for _ in range(steps):
        if pair.state.held and rng.random() < 0.3:
            pair.release(rng.choice(list(pair.state.held)))
        elif rng.random() < 0.05:
            pair.close(rng.randrange(len(pair.nodes)))
        elif found := pair.state.find(a_random_request(rng, pair.layout)):
            pair.take(found, rng.choice([10.0, 20.0, 30.0, inf]))
    return pair


@settings(max_examples=60, deadline=None)
@given(rng=random)
def test_finds_an_allocation_exactly_if_there_is_one(rng: Random) -> None:
    pair = Pair(rng)
    for _ in range(12):
        request = a_random_request(rng, pair.layout)
        found, options = pair.state.find(request), list(pair.oracle.options(request))
        assert (found is not None) == bool(options)
        if found is not None:
            assert tuple(sorted((p.node, p.units) for p in found.parts)) in options
            pair.take(found, inf)
        elif pair.state.held:
            pair.release(rng.choice(list(pair.state.held)))


@settings(max_examples=40, deadline=None)
@given(rng=random)
def test_fits_and_places_on_given_nodes_as_brute_force_does(rng: Random) -> None:
    pair = a_filled_pair(rng, 6)
    request = replace(a_random_request(rng, pair.layout), nodes=0)
    for n in range(len(pair.nodes)):
        assert pair.state.fits(request, n) == pair.oracle.fits(request, ((n, request.units),))
    chosen = rng.sample(range(len(pair.nodes)), rng.randint(1, len(pair.nodes)))
    where = tuple((n, rng.randint(1, request.units)) for n in chosen)
    placed = pair.state.place(request, where)
    assert (placed is not None) == pair.oracle.has_room(request, where)


@settings(max_examples=40, deadline=None)
@given(rng=random)
def test_uses_the_fewest_nodes_of_one_type_without_a_power_cap(rng: Random) -> None:
    pair = a_filled_pair(rng, 6)
    pair.state.cap_mw = pair.oracle.cap_mw = inf
    request = replace(a_random_request(rng, pair.layout), span=Span.ONE_TYPE, nodes=0)
    found = pair.state.find(request)
    if found is not None:
        of_type = pair.nodes[found.parts[0].node].gpu_type
        options = pair.oracle.options(replace(request, types=(of_type,)))
        assert len(found.parts) == min(len(where) for where in options)


@settings(max_examples=40, deadline=None)
@given(rng=random)
def test_release_undoes_take_in_any_order(rng: Random) -> None:
    pair = a_filled_pair(rng, 8)
    before, taken = contents(pair.state), []
    for job in range(100, 104):
        if found := pair.state.find(a_random_request(rng, pair.layout)):
            pair.state.take(found, job)
            taken.append((found, job))
    rng.shuffle(taken)
    for allocation, job in taken:
        pair.state.release(allocation, job)
    assert contents(pair.state) == before


@settings(max_examples=40, deadline=None)
@given(rng=random)
def test_refuses_what_is_not_free_and_changes_nothing(rng: Random) -> None:
    pair = a_filled_pair(rng, 8)
    before = contents(pair.state)
    for hold in list(pair.state.held.values()):
        if any(part.devices for part in hold.allocation.parts):
            with pytest.raises(ValueError, match="not free"):
                pair.state.take(hold.allocation)
    assert contents(pair.state) == before


@settings(max_examples=40, deadline=None)
@given(rng=random)
def test_a_copy_is_a_state_of_its_own(rng: Random) -> None:
    pair = a_filled_pair(rng, 6)
    before, trial = contents(pair.state), pair.state.copy()
    if found := trial.find(a_random_request(rng, pair.layout)):
        trial.take(found, "new")
    trial.close(0)
    assert contents(pair.state) == before
    assert pair.state.open == trial.open or pair.state.open & 1 != trial.open & 1


@settings(max_examples=40, deadline=None)
@given(rng=random)
def test_knows_when_a_request_will_fit(rng: Random) -> None:
    pair = a_filled_pair(rng, 8)
    request = a_random_request(rng, pair.layout)
    found = earliest(pair.state, lambda state: state.find(request), 5.0)
    if pair.state.find(request):
        assert found is not None
        assert found[0] == 5.0
        return
    expected, oracle = None, pair.oracle
    ends = sorted((h.end_s, j) for j, h in pair.state.held.items() if h.end_s < inf)
    for end_s, job in ends:
        oracle = oracle.without([pair.state.held[job].allocation])
        if any(True for _ in oracle.options(request)):
            expected = end_s
            break
    assert (found and found[0]) == expected
    if found is not None:
        assert all(hold.end_s > found[0] for hold in found[1].held.values())
        assert found[1].find(request) is not None


@settings(max_examples=60, deadline=None)
@given(rng=random)
def test_says_what_is_missing_to_the_milliwatt(rng: Random) -> None:
    pair = a_filled_pair(rng, 8)
    request = a_random_request(rng, pair.layout)
    shortage, uncapped = why_not(pair.state, request), replace(pair.oracle, cap_mw=inf)
    if any(True for _ in pair.oracle.options(request)):
        assert shortage is None
        return
    assert shortage is not None
    has_capacity = any(True for _ in uncapped.options(request))
    assert (shortage.code is ShortageCode.POWER_CAP) == has_capacity
    if has_capacity:
        more = pair.cap_mw + shortage.missing_mw
        assert any(True for _ in replace(pair.oracle, cap_mw=more).options(request))
        assert not any(True for _ in replace(pair.oracle, cap_mw=more - 1).options(request))


def test_best_fit_leaves_large_nodes_free() -> None:
    nodes = [a_node("large", gpus=4), a_node("small", gpus=2)]
    state = ClusterState(Layout(nodes))
    found = state.find(Request(gpus=2))
    assert found is not None
    assert found.parts[0].node == 1


def test_jobs_that_share_a_device_need_as_many_slots() -> None:
    devices = (a_device("one"), a_device("three", slots=3))
    layout = Layout([a_node("n", devices=devices)])
    found = ClusterState(layout).find(layout.request(1, {}, slots=3))
    assert found is not None
    assert layout.ids(0, found.parts[0].devices) == ("three",)
    assert ClusterState(layout).find(layout.request(1, {}, slots=4)) is None
    assert layout.request(1, {}).devices_at == DEVICES


def test_devices_that_a_job_holds_already_come_first() -> None:
    layout = Layout([a_node("n", gpus=4)])
    state = ClusterState(layout)
    wanted = layout.bits(0, {"gpu2"})
    assert layout.ids(0, state.devices(Request(gpus=2), 0, 1, wanted)) == ("gpu0", "gpu2")


def test_placements_leave_what_they_do_not_take() -> None:
    node = a_node("n1", gpus=4, cores=8.0, memory_gb=8.0)
    jobs = [a_job("a", cores=2.0, memory_gb=1.0), a_job("waits", cores=1.0)]
    placed = Placement("a", (RankPlacement("n1", ("gpu1",), cpu_quota=3.0),))
    state = left_beside(a_snapshot([node], jobs), (placed,))
    billion = 10**9
    assert state.free == [(3, 5 * billion, 7 * billion)]
    assert state.idle == [0b1101]


def test_exclusive_placement_closes_its_nodes() -> None:
    nodes = [a_node("n1", cores=4.0), a_node("n2", cores=4.0)]
    job = a_batch_job("a", exclusive=True, cores=1.0)
    state = left_beside(a_snapshot(nodes, [job]), (Placement("a", (RankPlacement("n1", ()),)),))
    assert state.open & 0b11 == 0b10


def test_cores_without_limit_still_draw_the_power_of_their_node() -> None:
    node = a_node("n1", gpus=1, power_w=(300.0, 400.0))
    snapshot = a_snapshot([node], [a_batch_job("a", cores=1.0)], power_cap_w=500.0)
    state = left_beside(snapshot, (Placement("a", (RankPlacement("n1", ()),)),))
    assert state.cap_mw - state.used_mw == 200_000


def test_profile_run_that_goes_on_counts_once() -> None:
    run = replace(on("n1", "gpu0")[0], purpose=PROFILING)
    job = a_job("a", cores=3.0, phase=JobPhase.PROFILING, running=(run,))
    snapshot = a_snapshot([a_node("n1", gpus=2, cores=8.0)], [job])
    placed = Placement("a", run.ranks, run.copy, PROFILING)
    state = left_beside(snapshot, (placed,))
    assert state.free == [(1, 5 * 10**9)]
