"""Gavel's and Shockwave's traces, of the job types of their tables; see docs/workloads.md.

A `.trace` has columns between tabs, told by their number (`LAYOUTS`). A stream (`.csv`) has
`job_id,unit_arrival,job_type,scale_factor,total_steps,v100_duration_s`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.simulation.workloads.base import (
    MOST_WEIGHT,
    BadLine,
    Workload,
    WorkloadError,
    by_arrival,
    jobs_of,
    rows,
)
from controlplane.simulation.workloads.drafts import Draft, check
from controlplane.simulation.workloads.gavel.tables import Tables, tables_of
from controlplane.simulation.workloads.lines import Findings, Table, as_floats, pieces, quoted
from controlplane.simulation.workloads.options import Context, Seconds, Trace
from policies.contract.snapshot import Bools, Floats, Jobs

_PUBLISHED = (
    "job type",
    "command",
    "directory",
    "steps argument",
    "needs data",
    "total steps",
    "scale factor",
)
_FIRST = ("job type", "command", "steps argument")
LAYOUTS: Mapping[int, tuple[str, ...]] = {
    6: (*_FIRST, "total steps", "arrival", "scale factor"),
    7: (*_FIRST, "needs data", "total steps", "arrival", "scale factor"),
    9: (*(c for c in _PUBLISHED if c != "directory"), "weight", "SLO", "arrival"),
    10: (*_PUBLISHED, "weight", "SLO", "arrival"),
    11: (*_PUBLISHED, "mode", "weight", "SLO", "arrival"),
    12: (*_PUBLISHED, "mode", "weight", "SLO", "duration", "arrival"),
}
"""Columns of a trace by their number.

SLO: a multiple of the run time on V100s, or -1. `mode`, Shockwave's: batch size changes.
`duration`: seconds on V100s at the first batch size.
"""

DEFAULTS: Mapping[str, float] = {"weight": 1.0, "SLO": -1.0}
"""Values of columns that the older layouts lack."""

STATIC = "static"
MODES = (STATIC, "accordion", "gns")
REFERENCE = "v100"
MOST_STEPS = 2.0**53
MOST_APART = 0.01
"""Tolerated difference of a duration from the tables, as a fraction."""
MOST_SLO = 1e6
KNOWN_WIDTHS = "Gavel's traces have 6, 7, 9 or 10, Shockwave's 11 or 12"
SLO = "slo"
"""The draft's column that becomes due dates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gavel(Trace):
    """Options of a Gavel trace; GPU types are in capitals (V100). `speeds` does not apply.

    `throughputs` (path of the tables) or `tables` (their text), `gap_s` (mean gap of a stream),
    `pairs` (jobs may share a GPU, with the tables' speeds), `as_static` (Shockwave's jobs keep
    their first batch size).
    """

    throughputs: str = ""
    tables: str = ""
    gap_s: Seconds = 1.0
    pairs: bool = True
    as_static: bool = False


def read(options: Gavel, context: Context) -> Workload:
    """Rigid jobs of the trace, of the tables' kinds."""
    if options.speeds:
        raise WorkloadError(
            "speeds: the throughputs of a Gavel trace are measured; leave speeds out"
        )
    tables = tables_of(options.throughputs, options.tables)
    findings, text, facts = Findings(), options.read(), dict[str, Any]()
    if text.startswith("job_id,"):
        draft = _stream(text, options, tables, findings)
    else:
        draft = _trace(text, options, tables, findings, facts)
    _check_known(draft, tables, findings)
    check(draft, findings, in_order=True)
    skipped = findings.settle(options.title, skip_bad=context.skip_bad)
    jobs, start_s = by_arrival(_jobs(draft.only(findings.good), options, context))
    jobs = jobs if options.jobs is None else rows(jobs, np.arange(min(options.jobs, len(jobs))))
    names = sorted(set(jobs.columns.kinds))
    kinds = tuple(tables.kind(name, pairs=options.pairs) for name in names)
    facts = {"format": "Gavel", **facts, "first_arrival_s": start_s}
    return Workload(options.title, jobs, kinds, skipped, facts)


def _jobs(draft: Draft, options: Gavel, context: Context) -> Jobs:
    rng, columns = context.rng(), dict(draft.columns)
    arrival_s = draft.arrival_s * options.time_factor
    slo = columns.pop(SLO, np.full(len(draft.ids), -1.0))
    drawn_s = options.due_s(arrival_s, draft.run_s, rng)
    columns |= {
        "arrival_s": arrival_s,
        "due_s": np.where(slo > 0, arrival_s + slo * draft.run_s, drawn_s),
        "tardiness_weight": options.weights(len(draft.run_s), rng),
        "gpus_min": draft.gpus,
        "may_share": options.pairs,
    }
    return jobs_of(draft.ids, draft.kinds, **columns)


def _trace(
    text: str, options: Gavel, tables: Tables, findings: Findings, facts: dict[str, Any]
) -> Draft:
    columns = _columns(text, findings)
    steps, gpus, weight, slo, arrival_s = (
        _numbers(columns, name, findings)
        for name in ("total steps", "scale factor", "weight", "SLO", "arrival")
    )
    findings.limit("the weight", weight, MOST_WEIGHT)
    findings.mark(
        ((slo <= 0) & (slo != -1)) | (slo > MOST_SLO),
        lambda row: (
            f"the SLO must be above 0 and at most {MOST_SLO:g}, or -1 for none, not {slo[row]:g}"
        ),
    )
    ids = [str(n) for n in findings.lines.tolist()]
    draft = _draft(ids, columns["job type"], arrival_s, steps, gpus, tables, findings)
    draft.columns |= {"weight": weight, SLO: slo}
    findings.mark(
        (slo > 0) & (draft.run_s <= 0),
        lambda row: "it has an SLO, but the throughput tables do not know it on V100s",
    )
    if "mode" in columns:
        kept = _check_modes(columns["mode"], options, findings)
        facts["batch_sizes_kept_though_they_change"] = kept
    if "duration" in columns:
        _check_durations(_numbers(columns, "duration", findings), draft, findings, least_s=1.0)
    return draft


def _columns(text: str, findings: Findings) -> dict[str, list[str]]:
    """Fields by column name; the first line's number of fields gives the layout.

    A column "needs data" that is not 0 or 1 shows misread columns.
    """
    layout: tuple[str, ...] = ()
    lines: list[int] = []
    fields: list[list[str]] = []
    for numbers, texts in pieces(text, ""):
        for number, line in zip(numbers.tolist(), texts, strict=True):
            split = line.rstrip("\r\n").split("\t")
            layout = layout or LAYOUTS.get(len(split), ())
            if len(split) == len(layout):
                lines.append(number)
                fields.append(split)
            else:
                wanted = f"not {len(layout)} like the lines above it" if layout else KNOWN_WIDTHS
                problem = f"has {len(split)} fields between tabs{',' if layout else ';'} {wanted}"
                findings.unreadable.append(BadLine(number, problem))
    findings.lines = np.array(lines, dtype=np.int64)
    columns = {name: [row[i] for row in fields] for i, name in enumerate(layout or ("job type",))}
    needs = columns.get("needs data", [])
    findings.mark(
        _mask(text not in ("0", "1") for text in needs),
        lambda row: (
            f"needs data must be 0 or 1, not {quoted(needs[row])}; {len(layout)} columns are:"
            f" {', '.join(layout)}"
        ),
    )
    return columns


def _check_modes(modes: list[str], options: Gavel, findings: Findings) -> int:
    """Mark jobs with changing batch size unless `as_static`; return their number."""
    findings.mark(
        _mask(mode not in MODES for mode in modes),
        lambda row: f"the mode must be one of {', '.join(MODES)}, not {quoted(modes[row])}",
    )
    changing = _mask(mode in MODES[1:] for mode in modes)
    if options.as_static:
        return int(np.count_nonzero(changing))
    findings.mark(
        changing,
        lambda row: (
            f"its batch size changes as it trains ({modes[row]}), which is not simulated; "
            "with `as_static: true` it keeps the first one"
        ),
    )
    return 0


def _mask(values: Iterable[bool]) -> Bools:
    return np.array(list(values), dtype=np.bool_)


def _stream(text: str, options: Gavel, tables: Tables, findings: Findings) -> Draft:
    table = Table(text, findings)
    table.need("job_id", "unit_arrival", "job_type", "scale_factor", "total_steps")
    arrival_s = table.numbers("unit_arrival", findings) * options.gap_s
    steps, gpus = table.numbers("total_steps", findings), table.numbers("scale_factor", findings)
    ids, kinds = table.texts["job_id"], table.texts["job_type"]
    draft = _draft(ids, kinds, arrival_s, steps, gpus, tables, findings)
    if "v100_duration_s" in table.texts:
        _check_durations(table.numbers("v100_duration_s", findings), draft, findings)
    return draft


def _check_durations(
    given_s: Floats, draft: Draft, findings: Findings, *, least_s: float = 0.0
) -> None:
    """Mark jobs whose run time on V100 differs from the tables by more than `least_s`."""
    apart_s = np.abs(given_s - draft.run_s)
    findings.mark(
        (draft.run_s > 0) & (apart_s > np.maximum(least_s, MOST_APART * draft.run_s)),
        lambda row: (
            f"takes {draft.run_s[row]:g} s on V100s by the throughput tables, not {given_s[row]:g}"
            " s; give the trace's own tables"
        ),
    )


def _draft(
    ids: list[str],
    kinds: list[str],
    arrival_s: Floats,
    steps: Floats,
    gpus: Floats,
    tables: Tables,
    findings: Findings,
) -> Draft:
    findings.mark(steps <= 0, lambda row: f"a job has more than 0 steps, not {steps[row]:g}")
    findings.mark(
        steps > MOST_STEPS,
        lambda row: f"a job has at most {MOST_STEPS:g} steps, not {steps[row]:g}",
    )
    findings.limit("the arrival", arrival_s, unit=" s")
    rates, counts = tables.rates.get(REFERENCE, {}), np.clip(gpus, 0, 1e9).tolist()
    of = np.array([rates.get((k, int(g)), 0.0) for k, g in zip(kinds, counts, strict=True)])
    run_s = np.where(of > 0, np.maximum(steps, 0.0) / np.where(of > 0, of, 1.0), 0.0)
    columns = {"remaining_steps": np.rint(np.maximum(steps, 1.0))}
    return Draft(ids, kinds, arrival_s, run_s, gpus, columns)


def _check_known(draft: Draft, tables: Tables, findings: Findings) -> None:
    known = {
        config for rates in tables.rates.values() for config, rate in rates.items() if rate > 0
    }
    gpus = np.clip(draft.gpus, 0, 1e9).astype(np.int64).tolist()
    findings.mark(
        _mask(config not in known for config in zip(draft.kinds, gpus, strict=True)),
        lambda row: f"the throughput tables have no {quoted(draft.kinds[row])} on {gpus[row]} GPUs",
    )


def _numbers(columns: Mapping[str, list[str]], name: str, findings: Findings) -> Floats:
    """A column of numbers, or a default for all; bad rows are marked and 0."""
    if name not in columns:
        return np.full(len(columns["job type"]), DEFAULTS.get(name, 0.0))
    texts = columns[name]
    values = as_floats(texts)
    finite = np.isfinite(values)
    findings.mark(~finite, lambda row: f"the {name} is not a finite number: {quoted(texts[row])}")
    return np.where(finite, values, 0.0)
