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
    """`machine_id` is stable for a state folder; `boot_id` changes at every boot."""

    machine_id: str
    boot_id: str
    hostname: str


def identity(state_dir: Path) -> Identity:
    """This agent's identity, kept in its state folder, as a machine may have several."""
    path = state_dir / "machine-id"
    if not path.exists():
        write_whole(path, uuid.uuid4().hex.encode(), durable=True)
    return Identity(path.read_text().strip(), boot_id(), socket.gethostname())


def boot_id() -> str:
    """The id of the machine's present boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def cores() -> float:
    """Number of cores this process may use."""
    return float(len(os.sched_getaffinity(0)))


def memory_gb() -> float:
    """The machine's memory in GB (1e9 bytes)."""
    return psutil.virtual_memory().total / GB


def address_towards(server: str) -> str:
    """This machine's own address on the way to the server; empty where there is no way."""
    where = urlsplit(server)
    try:
        found = socket.getaddrinfo(where.hostname, where.port or 443, type=socket.SOCK_DGRAM)
        family, kind, proto, _, target = found[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(target)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def sockets_of(address: str) -> dict[str, str]:
    """Variables that make gloo and NCCL use the interface with an address; {} if there is none."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(item.address.partition("%")[0] == address for item in addresses):
            return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
    return {}


class Devices:
    """The GPUs a node offers: here none."""

    def reports(self) -> tuple[DeviceReport, ...]:
        """Offered devices with their health, for registration and session."""
        return ()

    @property
    def trouble(self) -> str:
        """Reason why GPUs of the machine may be missing from the reports; empty: none are."""
        return ""

    def samples(self, busy: Collection[str]) -> tuple[DeviceSample, ...]:
        """Health, use and watts now; `busy` are the uuids that running assignments hold."""
        return ()

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """Variables that restrict a job to its devices and share."""
        return {"CUDA_VISIBLE_DEVICES": ""}

    def files(self, spec: LaunchSpec) -> tuple[str, ...]:
        """Files below /dev of a job's own GPUs."""
        return ()

    def shared_pace_s(self, kind_name: str, gpus: int, beside: Sequence[str]) -> float | None:
        """Seconds per step beside these kinds; inf: they do not fit; None: not known here."""
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
        uuids = (device.uuid for device in self._reports)
        return tuple(self._emulation.sample(u, u in busy, self._noise) for u in uuids)

    def environment(self, spec: LaunchSpec) -> dict[str, str]:
        """No real GPU, one thread per library, and the step time."""
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        pace_s = self._emulation.pace_s(spec.kind_name, max(len(spec.devices), spec.gang_gpus))
        pace = {} if pace_s is None else {"LOADMASTER_EMULATED_STEP_S": repr(pace_s)}
        return {"CUDA_VISIBLE_DEVICES": "", **threads, **pace}

    def shared_pace_s(self, kind_name: str, gpus: int, beside: Sequence[str]) -> float | None:
        alone_s = self._emulation.pace_s(kind_name, gpus)
        if not (kept := self._emulation.kept(kind_name, beside)):
            return math.inf
        return None if alone_s is None else alone_s / kept
