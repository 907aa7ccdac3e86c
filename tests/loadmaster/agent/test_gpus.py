"""Real GPUs: what NVML says of them, jobs that compute on them in a sandbox, and NVIDIA's MPS."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadmaster.agent.node.mps import PERCENTAGE, PIPES, Mps
from loadmaster.agent.node.nvidia import NvidiaDevices, nvidia_devices
from loadmaster.agent.runtimes.base import Launch
from loadmaster.protocol import LaunchSpec
from tests.builders_agent import a_spec, python
from tests.builders_isolation import IS_ROOT, Site, a_site, an_isolation

pytestmark = pytest.mark.gpu

KERNEL = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 out, .param .u32 turns) {
  .reg .pred %p; .reg .u32 %n, %i; .reg .u64 %a; .reg .f32 %x;
  ld.param.u64 %a, [out]; ld.param.u32 %n, [turns];
  mov.u32 %i, 0; mov.f32 %x, 0f3F800000;
again:
  fma.rn.f32 %x, %x, 0f3F800001, 0f3A83126F;
  add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %n; @%p bra again;
  st.global.f32 [%a], %x; ret;
}
"""

COMPUTE = f"""
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def ok(code): assert code == 0, code
count = ctypes.c_int()
if code := cuda.cuInit(0):
    print("no GPU", code, flush=True)
    sys.exit()
ok(cuda.cuDeviceGetCount(ctypes.byref(count)))
device, context, module, spin = ctypes.c_int(), *(ctypes.c_void_p() for _ in range(3))
ok(cuda.cuDeviceGet(ctypes.byref(device), 0))
ok(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
ok(cuda.cuModuleLoadData(ctypes.byref(module), {KERNEL!r}.encode()))
ok(cuda.cuModuleGetFunction(ctypes.byref(spin), module, b"spin"))
out = ctypes.c_uint64()
ok(cuda.cuMemAlloc_v2(ctypes.byref(out), 4))
turns = ctypes.c_uint32(100_000)
given = (ctypes.c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(turns))
def a_step():
    ok(cuda.cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, None, given, None))
    ok(cuda.cuCtxSynchronize())
a_step()
print("GPUs", count.value, flush=True)
steps, began_s, end_s = 0, time.monotonic(), time.monotonic() + float(os.environ.get("SECONDS", 0))
while time.monotonic() < end_s:
    a_step()
    steps += 1
print("steps", steps, flush=True)
"""
"""Counts the GPUs it sees, and for SECONDS the turns of a kernel that fills a small part of one."""


@pytest.fixture(scope="module")
def devices() -> NvidiaDevices:
    found = nvidia_devices()
    assert isinstance(found, NvidiaDevices), "this machine has no NVIDIA GPU"
    return found


@pytest.fixture
def state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lm-gpus-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "state").mkdir(0o700)
    yield folder / "state"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sandbox", "sandbox and user"] if IS_ROOT else ["sandbox"])
def site(request: pytest.FixtureRequest, state: Path) -> Iterator[Site]:
    changes = {"users": None} if request.param == "sandbox" else {}
    yield from a_site(an_isolation(state, **changes))


def spec_of(devices: NvidiaDevices, count: int) -> LaunchSpec:
    return a_spec(devices=tuple(report.uuid for report in devices.reports()[:count]))


def said_by(site: Site, devices: NvidiaDevices, name: str, *, count: int, of: LaunchSpec) -> str:
    """Output of a job that computes; it is given `count` GPUs, and asks for those of `of`."""
    own = spec_of(devices, count)
    environment = devices.environment(of)
    given: Launch = site.launch(
        name, command=python(COMPUTE), devices=own.devices, gpu_files=devices.files(own)
    )
    launch = replace(given, environment=given.environment | environment)
    assert site.runtime.objection(launch) is None
    site.runtime.prepare(launch)
    site.runtime.start(launch.run, time.clock_gettime(time.CLOCK_BOOTTIME) + 60.0)
    return site.says(launch.run)


def test_nvml_tells_type_memory_use_watts_and_temperature(devices: NvidiaDevices) -> None:
    for report, sample in zip(devices.reports(), devices.samples(()), strict=True):
        assert report.uuid.startswith("GPU-")
        assert report.gpu_type
        assert 1.0 < report.memory_gb < 1000.0
        assert sample.healthy
        assert sample.power_w is not None
        assert 1.0 < sample.power_w < 2000.0
        assert sample.gpu_fraction is not None
        assert 0.0 <= sample.gpu_fraction <= 1.0
        assert sample.temperature_c is not None
        assert 0.0 < sample.temperature_c < 120.0
        assert Path(*devices.files(a_spec(devices=(report.uuid,)))).is_char_device()


def test_a_job_in_a_sandbox_computes_on_the_gpus_it_was_given(
    devices: NvidiaDevices, site: Site
) -> None:
    count = len(devices.reports())
    said = said_by(site, devices, "all", count=count, of=spec_of(devices, count))
    assert said.startswith(f"GPUs {count}\n"), said
    said = said_by(site, devices, "one", count=1, of=spec_of(devices, 1))
    assert said.startswith("GPUs 1\n"), said


def test_a_job_in_a_sandbox_reaches_no_gpu_that_it_was_not_given(
    devices: NvidiaDevices, site: Site
) -> None:
    count = len(devices.reports())
    said = said_by(site, devices, "none", count=0, of=spec_of(devices, count))
    assert said.startswith("no GPU"), said


def test_two_jobs_under_mps_compute_side_by_side(devices: NvidiaDevices, state: Path) -> None:
    mps = Mps.found(state)
    assert mps, "nvidia-cuda-mps-control is not on the PATH"
    half = replace(spec_of(devices, 1), share=0.5)
    shared = NvidiaDevices(devices.nvml.library, 2, mps).environment(half)
    alone = {name: value for name, value in shared.items() if name not in (PIPES, PERCENTAGE)}
    try:
        assert shared[PERCENTAGE] == "50"
        by_turns, side_by_side = (sum(_steps(own)) for own in (alone, shared))
        print(f"steps in 3 s of two jobs: by turns {by_turns}, with MPS {side_by_side}")
        assert side_by_side > 1.5 * by_turns
    finally:
        own = os.environ | {PIPES: shared[PIPES]}
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=own, timeout=30)


def _steps(variables: dict[str, str]) -> list[int]:
    """Steps of two jobs that share a GPU."""
    environment = os.environ | variables | {"SECONDS": "3"}
    command, pipe = [sys.executable, "-c", COMPUTE], subprocess.PIPE
    jobs = [subprocess.Popen(command, env=environment, stdout=pipe, text=True) for _ in range(2)]
    said = [job.communicate(timeout=60)[0] for job in jobs]
    assert all(text.startswith("GPUs 1\n") for text in said), said
    return [int(text.split()[-1]) for text in said]
