"""The default network of containers, by a real Engine: the outside, and no other job."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadmaster.agent.runtimes.docker.options import NO_METADATA, OWN_NETWORK
from tests.builders_agent import until
from tests.builders_docker import Site, a_docker_spec, an_api, python3

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

SERVER = python3(
    "import socket, time; door = socket.create_server(('', 8000)); print('up', flush=True);"
    " time.sleep(60)"
)
REACH = """
import errno, socket, sys
for place in sys.argv[1:]:
    host, port = place.rsplit(':', 1)
    try:
        socket.create_connection((host, int(port)), timeout=6).close()
        print(host, 'reached')
    except OSError as error:
        print(host, errno.errorcode.get(error.errno, 'no answer'))
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, network=OWN_NETWORK)
    yield site
    site.clear()
    remove_networks()


def remove_networks() -> None:
    with an_api() as api:
        # The Engine also finds networks whose names begin so, such as those of compose.
        for network in api.networks(names=[OWN_NETWORK]):
            if network["Name"] in (OWN_NETWORK, NO_METADATA):
                api.remove_network(network["Id"])


def test_a_job_reaches_neither_another_job_nor_a_clouds_metadata(site: Site) -> None:
    server = site.launch(a_docker_spec(command=SERVER))
    until(lambda: site.output(server) == "up\n", within_s=60)
    networks = site.inspect(server)["NetworkSettings"]["Networks"]
    assert set(networks) == {OWN_NETWORK, NO_METADATA}
    others = [f"{found['IPAddress']}:8000" for found in networks.values()]
    metadata = ["169.254.169.254:80", "169.254.170.2:80", "fd00:ec2::254:80"]
    run = site.launch(a_docker_spec(command=(*python3(REACH), *others, *metadata)))
    site.end(run)
    said = dict(line.split(" ", 1) for line in site.output(run).splitlines())
    assert len(said) == 5
    assert [said[host] for host in ("169.254.169.254", "169.254.170.2")] == ["EHOSTUNREACH"] * 2
    assert said["fd00:ec2::254"] in ("ENETUNREACH", "EADDRNOTAVAIL")
    assert all(said[place.partition(":")[0]] == "no answer" for place in others[:1])
    assert "reached" not in said.values()


def test_the_machine_itself_keeps_its_way_to_such_addresses(site: Site) -> None:
    site.end(site.launch(a_docker_spec()))
    with an_api() as api:
        (found,) = [n for n in api.networks(names=[NO_METADATA]) if n["Name"] == NO_METADATA]
    assert found["Internal"]
    assert found["Options"]["com.docker.network.bridge.inhibit_ipv4"] == "true"


def test_networks_that_were_removed_are_made_again(site: Site) -> None:
    first = site.launch(a_docker_spec())
    site.end(first)
    site.runtime.remove(first)
    until(lambda: first not in site.runtime.list(), within_s=60)
    remove_networks()
    assert site.end(site.launch(a_docker_spec())).exit_code == 0
