"""Instances of snapshots, and snapshots of small clusters with running and waiting batch jobs."""

from typing import Any

from hypothesis import strategies as st

from policies.batch.cp.instance import Instance, instance_of
from policies.batch.cp.waiting import Candidates
from policies.batch.plan import BatchPlan
from policies.contract.snapshot import NodeView, RankPlacement, Snapshot
from tests.builders_policies import a_batch_job, a_cpu_node, a_node, a_snapshot, seated


def an_instance(snapshot: Snapshot) -> Instance:
    """The instance of all waiting jobs, in units of 10 s."""
    found = Candidates(BatchPlan(snapshot, range(len(snapshot.jobs)), ()))
    return instance_of(found, found.considered(100), 10.0)


def runs(node: str, left_s: float, job: str = "runs", units: int = 1, **fields: Any) -> Any:
    """A running job of so many one-core units that ends so many seconds from now (1000 s)."""
    seat = seated(RankPlacement(node, (), units=units), since_s=900.0)
    return a_batch_job(job, units, walltime_s=100.0 + left_s, running=seat, **fields)


@st.composite
def tiny(draw: st.DrawFn) -> Snapshot:
    """Two nodes of a few cores and GPUs, of which one is in use, and up to three waiting jobs."""
    nodes = [
        a_node("n1", gpus=draw(st.integers(1, 2)), cores=float(draw(st.integers(2, 4)))),
        a_cpu_node("n2", cores=float(draw(st.integers(1, 3)))),
    ]
    jobs = [runs("n1", 10.0 * draw(st.integers(1, 2)))] if draw(st.booleans()) else []
    for i in range(draw(st.integers(1, 3))):
        units = draw(st.integers(1, 2))
        gpus = draw(st.sampled_from([0, 0, 1])) if units == 1 else 0
        jobs.append(
            a_batch_job(
                f"w{i}",
                units,
                gpus,
                cores=float(draw(st.integers(0, 2))),
                walltime_s=10.0 * draw(st.integers(1, 3)),
                arrival_s=float(draw(st.integers(0, 900))),
            )
        )
    return a_snapshot(nodes, jobs)


@st.composite
def busy(draw: st.DrawFn) -> Snapshot:
    """Equal nodes, each in use until another time, with or without room beside that."""
    cores = [draw(st.integers(1, 4)) for _ in range(5)]
    nodes = [a_cpu_node(f"c{i}", cores=4.0) for i in range(5)]
    jobs = [
        runs(f"c{i}", 10.0 * draw(st.integers(1, 4)), f"r{i}", units=units)
        for i, units in enumerate(cores)
    ]
    for i in range(draw(st.integers(1, 3))):
        wanted = float(draw(st.integers(2, 4)))
        walltime_s = 10.0 * draw(st.integers(1, 3))
        exclusive = draw(st.sampled_from([False, False, False, True]))
        units = draw(st.integers(1, 2))
        jobs.append(
            a_batch_job(f"w{i}", units, cores=wanted, walltime_s=walltime_s, exclusive=exclusive)
        )
    return a_snapshot(nodes, jobs)


def fits_ever(snapshot: Snapshot) -> bool:
    """Return True if one of the waiting jobs may run here."""
    return bool(Candidates(BatchPlan(snapshot, range(len(snapshot.jobs)), ())).considered(1))


def mixed_nodes(draw: st.DrawFn) -> list[NodeView]:
    return [
        a_node("n1", gpus=draw(st.integers(1, 3)), cores=8.0, resources=(("mic", 1.0),)),
        a_node("n2", "T4", gpus=1, cores=4.0, memory_gb=7.3),
        a_cpu_node("c1", cores=draw(st.sampled_from([1.0, 4.0]))),
        a_cpu_node("c2", cores=8.0),
    ]


@st.composite
def crowded(draw: st.DrawFn) -> Snapshot:
    """A cluster of unlike nodes with more units than fit, of every form that a job may have."""
    jobs = [runs("c2", 10.0 * draw(st.integers(1, 9)), units=draw(st.integers(1, 8)))]
    for i in range(draw(st.integers(1, 8))):
        units = draw(st.integers(1, 4))
        nodes = draw(st.sampled_from([0, 0, 0, 1, 2]))
        jobs.append(
            a_batch_job(
                f"w{i}",
                units,
                draw(st.sampled_from([0, 0, 1])),
                cores=draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
                memory_gb=draw(st.sampled_from([0.0, 0.7, 3.1])),
                walltime_s=draw(st.sampled_from([1.0, 15.0, 600.0, float("inf")])),
                arrival_s=float(draw(st.integers(0, 999))),
                priority=draw(st.sampled_from([0, 0, 1])),
                exclusive=draw(st.sampled_from([False, False, False, True])),
                units_per_node=draw(st.sampled_from([0, 0, 1, 2])),
                nodes=min(nodes, units),
                resources=draw(st.sampled_from([(), (), (("mic", 1.0),), (("mic", 0.0),)])),
            )
        )
    return a_snapshot(mixed_nodes(draw), jobs)
