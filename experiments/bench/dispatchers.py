"""Dispatchers by constraint programming: `python -m experiments.bench.dispatchers [EVERY]`.

Snapshots are taken by simulating Eurora's trace, and a generated one on a cluster like KIT ForHLR
II, under EASY backfilling in slowdown order, one of every EVERY decisions. Each policy decides on
the same snapshots; times are of whole policy calls. Variables are compared where a model is made.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from controlplane.simulation.cluster.cluster_file import scenario_of
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.workloads import load
from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.run import simulate
from experiments.bench.figures import Figure, figure, seconds, show
from policies.batch.backfilling import Backfilling
from policies.batch.cp.instance import Instance, instance_of
from policies.batch.cp.optional_units import variables
from policies.batch.cp.pcp20 import Pcp20
from policies.batch.cp.waiting import Queue
from policies.batch.plan import BatchPlan
from policies.contract.plan import Plan, PlanStatus
from policies.contract.policy import Policy
from policies.contract.snapshot import JobView, Snapshot
from policies.host.registry import make

EVERY = 20
TRACE = Path(os.environ.get("LOADMASTER_DATA", "../shared/data")) / "hpc/eurora-2014-4days.swf"
EURORA_GB = 33_554_432 * 1024 / 1e9
GOALS_MS: Mapping[tuple[str, str], tuple[float, float | None]] = {
    ("Eurora", "hcp19"): (200.0, 1000.0),
    ("Eurora", "pcp20"): (252.0, None),
    ("KIT-like", "pcp20"): (537.0, None),
}
"""(cluster, policy) -> goals of the mean and of the 99th percentile."""
