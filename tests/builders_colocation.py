"""Builders of clusters whose devices have room for two: what becomes of a plan by the next round,
and any such snapshot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from policies.contract.plan import Placement, Plan
from policies.contract.snapshot import (
    JobPhase,
    JobView,
    KindView,
    NodeView,
    PairThroughput,
    RankPlacement,
    Running,
    Snapshot,
    Source,
)
from tests.builders_policies import a_device, a_job, a_kind, a_node, a_snapshot
from tests.builders_snapshots import NOW_S, TYPES, snapshots


def a_wide_node(node: str = "n1", gpu_type: str = "V100", gpus: int = 1, **fields: Any) -> NodeView:
    """A node whose devices two jobs may share."""
    return a_node(
        node,
        gpu_type,
        gpus,
        devices=tuple(a_device(f"gpu{i}", slots=2) for i in range(gpus)),
        **fields,
    )


def a_sharer(job: str = "a", kind: str = "k", **fields: Any) -> JobView:
    """A job that may share its device."""
    return a_job(job, kind, **{"may_share": True, **fields})


def a_pairing_kind(
    kind: str = "k", beside: Mapping[str, tuple[float, float]] | None = None, **fields: Any
) -> KindView:
    """A kind of 1 step/s on a V100 and 0.5 on a T4; `beside`: of that, what it and the other keep
    on one device.
    """
    parts = {"k": (0.75, 0.75)} if beside is None else beside
    pairs = tuple(
        PairThroughput(other, gpu_type, speed * own, speed * others, Source.MEASURED)
        for other, (own, others) in parts.items()
        for gpu_type, speed in (("V100", 1.0), ("T4", 0.5))
    )
    rates = {("V100", 1): 1.0, ("T4", 1): 0.5, ("V100", 2): 1.8, ("T4", 2): 0.9}
    return a_kind(kind, rates, pairs=pairs, **fields)


def half(node: str, device: str, **fields: Any) -> tuple[Running, ...]:
    """The `running` of a job that holds half a device."""
    return (
        Running(
            **{"copy": 0, "ranks": (RankPlacement(node, (device,), 0.5),), "since_s": 0.0, **fields}
        ),
    )


def after(
    snapshot: Snapshot,
    plan: Plan,
    seconds: float,
    *,
    without: Sequence[str] = (),
    more: Sequence[JobView] = (),
) -> Snapshot:
    """The next round's snapshot if the plan came true at once and jobs `without` ended meanwhile,
    `more` came.
    """
    placed = {p.job: p for p in plan.placements}
    jobs = [
        _going_on(job, placed.get(job.id), snapshot.now_s)
        for job in snapshot.jobs
        if job.id not in without
    ]
    nodes = [
        replace(node, devices=tuple(replace(d, held=()) for d in node.devices))
        for node in snapshot.nodes
    ]
    rest = {
        n: getattr(snapshot, n)
        for n in ("round_s", "energy", "power_cap_w", "power_caps", "emissions_cost_per_kg")
    }
    return a_snapshot(
        nodes,
        [*jobs, *more],
        snapshot.kinds,
        now_s=snapshot.now_s + seconds,
        seed=snapshot.seed + 1,
        memory=plan.memory,
        **rest,
    )


def _going_on(job: JobView, placed: Placement | None, now_s: float) -> JobView:
    if placed is None:
        return replace(job, running=(), phase=JobPhase.WAITING)
    same = next((r for r in job.running if r.ranks == placed.ranks), None)
    run = Running(placed.copy, placed.ranks, now_s if same is None else same.since_s)
    return replace(job, running=(run,), phase=JobPhase.RUNNING)


@st.composite
def wide_snapshots(draw: st.DrawFn) -> Snapshot:
    """Any snapshot, but most devices have room for two, most jobs share, and pairs are known, now
    and then sitting together.
    """
    snapshot = draw(snapshots())
    nodes = tuple(
        replace(
            n,
            devices=tuple(
                replace(d, slots=draw(st.sampled_from([1, 2, 2, 2, 3]))) for d in n.devices
            ),
        )
        for n in snapshot.nodes
    )
    names = [k.id for k in snapshot.kinds]
    kinds = tuple(replace(k, pairs=draw(_pairs(names))) for k in snapshot.kinds)
    jobs = [
        replace(j, may_share=draw(st.sampled_from([True, True, True, False])))
        for j in snapshot.jobs
    ]
    for waiting in [j for j in jobs if j.phase is JobPhase.WAITING and j.may_share]:
        for i, running in enumerate(jobs):
            if _is_alone(running, nodes) and draw(st.booleans()):
                seat = replace(running.running[0].ranks[0], share=0.5)
                run = (replace(running.running[0], ranks=(seat,)),)
                jobs[i] = replace(running, running=run)
                jobs[jobs.index(waiting)] = replace(waiting, running=run, phase=JobPhase.RUNNING)
                break
    ghosts = tuple(
        replace(
            n,
            devices=tuple(
                replace(d, held=tuple(h for h in d.held if h.job == "ghost")) for d in n.devices
            ),
        )
        for n in nodes
    )
    rest = {
        n: getattr(snapshot, n)
        for n in (
            "seed",
            "energy",
            "power_cap_w",
            "power_caps",
            "emissions_cost_per_kg",
            "profiling",
        )
    }
    return a_snapshot(
        ghosts, jobs, kinds, now_s=NOW_S, memory=draw(_memories([j.id for j in jobs])), **rest
    )


def _is_alone(job: JobView, nodes: Sequence[NodeView]) -> bool:
    """Whether it runs alone on one device that has room for another."""
    if (
        job.phase is not JobPhase.RUNNING
        or not job.may_share
        or len(job.running) != 1
        or len(job.running[0].ranks) != 1
    ):
        return False
    seat = job.running[0].ranks[0]
    slots = {(n.id, d.id): d.slots for n in nodes for d in n.devices}
    return len(seat.devices) == 1 and seat.share == 1.0 and slots[seat.node, seat.devices[0]] > 1


def _pairs(names: Sequence[str]) -> st.SearchStrategy[tuple[PairThroughput, ...]]:
    rates = st.sampled_from([0.0, 0.01, 0.5, 5.0])
    pair = st.builds(
        PairThroughput,
        st.sampled_from(names),
        st.sampled_from(TYPES),
        rates,
        rates,
        st.sampled_from(Source),
    )
    return st.lists(pair, max_size=6).map(tuple)


@st.composite
def _memories(draw: st.DrawFn, jobs: Sequence[str]) -> dict[str, Any]:
    """None, or what Gandiva may have kept, of jobs that are gone too."""
    if draw(st.booleans()) or len(jobs) < 2:
        return {}
    names = draw(st.permutations([*jobs, "gone"]))
    pairs = [list(names[i : i + 2]) for i in range(0, len(names) - 1, 2)]
    owed = {name: {t: draw(st.floats(-500.0, 500.0)) for t in TYPES} for name in names}
    tried = [sorted(pair) for pair in pairs if draw(st.booleans())]
    began_s = NOW_S - draw(st.sampled_from([0.0, 100.0, 300.0, 9000.0]))
    return {
        "gandiva": {
            "began_s": began_s,
            "seen_s": NOW_S - 50.0,
            "pairs": pairs,
            "tried": tried,
            "owed_s": owed,
        }
    }
