"""GPUs through NVML: one that fails leaves the others in use, and says why in NVML's words."""

from pathlib import Path

import pytest

from loadmaster.agent.node import machine, nvidia
from loadmaster.agent.node.nvidia import MixedTypesError, NvidiaDevices
from loadmaster.protocol import DeviceSample
from tests.builders_agent import a_spec
from tests.builders_nvml import (
    LOST,
    MISMATCH,
    NOT_SUPPORTED,
    PER_GPU,
    UNKNOWN,
    Event,
    FakeGpu,
    FakeNvml,
    two_gpus,
)

ABOUT_HEALTH = [name for name in PER_GPU if "Mig" not in name and "Minor" not in name]


class Site:
    """Devices of a stand-in, and a clock that a test moves."""

    def __init__(self, nvml: FakeNvml, path: Path | None = None, gpu_type: str = "") -> None:
        self.nvml, self.now_s = nvml, 0.0
        self.devices = NvidiaDevices(
            nvml, known_path=path, gpu_type=gpu_type, clock_s=lambda: self.now_s
        )

    def later(self, seconds: float = 60.0) -> tuple[DeviceSample, ...]:
        """The samples after some time."""
        self.now_s += seconds
        return self.devices.samples(())

    def health(self, seconds: float = 60.0) -> dict[str, str]:
        """Troubles of the unhealthy devices after some time."""
        return {s.uuid: s.trouble for s in self.later(seconds) if not s.healthy}


def test_healthy_gpus_tell_type_memory_use_and_watts() -> None:
    site = Site(two_gpus())
    assert [(d.uuid, d.gpu_type, d.memory_gb) for d in site.devices.reports()] == [
        ("GPU-0", "A100-SXM4-80GB", 80.0),
        ("GPU-1", "A100-SXM4-80GB", 80.0),
    ]
    sample = site.later()[0]
    assert (sample.power_w, sample.gpu_fraction, sample.memory_used_gb) == (250.0, 0.93, 8.0)
    assert (sample.healthy, sample.trouble, sample.temperature_c) == (True, "", 61.0)
    assert site.devices.trouble == ""


@pytest.mark.parametrize("code", [NOT_SUPPORTED, LOST, UNKNOWN])
@pytest.mark.parametrize("name", PER_GPU)
def test_any_failing_call_of_one_gpu_leaves_the_other_usable(name: str, code: int) -> None:
    nvml = two_gpus()
    nvml.gpus[1].fails[name] = code
    at_start = Site(nvml)
    reports = {report.uuid: report for report in at_start.devices.reports()}
    assert len(reports) == 2
    assert reports["GPU-0"].healthy
    assert at_start.later()[0].healthy

    nvml.gpus[1].fails.clear()
    later = Site(nvml)
    nvml.gpus[1].fails[name] = code
    assert "GPU-0" not in later.health()
    nvml.gpus[1].fails.clear()
    assert later.health() == {}


@pytest.mark.parametrize("name", ABOUT_HEALTH)
def test_a_lost_gpu_is_unhealthy_with_nvmls_words(name: str) -> None:
    if name == "nvmlDeviceRegisterEvents":
        return  # asked once, and told by every other call
    nvml = two_gpus()
    site = Site(nvml)
    nvml.gpus[1].fails[name] = LOST
    troubles = site.health()
    assert list(troubles) == ["GPU-1"]
    assert "GPU is lost" in troubles["GPU-1"]


def test_a_gpu_lost_before_the_start_is_named_by_its_index() -> None:
    nvml = two_gpus()
    nvml.gpus[1].fails["nvmlDeviceGetHandleByIndex"] = LOST
    site = Site(nvml)
    good, bad = site.devices.reports()
    assert (good.uuid, good.healthy) == ("GPU-0", True)
    assert (bad.uuid, bad.gpu_type, bad.healthy, bad.trouble) == (
        "unidentified-1",
        "A100-SXM4-80GB",
        False,
        "GPU is lost",
    )
    nvml.gpus[1].fails.clear()
    site.later()
    assert [(d.uuid, d.healthy) for d in site.devices.reports()] == [
        ("GPU-0", True),
        ("GPU-1", True),
    ]


def test_a_gpu_known_from_before_keeps_its_uuid_when_lost(tmp_path: Path) -> None:
    nvml = two_gpus()
    Site(nvml, tmp_path / "gpus.json")
    nvml.gpus[1].fails["nvmlDeviceGetHandleByIndex"] = LOST
    reports = Site(nvml, tmp_path / "gpus.json").devices.reports()
    assert [(d.uuid, d.healthy, d.trouble) for d in reports] == [
        ("GPU-0", True, ""),
        ("GPU-1", False, "GPU is lost"),
    ]


def test_a_driver_mismatch_keeps_known_gpus_as_unhealthy(tmp_path: Path) -> None:
    nvml = two_gpus()
    Site(nvml, tmp_path / "gpus.json")
    nvml.fails["nvmlInit"] = MISMATCH
    site = Site(nvml, tmp_path / "gpus.json")
    words = "Driver/library version mismatch"
    assert site.devices.trouble == words
    assert [(d.uuid, d.healthy, d.trouble) for d in site.devices.reports()] == [
        ("GPU-0", False, words),
        ("GPU-1", False, words),
    ]
    nvml.fails.clear()
    assert site.health() == {}
    assert site.devices.trouble == ""


def test_a_lost_gpu_in_place_of_one_of_another_type_has_the_others_type(tmp_path: Path) -> None:
    nvml = two_gpus()
    Site(nvml, tmp_path / "gpus.json")
    replaced = FakeNvml(FakeGpu("GPU-2", "NVIDIA H100"), FakeGpu("GPU-3", "NVIDIA H100"))
    replaced.gpus[1].fails["nvmlDeviceGetHandleByIndex"] = LOST
    reports = Site(replaced, tmp_path / "gpus.json").devices.reports()
    assert [(d.uuid, d.gpu_type) for d in reports] == [
        ("GPU-2", "H100"),
        ("unidentified-1", "H100"),
    ]


def test_nvml_that_fails_while_the_agent_runs_is_begun_anew() -> None:
    nvml = two_gpus()
    site = Site(nvml)
    nvml.fails["nvmlDeviceGetCount"] = UNKNOWN
    assert site.health() == {"GPU-0": "Unknown Error", "GPU-1": "Unknown Error"}
    nvml.fails["nvmlInit"] = MISMATCH
    assert set(site.health().values()) == {"Driver/library version mismatch"}
    nvml.fails.clear()
    assert site.health() == {}


def test_a_driver_mismatch_without_known_gpus_is_told() -> None:
    nvml = two_gpus()
    nvml.fails["nvmlInit"] = MISMATCH
    site = Site(nvml)
    assert site.devices.reports() == ()
    assert site.devices.trouble == "Driver/library version mismatch"


def test_a_machine_without_gpus_and_driver_is_in_no_trouble(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvidia, "has_nvidia_hardware", lambda: False)
    nvml = FakeNvml()
    nvml.fails["nvmlInit"] = 12
    assert (Site(nvml).devices.trouble, Site(nvml).devices.reports()) == ("", ())
    monkeypatch.setattr(nvidia, "has_nvidia_hardware", lambda: True)
    assert Site(nvml).devices.trouble == "NVML Shared Library Not Found"


def test_unified_memory_is_the_machines_and_no_fault() -> None:
    nvml = two_gpus()
    nvml.gpus[0].fails["nvmlDeviceGetMemoryInfo"] = NOT_SUPPORTED
    site = Site(nvml)
    assert site.health() == {}
    assert site.devices.reports()[0].memory_gb == machine.memory_gb()
    assert site.later()[0].memory_used_gb is None


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("nvmlDeviceGetTotalEccErrors", 2, "2 uncorrected ECC errors since its last reset"),
        ("nvmlDeviceGetRemappedRows", (0, 1, 0, 1), "remapping a row of its memory failed"),
        ("nvmlDeviceGetRemappedRows", (0, 1, 1, 0), "waits to be remapped: reset the GPU"),
        ("nvmlDeviceGetRetiredPagesPendingStatus", 1, "waits to be retired: reset the GPU"),
    ],
)
def test_broken_memory_takes_a_gpu_out_of_use(name: str, answer: object, words: str) -> None:
    nvml = two_gpus()
    nvml.gpus[1].answers[name] = answer
    site = Site(nvml)
    assert not site.devices.reports()[1].healthy
    assert words in site.health()["GPU-1"]
    nvml.gpus[1].answers.clear()
    assert site.health() == {}


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("nvmlDeviceGetCurrentClocksEventReasons", 0x40, "as it is too hot"),
        ("nvmlDeviceGetCurrentClocksEventReasons", 0x08, "slowed down by its hardware"),
        ("nvmlDeviceGetRetiredPages", [1, 2], "4 pages of its memory are retired"),
    ],
)
def test_slowing_down_is_a_warning_and_no_fault(name: str, answer: object, words: str) -> None:
    nvml = two_gpus()
    nvml.gpus[1].answers[name] = answer
    sample = Site(nvml).later()[1]
    assert sample.healthy
    assert words in sample.trouble


def test_an_idle_or_capped_gpu_has_no_warning() -> None:
    nvml = two_gpus()
    nvml.gpus[1].answers["nvmlDeviceGetCurrentClocksEventReasons"] = 0x1 | 0x4
    assert Site(nvml).later()[1].trouble == ""


def test_a_warning_stays_for_a_minute_after_its_cause() -> None:
    nvml = two_gpus()
    nvml.gpus[1].answers["nvmlDeviceGetCurrentClocksEventReasons"] = 0x20
    site = Site(nvml)
    nvml.gpus[1].answers.clear()
    assert "too hot" in site.later(30.0)[1].trouble
    assert site.later(31.0)[1].trouble == ""


def test_a_critical_xid_lasts_and_one_of_a_job_does_not_count() -> None:
    nvml = two_gpus()
    site = Site(nvml)
    nvml.events = [Event(nvml.gpus[0], 31), Event(nvml.gpus[1], 79)]
    assert site.health(0.1) == {"GPU-1": "Xid error 79"}
    assert site.health(3600.0) == {"GPU-1": "Xid error 79"}


def test_an_older_pynvml_without_functions_of_health_is_enough() -> None:
    few = ("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo")
    nvml = two_gpus()
    nvml.missing = tuple(name for name in PER_GPU if name not in few)
    nvml.fails["nvmlEventSetCreate"] = 13
    assert Site(nvml).health() == {}


def test_the_older_name_of_throttle_reasons_is_asked_too() -> None:
    class Older(FakeNvml):
        def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: FakeGpu) -> int:
            return 0x40

    nvml = Older(FakeGpu("GPU-0"), missing=("nvmlDeviceGetCurrentClocksEventReasons",))
    assert "too hot" in Site(nvml).later()[0].trouble


def test_each_trouble_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    nvml = two_gpus()
    nvml.gpus[1].fails["nvmlDeviceGetHandleByIndex"] = LOST
    site = Site(nvml)
    for _ in range(5):
        site.later()
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == ["GPU unidentified-1: GPU is lost"]


class TestMig:
    """MIG instances, each a device of its own."""

    def nvml(self) -> FakeNvml:
        names = ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb")
        instances = [FakeGpu(f"MIG-{i}", name) for i, name in enumerate(names)]
        return FakeNvml(FakeGpu("GPU-0", "NVIDIA A100-SXM4-40GB", instances=instances))

    def test_instances_are_devices_of_their_own_type(self) -> None:
        reports = Site(self.nvml()).devices.reports()
        assert [(d.uuid, d.gpu_type, d.parent_uuid, d.mig_profile) for d in reports] == [
            ("MIG-0", "A100-SXM4-40GB MIG 1g.5gb", "GPU-0", "1g.5gb"),
            ("MIG-1", "A100-SXM4-40GB MIG 1g.5gb", "GPU-0", "1g.5gb"),
        ]

    def test_a_job_sees_its_instance_alone(self) -> None:
        devices = Site(self.nvml()).devices
        assert devices.environment(a_spec(devices=("MIG-1",)))["CUDA_VISIBLE_DEVICES"] == "MIG-1"

    def test_instances_fail_with_their_gpu(self) -> None:
        nvml = self.nvml()
        site = Site(nvml)
        nvml.gpus[0].answers["nvmlDeviceGetTotalEccErrors"] = 1
        assert list(site.health()) == ["MIG-0", "MIG-1"]
        nvml.gpus[0].answers.clear()
        nvml.gpus[0].fails["nvmlDeviceGetHandleByIndex"] = LOST
        assert site.health() == {"MIG-0": "GPU is lost", "MIG-1": "GPU is lost"}

    def test_mig_without_instances_is_told(self) -> None:
        devices = Site(FakeNvml(FakeGpu("GPU-0", instances=[]))).devices
        assert devices.reports() == ()
        assert devices.trouble == "GPU 0: MIG is on, and has no instances"

    def test_several_types_are_refused_unless_one_is_named(self) -> None:
        nvml = self.nvml()
        nvml.gpus.append(FakeGpu("GPU-1", "NVIDIA A100-SXM4-40GB"))
        with pytest.raises(MixedTypesError, match=r"2 x A100-SXM4-40GB MIG 1g.5gb, 1 x A100"):
            Site(nvml)
        whole = Site(nvml, gpu_type="A100-SXM4-40GB").devices
        assert [device.uuid for device in whole.reports()] == ["GPU-1"]


def test_a_jobs_gpus_are_files_by_the_drivers_numbers_without_one_that_is_gone() -> None:
    nvml = two_gpus()
    nvml.gpus[1].fails["nvmlDeviceGetHandleByUUID"] = LOST
    devices = NvidiaDevices(nvml)
    assert devices.files(a_spec(devices=("GPU-0", "GPU-1"))) == ("/dev/nvidia3",)
    assert devices.files(a_spec(devices=())) == ()
