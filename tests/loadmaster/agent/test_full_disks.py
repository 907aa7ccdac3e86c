"""An agent whose state folder is on a disk that is really full: its jobs go on and are not failed,
what cannot be prepared is rejected, and it takes work again once there is room.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters.models import Node
from clusters.models.nodes import State
from controlplane.execution.services.heartbeats import NO_ROOM
from jobs.lifecycle import JobState
from loadmaster.agent.guarding import guard_orders
from loadmaster.agent.node.machine import boot_id
from loadmaster.agent.runtimes.base import Launch, LaunchError, RunId
from loadmaster.agent.runtimes.process import ProcessRuntime
from loadmaster.protocol import AssignmentState, ReasonClass
from tests.builders import a_job
from tests.builders_agent import a_spec, python, until
from tests.builders_agent_site import NodeSite, a_site_cluster, is_state
from tests.builders_agents import an_offer
from tests.builders_disks import SmallDisk, small_disk
from tests.builders_jobs import kept_output

pytestmark = [pytest.mark.django_db, pytest.mark.root]

TALKATIVE = python(
    "import sys, time, loadmaster.training as training\n"
    "def save(path): path.write_bytes(b'x' * 100000)\n"
    "for step in training.steps(range(1000), save=save, load=lambda path: None):\n"
    "    print('step', step, 'x' * 5000, flush=True)\n"
    "    print('to stderr', file=sys.stderr)\n"
    "    time.sleep(0.05)\n"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, 32) as disk:
        yield disk


@pytest.fixture
def site(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeSite]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setenv("LOADMASTER_CHECKPOINT_EVERY_S", "0.2")
    site = NodeSite(a_site_cluster(), disk.folder / "agent")
    yield site
    site.leave()


@pytest.fixture(autouse=True)
def least_room(settings: object) -> None:
    settings.NODE_LEAST_FREE_GB = 0.012  # type: ignore[attr-defined]


def test_a_training_job_that_prints_and_saves_completes_although_the_disk_is_full(
    site: NodeSite, disk: SmallDisk
) -> None:
    job = a_job(site.cluster, command=list(TALKATIVE), total_steps=100)
    held = an_offer(site.node, job)
    until(lambda: is_state(held, AssignmentState.RUNNING) and held.steps_done > 5, site.agent)
    disk.fill()
    until(lambda: is_state(held, AssignmentState.SUCCEEDED), site.agent)
    job.refresh_from_db()
    assert job.state == JobState.COMPLETED
    assert b"step 5 " in kept_output(held)


def test_a_log_says_how_much_of_the_output_found_no_room(site: NodeSite, disk: SmallDisk) -> None:
    held = an_offer(site.node, a_job(site.cluster, command=list(TALKATIVE), total_steps=100))
    until(lambda: is_state(held, AssignmentState.RUNNING) and held.steps_done > 5, site.agent)
    disk.fill()
    ends_s = time.monotonic() + 1.0
    until(lambda: time.monotonic() > ends_s, site.agent)
    disk.make_room()
    until(lambda: is_state(held, AssignmentState.SUCCEEDED) and site.agent.is_idle, site.agent)
    assert b"bytes found no room on the node's disk]" in kept_output(held)


def test_what_a_full_disk_cannot_prepare_is_rejected_and_the_node_takes_nothing_until_there_is_room(
    site: NodeSite, disk: SmallDisk
) -> None:
    disk.fill()
    job = a_job(site.cluster, command=list(python("print('hello')")), total_steps=1)
    held = an_offer(site.node, job)
    until(lambda: is_state(held, AssignmentState.REJECTED), site.agent)
    job.refresh_from_db()
    assert held.reason_class == ReasonClass.NODE
    assert "No space left" in held.reason
    assert job.state == JobState.QUEUED
    node = Node.objects.get()
    assert (node.state, node.reason) == (State.CORDONED, NO_ROOM)
    assert (node.disk_free_gb or 0.0) < 0.012
    disk.make_room()
    until(lambda: Node.objects.get().state == State.READY, site.agent)
    again = an_offer(site.node, job)
    until(lambda: is_state(again, AssignmentState.SUCCEEDED), site.agent)


def test_an_agent_that_starts_anew_on_a_full_disk_adopts_what_runs(
    site: NodeSite, disk: SmallDisk
) -> None:
    held = an_offer(site.node, a_job(site.cluster, command=list(TALKATIVE), total_steps=100))
    until(lambda: is_state(held, AssignmentState.RUNNING) and held.steps_done > 5, site.agent)
    disk.fill()
    site.restart()
    until(lambda: is_state(held, AssignmentState.SUCCEEDED), site.agent)


def test_a_guard_that_finds_no_room_for_its_lease_says_so(disk: SmallDisk) -> None:
    runtime = ProcessRuntime(disk.folder / "runs")
    launch = Launch(RunId("a1", 1), a_spec(), {}, 1.0, boot_id())
    runtime.prepare(launch)
    disk.fill()
    with pytest.raises(
        LaunchError, match=r"the guard cannot be started: .*No space left on device"
    ):
        runtime.start(launch.run, guard_orders.boot_s() + 60.0)
    runtime.close()


def test_a_launch_that_finds_no_room_is_the_nodes_fault(
    site: NodeSite, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(site.cluster, command=list(python("print('hello')")), total_steps=1)
    held = an_offer(site.node, job)
    start = site.runtime.start

    def start_on_a_full_disk(run: RunId, lease_until_s: float) -> None:
        disk.fill()
        start(run, lease_until_s)

    monkeypatch.setattr(site.runtime, "start", start_on_a_full_disk)
    until(lambda: is_state(held, AssignmentState.FAILED), site.agent)
    assert held.reason_class == ReasonClass.NODE
    assert "No space left on device" in held.reason
    job.refresh_from_db()
    assert (job.state, job.attempts.count()) == (JobState.QUEUED, 1)
