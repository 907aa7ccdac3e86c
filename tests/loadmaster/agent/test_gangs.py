"""What an agent does for a rank of a gang: its variables, its ports, what it refuses, and how it
tells of a fall.
"""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster.agent import admission
from loadmaster.agent.config import read_config
from loadmaster.agent.node import machine
from loadmaster.agent.outcome import outcome_of, standing
from loadmaster.agent.runtimes.base import Exit, Launch, RunId, StopBy
from loadmaster.agent.runtimes.docker import DockerOptions, DockerRuntime
from loadmaster.agent.runtimes.process import ProcessRuntime
from loadmaster.protocol import AssignmentState, LaunchSpec, ReasonClass
from tests.builders_agent import VirtualWorld, a_spec, an_emulation, python
from tests.builders_docker_played import PlayedEngine
from tests.builders_gangs import free_port
from tests.fake_runtime import FakeRuntime

RUN = RunId("a1", 1)


def a_rank(rank: int = 1, port: int = 29400, **changes: Any) -> LaunchSpec:
    """A rank of a gang of two."""
    given = {
        "rank": rank,
        "world_size": 2,
        "rendezvous": f"10.0.0.5:{port}",
        "gang_token": "c0ffee-c0ffee",
        "gang_gpus": 2,
    }
    return a_spec(**{**given, **changes})


def launch(spec: LaunchSpec) -> Launch:
    return Launch(RUN, spec, {}, 1.0, "boot")


class TestVariables:
    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        return admission.launch_environment(spec, Path("/c"), node={}, devices={})

    def test_a_rank_finds_the_others_by_the_usual_names(self) -> None:
        found = self.environment(a_rank(environment={"MASTER_PORT": "1", "RANK": "7"}))
        usual = (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
        )
        assert [found[name] for name in usual] == ["1", "2", "0", "1", "10.0.0.5", "29400"]
        assert (found["LOADMASTER_GANG"], found["LOADMASTER_GANG_TOKEN"]) == (
            "10.0.0.5:29401",
            "c0ffee-c0ffee",
        )
        assert (found["LOADMASTER_RANK"], found["LOADMASTER_WORLD_SIZE"]) == ("1", "2")

    def test_an_ipv6_address_has_brackets_only_where_a_port_follows(self) -> None:
        found = self.environment(a_rank(rendezvous="[fd00::5]:29400"))
        assert (found["MASTER_ADDR"], found["LOADMASTER_GANG"]) == ("fd00::5", "[fd00::5]:29401")

    def test_a_job_of_one_rank_gets_none_of_them(self) -> None:
        found = self.environment(a_spec())
        assert not {
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "MASTER_ADDR",
            "MASTER_PORT",
            "LOADMASTER_GANG",
        } & set(found)

    def test_frameworks_speak_by_the_interface_of_the_nodes_address(self) -> None:
        assert machine.sockets_of("127.0.0.1") == {
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
        }
        assert machine.sockets_of("192.0.2.77") == machine.sockets_of("") == {}

    def test_an_emulated_gang_has_the_pace_of_all_its_gpus(self) -> None:
        devices = machine.EmulatedDevices(an_emulation(step_s={"digits": {1: 0.5, 2: 0.25}}), "n1")
        assert devices.environment(a_spec())["LOADMASTER_EMULATED_STEP_S"] == "0.5"
        assert devices.environment(a_spec(gang_gpus=2))["LOADMASTER_EMULATED_STEP_S"] == "0.25"

    def test_the_token_is_in_no_log(self, tmp_path: Path) -> None:
        world = VirtualWorld(tmp_path)
        world.runtime = FakeRuntime(world.clock)
        runtime = world.runtime
        runtime.prepare(launch(a_rank()))
        runtime.plays[RUN].streams["stdout"] = b"my token is c0ffee-c0ffee\n"
        world.restart()
        assert b"c0ffee" not in world.agent._shipper._piece(
            RUN, world.agent._shipper._shipment(RUN).masker, "stdout", 0, 1000, True
        )
        world.agent.close()


class TestAddress:
    def test_it_is_the_machines_own_on_the_way_to_the_server(self) -> None:
        assert machine.address_towards("http://127.0.0.1:8000") == "127.0.0.1"
        assert machine.address_towards("https://no-such-host.invalid") == ""

    def test_an_operator_may_name_another(self) -> None:
        assert read_config({"server": "http://s"}, {}).address == ""
        assert (
            read_config({"server": "http://s"}, {"LOADMASTER_ADDRESS": "gpu-7.cluster"}).address
            == "gpu-7.cluster"
        )

    def test_the_server_is_told_at_every_session(self, tmp_path: Path) -> None:
        world = VirtualWorld(tmp_path)
        world.agent._parts = replace(world.agent._parts, address="10.0.0.5")
        world.agent.tick()
        assert world.server.sessions[-1].address == "10.0.0.5"
        world.agent.close()


class TestProcesses:
    @pytest.fixture
    def runtime(self, tmp_path: Path) -> ProcessRuntime:
        return ProcessRuntime(tmp_path)

    @pytest.mark.parametrize("listener", [0, 1])
    def test_rank_0_is_refused_where_something_else_listens_on_its_ports(
        self, runtime: ProcessRuntime, listener: int
    ) -> None:
        port = free_port()
        assert runtime.objection(launch(a_rank(0, port))) is None
        with socket.create_server(("127.0.0.1", port + listener)):
            found = runtime.objection(launch(a_rank(0, port)))
            assert runtime.objection(launch(a_rank(1, port))) is None, "only rank 0 listens there"
        assert found == (
            ReasonClass.NODE,
            f"port {port + listener}, where the gang is to meet, is taken on this machine",
        )

    @pytest.mark.parametrize("rendezvous", ["", "nowhere", "gpu-7:"])
    def test_a_rank_whose_gang_has_nowhere_to_meet_is_refused(
        self, tmp_path: Path, rendezvous: str
    ) -> None:
        world = VirtualWorld(tmp_path)
        held = world.server.offer(a_rank(rendezvous=rendezvous))
        world.pass_time(3)
        assert (held.states, held.reports[-1].reason_class) == (["rejected"], ReasonClass.NODE)
        assert "docs/agent.md" in held.reports[-1].reason
        world.agent.close()


class TestContainers:
    @pytest.fixture
    def runtime(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DockerRuntime]:
        runtime = DockerRuntime(
            tmp_path / "runs", PlayedEngine(), "me", DockerOptions(network=request.param)
        )
        yield runtime
        runtime.close()

    @pytest.mark.parametrize("runtime", ["bridge", "none", "default"], indirect=True)
    def test_in_a_network_without_names_no_rank_is_taken(self, runtime: DockerRuntime) -> None:
        found = runtime.objection(launch(a_rank(runtime="docker", image="train:1")))
        assert found is not None
        assert (found[0], "--docker network=NAME" in found[1]) == (ReasonClass.NODE, True)
        assert runtime.objection(launch(a_spec(runtime="docker", image="train:1"))) is None
        assert runtime.address("10.0.0.5") == ""

    @pytest.mark.parametrize("runtime", ["training"], indirect=True)
    def test_in_one_with_names_a_rank_is_reached_by_that_of_its_container(
        self, runtime: DockerRuntime
    ) -> None:
        assert runtime.objection(launch(a_rank(runtime="docker", image="train:1"))) is None
        assert runtime.address("10.0.0.5") == "{container}"


class TestOutcome:
    def test_a_rank_that_fell_with_its_gang_is_not_to_blame(self) -> None:
        for code in (77, 1, -6):
            found = outcome_of(
                Exit(1.0, exit_code=code), fell="rank 1 was lost before its gang had ended"
            )
            assert (found.state, found.reason_class, found.exit_code) == (
                AssignmentState.FAILED,
                ReasonClass.GANG,
                code,
            )
            assert found.reason == "rank 1 was lost before its gang had ended"

    @pytest.mark.parametrize(
        ("why", "words"),
        [
            ("term", "term was over"),
            ("", "term was over"),
            ("drain", "gang, which was to stop (drain)"),
        ],
    )
    def test_a_rank_that_left_without_an_order_of_its_own_says_for_what(
        self, why: str, words: str
    ) -> None:
        found = outcome_of(Exit(1.0, exit_code=75), saved=True, why=why)
        assert (found.state, words in found.reason) == (AssignmentState.PREEMPTED, True)

    def test_one_that_was_to_stop_anyway_is_pre_empted(self) -> None:
        found = outcome_of(
            Exit(1.0, exit_code=77, stopped_by=StopBy.PREEMPT), fell="rank 1 was lost"
        )
        assert found.state is AssignmentState.PREEMPTED

    def test_one_that_ends_well_all_the_same_has_succeeded(self) -> None:
        assert (
            outcome_of(Exit(1.0, exit_code=0), fell="rank 1 was lost").state
            is AssignmentState.SUCCEEDED
        )

    def test_the_word_is_found_among_the_last_lines(self, tmp_path: Path) -> None:
        runtime = ProcessRuntime(tmp_path)
        runtime.folder(RUN).mkdir()
        (runtime.folder(RUN) / "progress.jsonl").write_text(
            '{"at_s": 1, "event": "progress", "step": 4, "launch_steps": 4}\n{"at_s": 2, "event":'
            ' "fell", "step": 5, "launch_steps": 5, "reason": "rank 1 was lost"}\n'
        )
        found = standing(runtime, RUN)
        assert (found.step, found.left, found.fell) == (4, False, "rank 1 was lost")


def test_a_rank_in_a_process_sees_what_it_is_told(tmp_path: Path) -> None:
    names = "('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'GLOO_SOCKET_IFNAME')"
    command = python(f"import os; print(*(os.environ.get(name) for name in {names}))")
    world = VirtualWorld(tmp_path)
    agent = world.agent
    agent._executor._parts = replace(agent._executor._parts, address="127.0.0.1")
    spec = a_rank(rendezvous=f"127.0.0.1:{free_port()}", command=command)
    found = agent._executor._launch_of(spec).environment
    assert found["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in agent._executor._launch_of(a_spec()).environment
    own = agent._executor._launch_of(a_rank(environment={"GLOO_SOCKET_IFNAME": "ib0"})).environment
    assert own["GLOO_SOCKET_IFNAME"] == "ib0", "the job knows better"
    assert os.environ.get("RANK") is None
    agent.close()
