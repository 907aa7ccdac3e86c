"""Waits of batch jobs by width: the share of a cluster that a job takes.

Mean waits hide who waits: many narrow jobs outweigh the few wide ones. Beside the mean and the
longest wait stands the mean by area, in which a job counts with its share times its run time.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from controlplane.simulation.world.outcome import Outcome
from policies.contract.snapshot import Bools, Floats, Jobs, NodeView

WIDTHS = {"up to 1/16": 1 / 16, "up to 1/4": 1 / 4, "up to 1/2": 1 / 2, "wider": 1.0}
"""Name of each class of width, and the largest share in it."""


class Waits(TypedDict):
    """Number of jobs and their waits (s); None without jobs. `by_area_s`: weighted by area."""

    jobs: int
    mean_s: float | None
    longest_s: float | None
    by_area_s: float | None


def waits_by_width(outcome: Outcome, jobs: Jobs, nodes: Sequence[NodeView]) -> dict[str, Waits]:
    """Return the waits of all jobs ("all") and of each class of width, of jobs that ran."""
    row_of = [jobs.position[job] for job in outcome.job_ids]
    share = shares(jobs, nodes)[row_of]
    wait_s = outcome.first_start_s - outcome.arrival_s
    area = share * (outcome.ended_s - outcome.first_start_s)

    found = {"all": _waits(wait_s, area, outcome.ran)}
    least = 0.0
    for name, most in WIDTHS.items():
        in_class = (share > least) & (share <= most)
        found[name] = _waits(wait_s, area, outcome.ran & in_class)
        least = most
    return found


def shares(jobs: Jobs, nodes: Sequence[NodeView]) -> Floats:
    """float64[J]: largest part that a job takes of any resource of all nodes, at most 1."""
    columns = jobs.columns
    units = columns.counts["units"].astype(np.float64)
    taken: dict[str, Floats] = {
        "gpus": columns.counts["gpus_min"].astype(np.float64),
        "cores": columns.numbers["cores"] * units,
        "memory_gb": columns.numbers["memory_gb"] * units,
    }
    for row, resources in enumerate(columns.others["resources"]):
        for name, amount in resources:
            of_jobs = taken.setdefault(name, np.zeros(len(jobs)))
            of_jobs[row] = amount * units[row]

    capacity: dict[str, float] = defaultdict(float)
    for node in nodes:
        capacity["gpus"] += len(node.devices)
        capacity["cores"] += node.cores
        capacity["memory_gb"] += node.memory_gb
        for name, amount in node.resources:
            capacity[name] += amount

    share = np.zeros(len(jobs))
    for name, amounts in taken.items():
        if capacity[name] > 0.0:
            share = np.maximum(share, amounts / capacity[name])
    return np.minimum(1.0, share)


def _waits(wait_s: Floats, area: Floats, among: Bools) -> Waits:
    if not among.any():
        return {"jobs": 0, "mean_s": None, "longest_s": None, "by_area_s": None}
    whole = float(area[among].sum())
    return {
        "jobs": int(among.sum()),
        "mean_s": float(wait_s[among].mean()),
        "longest_s": float(wait_s[among].max()),
        "by_area_s": float((area * wait_s)[among].sum()) / whole if whole > 0.0 else None,
    }
