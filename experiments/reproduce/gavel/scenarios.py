"""Clusters of the experiments, and snapshots of them for what looks at shares alone."""

from collections.abc import Mapping, Sequence

from controlplane.simulation.cluster.scenario import Scenario
from policies.contract.snapshot import DeviceView, GpuTypeView, Jobs, KindView, NodeView, Snapshot

GPUS_PER_NODE = 8
TFLOPS = {"V100": 15.7, "P100": 9.3, "K80": 4.1}
MEMORY_GB = {"V100": 16.0, "P100": 16.0, "K80": 12.0}
SLOTS = 2
"""Jobs that a GPU takes: sharing is for pairs."""

PRICES = {"V100": 2.48, "P100": 1.46, "K80": 0.45}
"""Dollars per GPU hour on demand in Google's cloud, of which the paper's figure 1(b) is made."""

WATTS = 250.0
"""Watts of a GPU. Energy has no price in these experiments."""


def nodes(gpus: Mapping[str, int]) -> tuple[NodeView, ...]:
    """Nodes of 8 GPUs of a type, the last of each with what is left."""
    return tuple(
        _node(t, i, min(GPUS_PER_NODE, n - i))
        for t, n in gpus.items()
        for i in range(0, n, GPUS_PER_NODE)
    )


def scenario(gpus: Mapping[str, int], round_s: float) -> Scenario:
    """The cluster to simulate; the kinds come with the workload."""
    return Scenario(
        nodes=nodes(gpus), kinds=(), gpu_types=gpu_types(gpus), cluster="Gavel", round_s=round_s
    )


def gpu_types(gpus: Mapping[str, int]) -> tuple[GpuTypeView, ...]:
    """The types with their peak, memory and price."""
    return tuple(
        GpuTypeView(
            t, TFLOPS.get(t, 1.0), MEMORY_GB.get(t, 16.0), price_per_hour=PRICES.get(t, 0.0)
        )
        for t in gpus
    )


def snapshot(
    of: Sequence[NodeView], kinds: tuple[KindView, ...], jobs: Jobs, now_s: float = 0.0
) -> Snapshot:
    """These jobs waiting on these nodes."""
    return Snapshot("Gavel", now_s, 360.0, 1, tuple(of), kinds, jobs)


def _node(gpu_type: str, first: int, gpus: int) -> NodeView:
    name = f"{gpu_type.lower()}-{first // GPUS_PER_NODE + 1}"
    devices = tuple(
        DeviceView(f"gpu{i}", MEMORY_GB.get(gpu_type, 16.0), SLOTS) for i in range(gpus)
    )
    return NodeView(name, name, gpu_type, devices, tuple(WATTS * g for g in range(gpus + 1)))
