"""Placements of those who run in a round of time sharing, and of those who stay outside of the
decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from policies.contract.plan import Placement, placement_of
from policies.contract.snapshot import Snapshot
from policies.gavel.allocation.observe import Observed, in_order
from policies.placement.homes import ALONE, Home
from policies.placement.seating import Seated
from policies.placement.speed import Speeds
from policies.placement.staying import Stay, remaining_s, training_run
from policies.placement.waiting import watts_of


def placements_of(
    observed: Observed, homes: Mapping[int, Home], seated: Mapping[int, Seated]
) -> tuple[Placement, ...]:
    """In the jobs' order. Jobs on draining nodes that found no room stay there as far as watts go,
    until the drain.
    """
    snapshot = observed.snapshot
    placed = _seated_by_row(observed, homes, seated)
    placed |= {stay.row: _staying(snapshot, stay) for stay in observed.outside.stay}
    for row, stay in observed.outside.fallback.items():
        if row not in placed and _has_watts(
            snapshot, placed, candidate := _staying(snapshot, stay)
        ):
            placed[row] = candidate
    return tuple([placed[row] for row in sorted(placed)])


def _seated_by_row(
    observed: Observed, homes: Mapping[int, Home], seated: Mapping[int, Seated]
) -> dict[int, Placement]:
    columns, rows = observed.snapshot.jobs.columns, observed.row_list
    steps, ids = columns.numbers["remaining_steps"].tolist(), columns.ids
    group_of, rates = observed.classes.group_list, observed.classes.rate_lists
    placed = {}
    for e, ranks, column, stays, partner in seated.values():
        row = rows[e]
        run_s = steps[row] / (
            rates[group_of[e]][column] if partner == ALONE else _rate_beside(observed, seated[e])
        )
        if stays:
            placed[row] = placement_of(ids[row], ranks, homes[e].run.copy, run_s)
        else:
            placed[row] = placement_of(
                ids[row], ranks, 0, run_s + _launch_s(observed.snapshot, row)
            )
    return placed


def _launch_s(snapshot: Snapshot, row: int) -> float:
    """Seconds until the first step of a job that is launched, as `eligibility.launch_s` has them
    for all jobs.
    """
    columns = snapshot.jobs.columns
    numbers, kind = columns.numbers, snapshot.kinds[snapshot.kind_index[columns.kinds[row]]]
    started = training_run(columns.others["running"][row]) is not None
    started = started or numbers["remaining_steps"][row] < numbers["total_steps"][row]
    return max(kind.setup_s, float(numbers["restart_cost_s"][row]) if started else 0.0)


def _rate_beside(observed: Observed, seat: Seated) -> float:
    """steps/s of a job where it sits beside its partner."""
    classes = observed.classes
    a, b = classes.class_list[seat.job], classes.class_list[seat.partner]
    pair = observed.pair_row.get(in_order(a, b))
    beside = (
        0.0
        if pair is None
        else float(observed.problem.pair_rates[pair, seat.column, 0 if a <= b else 1])
    )
    return beside or _rate_of_strangers(observed, seat)


def _rate_of_strangers(observed: Observed, seat: Seated) -> float:
    """Of two that sit together though they are no pair of the problem: not worth it, or put
    together by who knew more of them.
    """
    classes, gpu_type = observed.classes, observed.problem.columns[seat.column].gpu_type
    kind, other = (classes.groups[classes.group_list[e]].kind for e in (seat.job, seat.partner))
    known, _ = Speeds(observed.snapshot.kinds).pair(kind, other, gpu_type)
    return known or classes.rate_lists[classes.group_list[seat.job]][seat.column]


def _staying(snapshot: Snapshot, stay: Stay) -> Placement:
    """A job outside of the decision, where it is, until its node must be empty."""
    run_s, run = remaining_s(snapshot, Speeds(snapshot.kinds), stay), stay.run
    predicted = run_s if isfinite(run_s) else None
    name = snapshot.jobs.columns.ids[stay.row]
    return Placement(
        name,
        run.ranks,
        run.copy,
        steps_quota=run.steps_quota,
        until_s=stay.until_s,
        predicted_run_s=predicted,
    )


def _has_watts(snapshot: Snapshot, placed: Mapping[int, Placement], candidate: Placement) -> bool:
    cap_w = snapshot.cap_w
    return cap_w is None or watts_of(snapshot, [*placed.values(), candidate]) <= cap_w
