"""Sessions, leases and fences against a pure model on a virtual clock: any order of faults leaves
the database as the model says.

Two agents share a node's token, machine and secret and supersede each other; a third one is a
stranger to the machine. Reports are lost, doubled, reordered and sent with old epochs and fences;
heartbeats fail to come; gangs fall together.
"""

# hypothesis runs state machines by a function without types.
# mypy: allow-untyped-calls

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from clusters.agent_errors import AgentCallError
from clusters.models import Device, Node
from clusters.models.nodes import State
from controlplane.execution.services.assignments import accept, report_state
from controlplane.execution.services.sessions import open_session
from controlplane.execution.services.stops import stop_assignment
from jobs import assignment_lifecycle as lifecycle
from jobs.assignment_lifecycle import ENDED, LIVE, MOVE_TO
from jobs.lifecycle import PLACED, JobMove, JobState
from jobs.models import Assignment, AssignmentSlot, Job
from jobs.moves import move_job
from loadmaster.protocol import (
    Accept,
    AssignmentState,
    Heartbeat,
    KnownAssignment,
    StateReport,
    StopReason,
)
from tests.builders import a_cluster, a_job, a_node
from tests.builders_agents import CLOCK, a_session_request, heartbeat, reconcile_clusters
from tests.conftest import EXAMPLES

S = AssignmentState
START = datetime(2030, 1, 1, tzinfo=UTC)
LEASE_S, GRACE_S, MARGIN_S = CLOCK["lease_s"], CLOCK["grace_s"], CLOCK["margin_s"]
SILENCE_S = GRACE_S + MARGIN_S
HELD = sorted(LIVE - {S.OFFERED, S.UNKNOWN})
MOSTLY: st.SearchStrategy[Any] = st.sampled_from([True, True, True, True, False])
REPORTABLE = sorted(frozenset(S) - {S.OFFERED, S.UNKNOWN, S.LOST})


@dataclass
class ModelNode:
    """What the server must know of a node."""

    epoch: int = 0
    secret: str = ""
    session_ends_s: float = 0.0
    beat_seq: int = 0
    lost: bool = False


@dataclass
class ModelAssignment:
    """What the server must know of an assignment."""

    node: UUID
    job: UUID
    fence: int
    created_s: float
    state: AssignmentState = S.OFFERED
    epoch: int = 0
    seq: int = 0
    desired: str = "run"
    lease_ends_s: float | None = None
    last_receipt_s: float | None = None
    said: dict[int, AssignmentState] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        return self.state in LIVE


@dataclass
class Agent:
    """A process that speaks for a node with the epoch it was given; `listed` is what its journal
    knows.
    """

    node: UUID
    secret: str
    epoch: int = 0
    beat_seq: int = 0


class ServerAndModel(RuleBasedStateMachine):
    """Every rule does the same to the server and to the model, and they must agree on the
    answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._transaction = transaction.atomic()
        self._transaction.__enter__()
        self.now_s = 0.0
        self.nodes: dict[UUID, ModelNode] = {}
        self.rows: dict[UUID, ModelAssignment] = {}
        self.agents: list[Agent] = []

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self._transaction.__exit__(None, None, None)

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.now_s)

    @initialize()
    def two_nodes_with_agents(self) -> None:
        cluster = a_cluster(**CLOCK)
        first, second = (
            a_node(
                cluster, gpus=gpus, last_seen_at=START, created_at=START, session_expires_at=None
            )
            for gpus in (2, 1)
        )
        self.nodes = {first.pk: ModelNode(), second.pk: ModelNode()}
        self.jobs = [a_job(cluster, max_retries=50).pk for _ in range(4)]
        self.gang = a_job(cluster, max_retries=50, gpus_min=2, gpus_max=2).pk
        self.agents = [
            Agent(first.pk, "mine"),
            Agent(second.pk, "mine"),
            Agent(first.pk, "mine"),
            Agent(first.pk, "a stranger's"),
        ]
        for agent in self.agents[:2]:
            self._open(agent, [])

    @rule(
        seconds=st.sampled_from([9.0, 31.0, 61.0, 95.0, 101.0]),
        reconciled=st.sampled_from([True, True, False]),
    )
    def time_goes_by(self, seconds: float, reconciled: bool) -> None:
        self.now_s += seconds
        if reconciled:
            self.the_reconciler_passes()

    @rule(index=st.integers(0, 3), device=st.integers(0, 2))
    def a_launch_goes_well(self, index: int, device: int) -> None:
        """An offer is made, taken at once, and runs."""
        self._run(self._launch(self.jobs[index], [device]))

    @rule(to=st.sampled_from(sorted(ENDED - {S.LOST})), takers=st.sampled_from([1, 2, 2]))
    def a_gang_is_launched_and_a_rank_ends(self, to: AssignmentState, takers: int) -> None:
        made = self._launch(self.gang, [1, 2])
        self._run(made[:takers])
        for pk in made[:1]:
            for agent in self.agents:
                self._report(agent, pk, to, self.rows[pk].seq + 1, self.rows[pk].fence)

    def _run(self, made: list[UUID]) -> None:
        for pk in made:
            for agent in self.agents:
                self._accept(agent, pk, self.rows[pk].fence)
                self._report(agent, pk, S.RUNNING, self.rows[pk].seq + 1, self.rows[pk].fence)

    @precondition(lambda self: self.rows)
    @rule(
        state=st.sampled_from([S.RUNNING, S.STOPPING]),
        restarted=st.sampled_from([False, False, True]),
    )
    def every_agent_beats_for_all_there_is(self, state: AssignmentState, restarted: bool) -> None:
        """Restarted ones have forgotten what they held: to list it now renews nothing. The first
        beat overtakes the second.
        """
        for agent in self.agents:
            everything = {pk: row.fence for pk, row in self.rows.items() if row.node == agent.node}
            if restarted:
                self._open(agent, [])
            agent.beat_seq += 2
            self._beat(agent, agent.beat_seq, state, everything)
            self._beat(agent, agent.beat_seq - 1, state, everything)

    @rule(data=st.data(), index=st.integers(0, 3), knows_all=st.booleans())
    def an_agent_opens_a_session(self, data: st.DataObject, index: int, knows_all: bool) -> None:
        agent = self.agents[index]
        mine = [pk for pk, row in self.rows.items() if row.node == agent.node]
        self._open(
            agent,
            (
                mine
                if knows_all or not mine
                else data.draw(st.lists(st.sampled_from(mine), unique=True))
            ),
        )

    def _open(self, agent: Agent, listed: list[UUID]) -> None:
        node = self.nodes[agent.node]
        known = tuple(KnownAssignment(str(pk), self.rows[pk].fence, S.RUNNING) for pk in listed)
        request = replace(
            a_session_request(Node.objects.get(pk=agent.node), agent.secret), assignments=known
        )
        free = node.session_ends_s <= self.now_s or node.secret == agent.secret
        answered = self._refused(lambda: open_session(agent.node, request, self.now))
        assert (answered is not None) is free
        if answered is None:
            return
        same = node.secret == agent.secret
        node.epoch += 1
        node.secret, node.session_ends_s, node.beat_seq, node.lost = (
            agent.secret,
            self.now_s + LEASE_S,
            0,
            False,
        )
        agent.epoch, agent.beat_seq = node.epoch, 0
        adopted = {pk for pk in listed if self.rows[pk].live and self.rows[pk].state != S.OFFERED}
        assert answered.epoch == node.epoch
        assert set(answered.adopt) == {str(pk) for pk in adopted}
        assert set(answered.stop) == {str(pk) for pk in listed if not self.rows[pk].live}
        for pk in adopted:
            self.rows[pk].epoch, self.rows[pk].seq = node.epoch, 0
        for pk in sorted(
            pk
            for pk, row in self.rows.items()
            if row.node == agent.node and row.state is S.ACCEPTED
        ):
            if same and pk not in listed:
                self._end_unstarted(self.rows[pk])

    def _end_unstarted(self, row: ModelAssignment) -> None:
        """The journal of the agent that accepted it does not know it: it was never started."""
        row.state = S.CANCELLED if row.desired == "cancel" else S.PREEMPTED
        self._ended(row)

    @rule(index=st.integers(0, 3), device=st.integers(0, 2))
    def a_plan_offers(self, index: int, device: int) -> None:
        self._launch(self.jobs[index], [device])

    @rule()
    def a_plan_offers_a_gang(self) -> None:
        self._launch(self.gang, [1, 2])

    def _launch(self, job_pk: UUID, places: list[int]) -> list[UUID]:
        """Offer a launch on these devices (the first two are the first node's); the database
        refuses what is held.
        """
        job = Job.objects.get(pk=job_pk)
        devices = list(Device.objects.order_by("node_id", "uuid"))
        devices.sort(key=lambda d: list(self.nodes).index(d.node_id))
        wanted = [devices[place] for place in places]
        taken = AssignmentSlot.objects.filter(device__in=wanted, live=True).exists()
        if job.state != JobState.QUEUED:
            with pytest.raises(IntegrityError), transaction.atomic():
                self._offer(job, wanted) if job.state in PLACED else self._fail_to_offer()
            return []
        try:
            with transaction.atomic():
                move_job(job, JobMove.PLACE, fence=job.fence + 1)
                made = self._offer(job, wanted)
        except IntegrityError:
            assert taken
            return []
        assert not taken
        self.rows.update(
            {a.pk: ModelAssignment(a.node_id, job.pk, a.fence, self.now_s) for a in made}
        )
        return [a.pk for a in made]

    def _fail_to_offer(self) -> None:
        raise IntegrityError("the job is over")

    def _offer(self, job: Job, devices: list[Device]) -> list[Assignment]:
        made = []
        for rank, device in enumerate(devices):
            row = Assignment.objects.create(
                job=job, node_id=device.node_id, fence=job.fence, rank=rank, world_size=len(devices)
            )
            Assignment.objects.filter(pk=row.pk).update(created_at=self.now)
            AssignmentSlot.objects.create(assignment=row, device=device)
            made.append(row)
        return made

    def _draw(self, data: st.DataObject, *states: AssignmentState) -> UUID:
        """An assignment, most often a live one, in one of these states where there is one."""
        likely = [pk for pk, row in self.rows.items() if row.state in (states or LIVE)]
        anyone = list(self.rows)
        choice: UUID = data.draw(
            st.sampled_from(likely if likely and data.draw(MOSTLY) else anyone)
        )
        return choice

    def _draw_agent(self, data: st.DataObject, node: UUID) -> Agent:
        """An agent, most often the one whose session the node has."""
        right = [agent for agent in self.agents if agent.node == node and self._speaks(agent)]
        choice: Agent = data.draw(
            st.sampled_from(right if right and data.draw(MOSTLY) else self.agents)
        )
        return choice

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), fence_off=st.sampled_from([0, 0, 0, 0, -1, 1]))
    def an_agent_accepts(self, data: st.DataObject, fence_off: int) -> None:
        pk = self._draw(data, S.OFFERED)
        row, agent = self.rows[pk], self._draw_agent(data, self.rows[pk].node)
        self._accept(agent, pk, max(0, row.fence + fence_off))

    def _accept(self, agent: Agent, pk: UUID, fence: int) -> None:
        row, words = self.rows[pk], Accept(epoch=agent.epoch, fence=fence)
        answered = self._refused(lambda: accept(agent.node, pk, words, self.now))
        mine = self._speaks(agent) and row.node == agent.node and row.fence == fence
        offered = row.state is S.OFFERED and row.desired == "run"
        assert (answered is not None) is (
            mine and (offered or (row.live and row.epoch == agent.epoch))
        )
        if answered is not None and offered:
            row.state, row.epoch = S.ACCEPTED, agent.epoch
            row.lease_ends_s, row.last_receipt_s = self.now_s + LEASE_S, self.now_s

    @precondition(lambda self: self.rows)
    @rule(
        data=st.data(),
        back=st.sampled_from([0, 0, 0, 1]),
        state=st.sampled_from(HELD),
        wrong=st.sampled_from([False, False, True]),
    )
    def an_agent_beats(
        self, data: st.DataObject, back: int, state: AssignmentState, wrong: bool
    ) -> None:
        agent = self._draw_agent(data, self.rows[self._draw(data)].node)
        live = [pk for pk, row in self.rows.items() if row.live]
        listed = data.draw(
            st.one_of(
                st.just(live), st.lists(st.sampled_from(sorted(self.rows)), unique=True, max_size=4)
            )
        )
        agent.beat_seq += 1
        fences = {pk: self.rows[pk].fence + (1 if wrong else 0) for pk in listed}
        self._beat(agent, max(0, agent.beat_seq - 2 * back), state, fences)

    def _beat(
        self, agent: Agent, seq: int, state: AssignmentState, fences: dict[UUID, int]
    ) -> None:
        known = tuple(KnownAssignment(str(pk), fence, state) for pk, fence in fences.items())
        answered = self._refused(
            lambda: heartbeat(
                agent.node, Heartbeat(agent.epoch, seq, 0.0, assignments=known), self.now
            )
        )
        assert (answered is not None) is self._speaks(agent)
        if answered is None:
            return
        node = self.nodes[agent.node]
        fresh = seq >= node.beat_seq
        held = (
            {pk for pk in fences if fences[pk] == self.rows[pk].fence and self._holds(agent, pk)}
            if fresh
            else set()
        )
        assert {lease.id for lease in answered.leases} == {str(pk) for pk in held}
        if fresh:
            node.beat_seq, node.session_ends_s, node.lost = seq, self.now_s + LEASE_S, False
        for pk in held:
            self._renew(self.rows[pk], state)

    def _renew(self, row: ModelAssignment, state: AssignmentState) -> None:
        row.lease_ends_s, row.last_receipt_s = self.now_s + LEASE_S, self.now_s
        if row.state is S.UNKNOWN:
            row.state = state

    @precondition(lambda self: self.rows)
    @rule(
        data=st.data(),
        to=st.sampled_from(REPORTABLE),
        seq_step=st.sampled_from([1, 1, 1, 0, -1]),
        fence_off=st.sampled_from([0, 0, 0, 0, 1]),
    )
    def an_agent_reports(
        self, data: st.DataObject, to: AssignmentState, seq_step: int, fence_off: int
    ) -> None:
        pk = self._draw(data, *HELD, S.UNKNOWN)
        row, agent = self.rows[pk], self._draw_agent(data, self.rows[pk].node)
        self._report(agent, pk, to, max(0, row.seq + seq_step), row.fence + fence_off)

    def _report(self, agent: Agent, pk: UUID, to: AssignmentState, seq: int, fence: int) -> None:
        row, report = self.rows[pk], StateReport(agent.epoch, fence, seq, to, observed_at_s=0.0)
        answered = self._refused(lambda: report_state(agent.node, pk, report, self.now))
        mine = self._speaks(agent) and row.node == agent.node and row.fence == fence
        replay = (row.state is to and (not row.live or seq == row.seq)) or (
            seq <= row.seq and row.said.get(seq) is to
        )
        if not mine:
            assert answered is None
        elif replay:
            assert answered is row.state
        else:
            self._check_fresh_report(row, agent, seq, to, answered)

    def _check_fresh_report(
        self,
        row: ModelAssignment,
        agent: Agent,
        seq: int,
        to: AssignmentState,
        answered: AssignmentState | None,
    ) -> None:
        untaken = row.state is S.OFFERED and to is S.REJECTED
        after = to if row.state is to else lifecycle.MOVES.get((row.state, MOVE_TO[to]))
        allowed = (
            row.live
            and (row.epoch == agent.epoch or untaken)
            and seq > row.seq
            and after is not None
        )
        assert (answered is not None) is allowed
        if not allowed:
            return
        moved = row.state is not to
        row.state, row.seq, row.epoch = to, seq, agent.epoch
        if moved:
            row.said[seq] = to
        if to in ENDED:
            self._ended(row)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), reason=st.sampled_from(sorted(StopReason)))
    def the_server_wants_a_stop(self, data: st.DataObject, reason: StopReason) -> None:
        pk = self._draw(data)
        stop_assignment(Assignment.objects.get(pk=pk), reason, now=self.now)
        row = self.rows[pk]
        if row.live:
            self._wish(row, reason)

    def _wish(self, row: ModelAssignment, reason: StopReason) -> None:
        row.desired = "cancel" if row.desired == "cancel" else str(reason)
        if row.state is S.OFFERED:
            row.state = S.CANCELLED if reason is StopReason.CANCEL else S.PREEMPTED
            self._ended(row)

    def _ended(self, row: ModelAssignment) -> None:
        """Gangs fall together, unless a rank merely finished."""
        if row.state is S.SUCCEEDED:
            return
        for other in self.rows.values():
            if (
                other is not row
                and other.job == row.job
                and other.fence == row.fence
                and other.live
            ):
                self._wish(
                    other, StopReason.CANCEL if row.desired == "cancel" else StopReason.PREEMPT
                )

    @rule()
    def the_reconciler_passes(self) -> None:
        reconcile_clusters(self.now)
        for row in self.rows.values():
            if row.state in HELD and row.lease_ends_s is not None and row.lease_ends_s < self.now_s:
                row.state = S.UNKNOWN
        # As the server goes: those lost first, then the offers; either may bring down the rest of a
        # gang.
        for row in list(self.rows.values()):
            if row.state is S.UNKNOWN and (row.lease_ends_s or 0.0) + SILENCE_S < self.now_s:
                row.state = S.LOST
                self._ended(row)
        for row in list(self.rows.values()):
            if row.state is S.OFFERED and row.created_s + LEASE_S + MARGIN_S < self.now_s:
                row.state = S.PREEMPTED
                self._ended(row)
        for node in self.nodes.values():
            node.lost = node.lost or (node.session_ends_s or LEASE_S) + SILENCE_S < self.now_s

    @invariant()
    def the_database_says_what_the_model_says(self) -> None:
        found = {a.pk: a for a in Assignment.objects.filter(pk__in=self.rows)}
        for pk, row in self.rows.items():
            assert (found[pk].state, found[pk].epoch) == (row.state, row.epoch)
            # What was wished of one that has ended depends on which of a gang's ranks the
            # reconciler met first, and means nothing.
            assert not row.live or found[pk].desired == row.desired
        for node in Node.objects.filter(pk__in=self.nodes):
            assert (node.epoch, node.state == State.LOST) == (
                self.nodes[node.pk].epoch,
                self.nodes[node.pk].lost,
            )

    @invariant()
    def slots_are_held_by_live_assignments_alone_and_once(self) -> None:
        slots = list(AssignmentSlot.objects.filter(assignment__in=self.rows))
        assert all(slot.live is self.rows[slot.assignment_id].live for slot in slots)
        held = [(slot.device_id, slot.slot) for slot in slots if slot.live]
        assert len(held) == len(set(held))

    @invariant()
    def a_job_is_launched_once_at_a_time(self) -> None:
        for job in Job.objects.filter(pk__in={row.job for row in self.rows.values()}):
            live = [row for row in self.rows.values() if row.job == job.pk and row.live]
            assert len({row.fence for row in live}) <= 1
            assert all(row.fence == job.fence for row in live)
            assert (job.state in PLACED) is bool(live)

    @invariant()
    def nothing_is_lost_before_lease_grace_and_margin_after_the_last_receipt(self) -> None:
        for row in self.rows.values():
            if row.state is S.LOST and row.last_receipt_s is not None:
                assert self.now_s > row.last_receipt_s + LEASE_S + SILENCE_S

    def _speaks(self, agent: Agent) -> bool:
        return 0 < agent.epoch == self.nodes[agent.node].epoch

    def _holds(self, agent: Agent, pk: UUID) -> bool:
        row = self.rows[pk]
        return (
            row.node == agent.node
            and row.live
            and row.state is not S.OFFERED
            and row.epoch == agent.epoch
        )

    def _refused(self, call: Any) -> Any:
        """The answer of a call, or None for a refusal; a refused call must have changed nothing
        (the invariants see to it).
        """
        try:
            return call()
        except AgentCallError as error:
            if error.status != 409:
                raise
            return None


def _run_machine(examples: int) -> None:
    quiet = list(HealthCheck)
    chosen = settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        database=None,
        suppress_health_check=quiet,
    )
    run_state_machine_as_test(ServerAndModel, settings=chosen)


@pytest.mark.django_db
def test_any_order_of_faults_leaves_the_database_as_the_model_says() -> None:
    _run_machine(15)


@pytest.mark.slow
@pytest.mark.django_db
def test_so_do_many_more_orders_of_faults() -> None:
    _run_machine(40 * EXAMPLES)
