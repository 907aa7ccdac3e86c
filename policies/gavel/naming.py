"""Placements of a share policy's round, with the names of nodes and devices."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from policies.contract.plan import LONGEST_RUN_S, Placement, predicted
from policies.contract.snapshot import RankPlacement
from policies.gavel.allocation.observe import Observed
from policies.gavel.current import WHOLE, GroupRequests
from policies.placement.from_snapshot import CurrentPlacement, remaining_s
from policies.placement.speed import LaunchTimes, Speeds
from policies.placement.time_slices import Current, Placed

HALF = 0.5
"""The share of a device that each of two jobs on it is given."""


def placements_of(
    observed: Observed,
    requests: GroupRequests,
    current: Mapping[int, Current],
    placed: Mapping[int, Placed],
) -> tuple[Placement, ...]:
    """Return the placements in the jobs' order.

    Jobs on draining nodes that found no place stay there until the drain, as far as power lasts.
    """
    state, naming = observed.state, _Naming(observed, requests, current)
    found = {job: naming.placement(job, of) for job, of in placed.items()}
    found |= {stay.row: naming.staying(stay) for stay in observed.pinned}
    for row, stay in observed.fallback.items():
        if row not in found and state.try_take(stay.allocation):
            found[row] = naming.staying(stay)
    return tuple([found[row] for row in sorted(found)])


class _Naming:
    def __init__(
        self, observed: Observed, requests: GroupRequests, current: Mapping[int, Current]
    ) -> None:
        self.observed, self.requests, self.current = observed, requests, current
        self.layout, self.snapshot = observed.state.layout, observed.snapshot
        self.speeds, columns = Speeds(self.snapshot.kinds), self.snapshot.jobs.columns
        self.launch_times = LaunchTimes(self.snapshot)
        self.kinds, self.ids = columns.kinds, columns.ids
        self.steps = columns.numbers["remaining_steps"].tolist()

    def placement(self, job: int, placed: Placed) -> Placement:
        """Return a job's placement with its predicted run time; a launch takes time too."""
        rate = self._rate(job, placed)
        run_s = self.steps[job] / rate if rate > 0.0 else inf
        if job in placed.staying:
            run, run_s = self.current[job].run, predicted(run_s, LONGEST_RUN_S)
            return Placement(self.ids[job], run.ranks, run.copy, predicted_run_s=run_s)
        run_s = predicted(run_s + self.launch_times.of(job), LONGEST_RUN_S)
        return Placement(self.ids[job], self._ranks(placed), 0, predicted_run_s=run_s)

    def _rate(self, job: int, placed: Placed) -> float:
        """Return steps/s, beside another if it shares its device; 0 if unknown."""
        alone = self.requests.rate(job, placed.column)
        if len(placed.jobs) == 1:
            return alone
        others = [self.kinds[other] for other in placed.jobs if other != job]
        gpu_type = self.observed.problem.columns[placed.column].gpu_type
        return self.speeds.colocated(self.kinds[job], alone, 1, [(gpu_type, others)])

    def staying(self, stay: CurrentPlacement) -> Placement:
        """Return a job outside of the decision, where it is, until its node must be empty."""
        run, run_s = stay.run, remaining_s(self.snapshot, self.speeds, stay)
        return Placement(
            self.ids[stay.row], run.ranks, run.copy, steps_quota=run.steps_quota,
            until_s=stay.until_s, predicted_run_s=predicted(run_s, LONGEST_RUN_S),
        )  # fmt: skip

    def _ranks(self, placed: Placed) -> tuple[RankPlacement, ...]:
        share = WHOLE if len(placed.jobs) == 1 else HALF
        nodes, ids = self.layout.nodes, self.layout.ids
        parts = placed.allocation.parts
        return tuple(
            [RankPlacement(nodes[p.node].id, ids(p.node, p.devices), share) for p in parts]
        )
