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
    ALLOCATED,
    NUMBER,
    REQUESTED,
    RUN,
    SUBMIT,
    facts_of,
    has_processors,
    ran,
    think_times,
    with_think_times,
)
from foundation.forms import Above0
from policies.contract.snapshot import Bools, Floats, Ints

FIELDS = (
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "CPU time used",
    "memory used",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "application",
    "queue",
    "partition",
    "preceding job",
    "think time",
)
"""Columns of the format, in words for messages."""

EXTRA = (
    "units",
    "cores per unit",
    "GPUs per unit",
    "MICs per unit",
    "KB per unit",
    "original job",
    "application type",
    "power",
)
"""Columns that Eurora's trace has beside them."""

# Columns of the format that are not in `log`, and the extra ones.
REQUESTED_TIME = 8
REQUESTED_MEMORY = 9
USER = 11
GROUP = 12
APPLICATION = 13
QUEUE = 14
UNITS = 18
UNIT_CORES = 19
UNIT_GPUS = 20
UNIT_MICS = 21
UNIT_KB = 22
APPLICATION_TYPE = 24
POWER = 25

KB_PER_GB = 1e9 / 1024.0
MOST_UNITS = 1_000_000
"""Units of a job, beyond which a line is wrong."""


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
    """Read the rigid jobs of a trace, with its run times on the GPUs that they ask for."""
    # 1. The table of its lines.
    one_of("gpus", options.gpus, ("processors", "one", "fields", "batch", "batch_fields"))
    one_of("without_gpus", options.without_gpus, ("leave_out", "one"))
    findings = Findings()
    table = _table(options.read(), options.gpus in ("fields", "batch_fields"), findings)

    # 2. Jobs that never ran, parts of jobs and what the options leave out are not looked at.
    wanted = ran(table)
    if options.gpus not in ("one", "batch_fields"):
        wanted &= has_processors(table)
    if options.gpus == "fields" and options.without_gpus != "one":
        wanted &= table[:, UNIT_GPUS] > 0
    findings.wanted = wanted

    # 3. Check the others. Logs are not always in order of submission; the simulation puts them so.
    draft = _draft(table, options, findings)
    check(draft, findings, in_order=False)
    think = think_times(table, wanted)

    # 4. The workload.
    facts = _facts(table, options, findings.good & ran(table))
    facts.update(facts_of(table, findings.good, wanted))
    workload = workload_of(draft, findings, options, context, facts, wanted)
    return with_think_times(workload, think, options.time_factor)


def _table(text: str, extra: bool, findings: Findings) -> Floats:
    """Return float64[M, 18], or float64[M, 26] with the `extra` columns, of the numeric lines."""
    # 1. Tables and line numbers, piece by piece: a good piece is read at once.
    width = len(FIELDS)
    if extra:
        width += len(EXTRA)
    lines = [np.zeros(0, dtype=np.int64)]
    tables = [np.zeros((0, width))]
    for numbers, texts in pieces(text, ";"):
        try:
            piece = np.loadtxt(texts, usecols=range(width), comments=None, ndmin=2)
        except ValueError:
            readable, piece = _line_by_line(numbers, texts, width, findings)
            lines.append(readable)
        else:
            lines.append(numbers)
        tables.append(piece)
    findings.lines = np.concatenate(lines)
    table = np.concatenate(tables)

    # 2. Numbers that are not finite.
    is_finite = np.isfinite(table)
    has_other = np.asarray(~is_finite.all(axis=1))
    findings.mark(has_other, lambda row: "has a field that is not a finite number")
    return np.where(is_finite, table, -1.0)


def _line_by_line(
    numbers: Ints, texts: Sequence[str], width: int, findings: Findings
) -> tuple[Ints, Floats]:
    """Return numbers and fields of the readable lines of a piece, and note the others."""
    readable = []
    rows = []
    for number, text in zip(numbers.tolist(), texts, strict=True):
        fields = text.split()
        row = _row(fields[:width])
        if len(fields) < width:
            findings.unreadable.append(BadLine(number, f"has {len(fields)} fields, not {width}"))
        elif isinstance(row, str):
            findings.unreadable.append(BadLine(number, row))
        else:
            readable.append(number)
            rows.append(row)
    return np.array(readable, dtype=np.int64), np.array(rows).reshape(len(rows), width)


def _row(fields: Sequence[str]) -> list[float] | str:
    """Return the numbers of a line, or the problem with one of its fields."""
    row = []
    for name, field in zip((*FIELDS, *EXTRA), fields, strict=False):
        try:
            row.append(float(field))
        except ValueError:
            return f"the {name} is not a number: {quoted(field)}"
    return row


def _draft(table: Floats, options: Swf, findings: Findings) -> Draft:
    """Return all lines as jobs, and note what is wrong with them."""
    # 1. What jobs of all options have.
    submit_s = table[:, SUBMIT]
    run_s = table[:, RUN]
    requested_s = table[:, REQUESTED_TIME]
    findings.limit("the submit time", submit_s, unit=" s")
    ids = [f"{number:.0f}" for number in table[:, NUMBER]]
    gpus = _gpus(table, options, findings)
    columns: dict[str, Any] = {
        "walltime_s": np.where(requested_s > 0, requested_s, np.maximum(run_s, 1.0)),
        "user": _names("user", table[:, USER]),
        "team": _names("group", table[:, GROUP]),
    }

    # 2. Batch jobs have units.
    if options.gpus.startswith("batch"):
        columns.update(_units(table, options))
        columns["batch"] = True
        columns["preemptible"] = False
        kinds = _programs(table, options)
        return Draft(ids, kinds, submit_s, run_s, gpus, columns, batch=True)

    # 3. With the extra fields a training job needs what its units need, on one node.
    kinds = ["job"] * len(table)
    if options.gpus == "fields":
        units = np.clip(table[:, UNITS], 1, None)
        columns["cores"] = units * np.maximum(table[:, UNIT_CORES], 0.0)
        columns["memory_gb"] = units * np.maximum(table[:, UNIT_KB], 0.0) / KB_PER_GB
        columns["resources"] = _mics(units * table[:, UNIT_MICS])
        kinds = [f"application {number:.0f}" for number in table[:, APPLICATION_TYPE]]
    return Draft(ids, kinds, submit_s, run_s, gpus, columns)


def _mics(numbers: Floats) -> list[tuple[tuple[str, float], ...]]:
    """Return the named resources of each job: its MICs, if it needs any."""
    resources: list[tuple[tuple[str, float], ...]] = []
    for number in numbers:
        resources.append((("mic", float(number)),) if number > 0 else ())
    return resources


def _programs(table: Floats, options: Swf) -> list[str]:
    """Name the queue and the application, or its type, of each batch job, as far as known.

    Run times are predicted by it; all of them run as fast anywhere.
    """
    column = APPLICATION_TYPE if options.gpus == "batch_fields" else APPLICATION
    queues = _names("queue", table[:, QUEUE])
    applications = _names("application", table[:, column])
    programs = []
    for names in zip(queues, applications, strict=True):
        known = [name for name in names if name]
        programs.append(", ".join(known) or "job")
    return programs


def _units(table: Floats, options: Swf) -> dict[str, Any]:
    """Return the units of batch jobs and the demand of each, as columns."""
    if options.gpus == "batch":
        return {
            "units": np.clip(_processors(table), 1, MOST_UNITS).astype(np.int64),
            "cores": 1.0,
            "memory_gb": np.maximum(table[:, REQUESTED_MEMORY], 0.0) / KB_PER_GB,
        }
    return {
        "units": np.clip(table[:, UNITS], 1, MOST_UNITS).astype(np.int64),
        "cores": np.maximum(table[:, UNIT_CORES], 0.0),
        "memory_gb": np.maximum(table[:, UNIT_KB], 0.0) / KB_PER_GB,
        "resources": _mics(table[:, UNIT_MICS]),
    }


def _processors(table: Floats) -> Floats:
    """Return float64[M]: processors that each job asked for, else those that it got."""
    requested = table[:, REQUESTED]
    return np.where(requested > 0, requested, table[:, ALLOCATED])


def _gpus(table: Floats, options: Swf, findings: Findings) -> Floats:
    """Return float64[M]: GPUs of each job, and note lines that contradict themselves.

    Only batch jobs have 0: others without GPUs are left out or given one.
    """
    # 1. By the fields that all logs have.
    if options.gpus == "one":
        return np.ones(len(table))
    processors = _processors(table)
    if options.gpus == "batch":
        _mark_units(processors, "processors", findings)
        return np.zeros(len(table))
    if options.gpus == "processors":
        with np.errstate(over="ignore"):  # too many GPUs for a number: the row is refused
            return np.maximum(1.0, np.ceil(processors / options.processors_per_gpu))

    # 2. By the extra fields of units.
    units = table[:, UNITS]
    cores = table[:, UNIT_CORES]
    is_negative = np.asarray((table[:, UNITS : UNIT_KB + 1] < 0).any(axis=1))
    findings.mark(is_negative, lambda row: "its extra fields 19 to 23 must not be negative")
    findings.mark(units < 1, lambda row: f"a job has at least 1 unit, not {units[row]:g}")
    _mark_units(units, "units", findings)
    findings.mark(
        units * cores != processors,
        lambda row: (
            f"{units[row]:g} units of {cores[row]:g} cores are not the {processors[row]:g}"
            " processors requested"
        ),
    )
    gpus = units * table[:, UNIT_GPUS]
    return gpus if options.gpus == "batch_fields" else np.maximum(1.0, gpus)


def _mark_units(units: Floats, name: str, findings: Findings) -> None:
    """Note lines whose number of units is no whole number, or too large."""
    findings.mark(
        (units != np.floor(units)) | (units > MOST_UNITS),
        lambda row: f"a job has whole {name}, at most {MOST_UNITS:,}, not {units[row]:g}",
    )


def _facts(table: Floats, options: Swf, good: Bools) -> dict[str, Any]:
    """Return facts about the lines that are `good`, bool[M]."""
    requested_s = table[:, REQUESTED_TIME]
    ran_longer = good & (requested_s > 0) & (table[:, RUN] > requested_s)
    facts: dict[str, Any] = {
        "format": "SWF",
        "jobs_that_ran_longer_than_requested": int(np.count_nonzero(ran_longer)),
    }
    if options.gpus not in ("fields", "batch_fields"):
        return facts
    power_w = table[good & (table[:, POWER] >= 0), POWER]
    facts["jobs_without_gpu"] = int(np.count_nonzero(good & (table[:, UNIT_GPUS] <= 0)))
    mean_w = float(power_w.mean()) if len(power_w) else None
    facts["predicted_power_w"] = {"jobs": len(power_w), "mean": mean_w}
    return facts


def _names(word: str, numbers: Floats) -> list[str]:
    """Return a name for each number, "" for -1. Equal names are one object, to save memory."""
    names = {}
    for number in np.unique(numbers).tolist():
        names[number] = f"{word} {number:.0f}" if number >= 0 else ""
    return [names[number] for number in numbers.tolist()]
