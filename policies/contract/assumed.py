"""Speeds that nobody knows: policies plan with assumed ones, and nobody is told what follows."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from policies.contract.plan import Placement, Plan, Waiting
from policies.contract.snapshot import Snapshot


class UnknownRuns:
    """Runs of unknown length, by node: no later start on that node is known."""

    def __init__(self) -> None:
        self._first_s: dict[str, float] = {}

    def add(self, nodes: Iterable[str], start_s: float) -> None:
        """Add a run of unknown length from a moment on; -inf if it runs now."""
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
    runs = UnknownRuns()
    for placed in plan.placements:
        if placed.job in unknown:
            runs.add([seat.node for seat in placed.ranks], -inf)
    for entry in plan.waiting:
        if entry.job in unknown and entry.expected is not None:
            runs.add(entry.expected.nodes, entry.expected.start_s)
    return replace(
        plan,
        placements=tuple(_placed(p) if p.job in unknown else p for p in plan.placements),
        waiting=tuple(_waiting(w, runs, w.job in unknown) for w in plan.waiting),
    )


def _placed(placement: Placement) -> Placement:
    return replace(placement, predicted_run_s=None, predicted_energy_cost=None)


def _waiting(waiting: Waiting, runs: UnknownRuns, is_unknown: bool) -> Waiting:
    """Return the entry without a start behind a run of unknown length, and without its own end."""
    expected = waiting.expected
    if expected is None:
        return waiting
    if runs.precede(expected.nodes, expected.start_s):
        return replace(waiting, expected=None)
    return replace(waiting, expected=replace(expected, end_s=None)) if is_unknown else waiting
