"""Where jobs run now, as far as they could go on there: whole, on devices that may still be given
to them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from policies.contract.snapshot import RankSeat, Running
from policies.gavel.allocation.allocatable import Condition, Given
from policies.gavel.allocation.lines import Line
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.rates import Group
from policies.placement.staying import training_run

ALONE = -1

SHARES = attrgetter("shares")

Place: TypeAlias = tuple[int, tuple[str, ...]]
"""A node's number and devices there."""


class Home(NamedTuple):
    """What job `job` (its number among those that take part) holds: places on GPUs of one type,
    `column` of the problem there.

    `shares`: whether it holds but a share of its device; `partner`: the job that holds the same
    device beside it; ALONE. (A named tuple: every round makes one for each job that runs.)
    """

    job: int
    run: Running
    places: tuple[Place, ...]
    column: int
    shares: bool = False
    partner: int = ALONE


@dataclass(slots=True)
class Seen:
    """What a job's home was worked out from, but for the devices to give, and the home with the
    number that the job has now.
    """

    runs: tuple[Running, ...]
    line: Line
    home: Home | None


def homes_of(observed: Observed) -> dict[int, Home]:
    """By job, of those that have one: the others run nowhere, or must leave where they run."""
    columns = observed.snapshot.jobs.columns
    if not any(columns.others["running"]):
        return {}
    found, kept, homes, seen = (
        _Found(observed),
        _kept(observed),
        dict[int, Home](),
        dict[str, Seen](),
    )
    ids, running = (
        observed.taking_part(columns.ids),
        observed.taking_part(columns.others["running"]),
    )
    for e, (job, runs, line) in enumerate(
        zip(ids, running, observed.classes.line_list, strict=True)
    ):
        if not runs:
            continue
        now = kept.get(job)
        if now is None or now.runs is not runs or now.line is not line:
            now = Seen(runs, line, found.home(e, runs, line))
        seen[job], home = now, now.home
        if home is not None:
            if home.job != e:
                home = now.home = Home(e, home.run, home.places, home.column, home.shares)
            homes[e] = home
    observed.snapshot.standing["homes"] = (observed.allocatable.devices, seen)
    return _with_partners(homes) if any(map(SHARES, homes.values())) else homes


def _kept(observed: Observed) -> Mapping[str, Seen]:
    """By id of the job what was seen in the round before, without partners, where the nodes give
    the same devices: who has not moved since and is of the same line, and so on the same
    nodes, has the same home.
    """
    before: tuple[Given, dict[str, Seen]] | None = observed.snapshot.standing.get("homes")
    return before[1] if before is not None and before[0] == observed.allocatable.devices else {}


class _Found:
    """What a run must be to be a home."""

    def __init__(self, observed: Observed) -> None:
        self.allocatable = observed.allocatable
        self.index, self.devices, self.type_of = (
            self.allocatable.index,
            self.allocatable.devices,
            self.allocatable.type_of,
        )
        columns = zip(observed.problem.column_type.tolist(), observed.problem.columns, strict=True)
        self.column = {(of, c.spread): i for i, (of, c) in enumerate(columns)}
        self.admitting: dict[tuple[Condition, int], tuple[bool, ...]] = {}

    def home(self, e: int, runs: tuple[Running, ...], line: Line) -> Home | None:
        """Where job e of this line runs as its home; None if it may not go on there as it is."""
        if (run := training_run(runs)) is None:
            return None
        group, ranks = line.group, run.ranks
        if len(ranks) == 1 and ranks[0].share == 1.0:
            return self._on_one_node(e, run, ranks[0], line)
        places, gpus, shares = [], 0, False
        for seat in ranks:
            n = self.index.get(seat.node)
            if (
                n is None
                or not self._may_be_given(n, seat.devices)
                or not self._is_admitted(n, group, len(ranks))
            ):
                return None
            places.append((n, seat.devices))
            gpus, shares = gpus + len(seat.devices), shares or seat.share != 1.0
        column = self._column(places)
        if gpus != group.gpus or line.row[column] <= 0.0 or (shares and not group.shares):
            return None
        return Home(e, run, tuple(places), column, shares) if column >= 0 else None

    def _on_one_node(self, e: int, run: Running, seat: RankSeat, line: Line) -> Home | None:
        """The same of one process with whole devices, as most are."""
        n, devices = self.index.get(seat.node), seat.devices
        if n is None or not devices or len(devices) != line.group.gpus:
            return None
        if devices[0] not in self.devices[n] or (
            len(devices) > 1 and not self._may_be_given(n, devices)
        ):
            return None
        column = (
            self.column.get((self.type_of[n], False), -1)
            if self._is_admitted(n, line.group, 1)
            else -1
        )
        return (
            Home(e, run, ((n, devices),), column)
            if column >= 0 and line.row[column] > 0.0
            else None
        )

    def _is_admitted(self, n: int, group: Group, ranks: int) -> bool:
        """Whether the node still has what jobs of the group ask for: its labels and resources may
        have changed under them.
        """
        key = group.condition, ranks
        if key not in self.admitting:
            self.admitting[key] = self.allocatable.admitting(*key)
        return self.admitting[key][n]

    def _may_be_given(self, n: int, devices: tuple[str, ...]) -> bool:
        given = self.devices[n]
        return (
            devices[0] in given if len(devices) == 1 else all(device in given for device in devices)
        )

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
