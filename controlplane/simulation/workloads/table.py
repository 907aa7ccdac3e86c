"""Traces as CSV: Loadmaster's own, and those of Microsoft's Philly cluster; see docs/workloads.md.

A Philly trace has the columns `timestamp,duration,num_gpus,gpu_time,cluster`, and subsets drawn
from it have `row,submit,num_gpus,duration_s,...`. Its jobs are in no order; they are sorted.
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
    filled,
    is_empty,
    quoted,
)
from controlplane.simulation.workloads.options import Context, Trace
from foundation.forms import OBJECT
from policies.contract.snapshot import Floats

NEEDED = ("arrival_s", "run_s")
"""Columns that a CSV trace must have; the others of KNOWN may be missing."""

DEFAULTS = {
    "walltime_s": inf,
    "tardiness_weight": 0.0,
    "weight": 1.0,
    "cores": 0.0,
    "memory_gb": 0.0,
}
"""Optional columns of numbers, with the value of an empty field."""

TEXTS = ("team", "user")
KNOWN = ("id", *NEEDED, "gpus", "kind", "due_s", *DEFAULTS, "priority", *TEXTS, "allowed_types")
MOST_PRIORITY = 1e9
MOST_APART = 0.01
"""Tolerated difference of GPU time from duration times GPUs, as a fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Csv(Trace):
    """Options of a CSV trace.

    `columns`: pairs of a known name and the file's name of that column. `ignore`: the file's
    columns that are not used. `sort`: accept any order of arrivals. `delimiter`: "": it is found in
    the header; unless it is a comma, numbers may have a decimal comma.
    """

    columns: Annotated[tuple[tuple[str, str], ...], OBJECT] = ()
    ignore: tuple[str, ...] = ()
    delimiter: str = ""
    sort: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Philly(Trace):
    """Options of a Philly trace."""


def read(options: Csv, context: Context) -> Workload:
    """Read a CSV trace: rigid jobs, each of which runs `run_s` seconds on `gpus` GPUs.

    Raises WorkloadError.
    """
    if len(options.delimiter) > 1 or options.delimiter in ('"', "\r", "\n"):
        wanted = "must be one character, no quote or line end"
        raise WorkloadError(f"delimiter: {wanted}, not {options.delimiter!r}")
    findings = Findings()
    table = Table(options.read(), findings, options.delimiter)
    _rename(table, options)
    table.need(*NEEDED)
    draft = _draft(table, findings)
    check(draft, findings, in_order=not options.sort)
    if "due_s" in draft.columns:
        options = replace(options, due_factor=())  # the file's due dates are kept
    return workload_of(draft, findings, options, context, {"format": "CSV"})


def _rename(table: Table, options: Csv) -> None:
    """Give the file's columns their known names. Raises WorkloadError for an unknown column."""
    known = f"known are: {', '.join(KNOWN)}"
    for name, name_in_file in options.columns:
        table.need(name_in_file)
        if name not in KNOWN:
            raise WorkloadError(f"columns: no such column: {name}; {known}")
        table.texts[name] = table.texts.pop(name_in_file)
    for name in table.texts:
        if name not in KNOWN and name not in options.ignore:
            raise WorkloadError(f"line 1: no such column: {name}; {known} (or name it in `ignore`)")


def _draft(table: Table, findings: Findings) -> Draft:
    """Read the columns of all jobs; rows with a bad value are marked in the findings."""
    texts = table.texts
    count = len(table.lines)

    # 1. Times and GPUs. Arrivals and due dates are both seconds, or both dates.
    run_s = table.numbers("run_s", findings)
    with_dates = _has_dates(texts["arrival_s"])
    arrival_s = _seconds(table, "arrival_s", findings, with_dates)
    gpus: Floats = np.ones(count)
    if "gpus" in texts:
        gpus = table.numbers("gpus", findings, default=1.0)

    # 2. Optional columns.
    columns: dict[str, Any] = {name: texts[name] for name in TEXTS if name in texts}
    for name, default in DEFAULTS.items():
        if name in texts:
            values = table.numbers(name, findings, default)
            findings.limit(name, values, MOST_WEIGHT)
            columns[name] = values
    if "priority" in texts:
        columns["priority"] = _priority(table, findings)
    if "due_s" in texts:
        due_s = _seconds(table, "due_s", findings, with_dates, default=inf)
        columns["due_s"] = due_s
        findings.mark(
            due_s < arrival_s,
            lambda row: f"is due at {due_s[row]:g} s, before it arrives at {arrival_s[row]:g} s",
        )
    if "allowed_types" in texts:
        columns["allowed_types"] = [_types_of(text) for text in texts["allowed_types"]]

    # 3. Kinds and ids, where the file has none.
    empty = [""] * count
    kinds = [text or "job" for text in texts.get("kind", empty)]
    ids = []
    for text, line in zip(texts.get("id", empty), table.lines, strict=True):
        ids.append(text or f"line {line}")
    return Draft(ids, kinds, arrival_s, run_s, gpus, columns)


def _types_of(text: str) -> tuple[str, ...]:
    """Return the GPU types of a field such as T4|V100, in order."""
    names = [name for name in text.split("|") if name]
    return tuple(sorted(names))


def _priority(table: Table, findings: Findings) -> Floats:
    """Return the priorities of all jobs; rows without a whole number are marked."""
    values = table.numbers("priority", findings, 0.0)
    bad = (values != np.floor(values)) | (np.abs(values) > MOST_PRIORITY)
    findings.mark(bad, lambda row: f"priority must be a whole number, not {values[row]:g}")
    return np.where(bad, 0.0, values)


def read_philly(options: Philly, context: Context) -> Workload:
    """Read a Philly trace: rigid jobs of one kind; their teams are its virtual clusters.

    Raises WorkloadError.
    """
    findings = Findings()
    table = Table(options.read(), findings)

    # 1. Times and GPUs; subsets drawn from the trace have other names for them.
    if "submit" in table.texts:
        arrival, duration = "submit", "duration_s"
    else:
        arrival, duration = "timestamp", "duration"
    table.need(arrival, duration, "num_gpus")
    run_s = table.numbers(duration, findings)
    gpus = table.numbers("num_gpus", findings)
    arrival_s = _seconds_of_dates(table.texts[arrival], arrival, findings)

    # 2. The trace tells each job's GPU time too: a row that contradicts itself is bad.
    if "gpu_time" in table.texts:
        gpu_s = table.numbers("gpu_time", findings)
        expected_s = run_s * gpus
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


def _seconds_of_dates(texts: Sequence[str], name: str, findings: Findings) -> Floats:
    """Return times such as 2017-10-09 07:01:55 as float64[M], seconds since 1970.

    Rows without a time are marked, and 0 in the result.
    """
    seconds = as_moments(texts)
    unknown = np.isnan(seconds)
    findings.mark(
        unknown,
        lambda row: f"{name} is not a time such as 2017-10-09 07:01:55: {quoted(texts[row])}",
    )
    return np.where(unknown, 0.0, seconds)


def _has_dates(texts: Sequence[str]) -> bool:
    """Return True for a column whose first value is a time of ISO 8601, not a number."""
    first = next((text for text in texts if text.strip()), "0")
    is_number = not np.isnan(as_floats([first], ";")[0])  # with a decimal comma too
    is_date = not np.isnan(as_moments([first])[0])
    return bool(is_date and not is_number)


def _seconds(
    table: Table, name: str, findings: Findings, with_dates: bool, default: float | None = None
) -> Floats:
    """Return a column of times as float64[M], seconds; `with_dates`: it has times of ISO 8601.

    Empty fields are `default`; if that is None they are marked.
    """
    if not with_dates:
        return table.numbers(name, findings, default)
    texts = table.texts[name]
    empty = is_empty(texts)
    if default is None or not empty.any():
        return _seconds_of_dates(texts, name, findings)
    dates = filled(texts, empty, "1970-01-01")
    return np.where(empty, default, _seconds_of_dates(dates, name, findings))
