"""Machine of an agent: its identity, and its devices, emulated and real."""

from pathlib import Path

from loadmaster.agent.node import machine
from loadmaster.agent.node.machine import EmulatedDevices
from tests.builders_agent import a_spec, an_emulation


class TestMachine:
    def test_an_identity_stays_with_its_state_folder(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        assert machine.identity(tmp_path / "a") == machine.identity(tmp_path / "a")
        assert (
            machine.identity(tmp_path / "a").machine_id
            != machine.identity(tmp_path / "b").machine_id
        )

    def test_emulated_devices_pace_their_jobs_and_hide_real_gpus(self) -> None:
        found = EmulatedDevices(an_emulation(), "n1").environment(a_spec())
        assert found["LOADMASTER_EMULATED_STEP_S"] == "0.05"
        assert (found["CUDA_VISIBLE_DEVICES"], found["OMP_NUM_THREADS"]) == ("", "1")

    def test_cores_and_memory_are_there(self) -> None:
        assert machine.cores() >= 1
        assert machine.memory_gb() > 0.1
