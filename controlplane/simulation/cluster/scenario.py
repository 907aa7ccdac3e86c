"""Cluster to simulate, as plain data."""

from dataclasses import dataclass

from policies.contract.snapshot import (
    GpuTypeView,
    JobColumns,
    Jobs,
    KindView,
    NodeView,
    PowerCapStep,
    PriceInterval,
    Snapshot,
    TeamView,
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Cluster to simulate, and intervals of its loop.

    `launch_s`: from a launch to its first step; `stop_s`: from the request to the devices' release;
    `restart_cost_s`: extra time of every launch of a job but its first, beside the job's own.
    Policies see the three together as the cost of a restart, and keep a launch for `min_run_factor`
    times that. `value_of_time`: worth of an hour of a job's waiting. `gather_s`: least time between
    rounds, whose events are answered together. `round_jobs`: most queued jobs of a round (None:
    all), chosen by `controlplane.simulation.world.observation.queue_window`.
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
    min_run_factor: float = 0.0
    value_of_time: float = 0.0
    gather_s: float = 0.0
    round_jobs: int | None = None
    teams: tuple[TeamView, ...] = ()

    def empty_snapshot(self) -> Snapshot:
        """Return the cluster at time 0 without jobs."""
        return Snapshot(
            cluster=self.cluster,
            now_s=0.0,
            round_s=self.round_s,
            seed=self.seed,
            nodes=self.nodes,
            kinds=(),
            jobs=Jobs(JobColumns.of(())),
            gpu_types=self.gpu_types,
            energy=self.energy,
            currency=self.currency,
            power_cap_w=self.power_cap_w,
            power_caps=self.power_caps,
            emissions_cost_per_kg=self.emissions_cost_per_kg,
            teams=self.teams,
            horizon_s=self.horizon_s,
        )
