"""Max-min fairness over unlike GPUs (Gavel's least attained service, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from policies.parameters import parameter
from policies.plan import Plan
from policies.shares.agnostic import agnostic
from policies.shares.classing import Asked
from policies.shares.division import Division, Shares
from policies.shares.fairness import fairness
from policies.shares.observe import Observed
from policies.shares.policy import Sharing, plan_of
from policies.shares.water_filling import fair_shares
from policies.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class MaxMinFairness:
    """Time on unlike GPUs shared so that the worst-off job makes as much progress as can be (Gavel's LAS).

    Every job gets shares of time by GPU type that maximise the least weighted throughput, measured against equal time on all GPUs;
    the round mechanism turns them into turns.
    """

    form: str = parameter(
        "aware",
        meaning="aware: by each job's speed on each type; agnostic: as if types were alike; sharing: aware, two may share a GPU",
        choices=("aware", "agnostic", "sharing"),
    )
    weighted: bool = parameter(True, meaning="shares in proportion to the jobs' weights; else all weigh the same")
    fill: bool = parameter(
        True,
        meaning="go on until nobody could have more without a poorer job's having less; else only the least is as high as can be",
    )
    spread: bool = parameter(False, meaning="gangs may have time on several nodes where their speed there is known")
    recompute_s: float = parameter(
        0.0,
        meaning="shares are made anew when they are as old, 0: only when jobs, nodes or speeds have changed",
        minimum=0.0,
        maximum=1e9,
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Who has a turn in this round; the objective is the least weighted throughput over that with equal time on all GPUs."""
        asked = Asked(spread=self.spread, pairs=self.form == "sharing")
        return plan_of(snapshot, Sharing("max_min_fairness", repr(self), self._allocate, asked, self.recompute_s))

    def _allocate(self, observed: Observed) -> Shares:
        division = observed.division
        if not self.weighted:
            division = replace(division, weight=np.ones_like(division.weight))
        return agnostic(self._shares, division) if self.form == "agnostic" else self._shares(division)

    def _shares(self, division: Division) -> Shares:
        return fair_shares(division) if self.fill else fairness(division)
