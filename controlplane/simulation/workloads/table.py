"""Traces as CSV: Loadmaster's own, and those of Microsoft's Philly cluster; see docs/workloads.md.

Philly's has `timestamp,duration,num_gpus,gpu_time,cluster`; the subsets drawn from it,
`row,submit,num_gpus,duration_s,...`, are read as well. It is in no order, and is put in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Any

import numpy as np

from controlplane.simulation.workloads.base import MOST_WEIGHT, Workload, WorkloadError
from controlplane.simulation.workloads.drafts import Draft, check, workload_of
from controlplane.simulation.workloads.lines import (
    Findings,
    Table,
    as_floats,
    as_moments,
    quoted,
)
from controlplane.simulation.workloads.options import Context, Trace
from policies.contract.forms import OBJECT
from policies.contract.snapshot import Floats

NEEDED = ("arrival_s", "run_s")
DEFAULTS = {
    "walltime_s": inf,
    "tardiness_weight": 0.0,
    "weight": 1.0,
    "cores": 0.0,
    "memory_gb": 0.0,
}
TEXTS = ("team", "user")
KNOWN = ("id", *NEEDED, "gpus", "kind", "due_s", *DEFAULTS, "priority", *TEXTS, "allowed_types")
MOST_PRIORITY = 1e9
MOST_APART = 0.01
"""Tolerated difference of GPU time from duration times GPUs, as a fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Csv(Trace):
    """Options of a CSV trace: `columns` maps known columns to the file's (see the module).

    `sort`: accept any order; `ignore`: unused columns. `delimiter`: found in the header where it is
    left out; where it is no comma, numbers may have a decimal comma.
    """

    columns: Annotated[tuple[tuple[str, str], ...], OBJECT] = ()
    ignore: tuple[str, ...] = ()
    delimiter: str = ""
    sort: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Philly(Trace):
    """Options of a Philly trace."""


def read(options: Csv, context: Context) -> Workload:
    """Rigid jobs of the file, each as long as `run_s` says on `gpus` GPUs."""
    if len(options.delimiter) > 1 or options.delimiter in ('"', "\r", "\n"):
        wanted = "must be one character, no quote or line end"
        raise WorkloadError(f"delimiter: {wanted}, not {options.delimiter!r}")
    findings = Findings()
    table = Table(options.read(), findings, options.delimiter)
    _rename(table, options)
    table.need(*NEEDED)
    draft = _draft(table, findings)
    check(draft, findings, in_order=not options.sort)
    without_due = replace(options, due_factor=()) if "due_s" in draft.columns else options
    return workload_of(draft, findings, without_due, context, {"format": "CSV"})


def _rename(table: Table, options: Csv) -> None:
    """Give the file's columns their known names; WorkloadError for an unknown one."""
    known = f"known are: {', '.join(KNOWN)}"
    for name, found in options.columns:
        table.need(found)
        if name not in KNOWN:
            raise WorkloadError(f"columns: no such column: {name}; {known}")
        table.texts[name] = table.texts.pop(found)
    for name in table.texts:
        if name not in KNOWN and name not in options.ignore:
            raise WorkloadError(f"line 1: no such column: {name}; {known} (or name it in `ignore`)")


def _draft(table: Table, findings: Findings) -> Draft:
    texts, count = table.texts, len(table.lines)
    run_s = table.numbers("run_s", findings)
    with_times = _has_times(texts["arrival_s"])
    arrival_s = _times(table, "arrival_s", findings, with_times)
    gpus = table.numbers("gpus", findings, default=1.0) if "gpus" in texts else np.ones(count)
    columns: dict[str, Any] = {name: texts[name] for name in TEXTS if name in texts}
    for name, default in DEFAULTS.items():
        if name in texts:
            columns[name] = values = table.numbers(name, findings, default)
            findings.limit(name, values, MOST_WEIGHT)
    if "priority" in texts:
        columns["priority"] = _priority(table, findings)
    if "due_s" in texts:
        columns["due_s"] = due_s = _times(table, "due_s", findings, with_times, default=inf)
        findings.mark(
            due_s < arrival_s,
            lambda row: f"is due at {due_s[row]:g} s, before it arrives at {arrival_s[row]:g} s",
        )
    if "allowed_types" in texts:
        columns["allowed_types"] = [
            tuple(sorted(filter(None, t.split("|")))) for t in texts["allowed_types"]
        ]
    none = [""] * count
    kinds = [text or "job" for text in texts.get("kind", none)]
    ids = [
        text or f"line {line}"
        for text, line in zip(texts.get("id", none), table.lines, strict=True)
    ]
    return Draft(ids, kinds, arrival_s, run_s, gpus, columns)


def _priority(table: Table, findings: Findings) -> Floats:
    values = table.numbers("priority", findings, 0.0)
    bad = (values != np.floor(values)) | (np.abs(values) > MOST_PRIORITY)
    findings.mark(bad, lambda row: f"priority must be a whole number, not {values[row]:g}")
    return np.where(bad, 0.0, values)


def read_philly(options: Philly, context: Context) -> Workload:
    """Rigid jobs of the trace, one kind, with their durations; teams: virtual clusters."""
    findings = Findings()
    table = Table(options.read(), findings)
    is_subset = "submit" in table.texts
    when, duration = ("submit", "duration_s") if is_subset else ("timestamp", "duration")
    table.need(when, duration, "num_gpus")
    run_s, gpus = table.numbers(duration, findings), table.numbers("num_gpus", findings)
    arrival_s, expected_s = _times_s(table.texts[when], when, findings), run_s * gpus
    if "gpu_time" in table.texts:
        gpu_s = table.numbers("gpu_time", findings)
        findings.mark(
            np.abs(gpu_s - expected_s) > np.maximum(1.0, MOST_APART * np.abs(expected_s)),
            lambda row: (
                f"a GPU time of {gpu_s[row]:g} s is not duration times GPUs, {expected_s[row]:g} s"
            ),
        )
    ids = [str(line) for line in table.lines.tolist()]
    columns = {"team": table.texts["cluster"]} if "cluster" in table.texts else {}
    draft = Draft(ids, ["job"] * len(ids), arrival_s, run_s, gpus, columns)
    check(draft, findings, in_order=False)
    return workload_of(draft, findings, options, context, {"format": "Philly"})


def _times_s(texts: Sequence[str], name: str, findings: Findings) -> Floats:
    """float64[M]: seconds since 1970 of times like 2017-10-09 07:01:55; bad rows are 0, marked."""
    seconds = as_moments(texts)
    unknown = np.isnan(seconds)
    findings.mark(
        unknown,
        lambda row: f"{name} is not a time such as 2017-10-09 07:01:55: {quoted(texts[row])}",
    )
    return np.where(unknown, 0.0, seconds)


def _has_times(texts: Sequence[str]) -> bool:
    """Return True for a column whose first value is a time of ISO 8601, not a number."""
    first = next((text for text in texts if text.strip()), "0")
    return bool(np.isnan(as_floats([first], ";")[0])) and not bool(np.isnan(as_moments([first])[0]))


def _times(
    table: Table, name: str, findings: Findings, with_times: bool, default: float | None = None
) -> Floats:
    """float64[M]: times of a column, as seconds or as times of ISO 8601 as in `arrival_s`."""
    if not with_times:
        return table.numbers(name, findings, default)
    texts = table.texts[name]
    empty = np.array([not text.strip() for text in texts], dtype=np.bool_)
    if default is None or not empty.any():
        return _times_s(texts, name, findings)
    filled = ["1970-01-01" if e else t for e, t in zip(empty.tolist(), texts, strict=True)]
    return np.where(empty, default, _times_s(filled, name, findings))
