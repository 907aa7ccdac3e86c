"""The same instances under every dispatcher: variables, times and quality (figures 6 and 7).

An instance is a snapshot that a simulation with PCP'19 wrote. Each dispatcher decides about it
alone, with nothing remembered. Left out are those where no model is built: nothing fits, or all
start at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

from controlplane.simulation.study.run_keys import digest_of_code
from policies.batch.cp.instance import Instance, instance_of
from policies.batch.cp.optional_units import variables
from policies.batch.cp.waiting import Candidates
from policies.batch.fit import with_node_order
from policies.batch.plan import BatchPlan
from policies.contract import snapshot_json
from policies.contract.plan import PlanStatus
from policies.contract.snapshot import Snapshot
from policies.host import registry

POLICIES = ("hcp19", "pcp20", "pcp19")
"""The first decision of a process loads the solver: `hcp19`, whose time is not compared."""


@dataclass(frozen=True, slots=True)
class Solve:
    """A snapshot's file, to be decided about by every dispatcher."""

    path: Path
    source: str

    @property
    def file(self) -> str:
        """Name of its file of results."""
        told = f"{self.path.name} {self.source} {digest_of_code()}"
        return f"{self.source}-{self.path.stem}-{sha256(told.encode()).hexdigest()[:8]}.json"


def solve(asked: Solve) -> dict[str, Any]:
    """Variables, and by dispatcher objective, status, starts and CPU time of an instance."""
    snapshot = snapshot_json.from_json(json.loads(asked.path.read_text(encoding="utf-8")))
    instance = instance_in(snapshot)
    return {
        "instance": asked.path.stem,
        "source": asked.source,
        "waiting": sum(not job.running for job in snapshot.jobs),
        "variables": {
            "pcp19": variables(instance),
            "on_every_node": variables_on_every_node(instance),
            "pcp20": variables_of_pcp20(instance),
        },
        "decisions": {name: _decide(snapshot, name) for name in POLICIES},
    }


def instance_in(snapshot: Snapshot) -> Instance:
    """Instance of a snapshot, as the dispatchers make it by default."""
    policy = registry.make("pcp20", {})
    window, grid_s, order = (getattr(policy, n) for n in ("window", "grid_s", "node_order"))
    ordered = with_node_order(snapshot, order)
    candidates = Candidates(BatchPlan(ordered, range(len(snapshot.jobs)), ()))
    return instance_of(candidates, candidates.considered(window), grid_s)


def variables_of_pcp20(instance: Instance) -> int:
    """|Q| + sum_i rn_i |R_i|, with the resources R_i that job i asks for."""
    return len(instance.jobs) + sum(
        job.units * sum(amount > 0 for amount in job.demand) for job in instance.jobs
    )


def variables_on_every_node(instance: Instance) -> int:
    """|Q| + sum_i rn_i |N|: PCP'19 with a variable for every unit on every node.

    The paper's formula has p_i,n, which is 0 on nodes that cannot hold a unit. Its text ("minimum
    1 + |N|" for a serial job) and its figure 6 agree with this count only: the ratio is at most
    (1 + |R|) / (1 + |N|).
    """
    return len(instance.jobs) + sum(job.units for job in instance.jobs) * len(instance.order)


def _decide(snapshot: Snapshot, name: str) -> dict[str, Any]:
    policy = registry.make(name, {})
    began_s = time.process_time()
    plan = policy(snapshot)
    cpu_s = time.process_time() - began_s
    running = sum(bool(job.running) for job in snapshot.jobs)
    return {
        "objective": plan.objective,
        "status": plan.status.value,
        "starts": len(plan.placements) - running,
        "cpu_s": cpu_s,
    }


def modelled(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Instances for which a model was built: PCP'20 has an objective."""
    return [row for row in rows if row["decisions"]["pcp20"]["objective"] is not None]


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """PCP'20 over PCP'19 on the same instances: variables, times, objectives."""
    known = modelled(rows)
    both = [r for r in known if r["decisions"]["pcp19"]["objective"] is not None]
    quality = [
        r["decisions"]["pcp20"]["objective"] / r["decisions"]["pcp19"]["objective"] for r in both
    ]
    kept = sum(r["decisions"]["pcp19"]["status"] == PlanStatus.KEPT.value for r in known)
    return {
        "instances": len(rows),
        "modelled": len(known),
        "without_answer_of_pcp19": kept,
        "variables": _summary(_sizes(known, "pcp19")),
        "variables_on_every_node": _summary(_sizes(known, "on_every_node")),
        "quality": _summary(quality),
        "equal_quality": sum(abs(q - 1.0) < 1e-9 for q in quality),
    }


def time_ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """CPU time of PCP'20 over PCP'19's, and how many lie between 0.01 and 1."""
    found = [
        r["decisions"]["pcp20"]["cpu_s"] / max(1e-6, r["decisions"]["pcp19"]["cpu_s"])
        for r in modelled(rows)
    ]
    return {**_summary(found), "between": sum(0.01 <= ratio <= 1.0 for ratio in found)}


def _sizes(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [row["variables"]["pcp20"] / row["variables"][name] for row in rows]


def _summary(values: Sequence[float]) -> dict[str, Any]:
    if not values:
        return {"n": 0, "least": None, "median": None, "most": None}
    return {"n": len(values), "least": min(values), "median": median(values), "most": max(values)}
