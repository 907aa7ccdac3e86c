"""Loadmaster's own CSV: a header of the columns below in any order, a line a job.

    id,arrival_s,run_s,gpus,kind,due_s,walltime_s,tardiness_weight,weight,priority,team,user,cores,memory_gb,allowed_types

`arrival_s` and `run_s` are needed, the others may be missing or empty. Times count from one moment,
whichever; `due_s` is such a time too, and empty where there is none. `allowed_types` are separated
by `|`. `columns` renames: {"run_s": "duration"} reads the column `duration` as `run_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Any

import numpy as np

from controlplane.simulation.workloads.base import MOST_WEIGHT, Workload, WorkloadError
from controlplane.simulation.workloads.drafts import Draft, check, workload_of
from controlplane.simulation.workloads.lines import Findings, Table
from controlplane.simulation.workloads.options import Context, Trace
from policies.contract.forms import OBJECT
from policies.contract.snapshot import Floats

NEEDED = ("arrival_s", "run_s")
DEFAULTS = {
    "walltime_s": inf,
    "tardiness_weight": 0.0,
    "weight": 1.0,
    "priority": 0.0,
    "cores": 0.0,
    "memory_gb": 0.0,
}
TEXTS = ("team", "user")
KNOWN = ("id", *NEEDED, "gpus", "kind", "due_s", *DEFAULTS, *TEXTS, "allowed_types")
MOST_PRIORITY = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Csv(Trace):
    """Options of a CSV trace: `columns` says which of the file's columns each known one is (see the
    module); `sort` puts the lines in order of arrival instead of refusing those that are not;
    `ignore` columns that mean nothing here.
    """

    columns: Annotated[tuple[tuple[str, str], ...], OBJECT] = ()
    ignore: tuple[str, ...] = ()
    delimiter: str = ","
    sort: bool = False


def read(options: Csv, context: Context) -> Workload:
    """The jobs of the file, rigid, each as long as `run_s` says on `gpus` GPUs."""
    if len(options.delimiter) != 1:
        raise WorkloadError(f"delimiter: must be one character, not {options.delimiter!r}")
    findings = Findings()
    table = Table(options.read(context.folder), findings, options.delimiter)
    _rename(table, options)
    table.need(*NEEDED)
    draft = _draft(table, findings)
    check(draft, findings, in_order=not options.sort)
    without_due = replace(options, due_factor=()) if "due_s" in draft.columns else options
    return workload_of(draft, findings, without_due, context, {"format": "CSV"})


def _rename(table: Table, options: Csv) -> None:
    """Give the file's columns their known names; WorkloadError for one that nobody knows."""
    for known, found in options.columns:
        table.need(found)
        if known not in KNOWN:
            raise WorkloadError(f"columns: no such column: {known}; known are: {', '.join(KNOWN)}")
        table.texts[known] = table.texts.pop(found)
    for name in [n for n in table.texts if n not in KNOWN and n not in options.ignore]:
        raise WorkloadError(
            f"line 1: no such column: {name}; known are: {', '.join(KNOWN)} (or name it in"
            " `ignore`)"
        )


def _draft(table: Table, findings: Findings) -> Draft:
    texts, count = table.texts, len(table.lines)
    arrival_s, run_s = (table.numbers(name, findings) for name in NEEDED)
    gpus = table.numbers("gpus", findings, default=1.0) if "gpus" in texts else np.ones(count)
    columns: dict[str, Any] = {
        name: _limited(table, name, findings) for name in DEFAULTS if name in texts
    }
    columns |= {name: texts[name] for name in TEXTS if name in texts}
    if "due_s" in texts:
        columns["due_s"] = _due_s(table, arrival_s, findings)
    if "allowed_types" in texts:
        columns["allowed_types"] = [
            tuple(sorted(filter(None, t.split("|")))) for t in texts["allowed_types"]
        ]
    ids = _filled(texts.get("id"), count, lambda row: f"line {table.lines[row]}")
    return Draft(
        ids, _filled(texts.get("kind"), count, lambda row: "job"), arrival_s, run_s, gpus, columns
    )


def _limited(table: Table, name: str, findings: Findings) -> Floats:
    """A column that must not be negative; a priority may be, but is a whole number."""
    values = table.numbers(name, findings, DEFAULTS[name])
    if name != "priority":
        findings.mark(values < 0, lambda row: f"{name} must not be negative, it is {values[row]:g}")
        beyond = np.isfinite(values) & (values > MOST_WEIGHT)
        findings.mark(
            beyond, lambda row: f"{name} must not be above {MOST_WEIGHT:g}, it is {values[row]:g}"
        )
        return values
    bad = (values != np.floor(values)) | (np.abs(values) > MOST_PRIORITY)
    findings.mark(bad, lambda row: f"priority must be a whole number, not {values[row]:g}")
    return np.where(bad, 0.0, values)


def _due_s(table: Table, arrival_s: Floats, findings: Findings) -> Floats:
    due_s = table.numbers("due_s", findings, default=inf)
    findings.mark(
        due_s < arrival_s,
        lambda row: f"is due at {due_s[row]:g} s, before it arrives at {arrival_s[row]:g} s",
    )
    return due_s


def _filled(texts: list[str] | None, count: int, default: Callable[[int], str]) -> list[str]:
    return [
        text or default(row)
        for row, text in enumerate(texts if texts is not None else [""] * count)
    ]
