"""A cluster to simulate, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from policies.contract.snapshot import (
    GpuTypeView,
    KindView,
    NodeView,
    PowerCapStep,
    PriceInterval,
    TeamView,
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster to simulate, and how its loop is run.

    `launch_s`: from a launch to its first step; `stop_s`: from the wish to stop to the devices'
    release; `restart_cost_s`: what every launch of a job but its first takes more. `gather_s`: a
    round is held no sooner than this after the last one, events that come meanwhile are answered
    together. `round_jobs`: a round sees so many of the queued jobs at most (None: all), chosen as
    `controlplane.simulation.world.queue_window` says, and everything that runs.
    """

    nodes: tuple[NodeView, ...]
    kinds: tuple[KindView, ...]
    energy: tuple[PriceInterval, ...] = ()
    gpu_types: tuple[GpuTypeView, ...] = ()
    cluster: str = "simulated"
    currency: str = "EUR"
    round_s: float = 300.0
    horizon_s: float = 86_400.0
    seed: int = 1
    power_cap_w: float | None = None
    power_caps: tuple[PowerCapStep, ...] = ()
    emissions_cost_per_kg: float = 0.0
    launch_s: float = 0.0
    stop_s: float = 0.0
    restart_cost_s: float = 0.0
    gather_s: float = 0.0
    round_jobs: int | None = None
    teams: tuple[TeamView, ...] = ()
