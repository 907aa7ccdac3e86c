"""Gavel's traces, whose jobs are measured: steps by job type, GPU type and count, in its throughput
tables (JSON).

A `.trace` has columns between tabs. How many they are says which they are (`LAYOUTS`): Gavel's
first traces had six or seven, those before the working directory had a column of its own nine, the
published ones ten; Shockwave's, which go on from there, eleven or twelve. A stream (`.csv`) has
`job_id,unit_arrival,job_type,scale_factor,total_steps,v100_duration_s`, whose arrivals are for a
mean gap of one second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.simulation.workloads.base import MOST_WEIGHT, BadLine, Workload, WorkloadError
from controlplane.simulation.workloads.columns import by_arrival, jobs_of, rows
from controlplane.simulation.workloads.drafts import Draft, check
from controlplane.simulation.workloads.gavel_tables import Tables, tables_of
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
LAYOUTS: Mapping[int, tuple[str, ...]] = {
    6: ("job type", "command", "steps argument", "total steps", "arrival", "scale factor"),
    7: (
        "job type",
        "command",
        "steps argument",
        "needs data",
        "total steps",
        "arrival",
        "scale factor",
    ),
    9: (*(c for c in _PUBLISHED if c != "directory"), "weight", "SLO", "arrival"),
    10: (*_PUBLISHED, "weight", "SLO", "arrival"),
    11: (*_PUBLISHED, "mode", "weight", "SLO", "arrival"),
    12: (*_PUBLISHED, "mode", "weight", "SLO", "duration", "arrival"),
}
"""The columns of a trace by their number. SLO: a multiple of the run time on V100s, or -1. `mode`,
Shockwave's: whether the batch size changes as the job trains. `duration`: seconds on V100s at the
first batch size.
"""

DEFAULTS: Mapping[str, float] = {"weight": 1.0, "SLO": -1.0}
"""Of columns that the older layouts lack."""

STATIC = "static"
MODES = (STATIC, "accordion", "gns")
REFERENCE = "v100"
MOST_STEPS = 2.0**53
MOST_APART = 0.01
"""Tolerated difference of a duration from the tables, as a fraction."""
MOST_SLO = 1e6
SLO = "slo"
"""The draft's column that becomes due dates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gavel(Trace):
    """Options of a Gavel trace: `throughputs` (path of the tables) or `tables` (their text),
    `gap_s` (mean gap of a stream), `pairs` (jobs may share a GPU, and policies are told how two job
    types do), `as_static` (jobs of Shockwave's whose batch size changes keep their first one). GPU
    types are in capitals (V100, P100, K80). `speeds` does not apply.
    """

    throughputs: str = ""
    tables: str = ""
    gap_s: Seconds = 1.0
    pairs: bool = True
    as_static: bool = False


def read(options: Gavel, context: Context) -> Workload:
    """The jobs of the trace, rigid, of the kinds that the tables describe."""
    if options.speeds:
        raise WorkloadError(
            "speeds: the throughputs of a Gavel trace are measured; leave speeds out"
        )
    tables = tables_of(options.throughputs, options.tables, context.folder)
    findings, text, facts = Findings(), options.read(context.folder), dict[str, Any]()
    if text.startswith("job_id,"):
        draft = _stream(text, options, tables, findings)
    else:
        draft = _trace(text, options, tables, findings, facts)
    _check_known(draft, tables, findings)
    check(draft, findings, in_order=True)
    skipped = findings.settle(options.title, skip_bad=context.skip_bad)
    jobs, start_s = by_arrival(_jobs(draft.only(findings.good), options, context))
    jobs = jobs if options.jobs is None else rows(jobs, np.arange(min(options.jobs, len(jobs))))
    kinds = tuple(
        tables.kind(name, pairs=options.pairs) for name in sorted(set(jobs.columns.kinds))
    )
    return Workload(
        options.title,
        jobs,
        kinds,
        skipped,
        {"format": "Gavel", **facts, "first_arrival_s": start_s},
    )


def _jobs(draft: Draft, options: Gavel, context: Context) -> Jobs:
    rng, columns = context.rng(), dict(draft.columns)
    arrival_s, slo = (
        draft.arrival_s * options.time_factor,
        columns.pop(SLO, np.full(len(draft.ids), -1.0)),
    )
    due_s = np.where(
        slo > 0, arrival_s + slo * draft.run_s, options.due_s(arrival_s, draft.run_s, rng)
    )
    weights = options.weights(len(draft.run_s), rng)
    told = {"gpus_min": draft.gpus, "gpus_max": draft.gpus, "may_share": options.pairs, **columns}
    return jobs_of(
        draft.ids, draft.kinds, arrival_s=arrival_s, due_s=due_s, tardiness_weight=weights, **told
    )


def _trace(
    text: str, options: Gavel, tables: Tables, findings: Findings, facts: dict[str, Any]
) -> Draft:
    columns = _columns(text, findings)
    steps, gpus, weight, slo, arrival_s = (
        _numbers(columns, name, findings)
        for name in ("total steps", "scale factor", "weight", "SLO", "arrival")
    )
    findings.mark(weight < 0, lambda row: f"the weight must not be negative, it is {weight[row]:g}")
    findings.mark(
        weight > MOST_WEIGHT,
        lambda row: f"the weight must not be above {MOST_WEIGHT:g}, it is {weight[row]:g}",
    )
    findings.mark(
        ((slo <= 0) & (slo != -1)) | (slo > MOST_SLO),
        lambda row: (
            f"the SLO must be above 0 and at most {MOST_SLO:g}, or -1 for none, not {slo[row]:g}"
        ),
    )
    told, ids = {"weight": weight, SLO: slo}, [str(n) for n in findings.lines.tolist()]
    draft = _draft(ids, columns["job type"], arrival_s, steps, gpus, told, tables, findings)
    findings.mark(
        (slo > 0) & (draft.run_s <= 0),
        lambda row: "it has an SLO, but the throughput tables do not know it on V100s",
    )
    if "mode" in columns:
        facts["batch_sizes_kept_though_they_change"] = _check_modes(
            columns["mode"], options, findings
        )
    if "duration" in columns:
        _check_durations(_numbers(columns, "duration", findings), draft, findings, least_s=1.0)
    return draft


def _columns(text: str, findings: Findings) -> dict[str, list[str]]:
    """Fields by column name; the first line's number of fields tells the layout."""
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
                findings.unreadable.append(BadLine(number, _misfit(len(split), layout)))
    findings.lines = np.array(lines, dtype=np.int64)
    columns = (
        dict(zip(layout, map(list, zip(*fields, strict=True)), strict=True))
        if fields
        else {"job type": []}
    )
    _check_layout(columns, layout, findings)
    return columns


def _misfit(count: int, layout: tuple[str, ...]) -> str:
    if layout:
        return f"has {count} fields between tabs, not {len(layout)} like the lines above it"
    return (
        f"has {count} fields between tabs; Gavel's traces have 6, 7, 9 or 10, Shockwave's 11 or 12"
    )


def _check_layout(
    columns: dict[str, list[str]], layout: tuple[str, ...], findings: Findings
) -> None:
    """Check that "needs data" is 0 or 1; otherwise the columns are misread."""
    needs = columns.get("needs data", [])
    findings.mark(
        _mask(text not in ("0", "1") for text in needs),
        lambda row: (
            f"needs data must be 0 or 1, not {quoted(needs[row])}; {len(layout)} columns are:"
            f" {', '.join(layout)}"
        ),
    )


def _check_modes(modes: list[str], options: Gavel, findings: Findings) -> int:
    """Mark jobs whose batch size changes unless they may be read as if it did not; how many are."""
    findings.mark(
        _mask(mode not in MODES for mode in modes),
        lambda row: f"the mode must be one of {', '.join(MODES)}, not {quoted(modes[row])}",
    )
    changing = _mask(mode in MODES[1:] for mode in modes)
    if not options.as_static:
        findings.mark(
            changing,
            lambda row: (
                f"its batch size changes as it trains ({modes[row]}), which is not simulated; "
                "with `as_static: true` it keeps the first one"
            ),
        )
    return int(np.count_nonzero(changing)) if options.as_static else 0


def _mask(values: Any) -> Bools:
    return np.array(list(values), dtype=np.bool_)


def _stream(text: str, options: Gavel, tables: Tables, findings: Findings) -> Draft:
    table = Table(text, findings)
    table.need("job_id", "unit_arrival", "job_type", "scale_factor", "total_steps")
    arrival_s = table.numbers("unit_arrival", findings) * options.gap_s
    steps, gpus = table.numbers("total_steps", findings), table.numbers("scale_factor", findings)
    draft = _draft(
        table.texts["job_id"], table.texts["job_type"], arrival_s, steps, gpus, {}, tables, findings
    )
    if "v100_duration_s" in table.texts:
        _check_durations(table.numbers("v100_duration_s", findings), draft, findings)
    return draft


def _check_durations(
    told_s: Floats, draft: Draft, findings: Findings, *, least_s: float = 0.0
) -> None:
    """Mark jobs whose run time on V100 differs from the tables by more than `least_s`."""
    findings.mark(
        (draft.run_s > 0)
        & (np.abs(told_s - draft.run_s) > np.maximum(least_s, MOST_APART * draft.run_s)),
        lambda row: (
            f"takes {draft.run_s[row]:g} s on V100s by the throughput tables, not {told_s[row]:g}"
            " s: are they its own?"
        ),
    )


def _draft(
    ids: list[str], kinds: list[str], arrival_s: Floats, steps: Floats, gpus: Floats,
    told: dict[str, Any],
    tables: Tables, findings: Findings,
) -> Draft:  # fmt: skip
    findings.mark(steps <= 0, lambda row: f"a job has more than 0 steps, not {steps[row]:g}")
    findings.mark(
        steps > MOST_STEPS,
        lambda row: f"a job has at most {MOST_STEPS:g} steps, not {steps[row]:g}",
    )
    findings.mark(
        arrival_s < 0, lambda row: f"the arrival must not be negative, it is {arrival_s[row]:g} s"
    )
    rates = tables.rates.get(REFERENCE, {})
    of = np.array(
        [
            rates.get((k, int(g)), 0.0)
            for k, g in zip(kinds, np.clip(gpus, 0, 1e9).tolist(), strict=True)
        ]
    )
    run_s = np.where(of > 0, np.maximum(steps, 0.0) / np.where(of > 0, of, 1.0), 0.0)
    return Draft(
        ids,
        kinds,
        arrival_s,
        run_s,
        gpus,
        {"remaining_steps": np.rint(np.maximum(steps, 1.0)), **told},
    )


def _check_known(draft: Draft, tables: Tables, findings: Findings) -> None:
    known = {
        config for rates in tables.rates.values() for config, rate in rates.items() if rate > 0
    }
    gpus = np.clip(draft.gpus, 0, 1e9).astype(np.int64).tolist()
    findings.mark(
        _mask(config not in known for config in zip(draft.kinds, gpus, strict=True)),
        lambda row: (
            f"the throughput tables know nothing of {quoted(draft.kinds[row])} on {gpus[row]} GPUs"
        ),
    )


def _numbers(columns: Mapping[str, list[str]], name: str, findings: Findings) -> Floats:
    """A column of numbers, or a default for all; bad rows are marked and 0."""
    if name not in columns:
        return np.full(len(columns["job type"]), DEFAULTS.get(name, 0.0))
    texts = columns[name]
    values = as_floats(texts)
    findings.mark(
        ~np.isfinite(values), lambda row: f"the {name} is not a finite number: {quoted(texts[row])}"
    )
    return np.where(np.isfinite(values), values, 0.0)
