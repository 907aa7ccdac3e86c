"""Where jobs run now, as far as they could go on there: whole, on devices that may still be given to them."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple, TypeAlias

from policies.mechanisms.staying import training_run
from policies.shares.classing import Classed
from policies.shares.ground import Given
from policies.shares.observe import Observed
from policies.snapshot import RankSeat, Running

ALONE = -1

Place: TypeAlias = tuple[int, tuple[str, ...]]
"""A node's number and devices there."""


class Home(NamedTuple):
    """What job `job` (its number among those that take part) holds: places on GPUs of one type, `column` of the division there.

    `shares`: whether it holds but a share of its device; `partner`: the job that holds the same device beside it; ALONE. (A named
    tuple: every round makes one for each job that runs.)
    """

    job: int
    run: Running
    places: tuple[Place, ...]
    column: int
    shares: bool = False
    partner: int = ALONE


def homes_of(observed: Observed) -> dict[int, Home]:
    """By job, of those that have one: the others run nowhere, or must leave where they run."""
    running = observed.snapshot.jobs.columns.others["running"]
    if not any(running):
        return {}
    found, homes, kept = _Found(observed), {}, _kept(observed)
    for e, row in enumerate(observed.row_list):
        if not (runs := running[row]) or (run := training_run(runs)) is None:
            continue
        home = kept.get(e)
        if home is None or home.run is not run:
            home = found.home(e, run)
        if home is not None:
            homes[e] = home
    observed.snapshot.lasting["homes"] = (observed.classes, observed.ground.devices, homes)
    return _with_partners(homes) if any(home.shares for home in homes.values()) else homes


def _kept(observed: Observed) -> dict[int, Home]:
    """Homes of the round before, without partners, where the jobs' groups and the nodes' devices are the same: who has not moved
    since has the same home.
    """
    before: tuple[Classed, Given, dict[int, Home]] | None = observed.snapshot.lasting.get("homes")
    if before is None or before[0] is not observed.classes or before[1] != observed.ground.devices:
        return {}
    return before[2]


class _Found:
    """What a run must be to be a home."""

    def __init__(self, observed: Observed) -> None:
        classes, self.ground = observed.classes, observed.ground
        self.groups, self.group_of, self.rates = classes.groups, classes.group_list, classes.rate_lists
        self.index, self.devices, self.type_of = self.ground.index, self.ground.devices, self.ground.type_of
        columns = zip(observed.division.column_type.tolist(), observed.division.columns, strict=True)
        self.column = {(of, c.spread): i for i, (of, c) in enumerate(columns)}
        self.admitting: dict[tuple[int, int], tuple[bool, ...]] = {}
        self.column_at = [self.column.get((of, False), -1) for of in self.type_of]
        self.gpus = [group.gpus for group in self.groups]

    def home(self, e: int, run: Running) -> Home | None:
        """The run as a home of job e; None if it may not go on there as it is."""
        ranks = run.ranks
        if len(ranks) == 1 and ranks[0].share == 1.0:
            return self._on_one_node(e, run, ranks[0])
        group, places, gpus, shares = self.group_of[e], [], 0, False
        for seat in run.ranks:
            n = self.index.get(seat.node)
            if n is None or not self._may_be_given(n, seat.devices) or not self._is_admitted(n, group, len(run.ranks)):
                return None
            places.append((n, seat.devices))
            gpus, shares = gpus + len(seat.devices), shares or seat.share != 1.0
        column = self._column(places)
        if gpus != self.groups[group].gpus or self.rates[group][column] <= 0.0 or (shares and not self.groups[group].shares):
            return None
        return Home(e, run, tuple(places), column, shares) if column >= 0 else None

    def _on_one_node(self, e: int, run: Running, seat: RankSeat) -> Home | None:
        """The same of one process with whole devices, as most are."""
        n, devices, group = self.index.get(seat.node), seat.devices, self.group_of[e]
        if n is None or not devices or len(devices) != self.gpus[group]:
            return None
        if devices[0] not in self.devices[n] or (len(devices) > 1 and not self._may_be_given(n, devices)):
            return None
        column = self.column_at[n] if self._is_admitted(n, group, 1) else -1
        return Home(e, run, ((n, devices),), column) if column >= 0 and self.rates[group][column] > 0.0 else None

    def _is_admitted(self, n: int, group: int, ranks: int) -> bool:
        """Whether the node still has what jobs of the group ask for: its labels and resources may have changed under them."""
        if (group, ranks) not in self.admitting:
            self.admitting[group, ranks] = self.ground.admitting(self.groups[group].condition, ranks)
        return self.admitting[group, ranks][n]

    def _may_be_given(self, n: int, devices: tuple[str, ...]) -> bool:
        given = self.devices[n]
        return devices[0] in given if len(devices) == 1 else all(device in given for device in devices)

    def _column(self, places: list[Place]) -> int:
        """The column of which these places are time; -1 if there is none."""
        n, of_type, spread = places[0][0], self.type_of[places[0][0]], False
        for other, _ in places[1:]:
            if self.type_of[other] != of_type:
                return -1
            spread = spread or other != n
        return self.column.get((of_type, spread), -1)


def _with_partners(homes: dict[int, Home]) -> dict[int, Home]:
    """The same homes with who sits beside whom."""
    at: dict[tuple[Place, ...], list[int]] = defaultdict(list)
    for home in homes.values():
        at[home.places].append(home.job)
    partner = {a: b for pair in at.values() if len(pair) == 2 for a, b in (pair, pair[::-1])}
    return {e: home._replace(partner=partner.get(e, ALONE)) for e, home in homes.items()}
