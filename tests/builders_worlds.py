"""The live world on a virtual clock: real from the events to the agent's services, only the clock
and the work are virtual.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from uuid import UUID

from clusters.events import request_reschedule
from clusters.models import Cluster, Node, Reason
from clusters.services.nodes import node_drain, node_uncordon
from controlplane.execution.seats import is_held
from controlplane.execution.services.assignment_metrics import record_metrics
from controlplane.execution.services.assignments import accept, report_state
from controlplane.execution.services.sessions import restore_lost_node
from controlplane.loop.live.solver import solve_here
from controlplane.loop.live.world import Ports, hold_round, is_wanted
from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.world.engine import Engine
from controlplane.simulation.world.nodes import drain_node, lose_node, restore_node
from controlplane.simulation.world.state import WorldState
from jobs.assignment_lifecycle import LIVE
from jobs.models import Assignment, Job
from loadmaster.protocol import Accept, AssignmentState, ReasonClass, StateReport
from loadmaster.samples import MetricsBatch, ProgressSample
from policies.contract.snapshot import KindView, ProfileRequest, RankPlacement
from profiling.restarts import Restart
from tests.builders_agents import reconcile_clusters

START_S = 100_000_000.0
PERIOD_S = 300.0
LAUNCH_S, STOP_S, RESTART_S = 3.0, 7.0, 10.0


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happens to a node: it is lost, or drained by `until_s`, and takes work again
    at `back_s` (since the start).
    """

    at_s: float
    node: str
    back_s: float
    until_s: float | None = None


class FixedKnowledge:
    """Kinds as they are, whatever is measured: production's measurements are another test's
    subject.
    """

    def __init__(self, kinds: tuple[KindView, ...]) -> None:
        self.kinds = kinds

    def kind_views(self, cluster: Cluster, kinds: Iterable[int]) -> tuple[KindView, ...]:
        wanted = {str(k) for k in kinds}
        return tuple(k for k in self.kinds if k.id in wanted)

    def profile_requests(self, cluster: Cluster) -> tuple[ProfileRequest, ...]:
        return ()

    def error_spread(self) -> float:
        return 0.0

    def restarts(self, cluster: Cluster, kinds: Collection[int]) -> dict[int, Restart]:
        usual_s = cluster.restart_cost_s
        return {kind: Restart(usual_s, usual_s, saves=True) for kind in kinds}


class PretendedRuntime:
    """Agents of all nodes at once: they take offers at once, work at the given rates, and stop
    `STOP_S` after they are asked to.
    """

    def __init__(self, engine: Engine, rates: Callable[[Job, str, int, bool], float]) -> None:
        """`rates`: steps/s of a job on a GPU type and a number of GPUs, over several nodes or not.

        The ranks of a gang have one launch together.
        """
        self.engine = engine
        self.rates = rates
        self.started: list[Launch] = []
        self.launches: dict[object, Launch] = {}  # by the key of each rank's assignment
        self.ranks: dict[int, list[Assignment]] = {}  # by the launch's id()
        self.seq = 0

    def look(self) -> None:
        """Do what the newest wishes ask for."""
        live = (
            Assignment.objects.filter(state__in=LIVE)
            .select_related("job", "node__gpu_type")
            .prefetch_related("slots__device")
        )
        for assignment in live.order_by("events__id").distinct():
            launch = self.launches.get(assignment.pk)
            if is_held(assignment):
                self._hold(assignment)
            elif launch is None:
                self._start(assignment)
            elif assignment.desired != "run" and launch.goes_on:
                launch.stop_wanted_s = self.engine.now_s
                self.engine.after(STOP_S, partial(self._end, launch, AssignmentState.PREEMPTED))

    def report(self) -> None:
        """Say how far everything is."""
        for assignment in Assignment.objects.filter(state__in=LIVE).select_related("node"):
            if assignment.pk in self.launches:  # all ranks of a gang count their steps
                self._progress(assignment, self.launches[assignment.pk], "progress")

    def lose(self, node: Node) -> None:
        """What runs on a node is gone, with all it has done since it was launched."""
        for assignment in Assignment.objects.filter(node=node, state__in=LIVE):
            launch = self.launches[assignment.pk]
            launch.end_s, launch.end_steps = self.engine.now_s, launch.start_steps

    def _hold(self, assignment: Assignment) -> None:
        """A held seat has no process: it is there at once, and given back at once."""
        if assignment.state == AssignmentState.OFFERED and assignment.desired == "run":
            node = assignment.node
            accept(node.pk, assignment.pk, Accept(epoch=node.epoch, fence=assignment.fence))
            self._say(assignment, AssignmentState.RUNNING)
        elif assignment.desired != "run":
            self._say(assignment, AssignmentState.PREEMPTED)

    def _start(self, assignment: Assignment) -> None:
        """Launch all ranks of a gang at once, or the one process of a job with held seats."""
        job = assignment.job
        of_launch = Assignment.objects.filter(job=job, fence=assignment.fence, purpose="training")
        seats = []
        ranks = []
        gpus = 0
        for rank in of_launch.select_related("job", "node__gpu_type").order_by("rank"):
            devices = tuple(sorted(slot.device.uuid for slot in rank.slots.all()))
            seats.append(RankPlacement(str(rank.node.pk), devices))
            if not is_held(rank):
                ranks.append(rank)
                gpus += len(devices)
        again = any(launch.job == str(job.pk) for launch in self.started)
        # The slowest worker sets the pace of a gang over several types.
        types = {rank.node.type_name for rank in ranks}
        steps_per_s = min(self.rates(job, name, gpus, len(ranks) > 1) for name in types)
        launch = Launch(
            str(job.pk),
            tuple(seats),
            self.engine.now_s,
            assignment.start_steps,
            self.engine.now_s + LAUNCH_S + (RESTART_S if again else 0.0),
            steps_per_s,
        )
        self.started.append(launch)
        self.ranks[id(launch)] = ranks
        for rank in ranks:
            self.launches[rank.pk] = launch
            accept(rank.node.pk, rank.pk, Accept(epoch=rank.node.epoch, fence=rank.fence))
            self._say(rank, AssignmentState.RUNNING)
        end_s = (
            launch.first_step_s + (job.total_steps - assignment.start_steps) / launch.steps_per_s
        )
        self.engine.at(end_s, partial(self._complete, launch))
        limits = (
            None if job.killed_after_s is None else self.engine.now_s + job.killed_after_s,
            job.deadline_at.timestamp() if job.deadline_at else None,
        )
        for limit_s in limits:
            if limit_s is not None:
                self.engine.at(limit_s, partial(self._kill, launch))

    def _kill(self, launch: Launch) -> None:
        """End a launch at its walltime or deadline, as its guard does."""
        if launch.goes_on:
            self._end(launch, AssignmentState.FAILED, ReasonClass.LIMIT)

    def _complete(self, launch: Launch) -> None:
        if launch.goes_on:
            self._end(launch, AssignmentState.SUCCEEDED)

    def _end(
        self,
        launch: Launch,
        state: AssignmentState,
        reason: ReasonClass | None = None,
    ) -> None:
        if launch.end_s < inf:  # its node was lost while it stopped
            return
        ranks = self.ranks[id(launch)]
        steps = launch.steps_at(self.engine.now_s)
        if state is AssignmentState.SUCCEEDED:
            steps = ranks[0].job.total_steps
        self._progress(ranks[0], launch, "checkpoint", steps)
        launch.end_s = self.engine.now_s
        launch.end_steps = steps
        for rank in ranks:
            self._say(rank, state, reason)

    def _progress(
        self, assignment: Assignment, launch: Launch, event: str, steps: int | None = None
    ) -> None:
        self.seq += 1
        done = launch.steps_at(self.engine.now_s) if steps is None else steps
        elapsed_s = self.engine.now_s - launch.start_s
        sample = ProgressSample(
            self.engine.now_s, event, done, done - launch.start_steps, elapsed_s
        )
        record_metrics(
            assignment.node,
            assignment.pk,
            MetricsBatch(assignment.node.epoch, assignment.fence, self.seq, (sample,)),
        )

    def _say(
        self,
        assignment: Assignment,
        state: AssignmentState,
        reason: ReasonClass | None = None,
    ) -> None:
        self.seq += 1
        if state is AssignmentState.PREEMPTED:
            reason = ReasonClass.PREEMPT
        node = assignment.node
        report = StateReport(
            node.epoch, assignment.fence, self.seq, state, self.engine.now_s, 0, reason
        )
        report_state(node.pk, assignment.pk, report)


class LiveRun:
    """The live cluster on a virtual clock: jobs come in, rounds answer events, the pretended
    runtime does what it is told.
    """

    def __init__(
        self,
        cluster: Cluster,
        jobs: list[Job],
        knowledge: FixedKnowledge,
        engine: Engine,
        incidents: Sequence[Incident] = (),
    ) -> None:
        self.cluster, self.engine = cluster, engine
        rates = {
            (kind.id, known.gpu_type, known.gpus, known.spread): known.steps_per_s
            for kind in knowledge.kinds
            for known in kind.throughputs
        }

        def rate(job: Job, gpu_type: str, gpus: int, spread: bool) -> float:
            return rates[str(job.kind_id), gpu_type if gpus else "", gpus, spread]

        self.runtime = PretendedRuntime(engine, rate)
        self.ports = Ports(solve_here, lambda: engine.now_s, knowledge)
        self.asked = False
        for job in jobs:
            self._at(job.submitted_at.timestamp(), partial(self._submit, job))
        for incident in incidents:
            self._let_happen(incident)

    def run(self) -> None:
        self.engine.run()

    def _at(self, at_s: float, action: Callable[[], object]) -> None:
        def then_look() -> None:
            action()
            self._look_for_events()

        self.engine.at(at_s, then_look)

    def _let_happen(self, incident: Incident) -> None:
        node = Node.objects.get(cluster=self.cluster, name=incident.node)
        if incident.until_s is None:
            self._at(START_S + incident.at_s, partial(self._lose, node.pk))
            self._at(START_S + incident.back_s, partial(self._come_back, node.pk))
            return
        until = datetime.fromtimestamp(START_S + incident.until_s, UTC)
        self._at(START_S + incident.at_s, lambda: node_drain(Node.objects.get(pk=node.pk), until))
        self._at(START_S + incident.until_s, self._reconcile)
        self._at(START_S + incident.back_s, lambda: node_uncordon(Node.objects.get(pk=node.pk)))

    def _lose(self, node_pk: UUID) -> None:
        """The node's agent has been silent for long: its leases have run out, and all that follows
        from that.
        """
        node, long_ago = (
            Node.objects.get(pk=node_pk),
            datetime.fromtimestamp(self.engine.now_s, UTC) - timedelta(days=1),
        )
        self.runtime.lose(node)
        Node.objects.filter(pk=node_pk).update(session_expires_at=long_ago, last_seen_at=long_ago)
        live = Assignment.objects.filter(node=node, state__in=LIVE)
        live.update(renewed_at=long_ago, lease_expires_at=long_ago)
        self._reconcile(silent=node)

    def _come_back(self, node_pk: UUID) -> None:
        Node.objects.filter(pk=node_pk).update(
            session_expires_at=datetime.fromtimestamp(self.engine.now_s, UTC) + timedelta(days=1)
        )
        restore_lost_node(Node.objects.get(pk=node_pk))

    def _reconcile(self, silent: Node | None = None) -> None:
        """The reconciler's passes, while all other agents are heard."""
        now = datetime.fromtimestamp(self.engine.now_s, UTC)
        others = Node.objects.exclude(state="lost")
        if silent is not None:
            others = others.exclude(pk=silent.pk)
        others.update(session_expires_at=now + timedelta(days=1))
        Assignment.objects.filter(node__in=others, state__in=LIVE).update(
            lease_expires_at=now + timedelta(days=1)
        )
        for _ in range(3):  # what one pass finds out makes more due in the next
            reconcile_clusters(now)
        self.runtime.look()

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


def let_happen(
    state: WorldState, engine: Engine, nodes: dict[str, str], incidents: Iterable[Incident]
) -> None:
    """The same in the simulated world; `nodes` are the nodes' ids by name."""
    for incident in incidents:
        node = nodes[incident.node]
        if incident.until_s is None:
            engine.at(START_S + incident.at_s, partial(lose_node, state, node))
        else:
            engine.at(
                START_S + incident.at_s,
                partial(drain_node, state, node, START_S + incident.until_s),
            )
        engine.at(START_S + incident.back_s, partial(restore_node, state, node))
