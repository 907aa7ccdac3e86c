"""Equal time on GPUs: the lag of each unit by GPU type, and one round's placements by lag.

Every unit has the same share of each GPU type, X = N_t / m of its time for one GPU and m units,
whatever its speed there (like the baselines of Gavel's evaluation that ignore speeds). Its lag is
its share less the time it has received, so that all get equal time on every type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from policies.contract.snapshot import Bools, Floats, Ints
from policies.gavel.colocation.tandems import Seat, Tandems, Unit
from policies.gavel.colocation.vacancies import Vacancies

Owed = Mapping[str, Mapping[str, float]]
"""By job and GPU type: seconds."""


class Parts:
    """The part of its time that each unit should have on each GPU type.

    `types` names of the types, `type_of` int64[N] of the nodes, `gpus` float64[T] to give; `nodes`:
    of each unit, where it can run, and `may` bool[U, T] on which types that is; `share` float64[U,
    T].
    """

    def __init__(self, tandems: Tandems, units: Sequence[Unit]) -> None:
        self.tandems, self.units = tandems, units
        problem = tandems.problem
        self.types = tuple(sorted({node.gpu_type for node in problem.nodes}))
        number = {name: t for t, name in enumerate(self.types)}
        self.type_of: Ints = np.array(
            [number[node.gpu_type] for node in problem.nodes], dtype=np.int64
        )
        given = np.array([len(devices) for devices in problem.devices], dtype=np.float64)
        self.gpus: Floats = np.bincount(self.type_of, given, len(self.types)).astype(np.float64)
        self.nodes = [tandems.nodes_of(unit) for unit in units]
        self.may: Bools = np.zeros((len(units), len(self.types)), dtype=np.bool_)
        for u, of in enumerate(self.nodes):
            self.may[u, self.type_of[of]] = True
        wide = np.array([unit.gpus for unit in units], dtype=np.float64)
        share = self.gpus[None, :] / max(len(units), 1) / wide[:, None]
        self.share: Floats = share / np.maximum(share.sum(axis=1, keepdims=True, initial=0.0), 1.0)

    def lag(self, before: Owed, seen_s: float) -> dict[str, dict[str, float]]:
        """Seconds that each job lags now, by type: lag at `seen_s` + share since - received."""
        now_s, found = self.tandems.problem.snapshot.now_s, {}
        for u, unit in enumerate(self.units):
            grown = self.share[u] * max(0.0, now_s - seen_s)
            for e in unit.jobs:
                stood = before.get(self.tandems.names[e], {})
                now = (
                    np.array([stood.get(t, 0.0) for t in self.types])
                    + grown
                    - self._had_s(e, seen_s, now_s)
                )
                found[self.tandems.names[e]] = dict(zip(self.types, now.tolist(), strict=True))
        return found

    def claims(self, lag: Owed, *, by_type: bool) -> Floats:
        """float64[U, T]: lag relative to the share, by type or in all; -inf if it cannot run."""
        lag_s, share = self._of_units(lag), np.where(self.may, self.share, 0.0)
        if not by_type:
            lag_s, share = self.totals(lag)[:, None], share.sum(axis=1, keepdims=True)
        return np.where(self.may, lag_s / np.where(share > 0.0, share, 1.0), -np.inf)

    def totals(self, lag: Owed) -> Floats:
        """float64[U]: seconds that each unit lags on all types on which it can run."""
        total: Floats = np.where(self.may, self._of_units(lag), 0.0).sum(axis=1)
        return total

    def _of_units(self, lag: Owed) -> Floats:
        """float64[U, T]: the mean of a unit's jobs."""
        of = [[list(lag[self.tandems.names[e]].values()) for e in unit.jobs] for unit in self.units]
        return np.array([np.mean(rows, axis=0) for rows in of]).reshape(self.share.shape)

    def _had_s(self, job: int, seen_s: float, now_s: float) -> Floats:
        had = np.zeros(len(self.types))
        if job in self.tandems.runs:
            since_s = max(seen_s, self.tandems.runs[job].since_s)
            had[self.type_of[self.tandems.seats[job].node]] = max(0.0, now_s - since_s)
        return had


class Seating:
    """One round's seats; `taken`: the units that have one, with it."""

    def __init__(self, tandems: Tandems, vacancies: Vacancies, rng: np.random.Generator) -> None:
        self.tandems, self.vacancies, self.problem = tandems, vacancies, tandems.problem
        self.idle = [list(devices) for devices in self.problem.devices]
        self.lot = rng.permutation(len(self.problem.nodes))
        self.taken: dict[Unit, Seat] = {}

    def keep(self, unit: Unit) -> bool:
        """Seat a unit where it sits; whether that can be."""
        seat = unit.seat
        if (
            seat is None
            or not set(seat.devices) <= set(self.idle[seat.node])
            or not self._roomy(unit)[seat.node]
        ):
            return False
        self._take(unit, seat)
        return True

    def seat(self, unit: Unit, on: Iterable[int], wanted: Sequence[int]) -> bool:
        """Seat a unit on the best of these nodes that has room: where it disturbs fewest, on as
        full a node as can be, else by lot.

        `wanted[n]`: idle devices of node n that others hope to keep.
        """
        roomy, found = self._roomy(unit), []
        for n in on:
            devices = self._devices(unit, n) if roomy[n] else ()
            if len(devices) == unit.gpus:
                disturbed = max(0, unit.gpus - (len(self.idle[n]) - wanted[n]))
                found.append(
                    (
                        disturbed,
                        self.vacancies.used[n] == 0,
                        len(self.idle[n]),
                        int(self.lot[n]),
                        Seat(n, devices),
                    )
                )
        if not found:
            return False
        self._take(unit, min(found, key=lambda f: f[:-1])[-1])
        return True

    def _devices(self, unit: Unit, n: int) -> tuple[str, ...]:
        """Idle devices of node n, those that its jobs hold now first."""
        own = {
            d
            for e in unit.jobs
            if (seat := self.tandems.seats.get(e)) is not None and seat.node == n
            for d in seat.devices
        }
        idle = (
            self.idle[n]
            if len(unit.jobs) == 1
            else [d for d in self.idle[n] if d in self.tandems.wide[n]]
        )
        chosen = sorted(idle, key=lambda d: d not in own)[: unit.gpus]
        return tuple(sorted(chosen, key=self.problem.devices[n].index))

    def _roomy(self, unit: Unit) -> Sequence[bool]:
        roomy: Sequence[bool] = self.vacancies.roomy(
            unit.jobs[0], unit.gpus, unit.jobs[1:]
        ).tolist()
        return roomy

    def _take(self, unit: Unit, seat: Seat) -> None:
        self.vacancies.take(unit.jobs[0], seat.node, unit.gpus, unit.jobs[1:])
        for device in seat.devices:
            self.idle[seat.node].remove(device)
        self.taken[unit] = seat
