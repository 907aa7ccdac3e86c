"""Builders for the loop: ANDREAS' validation experiment (Table V), and scenarios to simulate."""

from math import inf
from typing import Any

from controlplane.simulation.cluster.scenario import Scenario
from experiments.reproduce.andreas.armida import TABLE_V
from policies.contract.snapshot import (
    GpuTypeView,
    JobView,
    KindView,
    NodeView,
    PriceInterval,
    Source,
    Throughput,
)
from tests.builders_policies import PRICE_PER_KWH, PUE, a_node

STEPS_PER_EPOCH = 1000
"""Steps are whole and what is done of one is lost at a stop;

the paper's jobs are stopped anywhere, so that steps are short here.
"""

SECONDS_PER_EPOCH = {
    "LSTM-big": {("V100", 1): 43.0842, ("V100", 2): 30.5512, ("T4", 1): 110.7112},
    "LSTM-small": {("V100", 1): 43.0261, ("V100", 2): 30.5871, ("T4", 1): 110.6581},
    "EfficientNet": {("V100", 1): 51.6221, ("V100", 2): 41.2372, ("T4", 1): 88.9881},
    "ConvNet": {("V100", 1): 20.5382, ("V100", 2): 17.8042, ("T4", 1): 41.2582},
}

WEIGHTS = {p: 0.00025371 + (p - 1) * (0.00044399 - 0.00025371) / 4 for p in range(1, 6)}
"""EUR/s of the five priorities, evenly spread between the published least and most."""


def armida_nodes() -> tuple[NodeView, ...]:
    """The experiment's three nodes: one V100, two V100, one T4 (the paper's Table II without
    armida-04, which profiles).
    """
    return (
        a_node("armida-05", "V100", 1),
        a_node("armida-06", "V100", 2),
        a_node("armida-07", "T4", 1),
    )


def armida_kinds(faster: dict[str, float] | None = None) -> tuple[KindView, ...]:
    """The applications with the authors' seconds per epoch, times a factor for those named."""
    factors = faster or {}
    return tuple(
        KindView(
            name,
            name,
            tuple(
                Throughput(t, g, STEPS_PER_EPOCH / (s * factors.get(name, 1.0)), Source.MEASURED)
                for (t, g), s in seconds.items()
            ),
        )
        for name, seconds in SECONDS_PER_EPOCH.items()
    )


def table_v_jobs() -> tuple[JobView, ...]:
    """The eight jobs of Table V."""
    return tuple(
        JobView(
            id=name,
            kind=kind,
            arrival_s=float(submitted),
            remaining_steps=float(epochs * STEPS_PER_EPOCH),
            total_steps=float(epochs * STEPS_PER_EPOCH),
            gpus_min=1,
            gpus_max=2,
            due_s=float(submitted + due),
            tardiness_weight=WEIGHTS[priority],
            priority=priority,
        )
        for name, kind, epochs, submitted, due, priority in TABLE_V
    )


def a_scenario(
    nodes: tuple[NodeView, ...] | None = None,
    kinds: tuple[KindView, ...] | None = None,
    **fields: Any,
) -> Scenario:
    """ARMIDA with the paper's price and PUE, unless something else is given."""
    given: dict[str, Any] = {"energy": (PriceInterval(0.0, inf, PRICE_PER_KWH, PUE),)}
    types = (GpuTypeView("V100", 15.7, 32.0), GpuTypeView("T4", 8.1, 16.0))
    return Scenario(
        nodes=nodes or armida_nodes(),
        kinds=kinds or armida_kinds(),
        gpu_types=types,
        **{**given, **fields},
    )
