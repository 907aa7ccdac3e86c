"""Speeds as policies see them with `profiling: first_run`: known once a launch has shown them.

The rules are those of live clusters. Of a new kind a speed is assumed (`profiling.speeds`). A
launch alone on whole devices measures its configuration by its first steps, which asks for a round.
Others are estimated (`profiling.estimates`) and explored (`profiling.exploration`). Speeds over
several nodes that the workload gives are known; others are shown by the first gang.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import log
from typing import TYPE_CHECKING

from controlplane.simulation.world.job_table import Launch
from policies.contract.snapshot import KindView, Snapshot, Source, Throughput
from policies.placement.amdahl import Config
from profiling.estimates import Pool, estimate, leave_one_out
from profiling.exploration import explored, spread_of
from profiling.speeds import assumed_speed, moved

if TYPE_CHECKING:
    from controlplane.simulation.world.world import SimulatedWorld


class FirstRuns:
    """Knowledge of speeds in a world that measures by launches of jobs."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world, self._steps = world, world.switches.first_run_steps
        self._type_of = {node.id: node.gpu_type for node in world.scenario.nodes}
        self._tflops = {t.name: t.tflops for t in world.scenario.gpu_types}
        self._assumed: dict[str, tuple[Config, float, Source]] = {}
        self._measured: defaultdict[str, dict[Config, float]] = defaultdict(dict)
        self._over_nodes: defaultdict[str, dict[Config, float]] = defaultdict(dict)
        self._samples: defaultdict[tuple[str, Config], int] = defaultdict(int)
        self._sigma = spread_of(())

    def meet(self, row: int) -> None:
        """Assume a speed for the new kind of a job."""
        table = self._world.table
        columns = table.columns
        here = set(self._type_of.values())
        types = sorted(here.intersection(columns.others["allowed_types"][row]) or here)
        slowest = min(types, key=lambda name: self._tflops.get(name, 0.0))
        config = slowest, int(columns.counts["gpus_min"][row])
        walltime_s = float(columns.numbers["walltime_s"][row])
        speed, source = assumed_speed(int(table.total_steps[row]), walltime_s)
        self._assumed[columns.kinds[row]] = config, speed, source
        self._world.builder.learn(self._views)

    def began(self, launch: Launch) -> None:
        """Look at the launch after its first steps, or at its end."""
        is_whole = all(seat.share >= 1.0 and seat.devices for seat in launch.ranks)
        if not is_whole or launch.steps_per_s <= 0.0:
            return
        types = {self._type_of[seat.node] for seat in launch.ranks}
        slowest = min(types, key=lambda name: (self._tflops.get(name, 0.0), name))
        config = slowest, sum(len(seat.devices) for seat in launch.ranks)
        told_s = launch.first_step_s + self._steps / launch.steps_per_s
        look = self._look_over_nodes if len(launch.ranks) > 1 else self._look
        self._world.engine.at(min(told_s, launch.ends_s), partial(look, launch, config))

    def shown(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot in which a waiting job of each kind may explore."""
        columns = snapshot.jobs.columns
        waiting = zip(
            columns.ids, columns.others["running"], columns.others["may_share"], strict=True
        )
        jobs = {job for job, running, may_share in waiting if not (running or may_share)}
        return explored(snapshot, jobs, self._sigma)

    def _look(self, launch: Launch, config: Config) -> None:
        if launch.stop_wanted_s is not None or launch.end_s < self._world.engine.now_s:
            return
        kind = self._world.table.columns.kinds[launch.row]
        known, samples = self._measured[kind], self._samples[kind, config]
        known[config] = moved(known.get(config, 0.0), launch.steps_per_s, samples)
        self._samples[kind, config] += 1
        self._world.builder.learn(self._views)
        if not samples:
            errors = leave_one_out(self._measured, self._pool())
            self._sigma = spread_of(log(e.estimated / e.measured) for e in errors)
            self._world.tell("profile")

    def _look_over_nodes(self, launch: Launch, config: Config) -> None:
        """Note the speed of a gang that the workload does not give."""
        if launch.stop_wanted_s is not None or launch.end_s < self._world.engine.now_s:
            return
        kind = self._world.table.columns.kinds[launch.row]
        gpu_type, gpus = config
        is_given = (gpu_type, gpus, True) in self._world.speeds.known.rates(kind)
        if is_given or config in self._over_nodes[kind]:
            return
        self._over_nodes[kind][config] = launch.steps_per_s
        self._world.builder.learn(self._views)
        self._world.tell("profile")

    def _pool(self) -> Pool:
        return Pool.of(self._tflops, self._measured)

    def _views(self, kinds: Iterable[KindView]) -> Iterator[KindView]:
        """Yield the kinds with what is known of them now."""
        pool = self._pool()
        for kind in kinds:
            known, source, guess = self._known(kind.id)
            true = self._world.speeds.kinds[kind.id].throughputs
            wanted = [(t.gpu_type, t.gpus) for t in true if t.is_known and not t.spread]
            seen = tuple(
                Throughput(*config, speed, source if config in known else guess)
                for config, speed in estimate(kind.id, known, wanted, pool).items()
            )
            over_nodes = [t for t in true if t.spread]
            for config, speed in self._over_nodes[kind.id].items():
                over_nodes.append(Throughput(*config, speed, Source.MEASURED, spread=True))
            yield replace(kind, throughputs=(*seen, *over_nodes))

    def _known(self, kind: str) -> tuple[dict[Config, float], Source, Source]:
        """Return what is known of a kind, its source, and that of what follows from it."""
        if measured := self._measured.get(kind):
            return measured, Source.MEASURED, Source.ESTIMATED
        if over_nodes := self._over_nodes.get(kind):
            # As `profiling.selectors.throughputs`: it is the best that is known of one node.
            return over_nodes, Source.ESTIMATED, Source.ESTIMATED
        if kind not in self._assumed:
            return {}, Source.ASSUMED, Source.ASSUMED
        config, speed, source = self._assumed[kind]
        guess = Source.ASSUMED if source is Source.ASSUMED else Source.ESTIMATED
        return {config: speed}, source, guess
