"""Admission of offers, and the environment a job is started with. Pure."""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from loadmaster.agent.journal import Entry
from loadmaster.agent.runtimes.base import RunId, Warned, is_safe_id
from loadmaster.features import FEATURES
from loadmaster.protocol import PROTOCOL_VERSION, DeviceReport, LaunchSpec, ReasonClass
from loadmaster.slurm.options.values import end_signal
from loadmaster.training.gangs.connection import join_address, parse_address

PASSED_ON = ("HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "TMPDIR")
"""The agent's variables that jobs inherit."""

PROFILING = "profiling"
"""Purpose of the launch of a profile run."""


def objection(
    spec: LaunchSpec,
    offer: RunId,
    *,
    runtime: str,
    devices: Iterable[DeviceReport],
    live: Iterable[Entry],
) -> tuple[ReasonClass, str] | None:
    """Return why this node cannot run the offer, with the class of the reason; None if it can.

    `runtime`: name of the agent's runtime; `live`: entries of the journal that have not ended.
    """
    # 1. The user's fault: nothing to run.
    if not spec.command and not spec.script:
        return ReasonClass.USER, "the command is empty"

    # 2. Faults of the node or the server: the specification, the ranks' address, the devices.
    unknown_features = set(spec.required_features) - FEATURES
    offered = (PROTOCOL_VERSION, offer.assignment, offer.fence)
    if unknown_features:
        names = ", ".join(sorted(unknown_features))
        problem = f"this agent does not know: {names}; install a newer one"
    elif (spec.version, spec.assignment, spec.fence) != offered:
        problem = "the specification is not that of the offer"
    elif not is_safe_id(spec.assignment) or not is_safe_id(spec.job):
        problem = (
            "ids of job and assignment may hold letters, digits, dot, dash and underscore only"
        )
    elif spec.runtime != runtime:
        problem = f"this agent runs jobs by the runtime {runtime}, not {spec.runtime}"
    elif spec.world_size > 1 and meeting_place(spec) is None:
        problem = (
            "the node of rank 0 has no address where other ranks reach it: docs/agent.md, Gangs"
        )
    else:
        problem = _device_problem(spec, devices, live)
    if not problem:
        return None
    return ReasonClass.NODE, problem


def _device_problem(
    spec: LaunchSpec, devices: Iterable[DeviceReport], live: Iterable[Entry]
) -> str:
    """Return why the launch cannot have its devices; "" if it can."""
    # 1. Are they here, and healthy?
    offered = {device.uuid: device for device in devices}
    for uuid in spec.devices:
        if uuid not in offered:
            return f"device {uuid} is not on this node"
        if not offered[uuid].healthy:
            return f"device {uuid} is unhealthy: {offered[uuid].trouble}"

    # 2. Does another assignment still hold the slot of one?
    for entry in live:
        held = set(entry.devices) & set(spec.devices)
        if held and entry.slot == spec.slot and entry.assignment != spec.assignment:
            device = f"device {min(held)} (slot {spec.slot})"
            return f"{device} is still held by assignment {entry.assignment}"
    return ""


def node_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that a job inherits from the agent; none can hold its tokens."""
    inherited = {name: environ[name] for name in PASSED_ON if name in environ}
    path = environ.get("PATH", os.defpath)
    # If the agent runs in a virtual environment, jobs run in it, too.
    if sys.prefix != sys.base_prefix:
        inherited["VIRTUAL_ENV"] = sys.prefix
        path = f"{Path(sys.prefix) / 'bin'}:{path}"
    return {"LANG": "C.UTF-8", **inherited, "PATH": path}


def contract(spec: LaunchSpec, checkpoints: Path) -> dict[str, str]:
    """Return the variables that the training library reads, except the run's folder."""
    variables = {
        "LOADMASTER_CHECKPOINT_DIR": str(checkpoints),
        "LOADMASTER_FENCE": str(spec.fence),
        "LOADMASTER_ASSIGNMENT": spec.assignment,
        "LOADMASTER_JOB": spec.job,
        "LOADMASTER_STEPS": str(spec.steps),
        "LOADMASTER_RANK": str(spec.rank if spec.world_size > 1 else 0),
        "LOADMASTER_WORLD_SIZE": str(spec.world_size),
        "LOADMASTER_GPU_TYPE": spec.gpu_type,
        "LOADMASTER_GPUS": str(len(spec.devices)),
        "LOADMASTER_DEVICES": ",".join(spec.devices),
        "LOADMASTER_CHECKPOINT_EVERY_S": str(spec.checkpoint_every_s),
    }
    if spec.steps_quota is not None:
        variables["LOADMASTER_STEPS_QUOTA"] = str(spec.steps_quota)
    return {**variables, **gang_contract(spec), **hosts_contract(spec)}


def meeting_place(spec: LaunchSpec) -> tuple[str, int] | None:
    """Return host and port where the gang meets; None if the specification names none."""
    try:
        return parse_address(spec.rendezvous)
    except ValueError:
        return None


def gang_contract(spec: LaunchSpec) -> dict[str, str]:
    """Return the variables by which a gang's ranks find each other: PyTorch's and the library's."""
    place = meeting_place(spec)
    if spec.world_size <= 1 or place is None:
        return {}
    host, port = place
    return {
        "RANK": str(spec.rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "LOADMASTER_GANG": join_address(host, port + 1),
        "LOADMASTER_GANG_TOKEN": spec.gang_token,
    }


def hosts_contract(spec: LaunchSpec) -> dict[str, str]:
    """Return the variables by which a batch job finds the nodes of its seats, and its own seat."""
    if not spec.hosts:
        return {}
    return {
        "LOADMASTER_SEAT": str(spec.rank),
        "LOADMASTER_HOSTS": ",".join(host.name for host in spec.hosts),
        "LOADMASTER_HOST_ADDRESSES": ",".join(host.address or host.name for host in spec.hosts),
        "LOADMASTER_HOST_UNITS": ",".join(str(host.units) for host in spec.hosts),
        "LOADMASTER_UNITS": str(sum(host.units for host in spec.hosts)),
    }


def signal_of(spec: LaunchSpec) -> Warned | None:
    """Return the signal that a launch gets before its end, and which of its processes get it."""
    if not spec.signal:
        return None
    warning = end_signal(spec.signal)
    # Slurm's B: means the first process alone. Else the steps of a script get the signal, or all
    # processes of a command.
    receivers = "all"
    if warning.first:
        receivers = "first"
    elif spec.script:
        receivers = "steps"
    return Warned(warning.number, warning.before_s, receivers)


def checkpoint_folder(spec: LaunchSpec, state_dir: Path, checkpoints: Path) -> Path:
    """Return the folder of a job's checkpoints.

    A profile run has one of its own. Others have the folder that the job names, if it is an
    absolute path, or one of the job's below the node's folder `checkpoints`.
    """
    if spec.purpose == PROFILING:
        return state_dir / "runs" / RunId(spec.assignment, spec.fence).name / "checkpoints"
    place = Path(spec.checkpoint_place)  # "" is not absolute
    if place.is_absolute():
        return place
    return checkpoints / spec.job


def launch_environment(
    spec: LaunchSpec, folder: Path, *, node: Mapping[str, str], devices: Mapping[str, str]
) -> dict[str, str]:
    """Return a job's variables. Its own replace the node's, devices and contract replace both."""
    return {**node, **spec.environment, **spec.secrets, **devices, **contract(spec, folder)}
