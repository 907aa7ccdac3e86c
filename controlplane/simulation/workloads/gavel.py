"""Gavel's traces, whose jobs are measured: steps by job type, GPU type and count, in its throughput tables (JSON).

A static or continuous `.trace` has ten columns between tabs: job type, command, directory, steps argument, needs data, total steps,
scale factor, weight, SLO (a multiple of the run time on V100s, or -1), arrival. A stream (`.csv`) has
`job_id,unit_arrival,job_type,scale_factor,total_steps,v100_duration_s`, whose arrivals are for a mean gap of one second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.simulation.workloads.base import MOST_WEIGHT, BadLine, Workload, WorkloadError
from controlplane.simulation.workloads.columns import by_arrival, jobs_of, rows
from controlplane.simulation.workloads.drafts import Draft, check
from controlplane.simulation.workloads.lines import Findings, Table, as_floats, pieces, quoted, read_text
from controlplane.simulation.workloads.options import Context, Trace, within
from policies.snapshot import Floats, Jobs, KindView, PairThroughput, Source, Throughput

TRACE_FIELDS = 10
REFERENCE = "v100"
SPREAD = "_unconsolidated"
MOST_STEPS = 2.0**53
MOST_STEPS_PER_S = 1e12
MOST_APART = 0.01
"""How far a stream's duration may be from what the tables say, as a fraction."""
SLO = "slo"
"""The draft's column that becomes due dates."""
_KEY = re.compile(r"\('(?P<type>[^']+)', (?P<gpus>\d+)\)")

Rates = Mapping[tuple[str, int], float]
"""steps/s of (job type, GPUs) on one GPU type."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Gavel's throughputs: by column (GPU type, spread or not), and the pairs that share one GPU by job type."""

    rates: Mapping[str, Rates]
    pairs: Mapping[str, Sequence[PairThroughput]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gavel(Trace):
    """Options of a Gavel trace: `throughputs` (path of the tables) or `tables` (their text), `gap_s` (mean gap of a stream),
    `pairs` (tell policies how two job types share a GPU). GPU types are in capitals (V100, P100, K80). `speeds` does not apply."""

    throughputs: str = ""
    tables: str = ""
    gap_s: float = 1.0
    pairs: bool = True


def read(options: Gavel, context: Context) -> Workload:
    """The jobs of the trace, rigid, of the kinds that the tables describe."""
    if options.speeds:
        raise WorkloadError("speeds: the throughputs of a Gavel trace are measured; leave speeds out")
    if bool(options.throughputs) == bool(options.tables):
        raise WorkloadError("throughputs: give either the path of Gavel's throughput tables (JSON), or their text as `tables`")
    tables = _tables(options.tables or read_text(within(context.folder, options.throughputs)))
    findings, text = Findings(), options.read(context.folder)
    draft = _stream(text, options, tables, findings) if text.startswith("job_id,") else _trace(text, tables, findings)
    _check_known(draft, tables, findings)
    check(draft, findings, in_order=True)
    skipped = findings.settle(options.title, skip_bad=context.skip_bad)
    jobs, start_s = by_arrival(_jobs(draft.only(findings.good), options, context))
    jobs = jobs if options.jobs is None else rows(jobs, np.arange(min(options.jobs, len(jobs))))
    kinds = tuple(_kind(name, tables, options) for name in sorted(set(jobs.columns.kinds)))
    return Workload(options.title, jobs, kinds, skipped, {"format": "Gavel", "first_arrival_s": start_s})


def _jobs(draft: Draft, options: Gavel, context: Context) -> Jobs:
    rng, columns = context.rng(), dict(draft.columns)
    arrival_s, slo = draft.arrival_s * options.time_factor, columns.pop(SLO, np.full(len(draft.ids), -1.0))
    due_s = np.where(slo > 0, arrival_s + slo * draft.run_s, options.due_s(arrival_s, draft.run_s, rng))
    weights = options.weights(len(draft.run_s), rng)
    counts = {"gpus_min": draft.gpus, "gpus_max": draft.gpus}
    return jobs_of(draft.ids, draft.kinds, arrival_s=arrival_s, due_s=due_s, tardiness_weight=weights, **counts, **columns)


def _trace(text: str, tables: Tables, findings: Findings) -> Draft:
    lines: list[int] = []
    fields: list[list[str]] = []
    for numbers, texts in pieces(text, ""):
        for number, line in zip(numbers.tolist(), texts, strict=True):
            split = line.rstrip("\r\n").split("\t")
            if len(split) == TRACE_FIELDS:
                lines.append(number)
                fields.append(split)
            else:
                findings.unreadable.append(BadLine(number, f"has {len(split)} fields between tabs, not {TRACE_FIELDS}"))
    findings.lines = np.array(lines, dtype=np.int64)
    columns = list(zip(*fields, strict=True)) or [()] * TRACE_FIELDS
    steps, gpus, weight, slo, arrival_s = (
        _numbers(columns[i], name, findings)
        for i, name in ((5, "total steps"), (6, "scale factor"), (7, "weight"), (8, "SLO"), (9, "arrival"))
    )
    findings.mark(weight < 0, lambda row: f"the weight must not be negative, it is {weight[row]:g}")
    findings.mark(weight > MOST_WEIGHT, lambda row: f"the weight must not be above {MOST_WEIGHT:g}, it is {weight[row]:g}")
    kinds = list(columns[0])
    told = {"weight": weight, SLO: slo}
    return _draft([str(n) for n in lines], kinds, arrival_s, steps, gpus, told, tables, findings)


def _stream(text: str, options: Gavel, tables: Tables, findings: Findings) -> Draft:
    table = Table(text, findings)
    table.need("job_id", "unit_arrival", "job_type", "scale_factor", "total_steps")
    arrival_s = table.numbers("unit_arrival", findings) * options.gap_s
    steps, gpus = table.numbers("total_steps", findings), table.numbers("scale_factor", findings)
    draft = _draft(table.texts["job_id"], table.texts["job_type"], arrival_s, steps, gpus, {}, tables, findings)
    if "v100_duration_s" in table.texts:
        told_s = table.numbers("v100_duration_s", findings)
        findings.mark(
            (draft.run_s > 0) & (np.abs(told_s - draft.run_s) > MOST_APART * draft.run_s),
            lambda row: f"takes {draft.run_s[row]:g} s on V100s by the throughput tables, not {told_s[row]:g} s",
        )
    return draft


def _draft(
    ids: list[str], kinds: list[str], arrival_s: Floats, steps: Floats, gpus: Floats, told: dict[str, Any],
    tables: Tables, findings: Findings,
) -> Draft:  # fmt: skip
    findings.mark(steps <= 0, lambda row: f"a job has more than 0 steps, not {steps[row]:g}")
    findings.mark(steps > MOST_STEPS, lambda row: f"a job has at most {MOST_STEPS:g} steps, not {steps[row]:g}")
    findings.mark(arrival_s < 0, lambda row: f"the arrival must not be negative, it is {arrival_s[row]:g} s")
    rates = tables.rates.get(REFERENCE, {})
    of = np.array([rates.get((k, int(g)), 0.0) for k, g in zip(kinds, np.clip(gpus, 0, 1e9).tolist(), strict=True)])
    run_s = np.where(of > 0, np.maximum(steps, 0.0) / np.where(of > 0, of, 1.0), 0.0)
    return Draft(ids, kinds, arrival_s, run_s, gpus, {"remaining_steps": np.rint(np.maximum(steps, 1.0)), **told})


def _check_known(draft: Draft, tables: Tables, findings: Findings) -> None:
    known = {config for rates in tables.rates.values() for config, rate in rates.items() if rate > 0}
    gpus = np.clip(draft.gpus, 0, 1e9).astype(np.int64).tolist()
    missing = [config not in known for config in zip(draft.kinds, gpus, strict=True)]
    findings.mark(
        np.array(missing, dtype=np.bool_),
        lambda row: f"the throughput tables know nothing of {quoted(draft.kinds[row])} on {gpus[row]} GPUs",
    )


def _numbers(texts: Any, name: str, findings: Findings) -> Floats:
    values = as_floats(texts)
    findings.mark(~np.isfinite(values), lambda row: f"the {name} is not a finite number: {quoted(texts[row])}")
    return np.where(np.isfinite(values), values, 0.0)


def _kind(name: str, tables: Tables, options: Gavel) -> KindView:
    found = [
        Throughput(column.removesuffix(SPREAD).upper(), gpus, rate, Source.MEASURED, spread=column.endswith(SPREAD))
        for column, rates in sorted(tables.rates.items())
        for (kind, gpus), rate in sorted(rates.items())
        if kind == name and rate > 0
    ]
    pairs = tables.pairs.get(name, ()) if options.pairs else ()
    return KindView(name, name, tuple(found), tuple(pairs))


def _tables(text: str) -> Tables:
    """The tables in a text; WorkloadError if it holds none."""
    try:
        raw = json.loads(text)
        rates = {column: {_key(k): _rate(of["null"]) for k, of in table.items()} for column, table in raw.items()}
        return Tables(rates, _pairs(raw))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WorkloadError(f"throughputs: that is no table of Gavel's: {error}") from None


def _pairs(raw: Mapping[str, Any]) -> dict[str, list[PairThroughput]]:
    found: dict[str, list[PairThroughput]] = {}
    for column, table in sorted(raw.items()):
        for key, of in table.items() if not column.endswith(SPREAD) else ():
            name, gpus = _key(key)
            others = [(*_key(k), v) for k, v in of.items() if k != "null"] if gpus == 1 else []
            for other, count, (own, others_rate) in others:
                if count == 1:
                    pair = PairThroughput(other, column.upper(), _rate(own), _rate(others_rate), Source.MEASURED)
                    found.setdefault(name, []).append(pair)
    return found


def _key(text: str) -> tuple[str, int]:
    if (match := _KEY.fullmatch(text)) is None:
        raise ValueError(f"{quoted(text)} is not like ('ResNet-18 (batch size 64)', 1)")
    return match["type"], int(match["gpus"])


def _rate(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_STEPS_PER_S:
        raise ValueError(f"{value!r:.80} is no throughput")
    return float(value)
