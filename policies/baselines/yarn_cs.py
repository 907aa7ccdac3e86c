"""YARN's capacity scheduler, as in the evaluations of Tiresias and Hadar."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from policies.baselines.any_type import AnyType
from policies.contract.plan import Plan
from policies.contract.snapshot import Snapshot
from policies.placement.plan_builder import PlanBuilder


@dataclass(frozen=True, slots=True)
class YarnCs:
    """A queue by arrival for each team with its part of the GPUs; nothing is stopped (YARN).

    The queue that uses least of its part, by the teams' weights, goes first; GPUs that others leave
    idle may exceed it. A queue waits for its first job: no later one passes it. GPU types look
    alike.
    """

    keeps_started: ClassVar[bool] = True

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Start the first jobs of the queues while they fit."""
        plan = PlanBuilder(snapshot, never_touch=True)
        finder = AnyType(plan)
        columns = snapshot.jobs.columns
        team_of = columns.others["team"]
        weight = {team.name: team.weight for team in snapshot.teams}

        # 1. GPUs that each team uses, and its queue by arrival.
        used: dict[str, float] = {}
        for stay in plan.pinned:
            team = team_of[stay.row]
            used[team] = used.get(team, 0.0) + stay.run.gpus
        arrival_s = columns.listed["arrival_s"]
        decided = plan.decided
        rows = range(len(columns.ids))
        waiting = [row for row in rows if row not in decided and finder.could_run(row)]
        waiting.sort(key=lambda row: (arrival_s[row], row))
        queues: dict[str, deque[int]] = {}
        for row in waiting:
            queues.setdefault(team_of[row], deque()).append(row)

        # 2. The team that uses least of its part starts its first job, or waits for it.
        while queues:
            team = min(queues, key=lambda name: (used.get(name, 0.0) / weight.get(name, 1.0), name))
            row = queues[team].popleft()
            found = finder.find(plan.state, row)
            if found is not None:
                finder.place(row, found)
                gpus = sum(part.devices.bit_count() for part in found.parts)
                used[team] = used.get(team, 0.0) + gpus
            if found is None or not queues[team]:
                del queues[team]
        return plan.build("yarn_cs")
