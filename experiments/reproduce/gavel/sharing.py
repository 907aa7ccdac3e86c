"""Proof that the simulator runs jobs that share a GPU at the speeds of pairs."""

from functools import cache

import numpy as np

from controlplane.simulation.workloads.base import Workload, jobs_of
from controlplane.simulation.world.run import simulate
from experiments.reproduce.gavel.model import Spec
from experiments.reproduce.gavel.scenarios import scenario
from policies.contract.policy import PolicyError
from policies.contract.snapshot import KindView, PairThroughput, Source, Throughput
from policies.host import registry

STEPS, ALONE, BESIDE = 3600.0, 1.0, 0.75
"""A job's steps, its speed alone and beside another (steps/s)."""

LATEST_S = 0.99 * 2 * STEPS / ALONE
"""When both jobs would be done in turns, or nearly."""


class NoSharingError(PolicyError):
    """The simulator of this release does not run pairs."""


def asks_for_pairs(spec: Spec) -> bool:
    """Return True if the spec's policy puts two jobs on a GPU."""
    parameters = spec.get("parameters", {})
    return parameters.get("form") == "sharing" or (
        spec["policy"] == "gandiva" and parameters.get("packing", True) is True
    )


@cache
def runs_pairs() -> bool:
    """Return True if two jobs at 3/4 of their speed end together after 4800 s."""
    pair = PairThroughput("k", "V100", BESIDE, BESIDE, Source.MEASURED)
    kind = KindView("k", "k", (Throughput("V100", 1, ALONE, Source.MEASURED),), (pair,))
    jobs = jobs_of(
        ["a", "b"],
        ["k", "k"],
        arrival_s=0.0,
        remaining_steps=STEPS,
        gpus_min=1,
        gpus_max=1,
        may_share=True,
    )
    policy = registry.make("max_min_fairness", {"form": "sharing"})
    outcome = simulate(
        scenario({"V100": 1}, 360.0),
        Workload("a pair", jobs, (kind,)),
        policy,
        name="max_min_fairness",
        seed=1,
    )
    earliest_s = STEPS / BESIDE * 0.99
    return bool(np.all((outcome.completion_s >= earliest_s) & (outcome.completion_s <= LATEST_S)))


def check(spec: Spec) -> None:
    """Raises NoSharingError where the spec asks for pairs and they would not run as they should."""
    if asks_for_pairs(spec) and not runs_pairs():
        raise NoSharingError(
            "two jobs that share a GPU do not run at the speeds of pairs in this simulator"
        )
