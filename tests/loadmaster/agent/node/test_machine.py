"""Machine of an agent: its identity, and its devices, emulated and real."""

from pathlib import Path

from loadmaster.agent.node import machine
from loadmaster.agent.node.machine import EmulatedDevices, NvidiaDevices
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


class FakeNvml:
    """Two GPUs; the second has fallen off the bus and the first does not tell its temperature."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    class Answer:
        total, used, gpu = 80e9, 8e9, 93

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid == "GPU-1":
            raise self.NVMLError
        return 0

    def nvmlDeviceGetMinorNumber(self, handle: int) -> int:
        return handle + 3

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA A100-SXM4-80GB"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Answer:
        return self.Answer()

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Answer:
        return self.Answer()

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 250_000

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        raise self.NVMLError


def test_a_jobs_gpus_are_files_by_the_drivers_numbers_without_one_that_is_gone() -> None:
    devices = NvidiaDevices(FakeNvml())
    assert devices.files(a_spec(devices=("GPU-0", "GPU-1"))) == ("/dev/nvidia3",)
    assert devices.files(a_spec(devices=())) == ()


def test_real_gpus_are_measured_and_one_that_is_gone_is_unhealthy() -> None:
    devices = NvidiaDevices(FakeNvml())
    assert [(device.uuid, device.gpu_type, device.memory_gb) for device in devices.reports()] == [
        ("GPU-0", "A100-SXM4-80GB", 80.0),
        ("GPU-1", "A100-SXM4-80GB", 80.0),
    ]
    first, second = devices.samples(())
    assert (first.power_w, first.gpu_fraction, first.memory_used_gb, first.temperature_c) == (
        250.0,
        0.93,
        8.0,
        None,
    )
    assert (first.power_source, second.healthy) == ("measured", False)
    spec = a_spec(devices=("GPU-1", "GPU-0"))
    assert devices.environment(spec) == {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-0"}
