"""A run's figures by the paper's definitions: completion times, finish-time fairness, GPU hours."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.world.outcome import Outcome
from policies.contract.snapshot import Bools, Floats, Ints, JobColumns

HOUR_S = 3600.0
QUANTILES = np.linspace(0.0, 1.0, 51)


def jct_figures(outcome: Outcome, columns: JobColumns, counted: Bools) -> dict[str, Any]:
    """Average completion times (h) of the counted jobs, by priority too; `unfinished` jobs."""
    jct_h, heavy = outcome.jct_s / HOUR_S, columns.numbers["weight"] > 1.0
    done = counted & np.isfinite(jct_h)
    return {
        "jct_h": _mean(jct_h[done]),
        "jct_high_h": _mean(jct_h[done & heavy]),
        "jct_low_h": _mean(jct_h[done & ~heavy]),
        "jct_quantiles_h": _quantiles(jct_h[done]),
        "unfinished": int((counted & ~done).sum()),
    }


def rho_figures(
    outcome: Outcome, workload: Workload, gpus: Mapping[str, int], counted: Bools
) -> dict[str, Any]:
    """Average and quantiles of rho (section 4.2) over the counted jobs that end."""
    done = counted & np.isfinite(outcome.completion_s)
    rho = outcome.jct_s[done] / isolated_s(outcome, workload, gpus)[done]
    return {"rho": _mean(rho), "rho_quantiles": _quantiles(rho)}


def isolated_s(outcome: Outcome, workload: Workload, gpus: Mapping[str, int]) -> Floats:
    """float64[J]: how long each job would have taken with 1/n of each type's GPUs to itself from
    its arrival on, n(t) being the jobs that were there at t.

    That is throughput(m, X_equal) times the part of its time min(1, N / (n s)) for which it has s
    of them: its end is where the integral of that part has grown by steps / throughput(m, X_equal).
    After the last event it is alone.
    """
    columns, total = workload.jobs.columns, float(sum(gpus.values()))
    rate, scale = _equal_rates(workload, gpus), columns.counts["gpus_min"]
    ends_s = np.where(np.isfinite(outcome.completion_s), outcome.completion_s, np.inf)
    found = np.full(len(rate), np.inf)
    for s in np.unique(scale).tolist():
        at = np.flatnonzero((scale == s) & (rate > 0.0))
        at_s, grown = _part_of_time(outcome.arrival_s, ends_s, total / s)
        wanted = (
            np.interp(outcome.arrival_s[at], at_s, grown)
            + columns.numbers["total_steps"][at] / rate[at]
        )
        beyond = np.maximum(wanted - grown[-1], 0.0)
        found[at] = np.interp(wanted, grown, at_s) + beyond - outcome.arrival_s[at]
    return found


def _part_of_time(arrival_s: Floats, ends_s: Floats, of_one: float) -> tuple[Floats, Floats]:
    """(moments, integrals until then of min(1, of_one / number of jobs present))."""
    known = ends_s[np.isfinite(ends_s)]
    at_s, inverse = np.unique(np.concatenate([arrival_s, known]), return_inverse=True)
    change = np.zeros(len(at_s))
    np.add.at(change, inverse, np.concatenate([np.ones(len(arrival_s)), -np.ones(len(known))]))
    there = np.maximum(np.cumsum(change)[:-1], 1.0)
    grown = np.concatenate([[0.0], np.cumsum(np.diff(at_s) * np.minimum(1.0, of_one / there))])
    return at_s, grown


def _equal_rates(workload: Workload, gpus: Mapping[str, int]) -> Floats:
    """float64[J]: throughput(m, X_equal) of each job, together on a node."""
    total, columns = float(sum(gpus.values())), workload.jobs.columns
    known = {
        (kind.id, t.gpu_type, t.gpus): t.steps_per_s
        for kind in workload.kinds
        for t in kind.throughputs
        if not t.spread
    }
    scales: list[int] = columns.counts["gpus_min"].tolist()
    return np.array(
        [
            sum(known.get((k, t, s), 0.0) * n / total for t, n in gpus.items())
            for k, s in zip(columns.kinds, scales, strict=True)
        ]
    )


def gpu_hours(outcome: Outcome, type_of: Mapping[str, str]) -> tuple[dict[str, float], float]:
    """(hours that GPUs of each type were held, by node -> type; hours of them in which two jobs
    shared one).

    A shared GPU's time is counted once.
    """
    device, start_s, end_s, types = _by_device(outcome, type_of)
    order = np.lexsort((start_s, device))
    device, start_s, end_s = device[order], start_s[order], end_s[order]
    offset = device * (float(end_s.max(initial=0.0)) + 1.0)
    latest = np.maximum.accumulate(end_s + offset) if len(order) else end_s
    before = np.concatenate([[-np.inf], latest[:-1]])
    alone_s = np.maximum(end_s + offset - np.maximum(start_s + offset, before), 0.0)
    held = np.zeros(len(types))
    np.add.at(
        held,
        np.array([types.index(t) for t in _types(outcome, type_of)], dtype=np.int64)[order],
        alone_s,
    )
    shared_h = float((end_s - start_s).sum() - alone_s.sum()) / HOUR_S
    return {t: float(s) / HOUR_S for t, s in zip(types, held, strict=True)}, round(
        max(shared_h, 0.0), 6
    )


def _by_device(
    outcome: Outcome, type_of: Mapping[str, str]
) -> tuple[Ints, Floats, Floats, list[str]]:
    """A row for each stay on a device: number of the device, from, to; and the types."""
    stays, number = outcome.stays, dict[tuple[int, str], int]()
    rows = [
        (number.setdefault((n, d), len(number)), i)
        for i, n in enumerate(stays.node.tolist())
        for d in stays.devices[i]
    ]
    device, stay = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return device, stays.start_s[stay], stays.end_s[stay], sorted(set(type_of.values()))


def _types(outcome: Outcome, type_of: Mapping[str, str]) -> list[str]:
    of_node = [type_of[name] for name in outcome.nodes]
    return [
        of_node[n]
        for i, n in enumerate(outcome.stays.node.tolist())
        for _ in outcome.stays.devices[i]
    ]


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _quantiles(values: Floats) -> list[float] | None:
    return [float(q) for q in np.quantile(values, QUANTILES)] if len(values) else None
