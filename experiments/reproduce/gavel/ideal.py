"""The mechanism's ideal (figure 13b): every job progresses all the time with exactly its share."""

from collections.abc import Mapping
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from controlplane.simulation.workloads import load
from controlplane.simulation.workloads.base import Workload, rows
from experiments.reproduce.gavel.model import Spec
from experiments.reproduce.gavel.scenarios import nodes, snapshot
from policies.contract.snapshot import Floats, Ints, NodeView
from policies.gavel.allocation.observe import observe
from policies.gavel.solvers.fairness import fair_shares

DONE = 1e-6
"""Steps left of a job that has ended."""


def ideal(spec: Spec, seed: int) -> Mapping[str, Any]:
    """Average completion time (h) of max-min fairness without rounds."""
    workload, began_s = load(spec["workload"], seed), perf_counter()
    ends_s = completions_s(workload, nodes(spec["gpus"]))
    jct_h = (ends_s - workload.jobs.columns.numbers["arrival_s"]) / 3600.0
    lo, hi = spec.get("window") or (0, len(jct_h))
    return {
        "jct_h": float(jct_h[lo:hi].mean()),
        "unfinished": 0,
        "timing": {"wall_s": perf_counter() - began_s},
    }


def completions_s(workload: Workload, of: tuple[NodeView, ...]) -> Floats:
    """float64[J]: ends of jobs that have their exact shares at every moment."""
    columns = workload.jobs.columns
    arrival_s, left = columns.numbers["arrival_s"], columns.numbers["remaining_steps"].copy()
    ends_s, active, arrived, now_s = np.full(len(left), np.nan), np.zeros(0, dtype=np.int64), 0, 0.0
    while arrived < len(left) or len(active):
        rates = _rates(workload, of, active)
        ends_in_s = np.divide(left[active], rates, out=np.full(len(active), inf), where=rates > 0.0)
        next_s = float(arrival_s[arrived]) if arrived < len(left) else inf
        until_s = min(next_s, now_s + float(ends_in_s.min(initial=inf)))
        if until_s == inf:
            raise ValueError("jobs are left that have no share of anything")
        left[active] -= rates * (until_s - now_s)
        ended = (ends_in_s <= until_s - now_s) | (left[active] <= DONE)
        ends_s[active[ended]], now_s = until_s, until_s
        came = int(np.searchsorted(arrival_s, now_s, side="right"))
        active, arrived = np.concatenate([active[~ended], np.arange(arrived, came)]), came
    return ends_s


def _rates(workload: Workload, of: tuple[NodeView, ...], active: Ints) -> Floats:
    """float64[len(active)]: steps/s of each with its share."""
    if not len(active):
        return np.zeros(0)
    observed = observe(snapshot(of, workload.kinds, rows(workload.jobs, active)))
    by_class = fair_shares(observed.problem).throughput(observed.problem)
    found = np.zeros(len(active))
    at = np.array(observed.classes.class_of)
    found[at >= 0] = by_class[at[at >= 0]]
    return found
