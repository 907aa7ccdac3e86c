"""Speeds as policies see them with `profiling: first_run`: known once a launch has shown them.

Of a new kind nothing is known: its first job is assumed to take an hour on the slowest GPUs. A
launch alone on one node measures its configuration by its first steps, which asks for a round.
Others are estimated as live (`profiling.estimates`); speeds over several nodes are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from controlplane.simulation.world.job_table import Launch
from policies.contract.snapshot import KindView, Source, Throughput
from profiling.estimates import Config, Pool, estimate
from profiling.speeds import moved

if TYPE_CHECKING:
    from controlplane.simulation.world.world import SimulatedWorld

ASSUMED_RUN_S = 3600.0
"""Run time of a new kind's first job on the slowest type, until it has run: as live."""


class FirstRuns:
    """Knowledge of speeds in a world that measures by launches of jobs."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world, self._steps = world, world.switches.first_run_steps
        self._type_of = {node.id: node.gpu_type for node in world.scenario.nodes}
        self._tflops = {t.name: t.tflops for t in world.scenario.gpu_types}
        self._assumed: dict[str, dict[Config, float]] = {}
        self._measured: defaultdict[str, dict[Config, float]] = defaultdict(dict)
        self._samples: defaultdict[tuple[str, Config], int] = defaultdict(int)

    def meet(self, row: int) -> None:
        """Assume a speed for the new kind of a job."""
        table = self._world.table
        types = sorted(set(self._type_of.values()))
        slowest = min(types, key=lambda name: self._tflops.get(name, 0.0))
        gpus = int(table.columns.counts["gpus_min"][row])
        speed = max(1, int(table.total_steps[row])) / ASSUMED_RUN_S
        self._assumed[table.columns.kinds[row]] = {(slowest, gpus): speed}
        self._world.builder.learn(self._views)

    def began(self, launch: Launch) -> None:
        """Look at the launch after its first steps, or at its end."""
        seat = launch.ranks[0]
        if len(launch.ranks) == 1 and launch.steps_per_s > 0.0 and seat.share >= 1.0:
            config = self._type_of[seat.node], len(seat.devices)
            told_s = launch.first_step_s + self._steps / launch.steps_per_s
            self._world.engine.at(min(told_s, launch.ends_s), partial(self._look, launch, config))

    def _look(self, launch: Launch, config: Config) -> None:
        if launch.stop_wanted_s is not None or launch.end_s < self._world.engine.now_s:
            return
        kind = self._world.table.columns.kinds[launch.row]
        known, samples = self._measured[kind], self._samples[kind, config]
        known[config] = moved(known.get(config, 0.0), launch.steps_per_s, samples)
        self._samples[kind, config] += 1
        self._world.builder.learn(self._views)
        if not samples:
            self._world.tell("profile")

    def _views(self, kinds: Iterable[KindView]) -> Iterator[KindView]:
        """Yield the kinds with what is known of them now."""
        pool = Pool.of(self._tflops, self._measured)
        for kind in kinds:
            measured = self._measured.get(kind.id, {})
            known = measured or self._assumed.get(kind.id, {})
            guess = Source.ESTIMATED if measured else Source.ASSUMED
            true = self._world.speeds.kinds[kind.id].throughputs
            wanted = [(t.gpu_type, t.gpus) for t in true if t.is_known and not t.spread]
            seen = tuple(
                Throughput(*config, speed, Source.MEASURED if config in measured else guess)
                for config, speed in estimate(kind.id, known, wanted, pool).items()
            )
            yield replace(kind, throughputs=(*seen, *(t for t in true if t.spread)))
