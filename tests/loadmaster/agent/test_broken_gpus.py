"""An agent whose GPUs break while it runs: what the server hears, and what becomes of runs."""

from pathlib import Path

from loadmaster.agent.node.nvidia import NvidiaDevices
from loadmaster.agent.runtimes.base import RunId
from loadmaster.protocol import LaunchSpec, ReasonClass
from tests.builders_agent import VirtualWorld, a_spec, an_agent
from tests.builders_nvml import LOST, MISMATCH, FakeNvml, two_gpus
from tests.fake_runtime import Script


def a_world(folder: Path, nvml: FakeNvml, script: Script | None = None) -> VirtualWorld:
    """An agent with these GPUs on a virtual clock."""

    def play(spec: LaunchSpec) -> Script:
        return script or Script()

    world = VirtualWorld(folder, play, lease_s=10.0, heartbeat_s=2.0)
    world.agent.close()
    world.agent = an_agent(
        world.server,
        folder,
        runtime=world.runtime,
        clock=world.clock,
        devices=NvidiaDevices(nvml, clock_s=world.clock.boot_s),
    )
    return world


def on_gpu(uuid: str) -> LaunchSpec:
    return a_spec(devices=(uuid,), gpu_type="A100-SXM4-80GB")


def test_a_gpu_that_breaks_is_told_by_heartbeats(tmp_path: Path) -> None:
    nvml = two_gpus()
    world = a_world(tmp_path, nvml)
    world.pass_time(3)
    assert all(sample.healthy for sample in world.server.beats[-1].devices)
    nvml.gpus[1].fails["nvmlDeviceGetHandleByUUID"] = LOST
    world.pass_time(3)
    good, bad = world.server.beats[-1].devices
    assert (good.healthy, bad.healthy, bad.trouble) == (True, False, "GPU is lost")


def test_gpus_that_appear_open_a_new_session(tmp_path: Path) -> None:
    nvml = two_gpus()
    nvml.fails["nvmlInit"] = MISMATCH
    world = a_world(tmp_path, nvml)
    world.pass_time(30)
    (session,) = world.server.sessions
    assert (session.devices, session.gpu_trouble) == ((), "Driver/library version mismatch")
    assert world.server.beats[-1].gpu_trouble == "Driver/library version mismatch"
    nvml.fails.clear()
    world.pass_time(30)
    assert [device.uuid for device in world.server.sessions[-1].devices] == ["GPU-0", "GPU-1"]
    assert len(world.server.sessions) == 2
    assert world.server.beats[-1].gpu_trouble == ""


def test_an_offer_of_a_broken_gpu_is_rejected_as_the_nodes_fault(tmp_path: Path) -> None:
    nvml = two_gpus()
    nvml.gpus[1].answers["nvmlDeviceGetTotalEccErrors"] = 1
    world = a_world(tmp_path, nvml)
    held = world.server.offer(on_gpu("GPU-1"))
    world.pass_time(5)
    assert held.states == ["rejected"]
    assert held.reports[-1].reason_class is ReasonClass.NODE
    assert "uncorrected ECC errors" in held.reports[-1].reason


def test_a_run_that_fails_on_a_broken_gpu_costs_no_retry(tmp_path: Path) -> None:
    nvml = two_gpus()
    world = a_world(tmp_path, nvml, Script(step_s=10.0, fails_at_step=5))
    held = world.server.offer(on_gpu("GPU-1"))
    world.pass_time(3)
    nvml.gpus[1].fails["nvmlDeviceGetHandleByUUID"] = LOST
    world.pass_time(200)
    report = held.reports[-1]
    assert (report.to, report.reason_class) == ("failed", ReasonClass.GPU)
    assert report.reason.startswith("GPU GPU-1 is unhealthy: GPU is lost; the job ended")
    assert RunId("a1", 1) not in world.runtime.list()
