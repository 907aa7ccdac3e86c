"""Gandiva's packing and time slicing (Xiao et al., OSDI 2018), as Gavel's evaluation models
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from policies.andreas.problem import build
from policies.andreas.to_plan import bills, to_plan_of
from policies.contract.plan import HIGHEST_COST, LONGEST_RUN_S, Placement, Plan, predicted
from policies.contract.policy import parameter
from policies.contract.snapshot import Bools, Floats, Ints, RankPlacement, Snapshot
from policies.gavel.colocation.halves import staying_halves
from policies.gavel.colocation.tandems import HALF, WHOLE, Seat, Tandems, Unit
from policies.gavel.colocation.turns import Owed, Parts, Seating
from policies.gavel.colocation.vacancies import Vacancies

LENIENT = 0.95
"""A slice is over after this part of a round's length: live rounds are not held to the second."""

Names = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Gandiva:
    """Time slicing in rounds; where there are more jobs than GPUs, pairs tried at random share one
    (Gandiva's packing).

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

    packing: bool = parameter(
        True, meaning="whether jobs share GPUs; without it there is time slicing alone"
    )
    rotate: bool = parameter(
        True,
        meaning=(
            "whether all have equal time on every GPU type (Gavel's model); else on all together,"
            " and who runs stays put"
        ),
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """The plan; its shares are each job's part of every GPU type, its memory pairs, what was
        tried, and lags.
        """
        problem = build(snapshot)
        vacancies, tandems, past = Vacancies(problem), Tandems(problem), _Past.of(snapshot)
        staying = staying_halves(problem, vacancies)
        jobs = tandems.jobs({placement.job for placement in staying})
        pairs = _Pairs(tandems, jobs, past, may_pair=self.packing)
        is_end = snapshot.now_s - past.began_s >= LENIENT * snapshot.round_s
        rng = np.random.default_rng(snapshot.seed % 2**64)
        if is_end:
            pairs.judge()
            pairs.adapt(rng)
        turn = _Turn(
            tandems,
            vacancies,
            pairs.units(pairs.pairs if is_end else pairs.undisturbed()),
            past,
            rng,
        )
        turn.give_out(to_all=is_end, by_type=self.rotate)
        plan = to_plan_of(
            problem, vacancies.solution, [*staying, *turn.placements()], "gandiva", None
        )
        began_s = snapshot.now_s if is_end else past.began_s
        memory = {
            "began_s": began_s,
            "seen_s": snapshot.now_s,
            **pairs.memory(),
            "lag_s": turn.lag,
        }
        return replace(plan, shares=turn.shares(), memory={"gandiva": memory})


@dataclass(frozen=True, slots=True)
class _Past:
    """What was kept: when the slice began (-inf: none has), up to when `lag` counts, the pairs by
    their jobs' ids, and those that were tried in vain.
    """

    began_s: float
    seen_s: float
    pairs: tuple[Names, ...]
    tried: frozenset[Names]
    lag: Owed

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Past:
        """As the last plan left it; nothing where that was another policy's."""
        kept: Mapping[str, Any] = snapshot.memory.get("gandiva", {})
        pairs, tried = (tuple((a, b) for a, b in kept.get(name, ())) for name in ("pairs", "tried"))
        began_s, seen_s = (
            float(kept.get("began_s", -np.inf)),
            float(kept.get("seen_s", snapshot.now_s)),
        )
        return cls(began_s, seen_s, pairs, frozenset(tried), kept.get("lag_s", {}))


class _Pairs:
    """Who shares: `pairs` of jobs that can sit somewhere, `tried` names of those that may not be
    pairs again.
    """

    def __init__(self, tandems: Tandems, jobs: list[int], past: _Past, *, may_pair: bool) -> None:
        self.tandems, self.jobs = tandems, jobs
        self.sharers = [e for e in tandems.sharers() if e in set(jobs)] if may_pair else []
        at = {tandems.names[e]: e for e in self.sharers}
        known = [(at[a], at[b]) for a, b in past.pairs if a in at and b in at]
        self.pairs = [pair for pair in known if tandems.nodes_of(tandems.pair(*pair))]
        present = set(tandems.names)
        self.tried = {pair for pair in past.tried if present.issuperset(pair)}

    def judge(self) -> None:
        """Part the pairs that had time together and do not beat taking turns."""
        for pair in list(self.pairs):
            seat = self.tandems.sit_together(*pair)
            if seat is not None and self.tandems.worth(*pair, seat.node) <= 1.0:
                self.pairs.remove(pair)
                self.tried.add(self._names_of(*pair))

    def adapt(self, rng: np.random.Generator) -> None:
        """More pairs as long as more GPUs are wanted than there are, fewer where there are more,
        the youngest first.
        """
        missing = sum(unit.gpus for unit in self.units(self.pairs)) - sum(
            map(len, self.tandems.problem.devices)
        )
        while self.pairs and missing < 0:
            self.pairs.pop()
            missing += 1
        self._draw(missing, rng)

    def undisturbed(self) -> list[tuple[int, int]]:
        """Pairs without those that could sit together only if one of them stopped where it runs."""
        runs = self.tandems.runs
        return [
            (a, b)
            for a, b in self.pairs
            if self.tandems.pair(a, b).seat is not None or not (a in runs or b in runs)
        ]

    def units(self, pairs: Iterable[tuple[int, int]]) -> list[Unit]:
        """All jobs, in their order, each alone or with the other of its pair."""
        partner = dict(pairs)
        firsts = [e for e in self.jobs if e not in set(partner.values())]
        return [
            self.tandems.pair(e, partner[e]) if e in partner else self.tandems.single(e)
            for e in firsts
        ]

    def memory(self) -> dict[str, Any]:
        """As plain data."""
        names = self.tandems.names
        return {
            "pairs": [[names[a], names[b]] for a, b in self.pairs],
            "tried": sorted(map(list, self.tried)),
        }

    def _draw(self, missing: int, rng: np.random.Generator) -> None:
        """As many attempts as there are jobs without a partner."""
        paired = {e for pair in self.pairs for e in pair}
        left = [e for e in self.sharers if e not in paired]
        for _ in range(len(left)):
            if missing <= 0 or len(left) < 2:
                return
            first, second = sorted(rng.choice(len(left), 2, replace=False).tolist())
            one, other = left[first], left[second]
            if self._names_of(one, other) not in self.tried and self.tandems.nodes_of(
                self.tandems.pair(one, other)
            ):
                self.pairs.append((one, other))
                missing -= self.tandems.single(one).gpus + self.tandems.single(other).gpus - 1
                del left[second], left[first]

    def _names_of(self, one: int, other: int) -> Names:
        first, second = sorted((self.tandems.names[one], self.tandems.names[other]))
        return first, second


class _Turn:
    """One round's seats for its units; `lag`: how far each job lags behind its part."""

    def __init__(
        self,
        tandems: Tandems,
        vacancies: Vacancies,
        units: list[Unit],
        past: _Past,
        rng: np.random.Generator,
    ) -> None:
        self.tandems, self.vacancies, self.problem, self.units, self.rng = (
            tandems,
            vacancies,
            tandems.problem,
            units,
            rng,
        )
        self.parts = Parts(tandems, units)
        self.lag = self.parts.lag(past.lag, past.seen_s)
        self.seating = Seating(tandems, vacancies, rng)

    def give_out(self, *, to_all: bool, by_type: bool) -> None:
        """Seats: at the end of a slice to all, by their lag, on each type or altogether;
        else to those who have none.

        What is idle then goes to whoever can run there.
        """
        order = np.argsort(-self.parts.totals(self.lag), kind="stable").tolist()
        if to_all:
            self._seat_anew(self._choose(self.parts.claims(self.lag, by_type=by_type)))
        else:
            for u in order:
                self.seating.keep(self.units[u])
        nobody = [0] * len(self.problem.nodes)
        for u in order:
            unit = self.units[u]
            if unit not in self.seating.taken and not self.seating.keep(unit):
                self.seating.seat(unit, self.parts.nodes[u], nobody)

    def shares(self) -> dict[str, dict[str, float]]:
        """Each job's part of the time of every GPU type."""
        rows = [dict(zip(self.parts.types, row, strict=True)) for row in self.parts.share.tolist()]
        return {
            self.tandems.names[e]: row
            for unit, row in zip(self.units, rows, strict=True)
            for e in unit.jobs
        }

    def placements(self) -> list[Placement]:
        """Of every job that has a seat."""
        return [
            self._placement(unit, e, seat)
            for unit, seat in self.seating.taken.items()
            for e in unit.jobs
        ]

    def _seat_anew(self, chosen: Mapping[int, int]) -> None:
        """Units on the types chosen for them: the large first, on as full a node as can be, and
        where they are if that is right.
        """
        type_of = self.parts.type_of
        homes = {
            u: seat.node
            for u, t in chosen.items()
            if (seat := self.units[u].seat) is not None and type_of[seat.node] == t
        }
        wanted = [0] * len(self.problem.nodes)
        for u, n in homes.items():
            wanted[n] += self.units[u].gpus
        for u in sorted(chosen, key=lambda u: (-self.units[u].gpus, u not in homes)):
            unit = self.units[u]
            if u in homes:
                wanted[homes[u]] -= unit.gpus
            if u not in homes or not self.seating.keep(unit):
                self.seating.seat(
                    unit, [n for n in self.parts.nodes[u] if type_of[n] == chosen[u]], wanted
                )

    def _choose(self, claims: Floats) -> dict[int, int]:
        """A type for each unit that is among those of the greatest claims there (Gavel's mechanism,
        section 5); of equal ones those that came first, of equal types the one where a unit sits,
        else by lot.
        """
        rows, columns = (index.ravel() for index in np.indices(claims.shape))
        lot, arrival_s = self.rng.permutation(len(self.parts.types)), self._arrival_s()
        keys = (lot[columns], ~self._sits()[rows, columns], rows, arrival_s[rows], -claims.ravel())
        order = np.lexsort(keys)
        left, chosen = self.parts.gpus.copy(), dict[int, int]()
        for u, t in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
            if u not in chosen and self.parts.may[u, t] and self.units[u].gpus <= left[t]:
                chosen[u] = t
                left[t] -= self.units[u].gpus
        return chosen

    def _sits(self) -> Bools:
        """bool[U, T]: the types on which units sit."""
        sits = np.zeros(self.parts.share.shape, dtype=np.bool_)
        for u, unit in enumerate(self.units):
            if unit.seat is not None:
                sits[u, self.parts.type_of[unit.seat.node]] = True
        return sits

    def _arrival_s(self) -> Floats:
        first: Ints = np.array([unit.jobs[0] for unit in self.units], dtype=np.int64)
        return self.problem.column("arrival_s")[first]

    def _placement(self, unit: Unit, job: int, seat: Seat) -> Placement:
        run = self.tandems.runs[job] if self._stays(unit, job, seat) else None
        ranks = run.ranks if run is not None else (self._rank(unit, job, seat),)
        run_s = self._run_s(unit, job, seat.node) + (
            0.0 if run is not None else float(self.problem.launch_s[job])
        )
        part, node = np.array([unit.gpus * ranks[0].share]), np.array([seat.node])
        bill = bills(self.problem, node, part, self.vacancies.used[node], np.array([run_s]))
        return Placement(
            self.tandems.names[job],
            ranks,
            predicted_run_s=predicted(run_s, LONGEST_RUN_S),
            predicted_energy_cost=predicted(float(bill[0]), HIGHEST_COST),
        )

    def _run_s(self, unit: Unit, job: int, n: int) -> float:
        """Without a launch; beside the other of its pair for as long as that takes."""
        if len(unit.jobs) == 1:
            return float(self.problem.run_s[job, self.vacancies.config_at(n, unit.gpus)])
        one, other = unit.jobs
        speed = self.tandems.sides(one, other, n)[unit.jobs.index(job)]
        return float(self.problem.column("remaining_steps")[job]) / speed

    def _stays(self, unit: Unit, job: int, seat: Seat) -> bool:
        """Whether the job keeps the seat it has: whole or in part if it is alone there, in part
        beside another.
        """
        return self.tandems.seats.get(job) == seat and (
            len(unit.jobs) == 1 or job in self.tandems.halves[seat]
        )

    def _rank(self, unit: Unit, job: int, seat: Seat) -> RankPlacement:
        """A new seat; beside one that stays it is what that one leaves of the device."""
        node = self.problem.nodes[seat.node].id
        if len(unit.jobs) == 1:
            return RankPlacement(node, seat.devices, WHOLE)
        other = unit.jobs[1 - unit.jobs.index(job)]
        left = (
            WHOLE - self.tandems.runs[other].ranks[0].share
            if self._stays(unit, other, seat)
            else HALF
        )
        return RankPlacement(node, seat.devices, left)
