"""Assumed speeds: policies plan with them where none is known, but no forecast rests on them.

Where a run of assumed speed ends is unknown, and so is every later start on its nodes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from policies.contract.plan import Plan, Waiting
from policies.contract.snapshot import Snapshot


class UnknownRuns:
    """First start on each node of a run of unknown length: no later start there is known."""

    def __init__(self) -> None:
        self._first_s: dict[str, float] = {}

    def add(self, nodes: Iterable[str], start_s: float) -> None:
        """Add a run of unknown length on these nodes; it starts at `start_s`, -inf if it runs."""
        for node in nodes:
            self._first_s[node] = min(start_s, self._first_s.get(node, inf))

    def precede(self, nodes: Sequence[str], start_s: float) -> bool:
        """Return True if such a run begins before this start, on any of its nodes.

        A start on no known node comes after all of them.
        """
        where = nodes or list(self._first_s)
        return any(self._first_s.get(node, inf) < start_s for node in where)


def jobs_of_unknown_speed(snapshot: Snapshot) -> frozenset[str]:
    """Return the jobs whose kind has an assumed speed."""
    kinds = {kind.id for kind in snapshot.kinds if kind.is_assumed}
    columns = snapshot.jobs.columns
    pairs = zip(columns.ids, columns.kinds, strict=True)
    return frozenset(job for job, kind in pairs if kind in kinds)


def without_assumed_times(plan: Plan, snapshot: Snapshot) -> Plan:
    """Return the plan without run times, ends, costs and starts that rest on assumed speeds."""
    unknown = jobs_of_unknown_speed(snapshot)
    if not unknown:
        return plan

    # 1. Runs of assumed speed, those that run and those that are expected.
    runs = UnknownRuns()
    for placed in plan.placements:
        if placed.job in unknown:
            runs.add([seat.node for seat in placed.ranks], -inf)
    for entry in plan.waiting:
        if entry.job in unknown and entry.expected is not None:
            runs.add(entry.expected.nodes, entry.expected.start_s)

    # 2. Their run times and costs are left out, and all that comes after them.
    placements = list(plan.placements)
    for i, placed in enumerate(placements):
        if placed.job in unknown:
            placements[i] = replace(placed, predicted_run_s=None, predicted_energy_cost=None)
    waiting = [
        _without_unknown_start(entry, runs, has_unknown_speed=entry.job in unknown)
        for entry in plan.waiting
    ]
    return replace(plan, placements=tuple(placements), waiting=tuple(waiting))


def _without_unknown_start(
    entry: Waiting, runs: UnknownRuns, *, has_unknown_speed: bool
) -> Waiting:
    """Return a waiting job without an expected start behind a run of unknown length.

    A job of unknown speed keeps its own start, but no end.
    """
    expected = entry.expected
    if expected is None:
        return entry
    if runs.precede(expected.nodes, expected.start_s):
        return replace(entry, expected=None)
    if has_unknown_speed:
        return replace(entry, expected=replace(expected, end_s=None))
    return entry
