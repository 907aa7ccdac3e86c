"""A job's command never runs twice at once, nor again after it was done, unless the job allows it:
any order of submissions, rounds, ends, stops, lost nodes and changes of modes, by the real
services. Agents are played: they alone know which processes live.
"""

import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from clusters.agent_errors import AgentCallError
from clusters.models import Cluster, Device, Node
from controlplane.execution.services.assignment_metrics import record_metrics
from controlplane.execution.services.assignments import accept, report_state
from controlplane.execution.services.sessions import open_session
from controlplane.execution.services.stops import stop_profiling
from jobs.assignment_lifecycle import LIVE
from jobs.models import Assignment, Job
from jobs.services import job_cancel, job_hold, job_release, job_requeue, job_submit
from jobs.submission.refusals import JobConflict
from loadmaster.protocol import Accept, AssignmentState, Heartbeat, KnownAssignment, StateReport
from loadmaster.samples import MetricsBatch, ProgressSample
from policies.contract.plan import Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import JobPhase, Purpose, RankPlacement, Snapshot
from profiling.reconciler import reconcile_profiles
from tests.builders import a_cluster, a_node, a_team, a_user
from tests.builders_agents import CLOCK, a_session_request, heartbeat, reconcile_clusters
from tests.builders_live import a_round
from tests.conftest import EXAMPLES

S = AssignmentState
MODES = ("first_run", "dedicated", "off")
ROLES = ("production", "profiling", "both")
STEPS = 40


def at_random(draw: random.Random) -> Any:
    """A policy that keeps, moves, pre-empts and starts jobs without any reason."""

    def solve(policy: str, parameters: Mapping[str, Any], snapshot: Snapshot) -> Plan:
        free = [
            RankPlacement(node.id, (device.id,))
            for node in snapshot.nodes
            for device in node.devices
            if node.takes_training and not any(h.purpose == "profiling" for h in device.held)
        ]
        draw.shuffle(free)
        placements, waiting = list[Placement](), list[Waiting]()
        for job in snapshot.jobs:
            if job.phase is JobPhase.PROFILING:
                waiting.append(Waiting(job.id, WaitCode.AWAITING_PROFILE))
                continue
            fit = [s for s in free if {*job.labels} <= {*snapshot.node_by_id[s.node].labels}]
            now = [r.ranks[0] for r in job.running if r.purpose is Purpose.TRAINING]
            stays = [seat for seat in now if seat in fit and draw.random() < 0.6]
            if fit and draw.random() < 0.8:
                seat = (stays or fit)[0]
                free.remove(seat)
                placements.append(Placement(job.id, (seat,)))
            else:
                waiting.append(Waiting(job.id, WaitCode.POSTPONED))
        return Plan("random", PlanStatus.HEURISTIC, tuple(placements), tuple(waiting))

    return solve


@dataclass
class Process:
    """A command that runs on a node."""

    job: UUID
    purpose: str
    fence: int
    seq: int = 0
    steps: int = 0


@dataclass
class PlayedAgent:
    """A node's agent; cut off from the server it ends its processes after lease and grace."""

    node: UUID
    epoch: int = 0
    beat_seq: int = 0
    cut: bool = False
    lease_ends: datetime | None = None
    processes: dict[UUID, Process] = field(default_factory=dict)


class PlayedCluster:
    """A cluster with a node of each role; every public method is what may happen next."""

    def __init__(self) -> None:
        self.now = timezone.now()
        self.done: set[UUID] = set()
        self.launched = Counter[tuple[str, float]]()
        self.cluster: Cluster = a_cluster(**CLOCK, profiling_steps=3)
        team = a_team()
        self.user: User = a_user(team=team, operator=True)
        self.agents = []
        for role in ROLES:
            node = a_node(self.cluster, gpus=2, role=role, session_expires_at=None)
            Device.objects.filter(node=node).update(slots=2)
            self.agents.append(PlayedAgent(node.pk))
        for agent in self.agents:
            self._connect(agent)

    def a_job_is_submitted(self, draw: random.Random) -> None:
        job_submit(self.user, {
            "name": "job", "kind": draw.choice("ab"), "command": "train", "steps": STEPS,
            "profiling": draw.choice(("", *MODES)), "repeatable": draw.random() < 0.6,
            "may_share": draw.random() < 0.8, "cluster": self.cluster.name, "max_retries": 100,
        })  # fmt: skip

    def somebody_acts_on_a_job(self, draw: random.Random) -> None:
        act = draw.choice([job_hold, job_release, job_cancel, job_requeue])
        jobs = list(Job.objects.order_by("submitted_at", "pk"))
        with suppress(JobConflict):
            if jobs:
                act(draw.choice(jobs), self.user)

    def the_clusters_mode_changes(self, draw: random.Random) -> None:
        Cluster.objects.filter(pk=self.cluster.pk).update(profiling=draw.choice(MODES))

    def a_node_changes_its_role(self, draw: random.Random) -> None:
        agent = draw.choice(self.agents)
        Node.objects.filter(pk=agent.node).update(role=draw.choice(ROLES))

    def a_round(self, draw: random.Random) -> None:
        a_round(self.cluster, at_random(draw), at_s=self.now.timestamp())
        if draw.random() < 0.8:
            self.agents_look(draw)

    def time_goes_by(self, draw: random.Random) -> None:
        self.now += timedelta(seconds=draw.choice([1.0, 9.0, 31.0, 61.0, 101.0]))
        for agent in self.agents:
            self._beat(agent)
        reconcile_clusters(self.now)
        reconcile_profiles(self.now, stop_profiling)

    def agents_look(self, draw: random.Random) -> None:
        """Connected agents take their offers and obey what they are told."""
        for agent in (a for a in self.agents if not a.cut):
            for row in Assignment.objects.filter(node=agent.node, state__in=LIVE):
                if row.state == S.OFFERED:
                    self._take(agent, row)
                elif row.desired != "run" and row.pk in agent.processes:
                    cancelled = row.desired == "cancel"
                    self._end(agent, row.pk, S.CANCELLED if cancelled else S.PREEMPTED)

    def a_process_makes_steps(self, draw: random.Random) -> None:
        for agent, pk in self._one_process(draw):
            process = agent.processes[pk]
            process.steps = min(STEPS, process.steps + draw.randint(1, STEPS))
            process.seq += 1
            at_s = self.now.timestamp()
            sample = ProgressSample(at_s, "checkpoint", process.steps, process.steps, 1.0)
            batch = MetricsBatch(agent.epoch, process.fence, process.seq, (sample,))
            record_metrics(Node.objects.get(pk=agent.node), pk, batch)

    def a_process_ends(self, draw: random.Random) -> None:
        for agent, pk in self._one_process(draw):
            process, failed = agent.processes[pk], draw.random() < 0.3
            asked_to_stop = Assignment.objects.get(pk=pk).desired != "run"
            whole = process.steps == STEPS or not asked_to_stop
            if process.purpose == "training" and whole and not failed:
                self.done.add(process.job)
            self._end(agent, pk, S.FAILED if failed else S.SUCCEEDED)

    def a_node_is_cut_off_or_comes_back(self, draw: random.Random) -> None:
        cut = [agent for agent in self.agents if agent.cut]
        for agent in cut:
            self._connect(agent)
        if not cut:
            draw.choice(self.agents).cut = True

    def _one_process(self, draw: random.Random) -> list[tuple[PlayedAgent, UUID]]:
        connected = [(agent, pk) for agent, pk in self._processes() if not agent.cut]
        return [draw.choice(connected)] if connected else []

    def _connect(self, agent: PlayedAgent) -> None:
        known = tuple(
            KnownAssignment(str(pk), process.fence, S.RUNNING)
            for pk, process in agent.processes.items()
        )
        node = Node.objects.get(pk=agent.node)
        agent.cut = False
        session = open_session(node.pk, a_session_request(node, assignments=known), self.now)
        agent.epoch, agent.beat_seq = session.epoch, 0
        for pk in session.stop:
            agent.processes.pop(UUID(str(pk)), None)
        for process in agent.processes.values():
            process.seq = 0
        self._beat(agent)

    def _beat(self, agent: PlayedAgent) -> None:
        """Renew the leases, or end what has outlived them."""
        if agent.cut:
            if agent.lease_ends and self.now >= agent.lease_ends + timedelta(
                seconds=CLOCK["grace_s"]
            ):
                agent.processes.clear()
            return
        agent.beat_seq += 1
        known = tuple(
            KnownAssignment(str(pk), process.fence, S.RUNNING)
            for pk, process in agent.processes.items()
        )
        beat = Heartbeat(agent.epoch, agent.beat_seq, 0.0, assignments=known)
        heartbeat(agent.node, beat, self.now)
        agent.lease_ends = self.now + timedelta(seconds=CLOCK["lease_s"])

    def _take(self, agent: PlayedAgent, row: Assignment) -> None:
        try:
            accept(agent.node, row.pk, Accept(agent.epoch, row.fence), self.now)
        except AgentCallError:
            return
        self.launched[row.purpose, row.share] += 1
        self._check_may_start(Job.objects.get(pk=row.job_id), row.purpose)
        agent.processes[row.pk] = Process(row.job_id, row.purpose, row.fence)
        self._report(agent, row.pk, S.RUNNING)

    def _check_may_start(self, job: Job, purpose: str) -> None:
        assert job.pk not in self.done, "again after it was done"
        beside = [a.processes[pk].purpose for a, pk in self._processes(job.pk)]
        if job.repeatable and purpose == "profiling":
            assert "training" not in beside, "a profile run beside the real run"
        else:
            assert not beside, "twice at once"
            assert purpose == "training", "without permission"

    def _end(self, agent: PlayedAgent, pk: UUID, to: AssignmentState) -> None:
        self._report(agent, pk, to)
        del agent.processes[pk]

    def _report(self, agent: PlayedAgent, pk: UUID, to: AssignmentState) -> None:
        process = agent.processes[pk]
        process.seq += 1
        report = StateReport(
            agent.epoch, process.fence, process.seq, to, self.now.timestamp(), steps=process.steps
        )
        report_state(agent.node, pk, report, self.now)

    def _processes(self, job: UUID | None = None) -> list[tuple[PlayedAgent, UUID]]:
        return [
            (agent, pk)
            for agent in self.agents
            for pk, process in agent.processes.items()
            if job is None or process.job == job
        ]


P = PlayedCluster
USUAL = (P.a_job_is_submitted, P.a_process_makes_steps, P.a_process_ends, P.agents_look)
SELDOM = (
    P.somebody_acts_on_a_job, P.the_clusters_mode_changes, P.a_node_changes_its_role,
    P.a_node_is_cut_off_or_comes_back,
)  # fmt: skip
HAPPENS = (*8 * (P.a_round,), *3 * (*USUAL, P.time_goes_by), *SELDOM)


@pytest.mark.django_db
@pytest.mark.timeout(600)
def test_no_command_runs_twice_at_once_or_again_without_permission() -> None:
    launched = Counter[tuple[str, float]]()
    for seed in range(2 * EXAMPLES):
        draw = random.Random(seed)
        with transaction.atomic():
            played = PlayedCluster()
            for happens in draw.choices(HAPPENS, k=70):
                happens(played, draw)
            transaction.set_rollback(True)
        launched.update(played.launched)
    of_each_sort = {("training", 1.0), ("profiling", 1.0), ("profiling", 0.5)}
    assert launched.keys() >= of_each_sort, "sequences that show nothing of one sort"
