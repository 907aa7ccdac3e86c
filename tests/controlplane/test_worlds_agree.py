"""The keystone: one trace through the simulated world and through the live one, with a runtime that only pretends, ends the same.

The live side is real from the events to the agent's services; virtual are only the clock and the work itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from clusters.lifecycle import LIVE
from clusters.models import Assignment, Cluster
from clusters.services import accept, record_metrics, report_state
from controlplane.events import request_reschedule
from controlplane.live.observe import observe
from controlplane.live.solver import solve_here
from controlplane.live.world import Ports, hold_round, is_wanted
from controlplane.models import Reason, Round
from controlplane.simulation.engine import Engine
from controlplane.simulation.jobs import Launch
from controlplane.simulation.run import Simulation
from controlplane.simulation.world import Scene
from jobs.models import Job
from loadmaster.protocol import Accept, AssignmentState, MetricsBatch, ProgressSample, ReasonClass, StateReport
from policies.registry import make
from policies.snapshot import KindView, ProfileRequest, RankSeat, Source, Throughput
from profiling.models import Kind
from tests.builders import a_cluster, a_gpu_type, a_job, a_node, a_team, a_user

pytestmark = pytest.mark.django_db

START_S = 100_000_000.0
PERIOD_S = 300.0
LAUNCH_S, STOP_S, RESTART_S = 3.0, 7.0, 10.0

# Steps per second on (V100, 1), (V100, 2), (T4, 1), (T4, 2).
RATES = {"conv": (2.0, 3.2, 0.8, 1.25), "lstm": (1.0, 1.25, 0.5, 0.8)}

# Name, kind, arrival, steps, GPUs at most, due (None: never), weight, priority.
TRACE = (
    ("a", "conv", 0, 1600, 2, 900, 0.001, 1),
    ("b", "lstm", 5, 500, 2, None, 0.001, 2),
    ("c", "conv", 10, 1200, 1, 1500, 0.002, 1),
    ("d", "lstm", 61, 700, 2, 1600, 0.001, 3),
    ("e", "conv", 130, 300, 2, 260, 0.01, 5),
    ("f", "lstm", 190, 400, 1, 900, 0.004, 2),
    ("g", "conv", 250, 900, 2, 2000, 0.001, 1),
    ("h", "lstm", 310, 100, 1, 320, 0.02, 5),
    ("i", "conv", 400, 2000, 2, 4000, 0.0005, 1),
    ("j", "lstm", 555, 600, 2, 1400, 0.003, 4),
    ("k", "conv", 700, 500, 1, None, 0.0, 1),
    ("l", "lstm", 705, 250, 1, 1200, 0.002, 2),
)


@dataclass(frozen=True, slots=True)
class Stay:
    """What both worlds must agree on."""

    job: str
    node: str
    devices: tuple[str, ...]
    start_s: float
    start_steps: int
    end_s: float
    end_steps: int


class FixedKnowledge:
    """Kinds as they are, whatever is measured: production's measurements are another test's subject."""

    def __init__(self, kinds: tuple[KindView, ...]) -> None:
        self.kinds = kinds

    def kind_views(self, cluster: Cluster, kinds: Iterable[int]) -> tuple[KindView, ...]:
        wanted = {str(k) for k in kinds}
        return tuple(k for k in self.kinds if k.id in wanted)

    def profile_requests(self, cluster: Cluster) -> tuple[ProfileRequest, ...]:
        return ()


class PretendedRuntime:
    """Agents of all nodes at once: they take offers at once, work at the given rates, and stop `STOP_S` after they are asked to."""

    def __init__(self, engine: Engine, rates: Callable[[Job, str, int], float]) -> None:
        self.engine, self.rates = engine, rates
        self.launches: dict[object, Launch] = {}
        self.seq = 0

    def look(self) -> None:
        """Do what the newest wishes ask for."""
        live = Assignment.objects.filter(state__in=LIVE).select_related("job", "node__gpu_type").prefetch_related("slots__device")
        for assignment in live.order_by("events__id").distinct():
            launch = self.launches.get(assignment.pk)
            if launch is None:
                self._start(assignment)
            elif assignment.desired != "run" and launch.goes_on:
                launch.stop_wanted_s = self.engine.now_s
                self.engine.after(STOP_S, partial(self._end, assignment, launch, AssignmentState.PREEMPTED))

    def report(self) -> None:
        """Say how far everything is."""
        for assignment in Assignment.objects.filter(state__in=LIVE).select_related("node"):
            if assignment.pk in self.launches:
                self._progress(assignment, self.launches[assignment.pk], "progress")

    def _start(self, assignment: Assignment) -> None:
        job, node = assignment.job, assignment.node
        devices = tuple(sorted(slot.device.uuid for slot in assignment.slots.all()))
        again = any(launch.job == str(job.pk) for launch in self.launches.values())
        launch = Launch(
            str(job.pk),
            (RankSeat(str(node.pk), devices),),
            self.engine.now_s,
            assignment.start_steps,
            self.engine.now_s + LAUNCH_S + (RESTART_S if again else 0.0),
            self.rates(job, node.gpu_type.name, len(devices)),
        )
        self.launches[assignment.pk] = launch
        accept(node.pk, assignment.pk, Accept(epoch=node.epoch, fence=assignment.fence))
        self._say(assignment, AssignmentState.RUNNING)
        end_s = launch.first_step_s + (job.total_steps - assignment.start_steps) / launch.steps_per_s
        self.engine.at(end_s, partial(self._complete, assignment, launch))

    def _complete(self, assignment: Assignment, launch: Launch) -> None:
        if launch.goes_on:
            self._end(assignment, launch, AssignmentState.SUCCEEDED)

    def _end(self, assignment: Assignment, launch: Launch, state: AssignmentState) -> None:
        steps = assignment.job.total_steps if state is AssignmentState.SUCCEEDED else launch.steps_at(self.engine.now_s)
        self._progress(assignment, launch, "checkpoint", steps)
        launch.end_s, launch.end_steps = self.engine.now_s, steps
        self._say(assignment, state)

    def _progress(self, assignment: Assignment, launch: Launch, event: str, steps: int | None = None) -> None:
        self.seq += 1
        done = launch.steps_at(self.engine.now_s) if steps is None else steps
        elapsed_s = self.engine.now_s - launch.start_s
        sample = ProgressSample(self.engine.now_s, event, done, done - launch.start_steps, elapsed_s)
        record_metrics(assignment.node, assignment.pk, MetricsBatch(assignment.node.epoch, assignment.fence, self.seq, (sample,)))

    def _say(self, assignment: Assignment, state: AssignmentState) -> None:
        self.seq += 1
        reason = ReasonClass.PREEMPT if state is AssignmentState.PREEMPTED else None
        node = assignment.node
        report = StateReport(node.epoch, assignment.fence, self.seq, state, self.engine.now_s, 0, reason)
        report_state(node.pk, assignment.pk, report)


class LiveRun:
    """The live cluster on a virtual clock: jobs come in, rounds answer events, the pretended runtime does what it is told."""

    def __init__(self, cluster: Cluster, jobs: list[Job], knowledge: FixedKnowledge, engine: Engine) -> None:
        self.cluster, self.engine = cluster, engine
        rates = {(k.id, t.gpu_type, t.gpus): t.steps_per_s for k in knowledge.kinds for t in k.throughputs}
        self.runtime = PretendedRuntime(engine, lambda job, gpu_type, gpus: rates[str(job.kind_id), gpu_type, gpus])
        self.ports = Ports(solve_here, lambda: engine.now_s, knowledge)
        self.asked = False
        for job in jobs:
            self._at(job.submitted_at.timestamp(), partial(self._submit, job))

    def run(self) -> None:
        self.engine.run()

    def _at(self, at_s: float, action: Callable[[], object]) -> None:
        def then_look() -> None:
            action()
            self._look_for_events()

        self.engine.at(at_s, then_look)

    def _submit(self, job: Job) -> None:
        Job.objects.filter(pk=job.pk).update(state="queued")
        request_reschedule(self.cluster, Reason.SUBMISSION, job=job)

    def _look_for_events(self) -> None:
        if is_wanted(self.cluster.pk) and not self.asked:
            self.asked = True
            self.engine.at(self.engine.now_s, self._round)

    def _round(self) -> None:
        self.asked = False
        self.runtime.report()
        result = hold_round(self.cluster.pk, self.ports)
        assert result is not None
        assert result.failure is None
        self.runtime.look()
        if len(result.snapshot.jobs):
            last_s = self.engine.now_s
            self._at(last_s + PERIOD_S, partial(self._periodic, last_s))

    def _periodic(self, last_s: float) -> None:
        last = Cluster.objects.get(pk=self.cluster.pk).last_round_at
        if last is not None and abs(last.timestamp() - last_s) < 1e-3:
            request_reschedule(self.cluster, Reason.PERIODIC)


class LookingEngine(Engine):
    """An engine whose every action may have raised an event, as agents' reports do."""

    after_each: Callable[[], None] | None = None

    def step(self) -> bool:
        more = super().step()
        if more and self.after_each is not None:
            self.after_each()
        return more


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> LookingEngine:
    """A virtual clock that Django reads too."""
    engine = LookingEngine(START_S)
    monkeypatch.setattr("django.utils.timezone.now", lambda: datetime.fromtimestamp(engine.now_s, UTC))
    return engine


def the_kinds() -> dict[str, KindView]:
    places = (("V100", 1), ("V100", 2), ("T4", 1), ("T4", 2))
    found = {}
    for number, (name, rates) in enumerate(RATES.items()):
        kind = Kind.objects.create(digest=f"{number:064d}", name=name)
        known = tuple(Throughput(t, g, rate, Source.MEASURED) for (t, g), rate in zip(places, rates, strict=True))
        found[name] = KindView(str(kind.pk), name, known)
    return found


def the_cluster(policy: str) -> Cluster:
    cluster = a_cluster(policy=policy, period_s=PERIOD_S, restart_cost_s=RESTART_S, seed=7)
    t4 = a_gpu_type("T4", idle_w=10.0, peak_w=80.0)
    a_node(cluster, gpu_type="V100", gpus=2, name="v2", epoch=1)
    a_node(cluster, gpu_type="V100", gpus=1, name="v1", epoch=1)
    a_node(cluster, gpu_type=t4, gpus=2, name="t2", epoch=1)
    return cluster


def the_jobs(cluster: Cluster, kinds: dict[str, KindView]) -> list[Job]:
    team = a_team()
    user = a_user(team=team)
    jobs = []
    for name, kind, arrival, steps, gpus, due, weight, priority in TRACE:
        submitted = datetime.fromtimestamp(START_S + arrival, UTC)
        job = a_job(
            cluster,
            team=team,
            user=user,
            kind=Kind.objects.get(pk=int(kinds[kind].id)),
            name=name,
            total_steps=steps,
            gpus_max=gpus,
            due_at=None if due is None else submitted + timedelta(seconds=due),
            tardiness_weight=weight,
            priority=priority,
            state="held",
        )
        Job.objects.filter(pk=job.pk).update(submitted_at=submitted)
        job.submitted_at = submitted
        jobs.append(job)
    return jobs


def simulated(cluster: Cluster, knowledge: FixedKnowledge, policy: str) -> Simulation:
    """The same cluster and jobs, read from the database before anything has run."""
    Job.objects.filter(cluster=cluster).update(state="queued")
    empty = observe(cluster.pk, START_S, 0, knowledge).snapshot
    Job.objects.filter(cluster=cluster).update(state="held")
    scene = Scene(
        nodes=empty.nodes,
        kinds=empty.kinds,
        energy=empty.energy,
        gpu_types=empty.gpu_types,
        round_s=PERIOD_S,
        seed=cluster.seed,
        launch_s=LAUNCH_S,
        stop_s=STOP_S,
        restart_cost_s=RESTART_S,
    )
    return Simulation(scene, tuple(empty.jobs), make(policy), START_S).run()


def stays(launches: Iterable[Launch]) -> list[Stay]:
    found = [
        Stay(
            launch.job,
            launch.ranks[0].node,
            launch.ranks[0].devices,
            round(launch.start_s - START_S, 3),
            launch.start_steps,
            round(launch.end_s - START_S, 3),
            launch.end_steps or 0,
        )
        for launch in launches
    ]
    return sorted(found, key=lambda s: (s.start_s, s.job))


@pytest.mark.parametrize("policy", ["fifo", "edf", "priority", "randomized_greedy"])
def test_one_trace_gives_the_same_assignments_in_both_worlds(policy: str, engine: LookingEngine) -> None:
    cluster = the_cluster(policy)
    kinds = the_kinds()
    knowledge = FixedKnowledge(tuple(kinds.values()))
    jobs = the_jobs(cluster, kinds)
    simulation = simulated(cluster, knowledge, policy)
    live = LiveRun(cluster, jobs, knowledge, engine)
    engine.after_each = live._look_for_events
    live.run()
    expected = stays(launch for job in simulation.world.jobs.values() for launch in job.launches)
    assert stays(live.runtime.launches.values()) == expected
    assert not Job.objects.filter(cluster=cluster).exclude(state="completed").exists()
    assert Round.objects.filter(cluster=cluster).count() == len(simulation.rounds)
    if policy == "randomized_greedy":
        assert len(expected) > len(TRACE), "the trace must have a job moved, or it shows too little"
        assert Round.objects.filter(status="partial").exists(), "and somebody who waits for what it gives up"
