"""Speeds of launches, which depend on the others on their devices where these are shared.

Two share a device from the moment the second holds it until one has released it, also while one
starts or saves.
"""

from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.world.observation.observed_pairs import ObservedPairs
from controlplane.simulation.world.state import WorldState
from controlplane.simulation.world.timers import time_last_step
from policies.contract.plan import Placement
from policies.contract.snapshot import RankPlacement
from policies.placement.quota_speed import part_of_speed
from policies.placement.speed import UNKNOWN, CoTenants, devices_of


def speed_of(state: WorldState, placement: Placement) -> float:
    """Return steps/s of a placement to launch now beside the launches that are there.

    0 if unknown, or if one of those would stop: such jobs cannot share.
    """
    row = state.table.row_of[placement.job]
    if not state.fleet.shares:
        return _speed_beside(state, row, placement.ranks, ())

    # 1. The speed of the placement, and of each launch on its devices beside it.
    there = state.fleet.beside(placement.ranks)
    speeds = []
    for launch in there:
        co_tenants = _co_tenants(state, launch.ranks, without=launch, coming=placement)
        speeds.append(_speed_beside(state, launch.row, launch.ranks, co_tenants))
    own_co_tenants = _co_tenants(state, placement.ranks)
    own_speed = _speed_beside(state, row, placement.ranks, own_co_tenants)
    if min([own_speed, *speeds]) > 0.0:
        return own_speed

    # 2. Where nothing else is in the way, this shows that the jobs cannot share.
    all_go_on = all(launch.goes_on for launch in there)
    if state.pairs is not None and all_go_on and not state.fleet.taken(placement.ranks):
        _learn_impossible(state, state.pairs, state.table.columns.kinds[row], own_co_tenants)
    return 0.0


def update_neighbours(state: WorldState, launch: Launch) -> None:
    """Update the speeds of the others on the devices of a launch that began or ended."""
    if not state.fleet.shares:
        return
    pairs = state.pairs
    if pairs is not None:
        pairs.look(state.engine.now_s, state.table.columns.kinds)
    for other in state.fleet.beside(launch.ranks):
        if other is not launch and other.goes_on:
            update_speed(state, other)
    if pairs is not None:
        for key in devices_of(launch.ranks):
            node, _ = key
            pairs.meet(state.fleet.occupancy.holders(key), state.fleet.nodes[node].gpu_type)


def update_speed(state: WorldState, launch: Launch) -> None:
    """Change the speed of a launch to that under its quotas and beside its present co-tenants.

    It stays as it is if that is unknown.
    """
    co_tenants = _co_tenants(state, launch.ranks, without=launch)
    true_speed = _speed_beside(state, launch.row, launch.ranks, co_tenants)
    number = int(state.table.launched[launch.row]) - 1
    speed = true_speed * state.noise.speed(launch.job, number)
    if speed and speed != launch.steps_per_s:
        launch.change_speed(state.engine.now_s, speed, state.switches.checkpoint_every_s)
        state.table.change_speed(launch)
        time_last_step(state, launch)


def _speed_beside(
    state: WorldState, row: int, ranks: tuple[RankPlacement, ...], co_tenants: CoTenants
) -> float:
    """Return steps/s of a job on these seats, under their quotas, beside these co-tenants.

    0 if unknown.
    """
    columns = state.table.columns
    alone = state.speeds.alone(columns, row, ranks)
    gpus = sum(len(seat.devices) for seat in ranks)
    speed = state.speeds.known.colocated(columns.kinds[row], alone, gpus, co_tenants)
    return speed * part_of_speed(ranks, float(columns.numbers["cores"][row]))


def _co_tenants(
    state: WorldState,
    ranks: tuple[RankPlacement, ...],
    without: Launch | None = None,
    coming: Placement | None = None,
) -> CoTenants:
    """Return the co-tenants on these seats, but for the launch `without`, with `coming` added."""
    table = state.table
    kinds = table.columns.kinds
    coming_devices = set() if coming is None else set(devices_of(coming.ranks))
    co_tenants = []
    for key in devices_of(ranks):
        others = []
        for launch in state.fleet.occupancy.holders(key):
            if launch is not without:
                others.append(kinds[launch.row])
        if coming is not None and key in coming_devices:
            others.append(kinds[table.row_of[coming.job]])
        if others:
            node, _ = key
            co_tenants.append((state.fleet.nodes[node].gpu_type, others))
    return co_tenants


def _learn_impossible(
    state: WorldState, pairs: ObservedPairs, kind: str, co_tenants: CoTenants
) -> None:
    """Let policies know which of these co-tenants a job of this kind cannot share a device with."""
    for gpu_type, others in co_tenants:
        for other in others:
            if state.speeds.known.pair(kind, other, gpu_type) == UNKNOWN:
                pairs.learn((kind, other, gpu_type), UNKNOWN)
