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

LENIENT = 0.95
"""Fraction of a round after which a slice is over: live rounds are not exact."""

Names = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Gandiva:
    """Time slicing in rounds; if GPUs are short, random pairs share one (Gandiva's packing).

    At the end of each slice, a round's length, all GPUs are given out anew: each unit, a job or a
    pair, has the same part of every GPU type, whatever its speed there, and who lags most comes
    first. So units change places though nobody waits, which costs nothing but in Gavel's simulator;
    `rotate` leaves that out. Between two ends idle GPUs are filled and nobody is stopped.

    As long as more GPUs are wanted than there are, pairs of jobs of one GPU are drawn at random, by
    the snapshot's seed, and put on one device without a look at how they get on. At the end of a
    slice that they had together they stay a pair if they beat taking turns, that is if the parts of
    their speeds alone which they keep add up to more than 1, and else are never tried again. Pairs
    whose speeds side by side are not known, or that do not fit into a GPU's memory together, are
    not drawn. Whoever is left on a part of a device keeps it: the part says what others may have,
    not how fast a job is alone.
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
        plan, past = PlanBuilder(snapshot, never_touch=False, shares=True), _Past.of(snapshot)
        place_gangs_over_nodes(plan)
        outside = keep_outside(plan)
        kept = {snapshot.jobs.position[placement.job] for placement in outside}
        units, rng = Units(plan), np.random.default_rng(snapshot.seed % 2**64)
        jobs = [row for row in units.jobs.least if row not in kept]
        pairs = _Pairs(units, jobs, past, may_pair=self.packing)
        is_end = snapshot.now_s - past.began_s >= LENIENT * snapshot.round_s
        if is_end:
            pairs.part()
            pairs.adapt(rng)
        shares = EqualShares(units.jobs, pairs.units(is_end=is_end))
        lag_s, slices = shares.lag_s(past.lag_s, past.seen_s), Slices(units, shares)
        order = shares.order(lag_s)
        if is_end:
            slices.give_out(lag_s, rng, by_type=self.rotate)
        else:
            slices.keep(order)
        slices.fill(order)
        slices.build()
        began_s = snapshot.now_s if is_end else past.began_s
        memory = {"began_s": began_s, "seen_s": snapshot.now_s, **pairs.memory(), "lag_s": lag_s}
        made = plan.build("gandiva", named=outside)
        return replace(made, shares=shares.by_job(), memory={"gandiva": memory})


@dataclass(frozen=True, slots=True)
class _Past:
    """Memory of the round before: start of its slice, pairs by job ids, and those that failed.

    `began_s`: -inf if there was none; lags count up to `seen_s`.
    """

    began_s: float
    seen_s: float
    pairs: tuple[Names, ...]
    tried: frozenset[Names]
    lag_s: Lags

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Past:
        """Return the last plan's memory; nothing if that was another policy's."""
        kept: Mapping[str, Any] = snapshot.memory.get("gandiva", {})
        pairs, tried = (tuple((a, b) for a, b in kept.get(name, ())) for name in ("pairs", "tried"))
        began_s = float(kept.get("began_s", -np.inf))
        seen_s = float(kept.get("seen_s", snapshot.now_s))
        return cls(began_s, seen_s, pairs, frozenset(tried), kept.get("lag_s", {}))


class _Pairs:
    """Jobs that share: `pairs` that can run somewhere, `tried` ids of those that may not again."""

    def __init__(self, of: Units, jobs: list[int], past: _Past, *, may_pair: bool) -> None:
        self.of, self.jobs, self.ids = of, jobs, of.columns.ids
        may_share = set(of.sharers) if may_pair else set()
        self.sharers = [job for job in jobs if job in may_share]
        row = {self.ids[job]: job for job in self.sharers}
        known = [(row[a], row[b]) for a, b in past.pairs if a in row and b in row]
        self.pairs = [pair for pair in known if of.pair(*pair).nodes]
        present = set(self.ids)
        self.tried = {pair for pair in past.tried if present.issuperset(pair)}

    def part(self) -> None:
        """Separate pairs that ran together and are no faster so than by taking turns."""
        for pair in list(self.pairs):
            seat = self.of.shared_seat(*pair)
            if seat is not None and self.of.gain(*pair, seat.node) <= 1.0:
                self.pairs.remove(pair)
                self.tried.add(self._names(*pair))

    def adapt(self, rng: np.random.Generator) -> None:
        """Make pairs while more GPUs are wanted than present, else separate the youngest."""
        wanted = sum(unit.gpus for unit in self.units(is_end=True))
        missing = wanted - sum(self.of.plan.state.free_gpus().values())
        while self.pairs and missing < 0:
            self.pairs.pop()
            missing += 1
        self._draw(missing, rng)

    def units(self, *, is_end: bool) -> list[Unit]:
        """Return all jobs, in their order, each alone or with the other of its pair.

        Before the end of a slice without pairs for which a running job would have to stop.
        """
        runs = self.of.jobs.runs
        partner = {
            a: b
            for a, b in self.pairs
            if is_end or self.of.pair(a, b).seat is not None or not (a in runs or b in runs)
        }
        firsts = [job for job in self.jobs if job not in set(partner.values())]
        return [
            self.of.pair(job, partner[job]) if job in partner else self.of.single(job)
            for job in firsts
        ]

    def memory(self) -> dict[str, Any]:
        """Return the pairs as plain data."""
        pairs = [[self.ids[a], self.ids[b]] for a, b in self.pairs]
        return {"pairs": pairs, "tried": sorted(map(list, self.tried))}

    def _draw(self, missing: int, rng: np.random.Generator) -> None:
        """Draw as many pairs as there are jobs without a partner, or as GPUs are missing."""
        paired = {job for pair in self.pairs for job in pair}
        left = [job for job in self.sharers if job not in paired]
        for _ in range(len(left)):
            if missing <= 0 or len(left) < 2:
                return
            first, second = sorted(rng.choice(len(left), 2, replace=False).tolist())
            one, other = left[first], left[second]
            if self._names(one, other) not in self.tried and self.of.pair(one, other).nodes:
                self.pairs.append((one, other))
                missing -= self.of.single(one).gpus + self.of.single(other).gpus - 1
                del left[second], left[first]

    def _names(self, one: int, other: int) -> Names:
        first, second = sorted((self.ids[one], self.ids[other]))
        return first, second
