"""A cluster on a virtual clock: jobs advance by their kind's throughput, and are stopped in two phases like real ones.

What a policy sees and what applying its plan means are as `controlplane.live` has them: a launch that is asked to stop holds
its devices until the stop has ended, its job waits meanwhile, whoever was to have those devices is deferred, and the end of the
stop asks for the next round. Launching, stopping and restarting take no time unless the scene says so. Profile runs are not
simulated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from controlplane.changes import Change, Keep, Migrate, Preempt, Resize, Start, changes, current_of
from controlplane.rounds import Applied, RejectCode, Rejected
from controlplane.simulation.engine import Engine
from controlplane.simulation.jobs import Launch, SimulatedJob
from controlplane.simulation.meter import Meter
from policies.plan import Placement, Plan
from policies.snapshot import (
    EnergyStep,
    GpuTypeView,
    JobColumns,
    JobPhase,
    Jobs,
    JobView,
    KindView,
    NodeView,
    PowerCapStep,
    Running,
    SlotHold,
    Snapshot,
    Trigger,
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster to simulate.

    `launch_s`: from a launch to its first step; `stop_s`: from the wish to stop to the devices' release.
    """

    nodes: tuple[NodeView, ...]
    kinds: tuple[KindView, ...]
    energy: tuple[EnergyStep, ...] = ()
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


@dataclass(slots=True)
class _State:
    jobs: dict[str, SimulatedJob] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    memory: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0


class SimulatedWorld:
    """World of a simulation. `on_event` is called with the reason whenever a round is wanted."""

    def __init__(self, scene: Scene, engine: Engine, on_event: Callable[[str], None]) -> None:
        self.scene, self.engine, self.on_event = scene, engine, on_event
        self.nodes = {n.id: n for n in scene.nodes}
        self.rates = {(k.id, t.gpu_type, t.gpus): t.steps_per_s for k in scene.kinds for t in k.throughputs if not t.spread}
        self.meter = Meter(self.nodes, scene.energy, engine.now_s)
        self.state = _State()

    @property
    def jobs(self) -> Mapping[str, SimulatedJob]:
        """All jobs submitted so far, by id, in their order."""
        return self.state.jobs

    def submit(self, job: JobView) -> None:
        """A job comes in now."""
        self.state.jobs[job.id] = SimulatedJob(job)
        self.tell("submission")

    def fastest_s(self, job: SimulatedJob) -> float:
        """The best possible run time of the whole job on any node of its allowed types; inf if no node can run it."""
        view = job.view
        rates = [
            self.rates.get((view.kind, n.gpu_type, g), 0.0)
            for n in self.nodes.values()
            for g in range(view.gpus_min, min(view.gpus_max, len(n.devices)) + 1)
            if not view.allowed_types or n.gpu_type in view.allowed_types
        ]
        best = max(rates, default=0.0)
        return job.total_steps / best if best else inf

    def snapshot(self) -> Snapshot:
        """The cluster as `controlplane.live.observe` would show it, for the next round."""
        self.state.number += 1
        shown = self._snapshot(tuple(dict.fromkeys(self.state.reasons)))
        self.state.reasons.clear()
        return shown

    def _snapshot(self, reasons: tuple[str, ...] = ()) -> Snapshot:
        state, scene = self.state, self.scene
        active = [job for job in state.jobs.values() if job.completed_s is None]
        return Snapshot(
            cluster=scene.cluster,
            now_s=self.engine.now_s,
            round_s=scene.round_s,
            seed=scene.seed + state.number,
            nodes=self._nodes(),
            kinds=self._kinds(active),
            jobs=Jobs(JobColumns.of([self._view(job) for job in active])),
            gpu_types=scene.gpu_types,
            energy=scene.energy,
            currency=scene.currency,
            power_cap_w=scene.power_cap_w,
            power_caps=scene.power_caps,
            emissions_cost_per_kg=scene.emissions_cost_per_kg,
            horizon_s=scene.horizon_s,
            trigger=Trigger(reasons),
            memory=dict(state.memory),
        )

    def apply(self, plan: Plan) -> Applied:
        """Make the plan so: stop, keep, then launch what finds its devices free."""
        todo = changes(current_of(self._snapshot()), plan)
        for change in todo:
            self._stop_or_keep(change)
        launches = [c.placement for c in todo if isinstance(c, Start | Migrate | Resize)]
        rejected = [r for p in launches if (r := self._launch(p)) is not None]
        self._measure()
        self.state.memory = plan.memory
        return Applied(todo, tuple(rejected))

    def _stop_or_keep(self, change: Change) -> None:
        match change:
            case Preempt(key=(job, _, _)) | Migrate(placement=Placement(job=job)) | Resize(placement=Placement(job=job)):
                stopped = self.jobs[job]
                stopped.preemptions += isinstance(change, Preempt)
                stopped.migrations += not isinstance(change, Preempt)
                self._ask_to_stop(stopped)
            case Keep(key=(job, _, _), placement=Placement() as wanted) if (launch := self.jobs[job].launch) is not None:
                launch.until_s, launch.steps_quota = wanted.until_s, wanted.steps_quota

    def _launch(self, placement: Placement) -> Rejected | None:
        job = self.jobs[placement.job]
        if job.launch is not None:
            return Rejected(placement.key, RejectCode.DEFERRED, "the job is being stopped")
        held = self._held()
        wanted = {(seat.node, device) for seat in placement.ranks for device in seat.devices}
        if taken := sorted(held.keys() & wanted):
            return Rejected(placement.key, RejectCode.DEFERRED, f"still held: {taken}")
        gpu_type = self.nodes[placement.ranks[0].node].gpu_type
        now_s = self.engine.now_s
        rate = self.rates[job.view.kind, gpu_type, placement.gpus]
        restart_s = self.scene.restart_cost_s if job.launches else 0.0
        launch = Launch(
            job.view.id, placement.ranks, now_s, job.steps_done, now_s + self.scene.launch_s + restart_s, rate,
            placement.until_s, placement.steps_quota,
        )  # fmt: skip
        job.launch = launch
        job.launches.append(launch)
        end_s = launch.first_step_s + (job.total_steps - job.steps_done) / rate
        self.engine.at(end_s, partial(self._complete, job, launch))
        return None

    def _ask_to_stop(self, job: SimulatedJob) -> None:
        launch = job.launch
        if launch is not None and launch.goes_on:
            launch.stop_wanted_s = self.engine.now_s
            self.engine.after(self.scene.stop_s, partial(self._stopped, job, launch))

    def _stopped(self, job: SimulatedJob, launch: Launch) -> None:
        job.steps_done = launch.steps_at(self.engine.now_s)
        self._release(job, launch)
        self.tell("leftover")

    def _complete(self, job: SimulatedJob, launch: Launch) -> None:
        if not launch.goes_on:
            return
        job.steps_done = job.total_steps
        job.completed_s = self.engine.now_s
        self._release(job, launch)
        self.tell("completion")

    def _release(self, job: SimulatedJob, launch: Launch) -> None:
        launch.end_s, launch.end_steps = self.engine.now_s, job.steps_done
        job.launch = None
        self._measure()

    def tell(self, reason: str) -> None:
        """Something happened for which a round is wanted."""
        self.state.reasons.append(reason)
        self.on_event(reason)

    def _measure(self) -> None:
        self.meter.use(self.engine.now_s, Counter(node for node, _ in self._held()))

    def _held(self) -> dict[tuple[str, str], SlotHold]:
        launches = (job.launch for job in self.jobs.values() if job.launch is not None)
        return {(s.node, d): SlotHold(launch.job, share=s.share) for launch in launches for s in launch.ranks for d in s.devices}

    def _nodes(self) -> tuple[NodeView, ...]:
        held = self._held()
        return tuple(_with_holds(node, held) for node in self.scene.nodes)

    def _kinds(self, active: Sequence[SimulatedJob]) -> tuple[KindView, ...]:
        wanted = {job.view.kind for job in active}
        return tuple(kind for kind in self.scene.kinds if kind.id in wanted)

    def _view(self, job: SimulatedJob) -> JobView:
        launch = job.launch
        done = job.steps_done if launch is None else launch.steps_at(self.engine.now_s)
        running: tuple[Running, ...] = ()
        if launch is not None and launch.goes_on:
            running = (Running(0, launch.ranks, launch.start_s, launch.until_s, launch.steps_quota),)
        return replace(
            job.view,
            total_steps=float(job.total_steps),
            remaining_steps=float(max(0, job.total_steps - done)),
            restart_cost_s=self.scene.restart_cost_s,
            phase=JobPhase.RUNNING if running else JobPhase.WAITING,
            running=running,
            received_s=self._received_s(job),
        )

    def _received_s(self, job: SimulatedJob) -> tuple[tuple[str, float], ...]:
        received: dict[str, float] = defaultdict(float)
        for launch in job.launches:
            for seat in launch.ranks:
                stay_s = min(self.engine.now_s, launch.end_s) - launch.start_s
                received[self.nodes[seat.node].gpu_type] += stay_s * len(seat.devices) * seat.share
        return tuple(sorted(received.items()))


def _with_holds(node: NodeView, held: Mapping[tuple[str, str], SlotHold]) -> NodeView:
    holds = {d.id: held.get((node.id, d.id)) for d in node.devices}
    return replace(node, devices=tuple(replace(d, held=() if (h := holds[d.id]) is None else (h,)) for d in node.devices))
