"""Conservative backfilling: every waiting job has a reservation, which nobody delays."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.loop.rounds import decide
from policies.batch.backfilling import Backfilling
from policies.batch.conservative import MEMORY
from policies.batch.fit import FITS
from policies.batch.orders import ORDERS
from policies.contract.plan import Plan, WaitCode
from policies.contract.snapshot import JobPhase, JobView, RankPlacement
from tests.builders_policies import a_batch_job, a_cpu_node, a_node, a_snapshot, on, seated

NODES = (
    a_cpu_node("c1", cores=4.0),
    a_cpu_node("c2", cores=8.0, resources=(("mic", 2.0),)),
    a_node("n1", "V100", 2, cores=4.0),
)
CONSERVATIVE = Backfilling(backfill="conservative")


def expected(plan: Plan) -> dict[str, tuple[float, tuple[str, ...]]]:
    """Expected start and nodes of each waiting job that has a reservation."""
    return {
        w.job: (w.expected.start_s, w.expected.nodes)
        for w in plan.waiting
        if w.expected is not None
    }


def test_every_waiting_job_is_told_when_and_where_it_starts_and_whom_it_waits_for() -> None:
    jobs = [
        a_batch_job("runs", cores=4.0, walltime_s=200.0, running=on("c1", since_s=900.0)),
        a_batch_job("first", cores=4.0, walltime_s=50.0, arrival_s=1.0),
        a_batch_job("second", cores=3.0, walltime_s=50.0, arrival_s=2.0),
        a_batch_job("third", cores=1.0, walltime_s=500.0, arrival_s=3.0),
    ]
    plan = decide(a_snapshot([NODES[0]], jobs), CONSERVATIVE)
    assert expected(plan) == {
        "first": (1100.0, ("c1",)),
        "second": (1150.0, ("c1",)),
        "third": (1150.0, ("c1",)),
    }
    assert {(w.code, w.jobs) for w in plan.waiting} == {(WaitCode.NO_CAPACITY, ("runs",))}


def test_a_job_that_easy_lets_pass_waits_if_it_would_delay_the_second_one() -> None:
    jobs = [
        a_batch_job("runs", cores=2.0, walltime_s=200.0, running=on("c1", since_s=900.0)),
        a_batch_job("wide", cores=3.0, walltime_s=100.0, arrival_s=1.0),
        a_batch_job("widest", cores=4.0, walltime_s=100.0, arrival_s=2.0),
        a_batch_job("long", cores=1.0, walltime_s=900.0, arrival_s=3.0),
    ]
    snapshot = a_snapshot([NODES[0]], jobs)
    easy, conservative = decide(snapshot, Backfilling()), decide(snapshot, CONSERVATIVE)
    assert [p.job for p in easy.placements] == ["runs", "long"]
    assert [p.job for p in conservative.placements] == ["runs"]
    assert list(expected(easy)) == ["wide"]


def test_an_exclusive_job_has_a_reservation_on_a_node_of_its_own() -> None:
    jobs = [
        a_batch_job("runs", cores=1.0, walltime_s=200.0, running=on("c1", since_s=900.0)),
        a_batch_job("alone", exclusive=True, walltime_s=100.0, arrival_s=1.0),
        a_batch_job("long", cores=1.0, walltime_s=900.0, arrival_s=2.0),
        a_batch_job("short", cores=1.0, walltime_s=100.0, arrival_s=3.0),
    ]
    for policy in (Backfilling(), CONSERVATIVE):
        plan = decide(a_snapshot([NODES[0]], jobs), policy)
        assert [p.job for p in plan.placements] == ["runs", "short"]
        assert expected(plan)["alone"] == (1100.0, ("c1",))


def test_a_reservation_whose_node_is_gone_is_made_anew() -> None:
    jobs = [
        a_batch_job("r1", cores=4.0, walltime_s=200.0, running=on("c1", since_s=900.0)),
        a_batch_job("r2", cores=8.0, walltime_s=900.0, running=on("c2", since_s=900.0)),
        a_batch_job("waits", cores=4.0, arrival_s=1.0),
    ]
    plan = decide(a_snapshot(NODES[:2], jobs), CONSERVATIVE)
    assert expected(plan)["waits"] == (1100.0, ("c1",))
    after = a_snapshot(NODES[1:2], jobs[1:], memory=dict(plan.memory))
    assert expected(decide(after, CONSERVATIVE))["waits"] == (1800.0, ("c2",))


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[JobView, float]]:
    """Jobs that arrive over time, each with its real run time, at most what is told."""
    found = []
    for i in range(draw(st.integers(2, 10))):
        told = draw(st.integers(1, 60))
        job = a_batch_job(
            f"j{i}",
            draw(st.integers(1, 3)),
            draw(st.sampled_from([0, 0, 0, 1])),
            cores=draw(st.sampled_from([0.0, 1.0, 2.0, 4.0])),
            walltime_s=float(told),
            arrival_s=float(draw(st.integers(0, 40))),
            exclusive=draw(st.sampled_from([False, False, False, True])),
            priority=draw(st.sampled_from([0, 0, 1])),
            resources=draw(st.sampled_from([(), (), (("mic", 1.0),)])),
        )
        real = draw(st.sampled_from([told, told, draw(st.integers(1, told))]))
        found.append((job, float(real)))
    return found


policies = st.builds(
    Backfilling,
    backfill=st.just("conservative"),
    order=st.sampled_from(list(ORDERS)),
    fit=st.sampled_from(list(FITS)),
)


@settings(deadline=None, max_examples=60)
@given(logs(), policies)
def test_no_job_starts_later_than_any_reservation_it_was_given(
    log: list[tuple[JobView, float]], policy: Backfilling
) -> None:
    promised: dict[str, float] = {}
    for now_s, plan, started in rounds(log, policy):
        for job in started:
            assert now_s <= promised.get(job, inf)
        told = expected(plan)
        assert told.keys() == {w.job for w in plan.waiting if w.code is not WaitCode.NO_NODE_FITS}
        for job, (start_s, _) in told.items():
            assert start_s <= promised.get(job, inf)
            promised[job] = start_s


@settings(deadline=None, max_examples=60)
@given(logs(), policies)
def test_all_reservations_fit_on_their_nodes_beside_each_other_and_what_runs(
    log: list[tuple[JobView, float]], policy: Backfilling
) -> None:
    jobs = {job.id: job for job, _ in log}
    running: dict[str, tuple[float, Mapping[str, int]]] = {}
    for now_s, plan, started in rounds(log, policy):
        seats = {p.job: {s.node: s.units for s in p.ranks} for p in plan.placements}
        running = {job: running.get(job, (now_s, seats[job])) for job in seats}
        assert set(started) <= running.keys()
        held = [(job, since_s, units) for job, (since_s, units) in running.items()]
        made = plan.memory.get(MEMORY, {})
        held += [(job, start_s, dict(units)) for job, (start_s, units) in made.items()]
        for at_s in {start_s for _, start_s, _ in held} | {now_s}:
            _check_nodes(jobs, [h for h in held if _holds(jobs, h, max(at_s, now_s))])


def _holds(jobs: Mapping[str, JobView], held: tuple[str, float, Any], at_s: float) -> bool:
    return held[1] <= at_s < held[1] + jobs[held[0]].walltime_s


def _check_nodes(jobs: Mapping[str, JobView], held: list[tuple[str, float, Any]]) -> None:
    """All these fit on their nodes, and the exclusive ones are alone."""
    for node in NODES:
        there = [(jobs[job], units[node.id]) for job, _, units in held if node.id in units]
        assert len(there) < 2 or not any(job.exclusive for job, _ in there)
        assert sum(job.cores * units for job, units in there) <= node.cores
        gpus = sum(job.gpus_min // job.units * units for job, units in there)
        assert gpus <= len(node.devices)
        mics = sum(dict(job.resources).get("mic", 0.0) * units for job, units in there)
        assert mics <= dict(node.resources).get("mic", 0.0)


def rounds(log: list[tuple[JobView, float]], policy: Backfilling) -> Any:
    """Yield (now, plan, jobs that start) of a round at every arrival and end."""
    real = {job.id: run_s for job, run_s in log}
    future = sorted((job for job, _ in log), key=lambda job: job.arrival_s)
    waiting: dict[str, JobView] = {}
    running: dict[str, tuple[JobView, float]] = {}
    memory: dict[str, Any] = {}
    while future or running:
        ends = [since_s + real[job] for job, (_, since_s) in running.items()]
        now_s = min([*ends, *[job.arrival_s for job in future[:1]]])
        running = {j: of for j, of in running.items() if of[1] + real[j] > now_s}
        while future and future[0].arrival_s <= now_s:
            job = future.pop(0)
            waiting[job.id] = job
        there = [*[view for view, _ in running.values()], *waiting.values()]
        snapshot = a_snapshot(NODES, there, now_s=now_s, memory=memory)
        plan = decide(snapshot, policy)
        memory = dict(plan.memory)
        started = [p for p in plan.placements if p.job in waiting]
        for placed in started:
            view = replace(waiting.pop(placed.job), running=_runs(placed.ranks, now_s))
            running[placed.job] = (replace(view, phase=JobPhase.RUNNING), now_s)
        yield now_s, plan, [placed.job for placed in started]


def _runs(ranks: tuple[RankPlacement, ...], since_s: float) -> Any:
    return seated(*ranks, since_s=since_s)
