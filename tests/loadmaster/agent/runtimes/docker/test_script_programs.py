"""Programs beside a script in a container ask the server over the Engine's network."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django.live_server_helper import LiveServer

from loadmaster.agent.runtimes.docker import DockerEngine, DockerOptions, DockerRuntime
from loadmaster.protocol import AssignmentState
from tests.builders import a_team, a_user
from tests.builders_agent import until
from tests.builders_agent_site import NodeSite, a_site_cluster, is_state, serialized
from tests.builders_agents import an_offer
from tests.builders_docker import an_api, clear_containers
from tests.builders_docker_site import a_docker_job
from tests.builders_jobs import kept_output

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

OWNER = "test-script-programs"


@pytest.fixture
def server(transactional_db: None) -> Iterator[LiveServer]:
    """The server at the host's address in the Engine's own network, which containers reach."""
    with an_api() as api:
        (network,) = api.inspect_network("bridge")["IPAM"]["Config"]
    server = LiveServer(network["Gateway"])
    server._live_server_modified_settings.enable()
    with serialized(server):
        yield server
    server._live_server_modified_settings.disable()
    server.stop()


@pytest.fixture
def site(server: LiveServer, tmp_path: Path) -> Iterator[NodeSite]:
    def runtime(state_dir: Path) -> DockerRuntime:
        access = {"url": server.url, "ca": "", "insecure": False}
        options = DockerOptions(network="bridge", pull="missing")
        return DockerRuntime(state_dir / "runs", DockerEngine(), OWNER, options, server=access)

    site = NodeSite(a_site_cluster(), tmp_path / "node", runtime=runtime)
    yield site
    site.leave()
    clear_containers(OWNER)


def test_a_script_in_a_container_finds_itself_and_cancels_another(site: NodeSite) -> None:
    team = a_team("research")
    ada = a_user("ada", team=team)
    other = a_docker_job(site.cluster, user=ada, team=team, number=8, state="held", batch=True)
    job = a_docker_job(
        site.cluster,
        user=ada,
        team=team,
        name="mine",
        number=7,
        script='#!/bin/sh\nsqueue -h -j "$SLURM_JOB_ID" -o "%i %j"\nscancel 8\n',
        command=[],
        batch=True,
        max_retries=0,
        gpus_min=0,
        gpus_max=0,
    )
    launch = an_offer(site.node, job, gpus=0)
    ends = (AssignmentState.FAILED, AssignmentState.SUCCEEDED, AssignmentState.CANCELLED)
    until(lambda: any(is_state(launch, end) for end in ends), site.agent, within_s=120.0)
    until(lambda: site.agent.is_idle, site.agent)

    assert kept_output(launch, "stderr") == b""
    assert kept_output(launch) == b"7 mine\n"
    other.refresh_from_db()
    assert other.state == "cancelled"
