"""Speeds of launches that share devices.

They share from the moment the second holds the device until one has released it, also while one
starts or saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.simulation.cluster.fleet import Fleet
from controlplane.simulation.world.job_table import Launch
from controlplane.simulation.world.observation.observed_pairs import ObservedPairs
from policies.contract.plan import Placement
from policies.contract.snapshot import RankPlacement
from policies.placement.speed import UNKNOWN, CoTenants, devices_of

if TYPE_CHECKING:
    from controlplane.simulation.world.world import SimulatedWorld


class Colocation:
    """Speeds of a world whose devices are shared."""

    def __init__(self, world: SimulatedWorld, fleet: Fleet) -> None:
        self.world, self.fleet = world, fleet

    def rate(self, placement: Placement) -> float:
        """steps/s of a placement to launch now beside those that are there.

        0 if unknown, or if one of those would stop: such jobs cannot share.
        """
        others = self.fleet.beside(placement.ranks)
        rates = [
            self._rate(other.row, other.ranks, self._shared(other.ranks, other, placement))
            for other in others
        ]
        own = self._rate(
            self.world.table.row_of[placement.job], placement.ranks, self._shared(placement.ranks)
        )
        if min([own, *rates]) > 0.0:
            return own
        if (
            self.world.pairs is not None
            and all(other.goes_on for other in others)
            and not self.fleet.taken(placement.ranks)
        ):
            self._find_impossible(placement, self.world.pairs)
        return 0.0

    def changed(self, launch: Launch) -> None:
        """Update speeds on the devices of a launch that began or ended."""
        pairs = self.world.pairs
        if pairs is not None:
            pairs.look(self.world.engine.now_s, self.world.table.columns.kinds)
        for other in self.fleet.beside(launch.ranks):
            if other is not launch and other.goes_on:
                self._change_speed(other)
        if pairs is not None:
            for key in devices_of(launch.ranks):
                there = self.fleet.occupancy.holders(key)
                pairs.meet(there, self.fleet.nodes[key[0]].gpu_type)

    def _find_impossible(self, placement: Placement, pairs: ObservedPairs) -> None:
        kinds = self.world.table.columns.kinds
        kind = kinds[self.world.table.row_of[placement.job]]
        for gpu_type, others in self._shared(placement.ranks):
            for other in others:
                if self.world.speeds.known.pair(kind, other, gpu_type) == UNKNOWN:
                    pairs.learn((kind, other, gpu_type), UNKNOWN)

    def _change_speed(self, launch: Launch) -> None:
        world = self.world
        rate = self._rate(launch.row, launch.ranks, self._shared(launch.ranks, launch))
        speed = rate * world.noise.speed(launch.job, int(world.table.launched[launch.row]) - 1)
        if speed and speed != launch.steps_per_s:  # unknown beside a job of unknown speed
            launch.change_speed(world.engine.now_s, speed, world.switches.checkpoint_every_s)
            world.table.change_speed(launch)
            world.ends.foresee(launch)

    def _rate(self, row: int, ranks: tuple[RankPlacement, ...], shared: CoTenants) -> float:
        columns = self.world.table.columns
        kind, alone = columns.kinds[row], self.world.speeds.alone(columns, row, ranks)
        gpus = sum(len(seat.devices) for seat in ranks)
        return self.world.speeds.known.colocated(kind, alone, gpus, shared)

    def _shared(
        self,
        ranks: tuple[RankPlacement, ...],
        own: Launch | None = None,
        more: Placement | None = None,
    ) -> CoTenants:
        """Co-tenants of these seats, without `own` launch, with `more` added."""
        table, kinds = self.world.table, self.world.table.columns.kinds
        coming = set(devices_of(more.ranks)) if more is not None else set()
        found = []
        for key in devices_of(ranks):
            others = [
                kinds[launch.row]
                for launch in self.fleet.occupancy.holders(key)
                if launch is not own
            ]
            if more is not None and key in coming:
                others.append(kinds[table.row_of[more.job]])
            if others:
                found.append((self.fleet.nodes[key[0]].gpu_type, others))
        return found
