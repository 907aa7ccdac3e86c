"""Builders of studies that run in a second, and of outcomes without a simulation."""

from collections.abc import Mapping
from math import inf, nan
from typing import Any

import numpy as np

from controlplane.simulation.study.run_files import FinishedRun, WorkloadFacts
from controlplane.simulation.switches import Switches
from controlplane.simulation.world.outcome import Outcome, Stays, Utilisation

A_CLUSTER: Mapping[str, Any] = {
    "name": "small",
    "nodes": [
        {"name": "v", "gpu_type": "V100", "gpus": 2},
        {"name": "t", "gpu_type": "T4", "gpus": 1, "count": 2},
    ],
    "energy": {"price_per_kwh": 0.172, "pue": 1.33, "emissions_g_per_kwh": 250.0},
}


def a_study_document(**fields: Any) -> dict[str, Any]:
    """Two policies, two seeds, ten jobs of the paper's generator on three nodes."""
    given: dict[str, Any] = {
        "name": "A study",
        "cluster": dict(A_CLUSTER),
        "workload": {"type": "andreas", "nodes": 2, "jobs": 10, "tuning": 1.0},
        "policies": [{"name": "fifo"}, {"name": "edf"}],
        "seeds": [1, 2],
    }
    return {**given, **fields}


def an_outcome(**fields: Any) -> Outcome:
    """Three jobs on two GPUs: one in time, one late by 50 s, one that is never completed."""
    counts = {
        name: np.array([1, 2, 0]) for name in ("launches", "preemptions", "migrations", "failures")
    }
    stays = Stays(
        np.array([0, 1]),
        np.array([0, 1]),
        (("gpu0",), ("gpu0",)),
        np.array([100.0, 200.0]),
        np.array([200.0, 350.0]),
    )
    given: dict[str, Any] = {
        "policy": "fifo",
        "workload": "three jobs",
        "seed": 1,
        "switches": Switches(),
        "job_ids": ("a", "b", "c"),
        "nodes": ("n1", "n2"),
        "arrival_s": np.array([100.0, 150.0, 200.0]),
        "first_start_s": np.array([100.0, 200.0, nan]),
        "completion_s": np.array([200.0, 350.0, nan]),
        "due_s": np.array([inf, 300.0, inf]),
        "tardiness_weight": np.array([0.0, 0.01, 0.0]),
        "busy_s": np.array([100.0, 150.0, 0.0]),
        "gpu_s": np.array([100.0, 150.0, 0.0]),
        "fastest_s": np.array([4.0, 100.0, inf]),
        **counts,
        "energy_kwh": 2.0,
        "energy_cost": 0.4,
        "tardiness_cost": 0.5,
        "emissions_kg": 1.0,
        "rounds": 7,
        "makespan_s": 250.0,
        "stays": stays,
        "utilisation": Utilisation(np.array([100.0, 350.0]), np.array([1, 0]), 2),
        "decision_s": np.array([0.001, 0.003]),
    }
    values = {**given, **fields}
    ended = {"ended_s": values["completion_s"], "state": np.isfinite(values["completion_s"]) * 1}
    return Outcome(**{**ended, **values})


def a_finished_run(outcome: Outcome | None = None, **facts: Any) -> FinishedRun:
    """The outcome above with its workload's facts."""
    outcome = outcome or an_outcome()
    given: dict[str, Any] = {
        "name": "three jobs",
        "jobs": 3,
        "kinds": 1,
        "span_s": 100.0,
        "facts": {"load": 0.5},
    }
    return FinishedRun(outcome, ("k",) * len(outcome.job_ids), WorkloadFacts(**{**given, **facts}))
