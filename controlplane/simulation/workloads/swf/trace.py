"""Traces in the Standard Workload Format (Feitelson's archive); see docs/workloads.md.

18 numbers a line (`FIELDS`), -1 where nothing is known, comments after `;`. The trace of CINECA's
Eurora adds eight (`EXTRA`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.simulation.workloads.base import BadLine, Workload
from controlplane.simulation.workloads.drafts import Draft, check, workload_of
from controlplane.simulation.workloads.lines import Findings, pieces, quoted
from controlplane.simulation.workloads.options import Context, Trace, one_of
from controlplane.simulation.workloads.swf.log import (
    facts_of,
    has_processors,
    ran,
    think_times,
    with_think_times,
)
from foundation.forms import Above0
from policies.contract.snapshot import Bools, Floats, Ints

FIELDS = (
    "job number", "submit time", "wait time", "run time", "allocated processors", "CPU time used",
    "memory used",
    "requested processors", "requested time", "requested memory", "status", "user", "group",
    "application", "queue", "partition",
    "preceding job", "think time",
)  # fmt: skip
EXTRA = (
    "units", "cores per unit", "GPUs per unit", "MICs per unit", "KB per unit", "original job",
    "application type", "power",
)  # fmt: skip
KB_PER_GB = 1e9 / 1024.0
MOST_UNITS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Swf(Trace):
    """Options of an SWF trace.

    `gpus`: "processors" (every `processors_per_gpu` processors are a GPU), "one" (each job takes
    one) or "fields" (Eurora's extra fields say how many GPUs, cores and how much memory each unit
    needs). "batch" and "batch_fields" read batch jobs: units of one core, one for each processor,
    or those of the extra fields, with and without GPUs. `without_gpus`: what becomes of jobs whose
    fields ask for none: "leave_out" or "one".
    """

    gpus: str = "processors"
    processors_per_gpu: Above0 = 1.0
    without_gpus: str = "leave_out"


def read(options: Swf, context: Context) -> Workload:
    """Rigid jobs of the trace, with its run times on the GPUs they ask for."""
    one_of("gpus", options.gpus, ("processors", "one", "fields", "batch", "batch_fields"))
    one_of("without_gpus", options.without_gpus, ("leave_out", "one"))
    findings = Findings()
    table = _table(options.read(), options.gpus in ("fields", "batch_fields"), findings)

    # 1. Jobs that never ran, parts of jobs and what the options leave out are not looked at.
    wanted = ran(table)
    if options.gpus not in ("one", "batch_fields"):
        wanted &= has_processors(table)
    if options.gpus == "fields" and options.without_gpus != "one":
        wanted &= table[:, 20] > 0
    findings.wanted = wanted

    # 2. Check the others. Logs are not always in order of submission; the simulation puts them so.
    draft = _draft(table, options, findings)
    check(draft, findings, in_order=False)
    think = think_times(table, wanted)

    facts = {
        **_facts(table, options, findings.good & ran(table)),
        **facts_of(table, findings.good, wanted),
    }
    workload = workload_of(draft, findings, options, context, facts, wanted)
    return with_think_times(workload, think, options.time_factor)


def _table(text: str, extra: bool, findings: Findings) -> Floats:
    """float64[M, 18 or 26] of numeric lines."""
    width = len(FIELDS) + (len(EXTRA) if extra else 0)
    lines, tables = [np.zeros(0, dtype=np.int64)], [np.zeros((0, width))]
    for numbers, texts in pieces(text, ";"):
        try:
            tables.append(np.loadtxt(texts, usecols=range(width), comments=None, ndmin=2))
            lines.append(numbers)
        except ValueError:
            kept, table = _line_by_line(numbers, texts, width, findings)
            lines.append(kept)
            tables.append(table)
    findings.lines = np.concatenate(lines)
    table = np.concatenate(tables)
    finite = np.isfinite(table)
    findings.mark(
        np.asarray(~finite.all(axis=1)), lambda row: "has a field that is not a finite number"
    )
    return np.where(finite, table, -1.0)


def _line_by_line(
    numbers: Ints, texts: Sequence[str], width: int, findings: Findings
) -> tuple[Ints, Floats]:
    """`_table` line by line, for a piece with an unreadable line."""
    kept, rows = [], []
    for number, text in zip(numbers.tolist(), texts, strict=True):
        fields = text.split()
        row = _row(fields[:width])
        if len(fields) < width:
            findings.unreadable.append(BadLine(number, f"has {len(fields)} fields, not {width}"))
        elif isinstance(row, str):
            findings.unreadable.append(BadLine(number, row))
        else:
            kept.append(number)
            rows.append(row)
    return np.array(kept, dtype=np.int64), np.array(rows).reshape(len(rows), width)


def _row(fields: Sequence[str]) -> list[float] | str:
    row = []
    for name, field in zip((*FIELDS, *EXTRA), fields, strict=False):
        try:
            row.append(float(field))
        except ValueError:
            return f"the {name} is not a number: {quoted(field)}"
    return row


def _draft(table: Floats, options: Swf, findings: Findings) -> Draft:
    submit_s, run_s, requested_s = table[:, 1], table[:, 3], table[:, 8]
    findings.limit("the submit time", submit_s, unit=" s")
    columns: dict[str, Any] = {
        "walltime_s": np.where(requested_s > 0, requested_s, np.maximum(run_s, 1.0)),
        "user": _names("user", table[:, 11]),
        "team": _names("group", table[:, 12]),
    }
    kinds = ["job"] * len(table)
    if options.gpus == "fields":
        units = np.clip(table[:, 18], 1, None)
        columns |= {  # the demand of all units, on one node
            "cores": units * np.maximum(table[:, 19], 0.0),
            "memory_gb": units * np.maximum(table[:, 22], 0.0) / KB_PER_GB,
            "resources": [(("mic", float(n)),) if n > 0 else () for n in units * table[:, 21]],
        }
        kinds = [f"application {n:.0f}" for n in table[:, 24]]
    ids = [f"{n:.0f}" for n in table[:, 0]]
    gpus = _gpus(table, options, findings)
    if not options.gpus.startswith("batch"):
        return Draft(ids, kinds, submit_s, run_s, gpus, columns)
    columns |= {"batch": True, "preemptible": False, **_units(table, options)}
    kinds = _programs(table, options)
    return Draft(ids, kinds, submit_s, run_s, gpus, columns, batch=True)


def _programs(table: Floats, options: Swf) -> list[str]:
    """Name the queue and the application, or its type, of each batch job, as far as known.

    Run times are predicted by it; all of them run as fast anywhere.
    """
    of_application = 24 if options.gpus == "batch_fields" else 13
    queues = _names("queue", table[:, 14])
    applications = _names("application", table[:, of_application])
    pairs = zip(queues, applications, strict=True)
    return [", ".join(word for word in pair if word) or "job" for pair in pairs]


def _units(table: Floats, options: Swf) -> dict[str, Any]:
    """Units of batch jobs and the demand of each."""
    if options.gpus == "batch":
        units = np.where(table[:, 7] > 0, table[:, 7], table[:, 4])
        memory_gb = np.maximum(table[:, 9], 0.0) / KB_PER_GB
        whole = np.clip(units, 1, MOST_UNITS).astype(np.int64)
        return {"units": whole, "cores": 1.0, "memory_gb": memory_gb}
    return {
        "units": np.clip(table[:, 18], 1, MOST_UNITS).astype(np.int64),
        "cores": np.maximum(table[:, 19], 0.0),
        "memory_gb": np.maximum(table[:, 22], 0.0) / KB_PER_GB,
        "resources": [(("mic", float(n)),) if n > 0 else () for n in table[:, 21]],
    }


def _gpus(table: Floats, options: Swf, findings: Findings) -> Floats:
    """float64[M]: GPUs of each job, at least 1 (jobs without are left out or given one)."""
    if options.gpus == "one":
        return np.ones(len(table))
    processors = np.where(table[:, 7] > 0, table[:, 7], table[:, 4])
    if options.gpus == "batch":
        _mark_units(processors, "processors", findings)
        return np.zeros(len(table))
    if options.gpus == "processors":
        with np.errstate(over="ignore"):  # too many GPUs for a number: the row is refused
            return np.maximum(1.0, np.ceil(processors / options.processors_per_gpu))
    units, cores, gpus = table[:, 18], table[:, 19], table[:, 20]
    negative = np.asarray((table[:, 18:23] < 0).any(axis=1))
    findings.mark(negative, lambda row: "its extra fields 19 to 23 must not be negative")
    findings.mark(units < 1, lambda row: f"a job has at least 1 unit, not {units[row]:g}")
    _mark_units(units, "units", findings)
    findings.mark(
        units * cores != processors,
        lambda row: (
            f"{units[row]:g} units of {cores[row]:g} cores are not the {processors[row]:g}"
            " processors requested"
        ),
    )
    return units * gpus if options.gpus == "batch_fields" else np.maximum(1.0, units * gpus)


def _mark_units(units: Floats, name: str, findings: Findings) -> None:
    findings.mark(
        (units != np.floor(units)) | (units > MOST_UNITS),
        lambda row: f"a job has whole {name}, at most {MOST_UNITS:,}, not {units[row]:g}",
    )


def _facts(table: Floats, options: Swf, good: Bools) -> dict[str, Any]:
    over = int(np.count_nonzero(good & (table[:, 8] > 0) & (table[:, 3] > table[:, 8])))
    facts: dict[str, Any] = {"format": "SWF", "jobs_that_ran_longer_than_requested": over}
    if options.gpus not in ("fields", "batch_fields"):
        return facts
    power = table[good & (table[:, 25] >= 0), 25]
    facts["jobs_without_gpu"] = int(np.count_nonzero(good & (table[:, 20] <= 0)))
    mean_w = float(power.mean()) if len(power) else None
    facts["predicted_power_w"] = {"jobs": len(power), "mean": mean_w}
    return facts


def _names(word: str, numbers: Floats) -> list[str]:
    """Name of each number, none for -1; equal names are one object."""
    names = {n: f"{word} {n:.0f}" if n >= 0 else "" for n in np.unique(numbers).tolist()}
    return [names[n] for n in numbers.tolist()]
