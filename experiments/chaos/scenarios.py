"""The two runs: kills and partitions, each from a seed and a folder to a result."""

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.chaos.clocks.jumping import Jumping
from experiments.chaos.clocks.wall_clocks import WallClocks
from experiments.chaos.engine import RESULT, Field, Run
from experiments.chaos.faults.cutting import Cutting
from experiments.chaos.faults.filling import Filling, SmallDisk, small_disks
from experiments.chaos.faults.killing import Killing
from experiments.chaos.faults.network import Network
from experiments.chaos.kept import Kept, keep
from experiments.chaos.schedule import (
    CLOCK,
    DISK,
    DISKS,
    PARTS,
    Blow,
    Pace,
    kills,
    partitions,
    with_jumps,
)
from experiments.chaos.system import Site, System, no_clock
from experiments.chaos.workload import Load, Workload

AGENTS = 5
PROCESSES = 2
"""Workers, beats, and processes of the web server on PostgreSQL."""

GRACE_S = 8.0
KILL_CLOCKWORK = {"heartbeat_s": 0.5, "lease_s": 5.0, "margin_s": 1.0}
CUT_CLOCKWORK = {"heartbeat_s": 1.0, "lease_s": 10.0, "grace_s": 3.0, "margin_s": 2.0}
SHORT_CUT_CLOCKWORK = {"heartbeat_s": 0.5, "lease_s": 4.0, "grace_s": 1.5, "margin_s": 1.0}
ROUNDS = {"period_s": 5.0, "restart_cost_s": 1.0, "profiling_steps": 5}


@dataclass(frozen=True, slots=True)
class Order:
    """Options of a run: number of blows, seed, place, amount of work, pace, jumps of clocks, the
    parts that are hit, and the seconds that jobs get to leave.
    """

    count: int
    seed: int
    folder: Path
    gap_s: float
    load: Load
    jumps: int = 0
    parts: tuple[str, ...] = PARTS
    grace_s: float = GRACE_S
    patience_s: float = 180.0
    say: Callable[[str], None] = print


def run_kills(order: Order) -> dict[str, Any]:
    """Kill parts of the system, fill disks and let clocks jump; with DATABASE_URL on PostgreSQL.

    Raises DiskError, ClockError.
    """
    kept = keep(order.folder, os.environ.get("DATABASE_URL", ""))
    clocks = WallClocks(order.folder / "clocks")
    site = Site(
        order.folder,
        AGENTS,
        {**KILL_CLOCKWORK, "grace_s": order.grace_s, **ROUNDS},
        kept.port,
        env=_servers(kept),
        clock_of=clocks.environment if order.jumps else no_clock,
        processes=PROCESSES if kept.database else 1,
    )
    parts = [part for part in order.parts if part != CLOCK]
    blows = kills(order.count, order.seed, AGENTS, Pace(order.gap_s, site.lost_s), parts)
    if order.jumps:
        clocks.build()
        blows = with_jumps(blows, order.jumps, order.seed, AGENTS, order.gap_s)
    with ExitStack() as stack:
        disks: dict[str, SmallDisk] = {}
        if DISK in parts:
            folders = dict(zip(DISKS, (site.home, site.nodes), strict=True))
            disks = stack.enter_context(small_disks(order.folder / "disks", folders))
        return _play(
            order,
            site,
            blows,
            lambda system: Jumping(
                clocks, system.names_of, Filling(disks, system, Killing(system))
            ),
        )


def run_partitions(order: Order, *, short: bool = False) -> dict[str, Any]:
    """Cut agents off from the server, each in a network namespace of its own."""
    kept = keep(order.folder, os.environ.get("DATABASE_URL", ""))
    with Network(AGENTS, kept.network) as network:
        prefixes = {f"agent-{number}": network.prefix(number) for number in range(AGENTS)}
        clock = {**(SHORT_CUT_CLOCKWORK if short else CUT_CLOCKWORK), **ROUNDS}
        site = Site(order.folder, AGENTS, clock, kept.port, network.host, _servers(kept), prefixes)
        blows = partitions(order.count, order.seed, AGENTS, Pace(order.gap_s, site.lost_s))
        return _play(order, site, blows, lambda system: Cutting(network, system))


def _play(
    order: Order, site: Site, blows: list[Blow], field: Callable[[System], Field]
) -> dict[str, Any]:
    began_s = time.monotonic()
    with System(site) as system:
        workload = Workload(system, order.load, order.seed)
        try:
            result = Run(system, workload, blows, field(system), order.say, order.patience_s).play()
        finally:
            workload.close()
    result |= {
        "seed": order.seed,
        "database": "postgres" if "DATABASE_URL" in os.environ else "sqlite",
    }
    result |= {"left_over": system.left_over, "whole_s": round(time.monotonic() - began_s, 1)}
    (site.folder / RESULT).write_text(json.dumps(result, indent=1))
    return result


def _servers(kept: Kept) -> dict[str, str]:
    """Settings on PostgreSQL beside DATABASE_URL: a broker by TCP and a shared key."""
    if not kept.database:
        return {"DATABASE_URL": "", "REDIS_URL": ""}
    return {
        "REDIS_URL": f"redis://127.0.0.1:{kept.broker_port}/0",
        "SECRET_KEY": "chaos, on a server that lives for minutes",
    }
