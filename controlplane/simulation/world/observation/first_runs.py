"""Speeds as policies see them with `profiling: first_run`: known once a launch has shown them.

The rules are those of live clusters. Of a new kind a speed is assumed (`profiling.speeds`). A
launch alone on whole devices measures its configuration by its first steps, which asks for a round.
Others are estimated (`profiling.estimates`) and explored (`profiling.exploration`). Speeds over
several nodes that the workload gives are known; others are shown by the first gang.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import log
from typing import NamedTuple

from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.cluster.speeds import Speeds
from controlplane.simulation.world.job_table import JobTable
from policies.contract.snapshot import KindView, Snapshot, Source, Throughput
from policies.placement.amdahl import Config
from profiling.estimates import Pool, estimate, leave_one_out
from profiling.exploration import explored, spread_of
from profiling.speeds import assumed_speed, moved


class _Assumption(NamedTuple):
    """Assumed speed of a new kind on one configuration."""

    config: Config
    steps_per_s: float
    source: Source


class _Knowledge(NamedTuple):
    """Known speeds of a kind, their source, and the source of estimates that follow from them."""

    speeds: dict[Config, float]
    source: Source
    source_of_estimates: Source


class FirstRuns:
    """Knowledge of speeds where they are measured by launches of jobs.

    `steps`: steps of a launch that show its speed.
    """

    def __init__(self, scenario: Scenario, table: JobTable, truth: Speeds, steps: int) -> None:
        self._table = table
        self._truth = truth
        self._steps = steps
        self._type_of = {node.id: node.gpu_type for node in scenario.nodes}
        self._tflops = {t.name: t.tflops for t in scenario.gpu_types}
        self._assumed: dict[str, _Assumption] = {}
        self._measured: defaultdict[str, dict[Config, float]] = defaultdict(dict)
        self._over_nodes: defaultdict[str, dict[Config, float]] = defaultdict(dict)
        self._samples: defaultdict[tuple[str, Config], int] = defaultdict(int)
        self._sigma = spread_of(())

    def assume(self, row: int) -> None:
        """Assume a speed for the new kind of a job, on the slowest type that the job may use."""
        columns = self._table.columns
        types_here = set(self._type_of.values())
        allowed = types_here.intersection(columns.others["allowed_types"][row])
        types = sorted(allowed or types_here)
        slowest = min(types, key=lambda name: self._tflops.get(name, 0.0))
        config = slowest, int(columns.counts["gpus_min"][row])
        walltime_s = float(columns.numbers["walltime_s"][row])
        speed, source = assumed_speed(int(self._table.total_steps[row]), walltime_s)
        self._assumed[columns.kinds[row]] = _Assumption(config, speed, source)

    def config_shown_by(self, launch: Launch) -> Config | None:
        """Return the configuration that a launch measures; None if it shares or has no devices."""
        is_whole = all(seat.share >= 1.0 and seat.devices for seat in launch.ranks)
        if not is_whole or launch.steps_per_s <= 0.0:
            return None
        types = {self._type_of[seat.node] for seat in launch.ranks}
        slowest = min(types, key=lambda name: (self._tflops.get(name, 0.0), name))
        return slowest, sum(len(seat.devices) for seat in launch.ranks)

    def known_at_s(self, launch: Launch) -> float:
        """Return the time at which a launch has shown its speed: after its first steps, or all."""
        return min(launch.first_step_s + self._steps / launch.steps_per_s, launch.ends_s)

    def record(self, launch: Launch, config: Config) -> bool:
        """Record the speed of a launch. Return True if it was not known on its configuration."""
        kind = self._table.columns.kinds[launch.row]
        if len(launch.ranks) > 1:
            return self._record_over_nodes(kind, config, launch.steps_per_s)
        known = self._measured[kind]
        samples = self._samples[kind, config]
        known[config] = moved(known.get(config, 0.0), launch.steps_per_s, samples)
        self._samples[kind, config] += 1
        if samples:
            return False
        errors = leave_one_out(self._measured, self._pool())
        self._sigma = spread_of(log(error.estimated / error.measured) for error in errors)
        return True

    def views(self, kinds: Iterable[KindView]) -> Iterator[KindView]:
        """Yield the kinds with what is known of them now."""
        pool = self._pool()
        for kind in kinds:
            true = self._truth.kinds[kind.id].throughputs
            knowledge = self._knowledge_of(kind.id)

            # 1. Speeds on one node, known or estimated, where the truth has any.
            wanted = [(t.gpu_type, t.gpus) for t in true if t.is_known and not t.spread]
            throughputs = []
            for config, speed in estimate(kind.id, knowledge.speeds, wanted, pool).items():
                is_known = config in knowledge.speeds
                source = knowledge.source if is_known else knowledge.source_of_estimates
                throughputs.append(Throughput(*config, speed, source))

            # 2. Speeds over nodes: those that the workload gives, and those of gangs that ran.
            throughputs += [t for t in true if t.spread]
            for config, speed in self._over_nodes[kind.id].items():
                throughputs.append(Throughput(*config, speed, Source.MEASURED, spread=True))
            yield replace(kind, throughputs=tuple(throughputs))

    def with_explorers(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot in which a waiting job of each kind may explore."""
        columns = snapshot.jobs.columns
        running = columns.others["running"]
        may_share = columns.others["may_share"]
        jobs = set()
        for row, job in enumerate(columns.ids):
            if not running[row] and not may_share[row]:
                jobs.add(job)
        return explored(snapshot, jobs, self._sigma)

    def _record_over_nodes(self, kind: str, config: Config, steps_per_s: float) -> bool:
        """Record the speed of the first gang over nodes, if the workload does not give it."""
        gpu_type, gpus = config
        is_given = (gpu_type, gpus, True) in self._truth.known.rates(kind)
        if is_given or config in self._over_nodes[kind]:
            return False
        self._over_nodes[kind][config] = steps_per_s
        return True

    def _pool(self) -> Pool:
        return Pool.of(self._tflops, self._measured)

    def _knowledge_of(self, kind: str) -> _Knowledge:
        """Return what is known of a kind, the best source first."""
        if measured := self._measured.get(kind):
            return _Knowledge(measured, Source.MEASURED, Source.ESTIMATED)
        if over_nodes := self._over_nodes.get(kind):
            # As `profiling.selectors.throughputs`: it is the best that is known of one node.
            return _Knowledge(over_nodes, Source.ESTIMATED, Source.ESTIMATED)
        if kind not in self._assumed:
            return _Knowledge({}, Source.ASSUMED, Source.ASSUMED)
        config, speed, source = self._assumed[kind]
        follows = Source.ASSUMED if source is Source.ASSUMED else Source.ESTIMATED
        return _Knowledge({config: speed}, source, follows)
