"""Silence is a duration: wall clocks that jump, or that differ between machines, lose nothing."""

from datetime import datetime, timedelta

import pytest
from django.core.cache import cache, caches
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import RedisError

from clusters.agent_errors import AgentCallError
from clusters.models import Node
from clusters.models.nodes import State
from controlplane.execution.reconciler import reconcile_clusters
from controlplane.execution.services.sessions import open_session
from controlplane.web.storage.watch import Watch
from jobs.models import Assignment, Job
from loadmaster.protocol import AssignmentState
from tests.builders_agents import (
    CLOCK,
    LONG_AGO,
    a_heartbeat,
    a_node_with_agent,
    a_running_assignment,
    a_session_request,
    an_offer,
    heartbeat,
)
from tests.builders_clocks import Machine

S = AssignmentState
pytestmark = pytest.mark.django_db

PASS_S = 5.0
SILENCE_S = CLOCK["lease_s"] + CLOCK["grace_s"] + CLOCK["margin_s"]
JUMPS_S = [-3600.0, -60.0, -20.0, 20.0, 60.0, 3600.0]


def _at(seconds: float) -> datetime:
    return LONG_AGO + timedelta(seconds=seconds)


class Site:
    """A node with a running job, a server whose wall clock is `ahead_s` of its boot clock."""

    def __init__(self) -> None:
        self.here, self.ahead_s, self.seq = Machine(now_s=0.0), 0.0, 0
        self.node = a_node_with_agent(now=_at(0), gpus=2)
        self.run = a_running_assignment(self.node, now=_at(0))

    @property
    def wall(self) -> datetime:
        return _at(self.here.now_s + self.ahead_s)

    def go_on(self, seconds: float, *, beats: bool = True, watch: Watch | None = None) -> None:
        """Let time pass with a reconciler at work and heartbeats, or none."""
        for _ in range(int(seconds / PASS_S)):
            self.here.now_s += PASS_S
            if beats and self.here.now_s % CLOCK["heartbeat_s"] == 0:
                self.beat()
            reconcile_clusters(self.wall, watch or self.here.watch)

    def beat(self) -> None:
        self.seq += 1
        self.run.refresh_from_db()
        heartbeat(self.node.pk, a_heartbeat(self.run, seq=self.seq), self.wall)

    @property
    def states(self) -> tuple[str, str, str]:
        return (
            Node.objects.get().state,
            Assignment.objects.get(pk=self.run.pk).state,
            Job.objects.get(pk=self.run.job_id).state,
        )


WELL = (State.READY, S.RUNNING, "running")
GONE = (State.LOST, S.LOST, "queued")


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_jump_of_the_servers_clock_loses_nothing_of_nodes_that_beat(jump_s: float) -> None:
    site = Site()
    site.go_on(20)
    offer = an_offer(site.node, now=site.wall)
    site.ahead_s += jump_s
    site.go_on(40)
    assert site.states == WELL
    offer.refresh_from_db()
    assert offer.state == S.OFFERED, "nobody has had the time to take it yet"
    site.ahead_s -= jump_s
    site.go_on(20)
    assert site.states == WELL
    assert not site.node.events.filter(event="lost").exists()


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_jump_delays_the_end_of_a_silent_node_by_a_heartbeat_at_most(jump_s: float) -> None:
    site = Site()
    site.go_on(20)
    site.ahead_s += jump_s
    site.go_on(SILENCE_S - PASS_S, beats=False)
    assert site.states == (State.READY, S.UNKNOWN, "running")
    site.go_on(CLOCK["heartbeat_s"] + 3 * PASS_S, beats=False)
    assert site.states == GONE


@pytest.mark.parametrize("ahead_s", JUMPS_S)
def test_a_worker_whose_clock_differs_from_webs_loses_nothing(ahead_s: float) -> None:
    site = Site()
    for _ in range(20):
        site.here.now_s += CLOCK["heartbeat_s"]
        site.beat()
        reconcile_clusters(site.wall + timedelta(seconds=ahead_s), site.here.watch)
    assert site.states == WELL
    assert Node.objects.get().session_expires_at is not None


def test_a_clock_that_drifts_by_a_twentieth_changes_nothing() -> None:
    site = Site()
    for _ in range(30):
        site.ahead_s += 0.5
        site.go_on(10)
    assert site.states == WELL
    site.go_on(SILENCE_S + 20, beats=False)
    assert site.states == GONE


def test_a_reconciler_on_another_machine_counts_from_what_it_has_seen_itself() -> None:
    site, there = Site(), Machine("b", 77.0)
    site.go_on(20)
    site.go_on(SILENCE_S - 10, beats=False)
    reconcile_clusters(site.wall, there.watch)
    assert site.states[1] == S.UNKNOWN
    reconcile_clusters(site.wall, there.after(SILENCE_S))
    assert site.states[1] == S.UNKNOWN, "just as long is not longer"
    reconcile_clusters(site.wall, there.after(1))
    assert site.states == GONE


def test_a_worker_that_takes_over_on_the_same_machine_goes_on_counting() -> None:
    site = Site()
    site.go_on(20)
    site.go_on(SILENCE_S - 10, beats=False)
    successor = Machine(site.here.name, site.here.now_s)
    for _ in range(15):
        reconcile_clusters(site.wall, successor.after(PASS_S))
    assert site.states == GONE


def test_a_machine_that_has_rebooted_begins_to_count_anew() -> None:
    site = Site()
    site.go_on(SILENCE_S - 10, beats=False)
    rebooted = Machine("rebooted", 0.0)
    for _ in range(int(SILENCE_S / PASS_S)):
        reconcile_clusters(site.wall, rebooted.after(PASS_S))
    assert site.states == (State.READY, S.UNKNOWN, "running")


def test_nothing_is_lost_for_a_whole_period_after_counting_began_anew() -> None:
    site = Site()
    site.go_on(SILENCE_S, beats=False)
    site.here.watch.start_anew()
    site.go_on(SILENCE_S, beats=False)
    assert site.states == (State.READY, S.UNKNOWN, "running")
    site.go_on(2 * PASS_S, beats=False)
    assert site.states == GONE


def test_without_a_cache_nobody_counts_as_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()

    def away(*_: object, **__: object) -> None:
        raise RedisError("away")

    monkeypatch.setattr(type(caches["default"]), "get_many", away)
    site.go_on(3 * SILENCE_S, beats=False)
    assert site.states == WELL


def test_a_heartbeat_between_look_and_deed_keeps_what_it_renewed() -> None:
    """The row was still as the pass began; under its lock it is not."""
    site = Site()

    class Beating(Watch):
        def still_s(self, stamps: object) -> dict[str, float]:
            found = dict.fromkeys(stamps, 10 * SILENCE_S)  # type: ignore[call-overload]  # of names
            site.here.now_s += 1.0
            site.beat()
            return found  # type: ignore[no-any-return]  # as above

    site.here.now_s += 30.0
    reconcile_clusters(site.wall, Beating())
    assert site.states == WELL
    assert Node.objects.get().session_expires_at is not None


def test_the_lease_that_was_given_counts_when_the_clusters_is_shortened() -> None:
    site = Site()
    site.go_on(20)
    site.node.cluster.lease_s = 20.0
    site.node.cluster.save(update_fields=["lease_s"])
    site.go_on(SILENCE_S - PASS_S, beats=False)
    assert site.states[1] == S.UNKNOWN
    site.go_on(20, beats=False)
    assert site.states[1] == S.LOST


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_stranger_gets_a_session_after_silence_and_by_no_clock(jump_s: float) -> None:
    site = Site()
    site.go_on(20)
    site.ahead_s += jump_s
    stranger = a_session_request(site.node, "another secret")
    with pytest.raises(AgentCallError, match="it ends after 60 s of silence"):
        open_session(site.node.pk, stranger, site.wall)
    site.go_on(CLOCK["lease_s"] + 20, beats=False)
    assert open_session(site.node.pk, stranger, site.wall).epoch == 2


def test_a_pass_costs_the_same_statements_however_many_nodes_are_silent() -> None:
    site, costs = Site(), []
    for number in range(2):
        a_node_with_agent(site.node.cluster, token=f"token {number}", now=_at(0))
        with CaptureQueriesContext(connection) as queries:
            reconcile_clusters(_at(30), site.here.watch)
        costs.append(len(queries))
    assert costs[0] == costs[1] <= 14


STEP = st.tuples(
    st.sampled_from([2.0, 10.0, 30.0]),
    st.sampled_from([0.0, 0.0, 0.0, *JUMPS_S]),
    st.sampled_from([0.0, 0.0, *JUMPS_S]),
    st.booleans(),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(STEP, min_size=5, max_size=30))
def test_no_order_of_jumps_loses_what_was_heard_within_its_time(
    steps: list[tuple[float, float, float, bool]],
) -> None:
    """(seconds, jump of web's clock, lead of the worker's, whether a heartbeat comes)."""
    with transaction.atomic():
        cache.clear()
        site, heard_s = Site(), 0.0
        for seconds, jump_s, lead_s, beats in steps:
            site.here.now_s += seconds
            site.ahead_s += jump_s
            if beats and site.states[1] != S.LOST:
                site.beat()
                heard_s = site.here.now_s
            reconcile_clusters(site.wall + timedelta(seconds=lead_s), site.here.watch)
            silent_s = site.here.now_s - heard_s
            assert silent_s > SILENCE_S or site.states[:2] != (State.LOST, S.LOST)
            assert silent_s > SILENCE_S or S.LOST not in site.states
        transaction.set_rollback(True)
