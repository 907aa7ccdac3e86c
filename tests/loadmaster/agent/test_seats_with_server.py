"""A batch job on two nodes: real rounds, real agents and real processes."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.utils import timezone

from clusters.models import Node
from controlplane.loop.live.observe import observe
from jobs.lifecycle import JobState
from jobs.models import Assignment, Job
from jobs.services import job_cancel
from loadmaster.protocol import AssignmentState, ReasonClass
from tests.builders import a_job
from tests.builders_agent import python, until
from tests.builders_agent_site import NodeSite, a_site_cluster
from tests.builders_agents import reconcile_clusters
from tests.builders_jobs import kept_output
from tests.builders_live import a_round

pytestmark = pytest.mark.django_db
S = AssignmentState

TELLS = python(
    "import os\n"
    "names = ('SEAT', 'HOSTS', 'HOST_ADDRESSES', 'HOST_UNITS', 'UNITS', 'WORLD_SIZE')\n"
    "print(*(os.environ['LOADMASTER_' + name] for name in names))\n"
)
SLEEPS = python("import time; time.sleep(60)")


class Site:
    """Two nodes of one cluster, with 16 and with 8 cores, and their agents."""

    def __init__(self, folder: Path) -> None:
        self.cluster = a_site_cluster()
        self.cluster.grace_s = 2.0  # so that a process that is pre-empted ends soon
        self.cluster.save(update_fields=["grace_s"])
        self.nodes = [NodeSite(self.cluster, folder / name, name) for name in ("n1", "n2")]
        for site, cores in zip(self.nodes, (16.0, 8.0), strict=True):
            Node.objects.filter(pk=site.node.pk).update(cores=cores, memory_gb=16.0)
        self.until(lambda: not Node.objects.filter(session_expires_at=None).exists())

    def launch(self, command: tuple[str, ...], **values: Any) -> list[Assignment]:
        """The seats on which a round puts a batch job of three units."""
        given = {"units": 3, "cores": 8.0, "memory_gb": 2.0, "gpus_min": 0, "gpus_max": 0}
        job = a_job(
            self.cluster, command=list(command), batch=True, preemptible=False,
            **{**given, "max_retries": 0, **values},
        )  # fmt: skip
        a_round(self.cluster)
        return list(job.assignments.order_by("rank"))

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds, ticking both agents."""

        def tick() -> object:
            for node in self.nodes:
                node.agent.tick()
            return holds()

        until(tick, within_s=30.0)

    def run(self, seats: list[Assignment]) -> None:
        self.until(lambda: states(seats) == [S.RUNNING] * len(seats))

    def end(self, seats: list[Assignment], state: JobState) -> Job:
        self.until(lambda: job_of(seats).state == state)
        self.until(lambda: all(node.agent.is_idle for node in self.nodes))
        return job_of(seats)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    site = Site(tmp_path)
    yield site
    for node in site.nodes:
        node.leave()


def states(seats: list[Assignment]) -> list[str]:
    rows = Assignment.objects.filter(pk__in=[seat.pk for seat in seats]).order_by("rank")
    return list(rows.values_list("state", flat=True))


def job_of(seats: list[Assignment]) -> Job:
    return Job.objects.get(pk=seats[0].job_id)


def printed(seat: Assignment) -> str:
    return kept_output(seat).decode()


def has_process(seat: Assignment) -> bool:
    """Return True if a process with the seat's run folder is alive."""
    name = f"lm-{seat.pk}-{seat.fence}"
    for process in psutil.process_iter(["environ"]):
        if name in ((process.info["environ"] or {}).get("LOADMASTER_RUN_DIR") or ""):
            return True
    return False


def test_two_units_and_one_on_nodes_of_16_and_8_cores_are_planned_and_carried_out(
    site: Site,
) -> None:
    seats = site.launch(TELLS)
    assert {seat.node.name: seat.units for seat in seats} == {"n1": 2, "n2": 1}
    view = observe(site.cluster.pk, timezone.now().timestamp(), 1).snapshot.jobs[0]
    assert view.units == 3
    assert [seat.units for seat in view.running[0].ranks] == [seat.units for seat in seats]
    site.end(seats, JobState.COMPLETED)
    names = ",".join(seat.node.name for seat in seats)
    units = ",".join(str(seat.units) for seat in seats)
    assert printed(seats[0]) == f"0 {names} 127.0.0.1,127.0.0.1 {units} 3 1\n"
    assert printed(seats[1]) == ""
    assert states(seats) == [S.SUCCEEDED, S.PREEMPTED]


def test_the_command_runs_on_each_seat_where_the_job_says_so(site: Site) -> None:
    seats = site.launch(TELLS, processes="each")
    site.end(seats, JobState.COMPLETED)
    assert [printed(seat)[0] for seat in seats] == ["0", "1"]
    assert states(seats) == [S.SUCCEEDED, S.SUCCEEDED]


def test_one_of_each_that_fails_fails_the_job_and_ends_the_other(site: Site) -> None:
    fails = python(
        "import os, sys, time\n"
        "if os.environ['LOADMASTER_SEAT'] == '1': sys.exit(3)\n"
        "time.sleep(60)\n"
    )
    seats = site.launch(fails, processes="each")
    job = site.end(seats, JobState.FAILED)
    assert "exit code 3" in job.failure_reason
    assert not has_process(seats[0])


def test_only_the_first_seat_has_a_process_and_the_others_keep_their_cores(site: Site) -> None:
    seats = site.launch(SLEEPS)
    site.run(seats)
    site.until(lambda: has_process(seats[0]))  # its guard is started first
    assert not has_process(seats[1])
    other = a_job(site.cluster, batch=True, cores=8.0, gpus_min=0, gpus_max=0)
    a_round(site.cluster)
    assert not other.assignments.exists(), "all cores are held"
    job_cancel(job_of(seats), job_of(seats).user)
    site.end(seats, JobState.CANCELLED)
    assert states(seats) == [S.CANCELLED, S.CANCELLED]
    assert not has_process(seats[0])
    a_round(site.cluster)
    assert other.assignments.exists()
    job_cancel(other, other.user)


def test_a_walltime_that_is_over_ends_all_seats(site: Site) -> None:
    seats = site.launch(SLEEPS, walltime_s=1.5, on_walltime="kill")
    job = site.end(seats, JobState.FAILED)
    assert "it ran for its whole walltime and was ended" in job.failure_reason
    assert states(seats) == [S.FAILED, S.PREEMPTED]


def test_a_deadline_that_comes_ends_all_seats(site: Site) -> None:
    seats = site.launch(SLEEPS, deadline_at=timezone.now() + timedelta(seconds=3))
    job = site.end(seats, JobState.FAILED)
    assert "its deadline came while it ran" in job.failure_reason


def test_agents_that_are_restarted_keep_process_and_held_seat(site: Site) -> None:
    seats = site.launch(python("import time; time.sleep(3); print('done')"))
    site.run(seats)
    for node in site.nodes:
        node.restart()
    site.end(seats, JobState.COMPLETED)
    assert printed(seats[0]) == "done\n"


def test_a_held_seat_whose_node_is_lost_ends_the_process_and_the_job_waits_again(
    site: Site,
) -> None:
    seats = site.launch(SLEEPS)
    site.run(seats)
    first = next(node for node in site.nodes if node.name == seats[0].node.name)
    long_ago = timezone.now() - timedelta(days=1)
    Assignment.objects.filter(pk=seats[1].pk).update(renewed_at=long_ago, lease_expires_at=long_ago)
    reconcile_clusters()
    reconcile_clusters()
    until(lambda: states(seats)[0] == S.PREEMPTED, first.agent)
    job = job_of(seats)
    assert (states(seats)[1], job.state, job.retries_used) == (S.LOST, JobState.QUEUED, 0)
    assert not has_process(seats[0])
    seat = Assignment.objects.get(pk=seats[1].pk)
    assert seat.reason_class == ReasonClass.LEASE
    site.until(lambda: all(node.agent.is_idle for node in site.nodes))


def test_a_drained_node_ends_all_seats_of_a_job_that_may_be_stopped(site: Site) -> None:
    seats = site.launch(SLEEPS)
    site.run(seats)
    drained = Node.objects.filter(pk=seats[1].node_id)
    drained.update(state="draining", drain_until=timezone.now())
    reconcile_clusters()
    site.until(lambda: states(seats) == [S.PREEMPTED, S.PREEMPTED])
    assert job_of(seats).state == JobState.QUEUED
