"""Cores of a container change while it runs, from a round's plan to the Engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadmaster.protocol import AssignmentState
from policies.contract.plan import Placement, Plan, PlanStatus
from policies.contract.snapshot import RankPlacement
from tests.builders_agent_site import is_state
from tests.builders_docker import an_api, sh
from tests.builders_docker_site import DockerSite, a_docker_job
from tests.builders_live import a_round

pytestmark = [pytest.mark.docker, pytest.mark.django_db, pytest.mark.timeout(180)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DockerSite]:
    site = DockerSite(tmp_path)
    yield site
    site.close()


def cores_of(container: str) -> float:
    """Return the cores to which the Engine limits a container."""
    with an_api() as api:
        config = api.inspect_container(container)["HostConfig"]
    return float(config["CpuQuota"] / config["CpuPeriod"])


def test_a_plan_changes_the_cores_of_a_container_that_runs_on(site: DockerSite) -> None:
    # 1. A job of two cores runs.
    job = a_docker_job(site.cluster, command=list(sh("while :; do sleep 0.1; done")), cores=2.0)
    assignment = site.offer(0, job)
    site.until(lambda: is_state(assignment, AssignmentState.RUNNING))
    container = assignment.container
    assert cores_of(container) == 2.0

    def decide(quota: float | None) -> None:
        devices = tuple(sorted(slot.device.uuid for slot in assignment.slots.all()))
        seat = RankPlacement(str(assignment.node_id), devices, cpu_quota=quota)
        stays = Placement(str(job.pk), (seat,))
        a_round(site.cluster, lambda *_: Plan("told", PlanStatus.HEURISTIC, (stays,)))

    # 2. A plan takes most of them, and the container goes on under its fence.
    decide(0.5)
    site.until(lambda: cores_of(container) == 0.5)

    # 3. Somebody changes them behind the agent's back; a restarted agent does as the server says.
    with an_api() as api:
        api.update_container(container, cpu_period=100_000, cpu_quota=300_000)
    site.nodes[0].restart()
    site.until(lambda: cores_of(container) == 0.5)

    # 4. It has its own back.
    decide(None)
    site.until(lambda: cores_of(container) == 2.0)
    assignment.refresh_from_db()
    assert (assignment.state, assignment.container) == (AssignmentState.RUNNING, container)
