"""ANDREAS' validation on ARMIDA (V-C, Table V): eight jobs on three nodes, a call every 300 s and
on events.

The paper predicts 1.08438 EUR and measures 0.95111, "12.29%" apart (of the prediction). Here the
real run is simulated as well: with what the paper's simulator leaves out, the cost of
reconfigurations, and with noise in what nodes draw.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.switches import Switches
from controlplane.simulation.workloads.andreas import SECONDS_PER_EPOCH, STEPS_PER_EPOCH, WEIGHTS
from controlplane.simulation.workloads.base import Workload, jobs_of
from controlplane.simulation.world.outcome import Outcome
from controlplane.simulation.world.run import simulate
from policies.contract.snapshot import (
    DeviceView,
    GpuTypeView,
    KindView,
    NodeView,
    PriceInterval,
    Source,
    Throughput,
)
from policies.host import registry

PREDICTED_EUR, REAL_EUR = 1.08438, 0.95111
PRICE_PER_KWH, PUE = 0.172, 1.33
POWER_W = {"V100": (360.0, 170.0), "T4": (330.0, 70.0)}
NODES = (("armida-05", "V100", 1), ("armida-06", "V100", 2), ("armida-07", "T4", 1))
TABLE_V = (
    ("J6", "EfficientNet", 80, 0, 3600, 4),
    ("J9", "ConvNet", 160, 1200, 2600, 2),
    ("J10", "ConvNet", 80, 2400, 7600, 3),
    ("J7", "LSTM-big", 160, 3600, 17600, 3),
    ("J8", "LSTM-small", 160, 4800, 7600, 3),
    ("J1", "LSTM-big", 60, 6000, 5600, 5),
    ("J2", "LSTM-small", 60, 7200, 12600, 2),
    ("J3", "EfficientNet", 60, 8400, 11600, 1),
)
"""Job, application, epochs, submission, due date after the submission, priority."""

FITTED_CONVNET = 0.79
"""Factor of a ConvNet epoch, in hundredths the greatest at and below which no job is late."""

RECONFIGURED = Switches(launch_s=20.0, stop_s=10.0, restart_cost_s=30.0)
REAL = replace(RECONFIGURED, power_noise=0.05)
"""Switches of the simulated real run: cost of reconfigurations, noise of power."""


def scenario() -> Scenario:
    """ARMIDA without the node that profiles, at the paper's price and PUE."""
    types = (GpuTypeView("V100", 15.7, 32.0), GpuTypeView("T4", 8.1, 16.0))
    nodes = tuple(a_node(name, gpu_type, gpus) for name, gpu_type, gpus in NODES)
    energy = (PriceInterval(0.0, inf, PRICE_PER_KWH, PUE),)
    return Scenario(
        nodes=nodes, kinds=(), energy=energy, gpu_types=types, cluster="ARMIDA", round_s=300.0
    )


def a_node(name: str, gpu_type: str, gpus: int) -> NodeView:
    """A node with the power that the authors measured."""
    base_w, gpu_w = POWER_W[gpu_type]
    devices = tuple(
        DeviceView(f"gpu{i}", 32.0 if gpu_type == "V100" else 16.0) for i in range(gpus)
    )
    return NodeView(
        name, name, gpu_type, devices, tuple(base_w + gpu_w * g for g in range(gpus + 1))
    )


def workload(convnet: float = 1.0) -> Workload:
    """The eight jobs; `convnet` multiplies the time of a ConvNet epoch."""
    columns = list(zip(*TABLE_V, strict=True))
    ids, applications = list(columns[0]), list(columns[1])
    epochs, submitted_s, due_s, priority = (
        np.array(column, dtype=np.float64) for column in columns[2:]
    )
    jobs = jobs_of(
        ids,
        applications,
        arrival_s=submitted_s,
        remaining_steps=epochs * STEPS_PER_EPOCH,
        gpus_min=1,
        gpus_max=2,
        due_s=submitted_s + due_s,
        priority=priority,
        tardiness_weight=np.array(WEIGHTS)[priority.astype(np.int64) - 1],
    )
    return Workload("Table V", jobs, _kinds({"ConvNet": convnet}))


def _kinds(factors: Mapping[str, float]) -> tuple[KindView, ...]:
    return tuple(
        KindView(
            name,
            name,
            tuple(
                Throughput(t, g, STEPS_PER_EPOCH / (s * factors.get(name, 1.0)), Source.MEASURED)
                for (t, g), s in of.items()
            ),
        )
        for name, of in SECONDS_PER_EPOCH.items()
    )


def validate(seeds: int) -> dict[str, Any]:
    """Table III again: predicted against simulated-real energy cost, and what is late, in mode
    coded.

    `reconfigured_eur`: with the cost of reconfigurations but without noise; `real_each_eur`: with
    both, seed by seed.
    """
    predicted, fitted = _run(1.0, Switches(), 1), _run(FITTED_CONVNET, Switches(), 1)
    real = [_run(1.0, REAL, seed).energy_cost for seed in range(1, seeds + 1)]
    mean = float(np.mean(real))
    return {
        "predicted_eur": predicted.energy_cost,
        "paper_predicted_eur": PREDICTED_EUR,
        "off_the_papers_prediction": predicted.energy_cost / PREDICTED_EUR - 1.0,
        "late_s": _late(predicted),
        "fitted": {
            "convnet": FITTED_CONVNET,
            "energy_eur": fitted.energy_cost,
            "late_s": _late(fitted),
        },
        "reconfigured_eur": _run(1.0, RECONFIGURED, 1).energy_cost,
        "real_each_eur": real,
        "real_eur": mean,
        "paper_real_eur": REAL_EUR,
        "real_switches": REAL.turned_on,
        "seeds": seeds,
        "deviation": abs(mean - predicted.energy_cost) / predicted.energy_cost,
        "paper_deviation": 0.1229,
    }


def told(found: Mapping[str, Any]) -> list[str]:
    """The validation in lines to print, the paper's figures beside ours."""
    fitted, switches = (
        found["fitted"],
        ", ".join(f"{name} {value:g}" for name, value in sorted(found["real_switches"].items())),
    )
    rows = (
        (
            "predicted",
            found["predicted_eur"],
            PREDICTED_EUR,
            f"{found['off_the_papers_prediction']:+.1%}",
            found["late_s"],
        ),
        (
            f"predicted, ConvNet x {fitted['convnet']:g}",
            fitted["energy_eur"],
            None,
            "",
            fitted["late_s"],
        ),
        ("with what reconfigurations cost", found["reconfigured_eur"], None, "", None),
        ("simulated real", found["real_eur"], REAL_EUR, f"mean of {found['seeds']} seeds", None),
    )
    return [
        f"Table V on ARMIDA, mode coded: energy cost in EUR ({switches})",
        *(_line(*row) for row in rows),
        (
            f"  prediction and real cost {found['deviation']:.2%} apart (paper"
            f" {found['paper_deviation']:.2%})"
        ),
    ]


def _line(
    what: str, here: float, paper: float | None, note: str, late_s: Mapping[str, float] | None
) -> str:
    notes = [note, "" if late_s is None else f"late: {_worded(late_s)}"]
    beside = "" if paper is None else f"paper {paper:.4f}"
    return f"  {what:<32} {here:.4f}  {beside:<14} {'; '.join(n for n in notes if n)}".rstrip()


def _worded(late_s: Mapping[str, float]) -> str:
    return ", ".join(f"{job} by {s:g} s" for job, s in late_s.items()) or "nothing"


def _run(convnet: float, switches: Switches, seed: int) -> Outcome:
    policy = registry.make("randomized_greedy", {"mode": "coded"})
    return simulate(
        scenario(),
        workload(convnet),
        policy,
        name="randomized_greedy",
        seed=seed,
        switches=switches,
    )


def _late(outcome: Outcome) -> dict[str, float]:
    return {
        job: round(float(s), 1)
        for job, s in zip(outcome.job_ids, outcome.tardiness_s, strict=True)
        if s > 0.0
    }
