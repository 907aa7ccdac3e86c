"""Jobs as read from a trace, checked and made a workload; common to all traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from controlplane.simulation.workloads.base import (
    FURTHEST_S,
    LONGEST_RUN_S,
    STEPS_PER_S,
    Workload,
    WorkloadError,
    by_arrival,
    even_kind,
    jobs_of,
    rows,
)
from controlplane.simulation.workloads.lines import Findings
from controlplane.simulation.workloads.options import Context, Trace
from policies.contract.snapshot import Bools, Floats, Ints, Jobs, KindView, Source, Throughput

LEAST_RUN_S = 1.0
"""Shortest run time: logs count whole seconds, so that 0 means less than one."""

MOST_GPUS = 1_000_000


@dataclass(slots=True)
class Draft:
    """Rows of a trace: ids, kinds, arrivals, run times, and further columns of `JobView`."""

    ids: list[str]
    kinds: list[str]
    arrival_s: Floats
    run_s: Floats
    gpus: Floats
    columns: dict[str, Any] = field(default_factory=dict)
    batch: bool = False
    """True for batch jobs, which are as fast anywhere and need no GPU."""

    def only(self, good: Bools) -> Draft:
        if good.all():
            return self
        at = np.flatnonzero(good)
        columns = {name: _picked(column, at) for name, column in self.columns.items()}
        ids, kinds = _picked(self.ids, at), _picked(self.kinds, at)
        return replace(
            self,
            ids=ids,
            kinds=kinds,
            arrival_s=self.arrival_s[at],
            run_s=self.run_s[at],
            gpus=self.gpus[at],
            columns=columns,
        )


def check(draft: Draft, findings: Findings, *, in_order: bool) -> None:
    """Mark contradictions: negative times, bad GPUs, repeated ids, disorder, huge values."""
    gpus = draft.gpus
    arrival_s = draft.arrival_s
    findings.limit("the run time", draft.run_s, LONGEST_RUN_S, " s")
    findings.mark(
        np.abs(arrival_s) > FURTHEST_S,
        lambda row: f"is no time within {FURTHEST_S:g} s of 0: {arrival_s[row]:g}",
    )
    least = 0 if draft.batch else 1
    findings.mark(
        (gpus < least) | (gpus > MOST_GPUS) | (gpus != np.floor(gpus)),
        lambda row: f"a job needs {least} to {MOST_GPUS:,} GPUs, whole ones, not {gpus[row]:g}",
    )
    findings.repeated(draft.ids)
    if in_order:
        findings.unsorted(arrival_s)


def workload_of(
    draft: Draft,
    findings: Findings,
    options: Trace,
    context: Context,
    facts: Mapping[str, Any],
    wanted: Bools | None = None,
) -> Workload:
    """Build the workload of a checked draft in order of arrival; bad rows are omitted or raise.

    `wanted` bool[M]: rows that the options keep, though others are good too.
    """
    skipped = findings.settle(options.title, skip_bad=context.skip_bad)
    keep = findings.good if wanted is None else findings.good & wanted
    if not keep.any():
        raise WorkloadError(f"{options.title}: the options leave no job to simulate")
    good = draft.only(keep)
    jobs, start_s = by_arrival(_jobs(good, options, context))
    if options.jobs is not None and options.jobs < len(jobs):
        jobs = rows(jobs, np.arange(options.jobs))
    raised = int(np.count_nonzero(good.run_s < LEAST_RUN_S))
    facts = {**facts, "first_arrival_s": start_s, "run_times_raised_to_1_s": raised}
    if draft.batch:
        kinds = batch_kinds(jobs)
    else:
        kinds = even_kinds(jobs, options.speed_of(context.gpu_types))
    return Workload(options.title, jobs, kinds, skipped, facts)


def batch_kinds(jobs: Jobs) -> tuple[KindView, ...]:
    """Kinds of batch jobs, which run their time wherever they are."""
    anywhere = (Throughput("", 0, STEPS_PER_S, Source.DECLARED),)
    return tuple(KindView(kind, kind, anywhere) for kind in sorted(set(jobs.columns.kinds)))


def even_kinds(jobs: Jobs, speeds: Mapping[str, float]) -> tuple[KindView, ...]:
    """Kinds of rigid jobs, each known on the GPU counts of its jobs."""
    counts: dict[str, set[int]] = defaultdict(set)
    gpus = jobs.columns.counts["gpus_min"].tolist()
    for kind, count in set(zip(jobs.columns.kinds, gpus, strict=True)):
        counts[kind].add(count)
    return tuple(even_kind(kind, speeds, counts[kind]) for kind in sorted(counts))


def _jobs(draft: Draft, options: Trace, context: Context) -> Jobs:
    rng, run_s = context.rng(), np.maximum(draft.run_s, LEAST_RUN_S)
    arrival_s = draft.arrival_s * options.time_factor
    due_s, weights = options.due_s(arrival_s, run_s, rng), options.weights(len(run_s), rng)
    if "due_s" in draft.columns:
        due_s = arrival_s + (draft.columns["due_s"] - draft.arrival_s)
    columns = {"tardiness_weight": weights, **draft.columns, "due_s": due_s}
    columns |= {"remaining_steps": np.rint(run_s * STEPS_PER_S), "arrival_s": arrival_s}
    return jobs_of(draft.ids, draft.kinds, gpus_min=draft.gpus, **columns)


def _picked(value: Any, at: Ints) -> Any:
    if isinstance(value, list):
        return [value[i] for i in at.tolist()]
    return value[at] if isinstance(value, np.ndarray) else value
