"""From turns to seats: larger gangs first, on as few nodes as possible, and on the devices a job
holds already when it goes on.

A job that goes on where it runs keeps its very placement, so that nothing is stopped. What is left
idle in the end goes to whoever can use it: first to jobs that run there and have no turn, then to
those that wait, a job of each class at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from policies.contract.snapshot import RankSeat
from policies.gavel.allocation.allocatable import Condition
from policies.gavel.allocation.observe import Observed, in_order
from policies.placement.floor import SLOTS, Floor, Guest
from policies.placement.homes import ALONE, Home, Place
from policies.placement.rounds import Queues, Turn
from policies.placement.supplies import Load

HALF = 0.5
"""The share of a device that each of two jobs on it holds."""

UNCLAIMED = -1
"""The class of jobs without a claim."""

Ranks: TypeAlias = tuple[RankSeat, ...]


class Seated(NamedTuple):
    """A job with its seats on GPUs of a column; `stays`: where it is already; `partner`: who has
    the device with it, or ALONE.
    """

    job: int
    ranks: Ranks
    column: int
    stays: bool
    partner: int = ALONE


class Seating:
    """The jobs of one round find their seats: `seated`, by job."""

    def __init__(self, observed: Observed, homes: Mapping[int, Home]) -> None:
        self.observed, self.homes, self.floor = observed, homes, Floor(observed)
        classes, problem = observed.classes, observed.problem
        self.columns, self.type_of = problem.columns, problem.column_type.tolist()
        self.groups, self.group_of, self.rates = (
            classes.groups,
            classes.group_list,
            classes.rate_lists,
        )
        self.column_of = {
            (of, c.spread): i
            for i, (of, c) in enumerate(zip(self.type_of, self.columns, strict=True))
        }
        self.seated: dict[int, Seated] = {}
        self._guests: dict[tuple[Condition, int], Guest] = {}

    def fix(self, homes: Iterable[Home]) -> None:
        """These jobs go on whoever has a turn, as far as resources and watts go."""
        unlimited = self.floor.supplies.unlimited
        for home in homes:
            if home.job not in self.seated:
                if unlimited and home.partner == ALONE:
                    self._stay_alone(home)
                else:
                    self._stay((home.job,) if home.partner == ALONE else (home.job, home.partner))

    def seat(self, turns: Sequence[Turn], *, may_evict: bool) -> None:
        """Seat whom there is room for; `may_evict`: a gang that finds no node may have devices that
        smaller ones would go on on.
        """
        ordered = sorted(turns, key=attrgetter("gpus"), reverse=True)
        if not ordered or ordered[0].gpus == ordered[-1].gpus or all(map(self._goes_on, ordered)):
            self._seat_alike(ordered, self._goes_on, may_evict=False)
            return
        for turn in filter(self._goes_on, ordered):
            self.floor.keep(turn.jobs[0], self.homes[turn.jobs[0]].places)
        for gpus, alike in groupby(ordered, key=attrgetter("gpus")):
            of_size = list(alike)
            kept = {turn for turn in of_size if self.floor.let_go(turn.jobs[0])}
            self._seat_alike(of_size, kept.__contains__, may_evict=may_evict and gpus > 1)

    def fill(self, queues: Queues, classes: Callable[[], Sequence[int]]) -> None:
        """Give what is open to whoever can use it; `classes` in their order, jobs without a claim
        last.
        """
        if len(self.seated) == len(self.group_of):
            return
        for home in self.homes.values():
            if home.job not in self.seated:
                self._stay((home.job,))
        if any(self.floor.open) or self._left_alone():
            waiting: dict[int, list[int]] = defaultdict(list)
            for e, of in enumerate(self.observed.classes.class_list):
                if e not in self.seated:
                    waiting[of].append(e)
            ordered = [queues.in_need(waiting[m])[::-1] for m in classes() if m in waiting]
            self._fill_by_turns([*ordered, waiting[UNCLAIMED][::-1]])

    def _fill_by_turns(self, waiting: list[list[int]]) -> None:
        """One of each list at a time, from its end; whose group found no place once finds none
        later.
        """
        hopeless: set[int] = set()
        while waiting := [of_class for of_class in waiting if of_class]:
            for of_class in waiting:
                e = of_class.pop()
                if (
                    self.group_of[e] not in hopeless
                    and not self._join(e)
                    and not self._sit_anywhere(e)
                ):
                    hopeless.add(self.group_of[e])

    def _seat_alike(
        self, turns: Sequence[Turn], goes_on: Callable[[Turn], bool], *, may_evict: bool
    ) -> None:
        """Turns of as many GPUs each: those that go on first."""
        for turn in [turn for turn in turns if not (goes_on(turn) and self._stay(turn.jobs))]:
            self._move(turn, may_evict=may_evict)

    def _goes_on(self, turn: Turn) -> bool:
        """Whether its jobs have devices already on which they could have this turn."""
        home = self.homes.get(turn.jobs[0])
        if home is None:
            return False
        if len(turn.jobs) == 1 and home.column == turn.column:
            return True
        if home.column != turn.column and not self._is_nearer(home, turn):
            return False
        return len(turn.jobs) == 1 or home.partner == turn.jobs[1]

    def _is_nearer(self, home: Home, turn: Turn) -> bool:
        """Whether a job has GPUs of one node already, where its turn is on several nodes of that
        type.
        """
        same = self.type_of[home.column] == self.type_of[turn.column]
        return same and self.columns[turn.column].spread and not self.columns[home.column].spread

    def _stay(self, jobs: tuple[int, ...]) -> bool:
        """Seat jobs where they are, all or none."""
        home = self.homes[jobs[0]]
        if len(jobs) == 1 and self.floor.supplies.unlimited:  # nearly all, in nearly every round
            return self._stay_alone(home)
        if not self.floor.are_open(home.places):
            return False
        return self._sit([(e, self.homes[e].run.ranks) for e in jobs], home.places, stays=jobs)

    def _stay_alone(self, home: Home) -> bool:
        """The same of one job where resources and watts cannot run out."""
        if not self.floor.take(home.places):
            return False
        self.seated[home.job] = Seated(home.job, home.run.ranks, home.column, True)
        return True

    def _move(self, turn: Turn, *, may_evict: bool) -> None:
        """Seat jobs anew; they are left out where there is no room."""
        if len(turn.jobs) == 2:
            self._pair(turn.jobs[0], turn.jobs[1], turn.column)
        elif (
            not self._sit_on(turn.jobs[0], turn.column)
            and may_evict
            and not self.columns[turn.column].spread
        ):
            self._evict(turn.jobs[0], turn.column)

    def _sit_anywhere(self, e: int) -> bool:
        """Seat a job where it is fastest of what is open."""
        rates = self.rates[self.group_of[e]]
        fastest = sorted((c for c, rate in enumerate(rates) if rate > 0.0), key=lambda c: -rates[c])
        return any(self._sit_on(e, column) for column in fastest)

    def _sit_on(self, e: int, column: int) -> bool:
        """Seat a job on a column: on one node if it can run on one, else where the column is spread
        on several.
        """
        gpus, of = self.groups[self.group_of[e]].gpus, self.type_of[column]
        runs_on_one = self.rates[self.group_of[e]][self.column_of[of, False]] > 0.0
        place = self.floor.on_one(of, gpus, self._guest(e)) if runs_on_one else None
        if place is not None:
            return self._sit_new(e, (place,))
        if not self.columns[column].spread:
            return False
        places = self.floor.on_several(of, gpus, self._guest(e, spread=True))
        return places is not None and self._sit_new(e, places)

    def _evict(self, e: int, column: int) -> None:
        """Seat a gang on devices kept for smaller ones, which must move."""
        place = self.floor.on_one_with_kept(
            self.type_of[column], self.groups[self.group_of[e]].gpus, self._guest(e)
        )
        if place is not None:
            self._sit_new(e, (place,))

    def _sit_new(self, e: int, places: tuple[Place, ...]) -> bool:
        ranks = tuple(
            [RankSeat(self.observed.allocatable.nodes[n].id, devices) for n, devices in places]
        )
        return self._sit([(e, ranks)], places)

    def _pair(self, a: int, b: int, column: int) -> None:
        """Seat two jobs on one device: beside the one of them that holds half of one, else on an
        open one.
        """
        for first, second in ((a, b), (b, a)):
            home = self.homes.get(first)
            if (
                home is not None
                and home.shares
                and home.column == column
                and self._is_open_to_two(home.places)
            ):
                self._sit(
                    [(first, home.run.ranks), (second, _half(home.run.ranks))],
                    home.places,
                    stays=(first,),
                )
                return
        place = self.floor.shared(self.type_of[column], (self._guest(a), self._guest(b)))
        if place is not None:
            seat = RankSeat(self.observed.allocatable.nodes[place[0]].id, place[1], HALF)
            self._sit([(a, (seat,)), (b, (seat,))], (place,))

    def _is_open_to_two(self, places: tuple[Place, ...]) -> bool:
        return self._has_slots(places) and self.floor.are_open(places)

    def _has_slots(self, places: tuple[Place, ...]) -> bool:
        return all(
            self.floor.slots(n, device) >= SLOTS for n, devices in places for device in devices
        )

    def _join(self, e: int) -> bool:
        """Seat a waiting job on the other half of a device on which one job is left, if the two are
        known to go together.
        """
        for other in self._left_alone() if self.groups[self.group_of[e]].shares else ():
            places = self.homes[other.job].places
            if self._go_together(e, other) and self._has_slots(places):
                if not self.floor.supplies.take(self._loads(e, other.ranks, places, counts=False)):
                    continue
                self.seated[other.job] = other._replace(partner=e)
                self.seated[e] = Seated(
                    e, _half(other.ranks), other.column, stays=False, partner=other.job
                )
                return True
        return False

    def _left_alone(self) -> list[Seated]:
        return [
            s
            for s in self.seated.values()
            if s.partner == ALONE and s.stays and self.homes[s.job].shares
        ]

    def _go_together(self, e: int, other: Seated) -> bool:
        of = self.observed.classes.class_list
        p = self.observed.pair_row.get(in_order(of[e], of[other.job]))
        return p is not None and bool(self.observed.problem.pair_rates[p, other.column].all())

    def _sit(
        self,
        jobs: Sequence[tuple[int, Ranks]],
        places: tuple[Place, ...],
        stays: tuple[int, ...] = (),
    ) -> bool:
        """Seat jobs on these open places, one or two that share them; all or none."""
        if not self.floor.supplies.unlimited:
            loads = [
                load
                for i, (e, ranks) in enumerate(jobs)
                for load in self._loads(e, ranks, places, counts=i == 0)
            ]
            if not self.floor.supplies.take(loads):
                return False
        self.floor.remove(places)
        first = places[0][0]
        column = self.column_of[
            self.observed.allocatable.type_of[first], any(n != first for n, _ in places)
        ]
        for i, (e, ranks) in enumerate(jobs):
            self.seated[e] = Seated(
                e, ranks, column, e in stays, jobs[1 - i][0] if len(jobs) == 2 else ALONE
            )
        return True

    def _loads(
        self, e: int, ranks: Ranks, places: tuple[Place, ...], *, counts: bool
    ) -> list[Load]:
        """What a job takes of each place; devices count for its watts where it is the first on
        them.
        """
        demand = self.groups[self.group_of[e]].condition.of_rank(len(ranks))
        return [
            Load(
                n,
                demand if seat.cpu_quota is None else {**demand, "cores": seat.cpu_quota},
                len(devices) if counts else 0,
            )
            for seat, (n, devices) in zip(ranks, places, strict=True)
        ]

    def _guest(self, e: int, *, spread: bool = False) -> Guest:
        """The job as one who looks for a node."""
        group = self.groups[self.group_of[e]]
        key = group.condition, group.gpus if spread else 1
        if key not in self._guests:
            self._guests[key] = Guest(
                group.condition,
                self.observed.allocatable.admitting(*key),
                group.condition.of_rank(1),
            )
        return self._guests[key]


def _half(ranks: Ranks) -> Ranks:
    """The other half of the same device."""
    return tuple([RankSeat(seat.node, seat.devices, HALF) for seat in ranks])
