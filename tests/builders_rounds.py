"""Builders for share policies: shares as given, rounds one after another, and snapshots in which
jobs share devices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from policies.contract.plan import Placement, Plan
from policies.contract.snapshot import (
    JobColumns,
    JobPhase,
    Jobs,
    PairThroughput,
    Running,
    SlotHold,
    Snapshot,
    Source,
)
from policies.gavel.allocation.observe import GroupingOptions, Observed
from policies.gavel.allocation.problem import Shares
from policies.gavel.rounds.share_round import ShareRule, plan_of
from tests.builders_snapshots import TYPES, snapshots

ROUND_S = 300.0


@dataclass
class GivenShares:
    """A policy whose shares are given: by kind, and by the two kinds of a pair joined with "+",
    then by column ("V100 spread" for several nodes): time of all its jobs together. `made` counts
    how often it was asked for them.
    """

    shares: Mapping[str, Mapping[str, float]]
    asked: GroupingOptions = field(default_factory=GroupingOptions)
    recompute_s: float = 0.0
    made: int = 0

    def __call__(self, snapshot: Snapshot) -> Plan:
        return plan_of(
            snapshot, ShareRule("given", "given", self.allocate, self.asked, self.recompute_s)
        )

    def allocate(self, observed: Observed) -> Shares:
        self.made += 1
        kinds = self._kinds(observed)
        pairs = ["+".join(sorted((kinds[a], kinds[b]))) for a, b in observed.problem.pairs.tolist()]
        return Shares(self._table(kinds, observed), self._table(pairs, observed), 1.0)

    def _kinds(self, observed: Observed) -> list[str]:
        group_of = observed.classes.group_of
        return [
            observed.classes.groups[group_of[members[0]]].kind
            for members in observed.classes.members
        ]

    def _table(self, names: list[str], observed: Observed) -> Any:
        columns = observed.classes.column_names
        rows = [
            [self.shares.get(name, {}).get(column, 0.0) for column in columns] for name in names
        ]
        return np.array(rows, dtype=np.float64).reshape(len(names), len(columns))


def placed(plan: Plan) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """By job the nodes and devices on which it runs next."""
    return {p.job: [(seat.node, seat.devices) for seat in p.ranks] for p in plan.placements}


def after(
    snapshot: Snapshot,
    plan: Plan,
    elapsed_s: float,
    *,
    gone: tuple[str, ...] = (),
    new: tuple[Any, ...] = (),
) -> Snapshot:
    """The cluster so much later, the plan carried out at once: what it placed runs, jobs `gone` are
    done, `new` ones have come.
    """
    now_s = snapshot.now_s + elapsed_s
    seats = {p.job: p for p in plan.placements}
    jobs = [
        _later(job, seats.get(job.id), snapshot, elapsed_s)
        for job in snapshot.jobs
        if job.id not in gone
    ]
    jobs += [replace(job, arrival_s=now_s) for job in new]
    holds: dict[tuple[str, str], list[SlotHold]] = {}
    for job in jobs:
        for run in job.running:
            for seat in run.ranks:
                for device in seat.devices:
                    holds.setdefault((seat.node, device), []).append(
                        SlotHold(job.id, share=seat.share)
                    )
    nodes = tuple(
        replace(
            n, devices=tuple(replace(d, held=tuple(holds.get((n.id, d.id), ()))) for d in n.devices)
        )
        for n in snapshot.nodes
    )
    return replace(
        snapshot, now_s=now_s, nodes=nodes, jobs=Jobs(JobColumns.of(jobs)), memory=dict(plan.memory)
    )


def _later(job: Any, seated: Placement | None, snapshot: Snapshot, elapsed_s: float) -> Any:
    if seated is None:
        return replace(job, running=(), phase=JobPhase.WAITING)
    stays = next((run for run in job.running if run.ranks == seated.ranks), None)
    received = dict(job.received_s)
    for seat in seated.ranks:
        gpu_type = snapshot.node_by_id[seat.node].gpu_type
        received[gpu_type] = (
            received.get(gpu_type, 0.0) + elapsed_s * len(seat.devices) * seat.share
        )
    running = stays or Running(0, seated.ranks, snapshot.now_s)
    return replace(
        job, running=(running,), phase=JobPhase.RUNNING, received_s=tuple(sorted(received.items()))
    )


@st.composite
def sharing_snapshots(draw: st.DrawFn) -> Snapshot:
    """Any snapshot, with devices of two slots, jobs that may share them, and kinds that are known
    beside each other.
    """
    snapshot = draw(snapshots())
    slots = draw(st.sampled_from([1, 2, 2]))
    nodes = tuple(
        replace(n, devices=tuple(replace(d, slots=slots) for d in n.devices))
        for n in snapshot.nodes
    )
    kinds = tuple(
        replace(k, pairs=tuple(draw(_pairs([other.id for other in snapshot.kinds]))))
        for k in snapshot.kinds
    )
    jobs = [
        replace(
            job, may_share=draw(st.booleans()), gpus_min=draw(st.sampled_from([1, 1, job.gpus_min]))
        )
        for job in snapshot.jobs
    ]
    return replace(snapshot, nodes=nodes, kinds=kinds, jobs=Jobs(JobColumns.of(jobs)))


@st.composite
def _pairs(draw: st.DrawFn, others: list[str]) -> list[PairThroughput]:
    speeds = st.floats(0.1, 10.0)
    return [
        PairThroughput(o, t, draw(speeds), draw(speeds), Source.ESTIMATED)
        for o in others
        for t in TYPES
        if draw(st.booleans())
    ]
