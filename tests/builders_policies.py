"""Builders of snapshots: say what the test is about, the rest is plausible.

    snapshot = a_snapshot(nodes=[a_node("n1", gpus=2)], jobs=[a_job("a"), a_job("b",
    running=on("n1", "gpu0"))])

Kinds that jobs name but nobody gives are made up (1 step/s on one GPU of every type, sublinear on
more); devices are marked as held by the jobs that run on them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from policies.contract.snapshot import (
    DeviceView,
    JobColumns,
    JobPhase,
    Jobs,
    JobView,
    KindView,
    NodeView,
    PriceInterval,
    ProfileRequest,
    Purpose,
    RankPlacement,
    Running,
    SlotHold,
    Snapshot,
    Source,
    Throughput,
)

PRICE_PER_KWH = 0.172
PUE = 1.33
POWER_W = {"V100": (360.0, 170.0), "T4": (330.0, 70.0)}
"""Idle watts of a node and watts of each GPU in use, as measured for ANDREAS (spec: P_V100, P_T4).
"""


def a_device(device: str = "gpu0", **fields: Any) -> DeviceView:
    """A healthy device with one slot."""
    return DeviceView(**{"id": device, "memory_gb": 16.0, **fields})


def a_node(node: str = "n1", gpu_type: str = "V100", gpus: int = 2, **fields: Any) -> NodeView:
    """A ready production node with devices gpu0, gpu1, ... and the paper's power curve for its
    type.
    """
    idle_w, gpu_w = POWER_W.get(gpu_type, (300.0, 100.0))
    gpus = len(fields.get("devices", range(gpus)))
    given: dict[str, Any] = {
        "devices": tuple(a_device(f"gpu{i}") for i in range(gpus)),
        "power_w": tuple(idle_w + gpu_w * g for g in range(gpus + 1)),
    }
    return NodeView(**{"id": node, "name": node, "gpu_type": gpu_type, **given, **fields})


def a_kind(
    kind: str = "k", rates: Mapping[tuple[str, int], float] | None = None, **fields: Any
) -> KindView:
    """A kind with measured steps/s by (gpu_type, gpus)."""
    rates = {("V100", 1): 1.0, ("V100", 2): 1.6, ("T4", 1): 0.4} if rates is None else rates
    known = tuple(Throughput(t, g, rate, Source.MEASURED) for (t, g), rate in rates.items())
    return KindView(**{"id": kind, "throughputs": known, **fields})


def a_job(job: str = "j1", kind: str = "k", **fields: Any) -> JobView:
    """A waiting job of 100 steps without due date; one that is given `running` runs."""
    if fields.get("running") and "phase" not in fields:
        fields["phase"] = JobPhase.RUNNING
    return JobView(
        **{
            "id": job,
            "kind": kind,
            "arrival_s": 0.0,
            "remaining_steps": 100.0,
            "total_steps": 100.0,
            **fields,
        }
    )


def a_cpu_node(node: str = "c1", cores: float = 8.0, **fields: Any) -> NodeView:
    """A ready node without GPUs: 100 W while it works."""
    return a_node(node, "", 0, **{"cores": cores, "power_w": (100.0,), **fields})


def a_batch_job(job: str = "b1", units: int = 1, gpus_per_unit: int = 0, **fields: Any) -> JobView:
    """A waiting batch job of one-core units, not preemptible, with a walltime of ten minutes."""
    given = {"cores": 1.0, "walltime_s": 600.0, "preemptible": False, "remaining_steps": 1.0}
    gpus = units * gpus_per_unit
    own = {"batch": True, "units": units, "gpus_min": gpus, "gpus_max": gpus, "total_steps": 1.0}
    return a_job(job, **{"kind": "batch", **given, **own, **fields})


def seated(*seats: RankPlacement, **fields: Any) -> tuple[Running, ...]:
    """The `running` of a job on several seats."""
    return (Running(**{"copy": 0, "ranks": seats, "since_s": 900.0, **fields}),)


def on(node: str, *devices: str, **fields: Any) -> tuple[Running, ...]:
    """The `running` of a job whose one process holds these devices of a node."""
    return (
        Running(**{"copy": 0, "ranks": (RankPlacement(node, devices),), "since_s": 0.0, **fields}),
    )


def a_profile_request(
    job: str = "j1", gpu_type: str = "V100", gpus: int = 1, **fields: Any
) -> ProfileRequest:
    """A wish to measure 20 steps of a job of kind k."""
    return ProfileRequest(
        **{
            "job": job,
            "kind": "k",
            "gpu_type": gpu_type,
            "gpus": gpus,
            "steps": 20,
            "copy": 0,
            "since_s": 0.0,
            **fields,
        }
    )


def a_snapshot(
    nodes: Sequence[NodeView] | None = None,
    jobs: Iterable[JobView] = (),
    kinds: Iterable[KindView] | None = None,
    **fields: Any,
) -> Snapshot:
    """One cluster at second 1000 with the paper's price and PUE; devices are held by what runs on
    them.
    """
    rows = tuple(jobs)
    seats = tuple(nodes) if nodes is not None else (a_node("n1", "V100", 2), a_node("n2", "T4", 1))
    given: dict[str, Any] = {
        "cluster": "c1",
        "now_s": 1000.0,
        "round_s": 300.0,
        "seed": 1,
        "energy": (PriceInterval(0.0, inf, PRICE_PER_KWH, PUE),),
    }
    wanted = fields.get("profiling", ())
    all_kinds = _with_missing_kinds(
        tuple(kinds or ()), {j.kind for j in rows} | {r.kind for r in wanted}, seats
    )
    return Snapshot(
        **{
            **given,
            "nodes": _held(seats, rows),
            "kinds": all_kinds,
            "jobs": Jobs(JobColumns.of(rows)),
            **fields,
        }
    )


def _with_missing_kinds(
    given: tuple[KindView, ...], named: set[str], nodes: Sequence[NodeView]
) -> tuple[KindView, ...]:
    types = sorted({n.gpu_type for n in nodes})
    most = max((len(n.devices) for n in nodes), default=1)
    rates = {(t, g): float(g) ** 0.8 for t in types for g in range(1, most + 1)}
    missing = sorted(named - {k.id for k in given})
    return given + tuple(a_kind(k, rates) for k in missing)


def _held(nodes: Sequence[NodeView], jobs: Sequence[JobView]) -> tuple[NodeView, ...]:
    holds: dict[tuple[str, str], list[SlotHold]] = {}
    for job in jobs:
        for run in job.running:
            for seat in run.ranks:
                for device in seat.devices:
                    holds.setdefault((seat.node, device), []).append(
                        SlotHold(job.id, run.copy, run.purpose, seat.share)
                    )
    return tuple(_node_held(n, holds) for n in nodes)


def _node_held(node: NodeView, holds: Mapping[tuple[str, str], list[SlotHold]]) -> NodeView:
    devices = tuple(
        replace(d, held=d.held + tuple(holds.get((node.id, d.id), ()))) for d in node.devices
    )
    return replace(node, devices=devices)


def a_profile_run(
    node: str, *devices: str, copy: int = 0, steps: int = 20, share: float = 1.0
) -> Running:
    """A profile run under way, to be put into a job's `running`."""
    return Running(
        copy,
        (RankPlacement(node, devices, share),),
        0.0,
        steps_quota=steps,
        purpose=Purpose.PROFILING,
    )
