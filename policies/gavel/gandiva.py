"""Gandiva's packing and time slicing (Xiao et al., OSDI 2018), as in Gavel's evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from policies.contract.plan import Plan
from policies.contract.policy import parameter
from policies.contract.snapshot import Snapshot
from policies.gavel.gandiva_slices import EqualShares, Lags, Slices, Unit, Units, keep_outside
from policies.placement.gangs_over_nodes import place_gangs_over_nodes
from policies.placement.plan_builder import PlanBuilder

SLICE = 0.95
"""Fraction of a round after which a slice is over: live rounds are not exact."""

Names = tuple[str, str]
"""Ids of the jobs of a pair."""


@dataclass(frozen=True, slots=True)
class Gandiva:
    """Time slicing in rounds; if GPUs are short, random pairs share one (Gandiva's packing).

    A slice is as long as a round. At its end all GPUs are given out anew: each unit, a job or a
    pair, has the same part of every GPU type, whatever its speed there, and the unit that lags most
    comes first. So units change places even if none waits; that costs nothing in Gavel's simulator.
    Without `rotate` they do not. Before the end of a slice only idle GPUs are given out, and no job
    is stopped.

    As long as more GPUs are wanted than there are, pairs of jobs of one GPU are drawn at random, by
    the snapshot's seed, and put on one device, whatever their speeds there. At the end of a slice
    that they had together they stay a pair if that beats taking turns: if the fractions that both
    keep of their speeds alone add up to more than 1. Else they are separated and never tried again.
    Pairs whose speeds together are not known, or that do not fit into a GPU's memory together, are
    not drawn. A job whose partner has left keeps its part of the device: the part says what others
    may have, not how fast a job is alone.
    """

    packing: bool = parameter(True, meaning="let jobs share GPUs; else only slice time")
    rotate: bool = parameter(
        True,
        meaning=(
            "give jobs equal time on each GPU type (Gavel's model); else on all types together, and"
            " running jobs do not move"
        ),
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the plan; its shares are each job's part of every GPU type.

        Its memory: pairs, those that were tried, lags, and when the slice began.
        """
        # 1. Gangs over nodes, and jobs that share a device and must not move, are out of it.
        plan = PlanBuilder(snapshot, never_touch=False, shares=True)
        place_gangs_over_nodes(plan)
        outside = keep_outside(plan)
        rows_outside = {snapshot.jobs.position[placement.job] for placement in outside}

        # 2. Pairs. At the end of a slice they are made and separated anew.
        past = _Past.of(snapshot)
        units = Units(plan)
        rng = np.random.default_rng(snapshot.seed % 2**64)
        jobs = [row for row in units.jobs.least if row not in rows_outside]
        pairs = _Pairs(units, jobs, past, may_pair=self.packing)
        is_end = snapshot.now_s - past.began_s >= SLICE * snapshot.round_s
        if is_end:
            pairs.separate_slower()
            pairs.adapt(rng)

        # 3. GPUs: all anew at the end of a slice, else only the idle ones.
        shares = EqualShares(units.jobs, pairs.units(is_end=is_end))
        lag_s = shares.lag_s(past.lag_s, past.seen_s)
        order = shares.order(lag_s)
        slices = Slices(units, shares)
        if is_end:
            slices.give_out(lag_s, rng, by_type=self.rotate)
        else:
            slices.keep(order)
        slices.fill(order)
        slices.build()

        # 4. The plan, and its memory for the next round.
        began_s = snapshot.now_s if is_end else past.began_s
        memory = {"began_s": began_s, "seen_s": snapshot.now_s, **pairs.memory(), "lag_s": lag_s}
        built = plan.build("gandiva", named=outside)
        return replace(built, shares=shares.by_job(), memory={"gandiva": memory})


@dataclass(frozen=True, slots=True)
class _Past:
    """Memory of the round before, which was at `seen_s`.

    `began_s`: start of its slice, -inf if there was none. `pairs`: jobs that shared then. `tried`:
    pairs that are never tried again. `lag_s`: lags then.
    """

    began_s: float
    seen_s: float
    pairs: tuple[Names, ...]
    tried: frozenset[Names]
    lag_s: Lags

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Past:
        """Return the last plan's memory; nothing if that was another policy's."""
        memory: Mapping[str, Any] = snapshot.memory.get("gandiva", {})
        return cls(
            began_s=float(memory.get("began_s", -np.inf)),
            seen_s=float(memory.get("seen_s", snapshot.now_s)),
            pairs=tuple((one, other) for one, other in memory.get("pairs", ())),
            tried=frozenset((one, other) for one, other in memory.get("tried", ())),
            lag_s=memory.get("lag_s", {}),
        )


class _Pairs:
    """Pairs of jobs that share.

    `pairs`: rows of the jobs of each, the youngest pair last. `tried`: ids of pairs that may not
    share again. `sharers`: rows of jobs that may share.
    """

    def __init__(self, units: Units, jobs: list[int], past: _Past, *, may_pair: bool) -> None:
        self.all_units = units
        self.jobs = jobs
        self.ids = units.columns.ids

        # 1. Jobs that may share.
        may_share = set(units.sharers) if may_pair else set()
        self.sharers = [job for job in jobs if job in may_share]

        # 2. The pairs of the round before, as far as they may still share somewhere.
        row_of = {self.ids[job]: job for job in self.sharers}
        self.pairs: list[tuple[int, int]] = []
        for one, other in past.pairs:
            if one in row_of and other in row_of:
                pair = row_of[one], row_of[other]
                if units.pair(*pair).nodes:
                    self.pairs.append(pair)

        # 3. Pairs are forgotten with their jobs.
        present = set(self.ids)
        self.tried = {pair for pair in past.tried if present.issuperset(pair)}

    def separate_slower(self) -> None:
        """Separate pairs that ran together and are no faster so than by taking turns."""
        for pair in list(self.pairs):
            seat = self.all_units.shared_seat(*pair)
            if seat is not None and self.all_units.gain(*pair, seat.node) <= 1.0:
                self.pairs.remove(pair)
                self.tried.add(self._names(*pair))

    def adapt(self, rng: np.random.Generator) -> None:
        """Make pairs while more GPUs are wanted than present, else separate the youngest."""
        wanted = sum(unit.gpus for unit in self.units(is_end=True))
        missing = wanted - sum(self.all_units.plan.state.free_gpus().values())
        while self.pairs and missing < 0:
            self.pairs.pop()
            missing += 1
        self._draw(missing, rng)

    def _draw(self, missing: int, rng: np.random.Generator) -> None:
        """Draw pairs until no GPU is missing, at most once for each job without a partner."""
        paired = {job for pair in self.pairs for job in pair}
        single = [job for job in self.sharers if job not in paired]
        for _ in range(len(single)):
            if missing <= 0 or len(single) < 2:
                return
            first, second = sorted(rng.choice(len(single), 2, replace=False).tolist())
            one = single[first]
            other = single[second]
            may_pair = self._names(one, other) not in self.tried
            if may_pair and self.all_units.pair(one, other).nodes:
                self.pairs.append((one, other))
                gpus_alone = self.all_units.single(one).gpus + self.all_units.single(other).gpus
                missing -= gpus_alone - 1
                del single[second]
                del single[first]

    def units(self, *, is_end: bool) -> list[Unit]:
        """Return all jobs, in their order, each alone or with the other of its pair.

        Before the end of a slice pairs for which a running job would have to stop are left apart.
        """
        runs = self.all_units.jobs.runs
        partner_of: dict[int, int] = {}
        for one, other in self.pairs:
            stops_nobody = one not in runs and other not in runs
            if is_end or stops_nobody or self.all_units.pair(one, other).seat is not None:
                partner_of[one] = other
        seconds = set(partner_of.values())
        units = []
        for job in self.jobs:
            if job in seconds:
                continue
            if job in partner_of:
                units.append(self.all_units.pair(job, partner_of[job]))
            else:
                units.append(self.all_units.single(job))
        return units

    def memory(self) -> dict[str, Any]:
        """Return the pairs as plain data."""
        pairs = [[self.ids[one], self.ids[other]] for one, other in self.pairs]
        return {"pairs": pairs, "tried": sorted(map(list, self.tried))}

    def _names(self, one: int, other: int) -> Names:
        """Return the ids of two jobs, sorted."""
        first, second = sorted((self.ids[one], self.ids[other]))
        return first, second
