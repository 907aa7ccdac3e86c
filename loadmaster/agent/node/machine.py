"""The machine: its identity, cores, memory and GPUs."""

import math
import os
import random
import socket
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from loadmaster.agent.node.emulated import Emulation
from loadmaster.files import write_whole
from loadmaster.protocol import DeviceReport, DeviceSample, LaunchSpec

GB = 1e9


@dataclass(frozen=True, slots=True)
class Identity:
    """Names of the machine: `machine_id` is kept in a state folder, `boot_id` is of this boot."""

    machine_id: str
    boot_id: str
    hostname: str


def identity(state_dir: Path) -> Identity:
    """Return the agent's identity, kept in its state folder: a machine may have several agents."""
    path = state_dir / "machine-id"
    if not path.exists():
        write_whole(path, uuid.uuid4().hex.encode(), durable=True)
    return Identity(path.read_text().strip(), boot_id(), socket.gethostname())


def boot_id() -> str:
    """Return the id of the machine's current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def cores() -> float:
    """Return the number of cores that this process may use."""
    return float(len(os.sched_getaffinity(0)))


def memory_gb() -> float:
    """Return the machine's memory in GB (1e9 bytes)."""
    return psutil.virtual_memory().total / GB


def address_towards(server: str) -> str:
    """Return the machine's own address on its route to the server; "" without a route."""
    url = urlsplit(server)
    try:
        addresses = socket.getaddrinfo(url.hostname, url.port or 443, type=socket.SOCK_DGRAM)
        family, kind, proto, _, target = addresses[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(target)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def sockets_of(address: str) -> dict[str, str]:
    """Return variables that make gloo and NCCL use the interface with this address, if any."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(item.address.partition("%")[0] == address for item in addresses):
            return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
    return {}


class Devices:
    """The GPUs a node offers: here none."""

    def reports(self) -> tuple[DeviceReport, ...]:
        """Return the offered devices with their health, for registration and session."""
        return ()

    @property
    def trouble(self) -> str:
        """Reason why GPUs of the machine may be missing from the reports; "": none are."""
        return ""

    def samples(self, busy: Collection[str]) -> tuple[DeviceSample, ...]:
        """Measure health, use and watts; `busy`: uuids that running assignments hold."""
        return ()

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """Return the variables that restrict a job to its devices and share."""
        return {"CUDA_VISIBLE_DEVICES": ""}

    def files(self, spec: LaunchSpec) -> tuple[str, ...]:
        """Return the files below /dev of a job's own GPUs."""
        return ()

    def shared_pace_s(self, kind_name: str, gpus: int, beside: Sequence[str]) -> float | None:
        """Return seconds per step beside jobs of the kinds `beside`.

        inf: they do not fit on one device. None: real GPUs need no pace.
        """
        return None


class EmulatedDevices(Devices):
    """Pacing clocks in place of GPUs."""

    def __init__(
        self, emulation: Emulation, node: str, noise: random.Random | None = None, *, slots: int = 1
    ) -> None:
        self._emulation = emulation
        self._reports = tuple(replace(report, slots=slots) for report in emulation.devices(node))
        self._noise = noise or random.SystemRandom()

    def reports(self) -> tuple[DeviceReport, ...]:
        return self._reports

    def samples(self, busy: Collection[str]) -> tuple[DeviceSample, ...]:
        samples = []
        for device in self._reports:
            is_busy = device.uuid in busy
            samples.append(self._emulation.sample(device.uuid, is_busy, self._noise))
        return tuple(samples)

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """Return variables for no real GPU, one thread per library, and the step time."""
        variables = {
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        pace_s = self._emulation.pace_s(spec.kind_name, max(len(spec.devices), spec.gang_gpus))
        if pace_s is not None:
            variables["LOADMASTER_EMULATED_STEP_S"] = repr(pace_s)
        return variables

    def shared_pace_s(self, kind_name: str, gpus: int, beside: Sequence[str]) -> float | None:
        alone_s = self._emulation.pace_s(kind_name, gpus)
        kept = self._emulation.kept(kind_name, beside)
        if not kept:
            return math.inf
        if alone_s is None:
            return None
        return alone_s / kept
