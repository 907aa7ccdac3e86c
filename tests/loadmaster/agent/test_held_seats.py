"""A held seat in the agent: no process, resources kept under a lease, through restarts."""

from dataclasses import replace
from pathlib import Path

import pytest

from loadmaster.agent import admission
from loadmaster.agent.held import status_of
from loadmaster.agent.journal import Entry
from loadmaster.agent.runtimes.base import RunState, StopBy
from loadmaster.protocol import (
    AssignmentState,
    Directive,
    DirectiveAction,
    Host,
    LaunchSpec,
    ReasonClass,
    StopReason,
)
from tests.builders_agent import VirtualWorld, a_spec

HOSTS = (Host("n1", "10.0.0.1", 2), Host("n2", "", 1))
SEAT = Entry("a1", 1, AssignmentState.RUNNING, launched=True, boot_id="boot", held=True)


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    return VirtualWorld(tmp_path, lease_s=10.0, heartbeat_s=2.0)


def a_held_spec() -> LaunchSpec:
    return a_spec(held=True, rank=1, hosts=HOSTS)


class TestStatus:
    """State of it by the journal, the lease and the time."""

    @pytest.mark.parametrize("lease_until_s", [None, 10.1])
    def test_it_runs_until_its_lease_ends(self, lease_until_s: float | None) -> None:
        assert status_of(SEAT, "boot", lease_until_s, 10.0, 0.0).state is RunState.RUNNING

    @pytest.mark.parametrize(
        ("seat", "boot_id", "lease_until_s", "by"),
        [
            (replace(SEAT, stop=StopBy.PREEMPT), "boot", 20.0, StopBy.PREEMPT),
            (replace(SEAT, stop=StopBy.CANCEL), "another", 5.0, StopBy.CANCEL),
            (SEAT, "another", 20.0, None),
            (SEAT, "boot", 10.0, StopBy.LEASE),
        ],
    )
    def test_it_ends_with_its_reason(
        self, seat: Entry, boot_id: str, lease_until_s: float, by: StopBy | None
    ) -> None:
        ended = status_of(seat, boot_id, lease_until_s, 10.0, 77.0).exit
        assert ended is not None
        assert (ended.stopped_by, ended.started, ended.ended_at_s) == (by, False, 77.0)
        assert ended.error

    def test_it_waits_for_its_first_lease(self) -> None:
        seat = replace(SEAT, launched=False)
        assert status_of(seat, "boot", None, 10.0, 0.0).state is RunState.PREPARED


def test_nothing_runs_and_the_seat_is_kept_until_the_server_asks_for_it(
    world: VirtualWorld,
) -> None:
    held = world.server.offer(a_held_spec())
    world.pass_time(60)
    assert held.states == ["running"]
    assert (world.runtime.launches, world.runtime.list()) == ([], ())
    world.server.stop("a1", StopReason.PREEMPT)
    world.pass_time(5)
    assert held.states == ["running", "stopping", "preempted"]
    assert held.reports[-1].reason == "the seat was given back"
    assert world.agent.is_idle


def test_it_survives_an_agent_that_is_killed(world: VirtualWorld) -> None:
    held = world.server.offer(a_held_spec())
    world.pass_time(5)
    world.restart()
    world.pass_time(30)
    assert held.states == ["running"]
    world.server.stop("a1", StopReason.CANCEL)
    world.pass_time(5)
    assert held.states[-1] == "cancelled"


def test_it_is_given_up_where_the_server_is_silent_for_longer_than_the_lease(
    world: VirtualWorld,
) -> None:
    held = world.server.offer(a_held_spec())
    world.pass_time(5)
    world.server.down = True
    world.pass_time(5)
    (entry,) = world.agent._journal.entries.values()
    assert entry.state is AssignmentState.RUNNING
    world.pass_time(20)
    assert world.agent._journal.entries["a1"].state is AssignmentState.FAILED
    world.server.down = False
    world.pass_time(20)
    assert (held.states[-1], held.reports[-1].reason_class) == ("failed", ReasonClass.LEASE)


def test_a_machine_that_was_restarted_has_lost_it(world: VirtualWorld) -> None:
    held = world.server.offer(a_held_spec())
    world.pass_time(5)
    (entry,) = world.agent._journal.entries.values()
    world.agent._journal.put(replace(entry, boot_id="the boot before"))
    world.pass_time(5)
    assert (held.states[-1], held.reports[-1].reason_class) == ("failed", ReasonClass.NODE)


def test_its_devices_are_held(world: VirtualWorld) -> None:
    device = world.agent._parts.devices.reports()[0].uuid
    world.server.offer(replace(a_held_spec(), devices=(device,)))
    world.pass_time(5)
    other = world.server.offer(a_spec(assignment="a2", job="j2", devices=(device,)))
    world.pass_time(5)
    assert other.states == ["rejected"]
    assert "still held by assignment a1" in other.reports[-1].reason


def test_a_new_term_needs_no_run(world: VirtualWorld) -> None:
    held = world.server.offer(a_held_spec())
    world.pass_time(5)
    news = Directive("a1", 1, DirectiveAction.UPDATE, term_until_s=5000.0)
    world.agent.session.receive((news,), 1)
    world.agent.tick()
    assert world.agent._journal.entries["a1"].term_until_s == 5000.0
    assert held.states[-1] == "running"


class TestVariables:
    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        return admission.launch_environment(spec, Path("/c"), node={}, devices={})

    def test_a_batch_job_finds_its_nodes_and_its_own_seat(self) -> None:
        found = self.environment(a_spec(rank=1, hosts=HOSTS))
        assert found["LOADMASTER_HOSTS"] == "n1,n2"
        assert found["LOADMASTER_HOST_ADDRESSES"] == "10.0.0.1,n2"
        assert (found["LOADMASTER_HOST_UNITS"], found["LOADMASTER_UNITS"]) == ("2,1", "3")
        assert found["LOADMASTER_SEAT"] == "1"

    def test_its_seat_is_no_rank_of_a_gang(self) -> None:
        found = self.environment(a_spec(rank=1, hosts=HOSTS))
        assert (found["LOADMASTER_RANK"], found["LOADMASTER_WORLD_SIZE"]) == ("0", "1")
        assert not {"RANK", "WORLD_SIZE", "LOADMASTER_GANG"} & set(found)

    def test_other_jobs_are_told_of_no_hosts(self) -> None:
        assert not [name for name in self.environment(a_spec()) if "HOST" in name]
