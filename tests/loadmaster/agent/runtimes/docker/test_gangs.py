"""Gangs whose ranks are containers: they find each other by name, and nothing of them is published
on the host.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.execution.services.stops import stop_assignment
from jobs.lifecycle import JobState
from jobs.models import Job
from loadmaster.protocol import AssignmentState, ReasonClass, StopReason
from tests.builders_agent_site import is_state
from tests.builders_docker import a_network, an_api, python3
from tests.builders_docker_site import LIBRARY, DockerSite, a_docker_job
from tests.builders_gangs import gang_job
from tests.builders_jobs import kept_output
from tests.builders_live import a_round

pytestmark = [pytest.mark.docker, pytest.mark.django_db, pytest.mark.timeout(240)]

STEPS = 80
SAY = "print(rank, done == list(range(len(done))), len(done))"


@pytest.fixture
def network() -> Iterator[str]:
    with a_network() as name:
        yield name


@pytest.fixture
def site(tmp_path: Path, network: str) -> Iterator[DockerSite]:
    site = DockerSite(tmp_path, network=network)
    yield site
    site.close()


def a_gang_job(site: DockerSite) -> Job:
    script = gang_job().replace("Path(sys.argv[1]).write_text(json.dumps(done))", SAY)
    command = list(python3("import sys; sys.path.insert(0, '/library')\n" + script))
    return a_docker_job(
        site.cluster, command=command, mounts=[LIBRARY], total_steps=STEPS, gpus_min=2, gpus_max=2
    )


def test_a_gang_of_containers_is_pre_empted_as_one_and_goes_on_with_its_ranks_exchanged(
    site: DockerSite,
) -> None:
    job = a_gang_job(site)
    first = site.offer_gang(0, 1, job=job)
    site.until(
        lambda: all(
            is_state(rank, AssignmentState.RUNNING) and rank.steps_done > 5 for rank in first
        )
    )
    with an_api() as api:
        for rank in first:
            found = api.inspect_container(rank.container)
            assert not found["HostConfig"]["PortBindings"]
            assert not any(found["NetworkSettings"]["Ports"].values())
    stop_assignment(first[1], StopReason.PREEMPT)
    site.until(lambda: all(is_state(rank, AssignmentState.PREEMPTED) for rank in first))
    job.refresh_from_db()
    assert ([rank.exit_code for rank in first], job.state) == ([75, 75], JobState.QUEUED)
    assert first[0].steps_done == first[1].steps_done > 5
    second = site.offer_gang(1, 0, job=job)
    site.until(lambda: all(is_state(rank, AssignmentState.SUCCEEDED) for rank in second))
    job.refresh_from_db()
    assert job.state == JobState.COMPLETED
    assert [kept_output(rank) for rank in second] == [
        f"{rank} True {STEPS}\n".encode() for rank in range(2)
    ]
    assert second[0].start_steps == first[0].steps_done


def test_a_container_that_is_killed_ends_the_gang_by_name(site: DockerSite) -> None:
    first = site.offer_gang(0, 1, job=a_gang_job(site))
    site.until(
        lambda: all(
            is_state(rank, AssignmentState.RUNNING) and rank.steps_done > 5 for rank in first
        )
    )
    with an_api() as api:
        api.kill(first[1].container)
    site.until(lambda: all(is_state(rank, AssignmentState.FAILED) for rank in first))
    assert [rank.reason_class for rank in first] == [ReasonClass.GANG, ReasonClass.NODE]
    assert first[0].reason == "rank 1 was lost before its gang had ended"
    first[0].job.refresh_from_db()
    assert (first[0].job.state, first[0].job.retries_used) == (JobState.QUEUED, 0)


def test_where_containers_have_no_names_the_gang_is_refused_with_the_remedy(tmp_path: Path) -> None:
    site = DockerSite(tmp_path)
    try:
        ranks = site.offer_gang(0, 1, job=a_gang_job(site))
        site.until(lambda: is_state(ranks[0], AssignmentState.REJECTED))
        assert ranks[0].reason_class == ReasonClass.NODE
        assert "docs/agent.md" in ranks[0].reason
    finally:
        site.close()


def test_a_job_wider_than_a_node_is_placed_on_two_nodes_and_completes(site: DockerSite) -> None:
    job = a_gang_job(site)
    Job.objects.filter(pk=job.pk).update(gpus_min=3, gpus_max=3)
    site.until(lambda: all(node.agent.is_idle for node in site.nodes))
    row = a_round(site.cluster)
    assert (row.status, row.rejected) == ("applied", [])
    lead, member = job.assignments.order_by("rank")
    assert lead.node_id != member.node_id
    assert lead.gpus + member.gpus == 3
    assert lead.predicted_steps_per_s is not None

    site.until(lambda: all(is_state(rank, AssignmentState.SUCCEEDED) for rank in (lead, member)))
    job.refresh_from_db()
    assert job.state == JobState.COMPLETED
    assert [kept_output(rank) for rank in (lead, member)] == [
        f"{rank} True {STEPS}\n".encode() for rank in range(2)
    ]
