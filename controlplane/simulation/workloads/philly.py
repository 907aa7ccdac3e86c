"""Jobs of Microsoft's Philly cluster as CSV: `timestamp,duration,num_gpus,gpu_time,cluster`.

The subsets drawn from it, `row,submit,num_gpus,duration_s,...`, are read as well. The file is a
table of jobs, not a log: it is in no order, and is put in order here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.simulation.workloads.base import Workload
from controlplane.simulation.workloads.drafts import Draft, check, workload_of
from controlplane.simulation.workloads.lines import Findings, Table, quoted
from controlplane.simulation.workloads.options import Context, Trace
from policies.contract.snapshot import Floats

MOST_APART = 0.01
"""Tolerated difference of GPU time from duration times GPUs, as a fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Philly(Trace):
    """Options of a Philly trace."""


def read(options: Philly, context: Context) -> Workload:
    """Rigid jobs of the trace, one kind, with their durations; teams: virtual clusters."""
    findings = Findings()
    table = Table(options.read(context.folder), findings)
    when, duration = (
        ("submit", "duration_s") if "submit" in table.texts else ("timestamp", "duration")
    )
    table.need(when, duration, "num_gpus")
    run_s = table.numbers(duration, findings)
    gpus = table.numbers("num_gpus", findings)
    arrival_s = times_s(table.texts[when], when, findings)
    _check_gpu_time(table, run_s * gpus, findings)
    ids = [str(line) for line in table.lines.tolist()]
    columns = {"team": table.texts["cluster"]} if "cluster" in table.texts else {}
    draft = Draft(ids, ["job"] * len(ids), arrival_s, run_s, gpus, columns)
    check(draft, findings, in_order=False)
    return workload_of(draft, findings, options, context, {"format": "Philly"})


def times_s(texts: Sequence[str], name: str, findings: Findings) -> Floats:
    """Epoch seconds of times like 2017-10-09 07:01:55 in UTC; bad rows are 0 and marked."""
    try:
        moments = np.array(texts, dtype="datetime64[s]")
    except ValueError:
        moments = np.array([_moment(t) for t in texts], dtype="datetime64[s]")
    unknown = np.isnat(moments)
    findings.mark(
        unknown,
        lambda row: f"{name} is not a time such as 2017-10-09 07:01:55: {quoted(texts[row])}",
    )
    return np.where(unknown, 0, moments.astype(np.int64)).astype(np.float64)


def _moment(text: str) -> np.datetime64:
    try:
        return np.datetime64(text, "s")
    except ValueError:
        return np.datetime64("NaT", "s")


def _check_gpu_time(table: Table, expected_s: Floats, findings: Findings) -> None:
    if "gpu_time" not in table.texts:
        return
    told_s = table.numbers("gpu_time", findings)
    findings.mark(
        np.abs(told_s - expected_s) > np.maximum(1.0, MOST_APART * np.abs(expected_s)),
        lambda row: (
            f"a GPU time of {told_s[row]:g} s is not duration times GPUs, {expected_s[row]:g} s"
        ),
    )
